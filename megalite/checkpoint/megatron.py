"""Checkpoints of Megatron-LM in its legacy `torch` format, read into a release checkpoint.

    ROOT/latest_checkpointed_iteration.txt     an iteration, or `release`
    ROOT/iter_0000123/mp_rank_TT/model_optim_rng.pt         without pipeline parallelism
    ROOT/iter_0000123/mp_rank_TT_PPP/model_optim_rng.pt     with it; TT the tensor parallel rank, PPP the stage

A file holds the arguments of the run, and under `model`, or `model0`, `model1` ... where a rank has several chunks, the
tensors of this rank. Layers are numbered anew in each chunk. Files are read as data; nothing of them is run.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from megalite.checkpoint.foreign import ForeignTensor, check_tensors
from megalite.checkpoint.hf.tokenizer import tokenizer_files
from megalite.checkpoint.megatron_args import read_args
from megalite.checkpoint.megatron_rows import HEAD, WORD, megatron_rows
from megalite.checkpoint.pickle_reader import Inert, Make, Name
from megalite.checkpoint.place import RELEASE, TRACKER, folder_name
from megalite.checkpoint.release import ExtraFiles, Imported, write_release
from megalite.checkpoint.torch_file import StoredTensor, read_torch_file, stand_in

_FILE = "model_optim_rng.pt"
_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_FUSED_NORMS = {
    "self_attention.linear_qkv.layer_norm_": "input_layernorm.",
    "mlp.linear_fc1.layer_norm_": "pre_mlp_layernorm.",
}
"""Where Transformer Engine's layers hold the norms before them, and their names elsewhere."""
_INERT = (
    "megatron.", "transformer_engine.", "argparse.Namespace", "types.SimpleNamespace", "numpy.", "pathlib.",
    "torch.nn.functional.", "torch._C._nn.", "_io.BytesIO", "datetime.timedelta", "signal.",
)  # fmt: skip
"""What arguments and random states are made of: kept as what the file says of it, never made."""


def find_megatron(root: Path, step: int | None = None) -> Path:
    """The folder of the ranks: `root` itself, that of iteration `step`, or the one that the tracker names."""
    if step is None and any(root.glob(f"mp_rank_*/{_FILE}")):
        return root
    if step is not None:
        folder = root / folder_name(step)
    else:
        if not (root / TRACKER).is_file():
            raise ValueError(f"{root} holds neither {TRACKER} nor mp_rank_*/{_FILE}")
        text = (root / TRACKER).read_text().strip()
        if text != RELEASE and not text.isdecimal():
            raise ValueError(f"{root / TRACKER} must hold an iteration or `{RELEASE}`, not {text[:80]!r}")
        folder = root / folder_name(None if text == RELEASE else int(text))
    if any(folder.glob("*.distcp")) or (folder / "metadata.json").is_file():
        raise ValueError(
            f"{folder} is in the format torch_dist, which megalite does not read. Let Megatron-LM save it once more "
            "with --ckpt-convert-format torch."
        )
    if not any(folder.glob(f"mp_rank_*/{_FILE}")):
        raise ValueError(f"{folder} holds no mp_rank_*/{_FILE}")
    return folder


def import_megatron(
    source: Path,
    root: Path,
    *,
    vocab_size: int | None = None,
    tokenizer: Path | None = None,
    dtype: torch.dtype | None = None,
    extra_files: ExtraFiles = lambda model, tokenizer: {},
) -> Imported:
    """Write the folder `source` (see `find_megatron`) as the release checkpoint under `root`.

    `vocab_size` is that of the tokenizer, where the arguments do not say it: rows above it are padding, and are left
    out. `tokenizer` is a folder whose files go along. Raises ValueError with all that cannot be expressed or does not
    fit, before anything is written.
    """
    ranks = _read_ranks(source)
    first = ranks[0, 0]
    model = read_args(first.args, vocab_size=vocab_size)
    tp = first.args["tensor_model_parallel_size"]
    held = _whole_names(ranks, tp=tp, pp=first.args["pipeline_model_parallel_size"], layers=model["num_layers"])
    rows = list(megatron_rows(model, tp=tp, padded=first.args["padded_vocab_size"]))
    of_rank_0 = [row.parts[0].name.removeprefix("0/") for row in rows if len(row.parts) == 1]
    copies = {f"{t}/{name}": f"0/{name}" for name in of_rank_0 for t in range(1, tp)}
    if not model["untie_embeddings_and_output_weights"]:  # the last of several stages holds a copy
        copies |= {f"{t}/{HEAD}": f"{t}/{WORD}" for t in range(tp)}
    check_tensors(source, held, rows, copies=copies, ignored=("._extra_state",))
    samples = first.args.get("consumed_train_samples")
    origin = {"iteration": first.iteration, "consumed_train_samples": samples if type(samples) is int else None}
    return write_release(
        root,
        held,
        rows,
        model=model,
        origin={"megatron": origin},
        tokenizer={} if tokenizer is None else tokenizer_files(tokenizer),
        dtype=dtype,
        extra_files=extra_files,
    )


@dataclass(frozen=True, kw_only=True)
class _Rank:
    """What one rank saved: its arguments, and the tensors of its chunks."""

    args: Mapping[str, Any]
    iteration: int | None
    chunks: tuple[Mapping[str, ForeignTensor], ...]


