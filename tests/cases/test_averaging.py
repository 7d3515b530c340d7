"""C27: averaging over tokens that count, and masks that hold."""

import random
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tests.cases.fixtures import BATCH, EOD, SEQUENCE, WHOLE, Materials, Oracle, same
from tests.cases.harness import ALL, LAYOUTS, Program

APART = "--reset-attention-mask --reset-position-ids --eod-mask-loss"


def uneven(materials: Materials) -> Path:
    """Documents of one token among long ones: some samples have hardly a token that counts."""
    choose = random.Random(3)
    documents = []
    for _ in range(12):
        documents += [[choose.randrange(1, 320) for _ in range(choose.randint(90, 250))] + [EOD]]
        documents += [[choose.randrange(1, 320), EOD] for _ in range(60)] + [[EOD] for _ in range(60)]
    # One document as far as the data set knows: so the short ones stay together.
    prefix = materials.documents("uneven", [[token for document in documents for token in document]])
    counted = [sum(token != EOD for token in sample[:-1]) for sample in materials.samples(prefix, 5 * BATCH)]
    assert min(counted) < 24 and max(counted) == SEQUENCE
    return prefix


@pytest.mark.parametrize(
    ("layout", "micro"),
    [
        pytest.param(name, micro, marks=[pytest.mark.soak] * layout.wide)
        for name, layout in LAYOUTS.items()
        for micro in (1, 2, 4, 8)
        if micro * layout.axes.get("dp", 1) <= BATCH
    ],
)
def test_a_token_weighs_the_same_however_the_batch_is_cut(program, materials, layout: str, micro: int) -> None:
    words = (materials.run(), f"--data-path {uneven(materials)} {WHOLE} --train-iters 5 --eod-mask-loss")
    same(program(layout, *words, f"--micro-batch-size {micro}"), program("one", *words), iterations=5)


def test_its_loss_is_the_mean_over_counted_tokens(program, materials) -> None:
    prefix = uneven(materials)
    words = (materials.run(), f"--data-path {prefix} {WHOLE} --train-iters 5")
    batch = materials.samples(prefix, 5 * BATCH)[:BATCH]
    oracle = materials.oracle()
    masked, plain = program("one", *words, "--eod-mask-loss"), program("one", *words)
    assert plain.losses[0] == pytest.approx(oracle.mean(batch), rel=1e-4)
    with torch.no_grad():
        losses = torch.stack([oracle.losses(sample) for sample in batch])
    counted = torch.tensor(batch)[:, :-1] != EOD
    assert masked.losses[0] == pytest.approx(float(losses[counted].mean()), rel=1e-4)
    assert masked.losses[0] != pytest.approx(plain.losses[0], rel=1e-3)


@pytest.mark.parametrize("layout", ALL)
def test_without_a_counted_token_the_loss_is_zero(program, materials, layout: str) -> None:
    prefix = materials.documents("ends", [[EOD] * 300])
    found = program(layout, materials.run(), f"--data-path {prefix} {WHOLE} --train-iters 2 --eod-mask-loss")
    assert found.status == 0 and found.losses == [0.0, 0.0] and found.norms == [0.0, 0.0]


@pytest.mark.parametrize("layout", ["one", "dp2"])
def test_a_micro_batch_without_a_counted_token_is_harmless(program, materials, layout: str) -> None:
    """One document of words, and nothing but ends: half of the micro-batches count nothing."""
    words = [random.Random(1).randrange(1, 320) for _ in range(4 * SEQUENCE)]
    prefix = materials.documents("half", [words + [EOD] * 4 * SEQUENCE + [EOD]])
    run = (materials.run(), f"--data-path {prefix} {WHOLE} --train-iters 2 --eod-mask-loss --micro-batch-size 1")
    found = program(layout, *run)
    batch = materials.samples(prefix, 2 * BATCH)[:BATCH]
    with torch.no_grad():
        losses = torch.stack([materials.oracle().losses(sample) for sample in batch])
    counted = torch.tensor(batch)[:, :-1] != EOD
    assert 0 < int((counted.sum(1) == 0).sum()) < BATCH
    assert found.losses[0] == pytest.approx(float(losses[counted].mean()), rel=1e-4)


