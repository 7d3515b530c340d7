"""What the order of training samples follows from, as a checkpoint keeps it: described, and compared.

`consumed samples` is a place in one order: in another one, the samples after it may have come before, and some of those
before it never do.
"""

import hashlib
from collections.abc import Mapping, Sequence
from math import isclose
from typing import Any

import numpy as np

from megalite.data.blend import BlendedDataset
from megalite.data.gpt_dataset import Corpus, GPTDataset

PROBES, PROBE_TOKENS = 64, 256
"""Documents looked into, and how far, to know a corpus again."""


def describe_order(dataset: GPTDataset | BlendedDataset) -> dict[str, Any]:
    """The order of a data set as plain data; alike where the samples and their order are."""
    parts = dataset.datasets if isinstance(dataset, BlendedDataset) else [dataset]
    return {
        "seed": parts[0].seed,
        "seq_length": parts[0].seq_length,
        "weights": list(dataset.weights) if isinstance(dataset, BlendedDataset) else [1.0],
        "corpora": [
            {
                "prefix": part.corpus.prefix,
                "content": _content(part.corpus),
                "documents": [part.sequences.start, part.sequences.stop],
                "epochs": part.plan.epochs,
                "last_apart": part.plan.separate,
            }
            for part in parts
        ],
    }


def _content(corpus: Corpus) -> str:
    """A digest that a corpus keeps where it is moved or copied, and that one of other texts has not."""
    lengths = corpus.lengths
    digest = hashlib.sha256(f"{len(lengths)} {lengths.sum(dtype=np.int64)}".encode())
    for sequence in np.linspace(0, len(lengths) - 1, min(PROBES, len(lengths)), dtype=np.int64).tolist():
        tokens = corpus.get(sequence, 0, min(PROBE_TOKENS, int(lengths[sequence])))
        digest.update(tokens.astype(np.int64).tobytes())
    return digest.hexdigest()


def order_differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """A line for each thing that gives other samples, or another order; none where a checkpoint says nothing."""
    if not here or not there:
        return []
    flags = {"seed": "--seed", "seq_length": "--seq-length", "dataloader_type": "--dataloader-type"}
    lines = [
        f"{flag}: {here.get(name)} here, {there.get(name)} there"
        for name, flag in flags.items()
        if here.get(name) != there.get(name)
    ]
    ours, theirs = here["corpora"], there["corpora"]
    if [part["content"] for part in ours] != [part["content"] for part in theirs]:
        return [*lines, f"--data-path: {_prefixes(ours)} here, {_prefixes(theirs)} there, and the documents differ"]
    if not all(map(isclose, here["weights"], there["weights"])):
        lines.append(f"--data-path: weights {_rounded(here['weights'])} here, {_rounded(there['weights'])} there")
    for part, their in zip(ours, theirs, strict=True):
        if part["documents"] != their["documents"]:
            (a, b), (c, d) = part["documents"], their["documents"]
            lines.append(f"--split: documents {a} to {b - 1} of {part['prefix']} here, {c} to {d - 1} there")
        if (part["epochs"], part["last_apart"]) != (their["epochs"], their["last_apart"]):
            lines.append(
                f"the samples asked for make {_epochs(part)} of {part['prefix']} here, {_epochs(their)} there, which "
                "are shuffled as one: --train-iters, --train-samples"
            )
    return lines


def _prefixes(parts: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(part["prefix"] for part in parts)


def _rounded(weights: Sequence[float]) -> str:
    return " ".join(f"{weight:.6g}" for weight in weights)


def _epochs(part: Mapping[str, Any]) -> str:
    count = f"{part['epochs']} epoch{'s' * (part['epochs'] > 1)}"
    return f"{count}, the last one apart," if part["last_apart"] else count