def _read_ranks(source: Path) -> dict[tuple[int, int], _Rank]:
    """All ranks by (tensor parallel rank, stage)."""
    start = next((source / name for name in ("mp_rank_00", "mp_rank_00_000") if (source / name).is_dir()), None)
    if start is None:
        raise ValueError(f"{source} holds no mp_rank_00 and no mp_rank_00_000")
    args = _read_rank(start / _FILE).args
    tp, pp = args.get("tensor_model_parallel_size"), args.get("pipeline_model_parallel_size")
    if type(tp) is not int or type(pp) is not int or not 0 < tp <= 4096 or not 0 < pp <= 4096:
        raise ValueError(f"{start} was saved at tensor parallel size {tp} and pipeline parallel size {pp}")
    names = {
        (t, p): f"mp_rank_{t:02d}" if pp == 1 else f"mp_rank_{t:02d}_{p:03d}" for p in range(pp) for t in range(tp)
    }
    missing = [name for name in names.values() if not (source / name / _FILE).is_file()]
    if missing:
        raise ValueError(f"{source} was saved by {tp} x {pp} ranks, and lacks the files of {', '.join(missing[:20])}")
    return {rank: _read_rank(source / name / _FILE) for rank, name in names.items()}


def _read_rank(path: Path) -> _Rank:
    content = read_torch_file(path, _known)
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no dictionary")
    args, version = content.get("args"), content.get("checkpoint_version")
    if not isinstance(args, Inert) or not isinstance(args.state, dict):
        raise ValueError(f"{path} holds no arguments of Megatron-LM")
    if version != 3.0:
        raise ValueError(f"{path} has checkpoint_version {version}; megalite reads 3.0, whose queries lie by groups")
    keys = ["model"] if "model" in content else [f"model{n}" for n in range(len(content)) if f"model{n}" in content]
    chunks = [content[key] for key in keys]
    if not chunks or not all(isinstance(chunk, dict) for chunk in chunks):
        raise ValueError(f"{path} holds no `model` and no `model0`")
    if any("language_model" in chunk for chunk in chunks):
        raise ValueError(f"{path} was saved by the models before Megatron Core (--use-legacy-models), which differ")
    iteration = content.get("iteration")
    return _Rank(
        args=args.state,
        iteration=iteration if type(iteration) is int else None,
        chunks=tuple(_tensors(path, chunk) for chunk in chunks),
    )


def _tensors(path: Path, chunk: Mapping[str, Any]) -> dict[str, ForeignTensor]:
    """The tensors of a chunk under one name each, wherever its norms lie."""
    held: dict[str, ForeignTensor] = {}
    for stored, tensor in chunk.items():
        name = stored
        for fused, apart in _FUSED_NORMS.items():
            name = name.replace(fused, apart)
        if name in held:
            raise ValueError(f"{path} holds {name} twice")
        if isinstance(tensor, StoredTensor):
            held[name] = ForeignTensor(file=path, shape=tensor.shape, dtype=tensor.dtype, read=tensor.read)
        elif not name.endswith("._extra_state"):
            raise ValueError(f"{stored} in {path} is no tensor")
    return held


def _known(name: str) -> Make | None:
    if name == "builtins.getattr":  # how some versions of Python write the member of an enumeration
        return _member
    return partial(stand_in, name) if name.startswith(_INERT) else None


def _member(owner: Any, member: Any) -> Inert:
    if not isinstance(owner, Name) or not owner.name.startswith("megatron."):
        raise ValueError("its pickle calls getattr on something else than a class of Megatron-LM")
    return Inert(name=f"{owner.name}.{member}")


def _whole_names(ranks: Mapping[tuple[int, int], _Rank], *, tp: int, pp: int, layers: int) -> dict[str, ForeignTensor]:
    """The tensors of all ranks as `TP RANK/NAME`, with the layers' numbers in the whole model.

    Chunks follow each other as the data pass them: chunk 0 of every stage, then chunk 1 of every stage.
    """
    held: dict[str, ForeignTensor] = {}
    for t in range(tp):
        passed = 0
        for chunk in range(len(ranks[t, 0].chunks)):
            for p in range(pp):
                if len(ranks[t, p].chunks) != len(ranks[t, 0].chunks):
                    raise ValueError(f"stages 0 and {p} hold different numbers of chunks")
                found = ranks[t, p].chunks[chunk]
                numbers = {int(match[1]) for name in found if (match := _LAYER.fullmatch(name))}
                for name, tensor in found.items():
                    match = _LAYER.fullmatch(name)
                    whole = name if match is None else f"decoder.layers.{passed + int(match[1])}.{match[2]}"
                    if f"{t}/{whole}" in held:
                        raise ValueError(f"two stages hold {whole}")
                    held[f"{t}/{whole}"] = tensor
                if numbers != set(range(len(numbers))):
                    raise ValueError(f"stage {p} holds the layers {sorted(numbers)} of its chunk {chunk}")
                passed += len(numbers)
        if passed != layers:
            raise ValueError(f"the stages hold {passed} layers, and num_layers is {layers}")
    return held