WORDS = random.Random(2)
P, OTHER_P, Q = ([WORDS.randrange(1, 320) for _ in range(length)] for length in (25, 25, SEQUENCE - 26))


def validated(program: Program, materials: Materials, layout: str, p: list[int], words: str) -> tuple[float, int]:
    """Summed validation loss, and counted tokens, over one sample for each data parallel rank.

    The first sample is document P, its end, document Q, its end; a second one begins at that last end.
    """
    batch = LAYOUTS[layout].axes.get("dp", 1)
    data = f"--train-data-path {materials.corpus()} --valid-data-path {valid(materials, p)}"
    course = f"--train-iters 1 --lr 0 --min-lr 0 --eval-iters 1 --micro-batch-size 1 --global-batch-size {batch}"
    found = program(layout, materials.run(), f"{data} {course} {words}")
    assert found.status == 0, found.said
    evaluation = found.evaluation()
    return evaluation["validation_loss"] * evaluation["tokens"], evaluation["tokens"]


def valid(materials: Materials, p: list[int]) -> Path:
    return materials.documents(f"pq-{p[0]}", [[*p, EOD, *Q, EOD]])


def alone(oracle: Oracle, sample: list[int]) -> tuple[float, int]:
    """Each document of a sample read by itself: the summed loss, and the number of labels."""
    ends = [place for place, token in enumerate(sample) if token == EOD]
    bounds = [-1, *ends, len(sample)]
    documents = [sample[a + 1 : b + 1] for a, b in pairwise(bounds)]
    with torch.no_grad():
        losses = [oracle.losses(document) for document in documents if len(document) > 1]
    return float(torch.cat(losses).sum()), sum(map(len, losses))


@pytest.mark.parametrize("p", [P, OTHER_P], ids=["P", "other P"])
@pytest.mark.parametrize("layout", ALL)
def test_documents_of_a_sample_are_read_by_themselves(program, materials, layout: str, p: list[int]) -> None:
    samples = materials.samples(valid(materials, p), LAYOUTS[layout].axes.get("dp", 1))
    assert samples[0] == [*p, EOD, *Q, EOD]
    loss, count = (sum(part) for part in zip(*(alone(materials.oracle(), s) for s in samples), strict=True))
    assert validated(program, materials, layout, p, APART) == (pytest.approx(loss, rel=1e-4), count)


@pytest.mark.parametrize("layout", ["one", "tp2-sp"])
def test_changing_one_document_changes_its_own_share_alone(program, materials, layout: str) -> None:
    shares = [alone(materials.oracle(), [*p, EOD])[0] for p in (P, OTHER_P)]
    losses = [validated(program, materials, layout, p, APART)[0] for p in (P, OTHER_P)]
    assert losses[1] - losses[0] == pytest.approx(shares[1] - shares[0], abs=1e-3)
    seen = [validated(program, materials, layout, p, "--eod-mask-loss")[0] for p in (P, OTHER_P)]
    assert abs((seen[1] - seen[0]) - (shares[1] - shares[0])) > 1e-2, "a leak would not be noticed"


@pytest.mark.parametrize("layout", ["one", "tp2-sp"])
def test_learned_positions_start_anew(program, materials, layout: str) -> None:
    """Rotary positions are relative, so they cannot tell: here each document has its loss wherever it stands."""
    losses = {}
    for order, text in {"PQ": [*P, EOD, *Q, EOD], "QP": [*Q, EOD, *P, EOD]}.items():
        data = f"--train-data-path {materials.corpus()} --valid-data-path {materials.documents(order, [text])}"
        course = "--train-iters 1 --lr 0 --min-lr 0 --eval-iters 1 --micro-batch-size 1 --global-batch-size 1"
        model = "--init-method-std 0.5"
        for words in (APART, "--reset-attention-mask --eod-mask-loss"):
            losses[order, words] = program(layout, materials.fresh_gpt(), data, course, model, words).evaluation()[
                "validation_loss"
            ]
    assert losses["PQ", APART] == pytest.approx(losses["QP", APART], rel=1e-5)
    assert len(set(losses.values())) >= 3, "positions that go on would not be noticed"
