"""Which stage gets which layers: every layer once, whatever is asked for, and as even as can be."""

import itertools

import pytest

from megalite.arith.parameters import layer_matrices
from megalite.config.cli import parse
from megalite.config.pipeline import pipeline
from megalite.config.pipeline_layout import layout_stages, to_layout
from megalite.config.schema import Config
from megalite.config.size import model_size
from megalite.schedule.partition import Stage, deal, describe, partition

SIZES = "--hidden-size 64 --num-attention-heads 4 --seq-length 32"
"""Layers of 12 x 64^2 matrix elements."""
SHORT = {
    "L": "--num-layers",
    "pp": "--pipeline-model-parallel-size",
    "v": "--num-virtual-stages-per-pipeline-rank",
    "n": "--num-layers-per-virtual-pipeline-stage",
    "first": "--decoder-first-pipeline-num-layers",
    "last": "--decoder-last-pipeline-num-layers",
    "layout": "--pipeline-model-parallel-layout",
    "emb": "--account-for-embedding-in-pipeline-split",
    "loss": "--account-for-loss-in-pipeline-split",
    "schedule": "--pipeline-schedule",
}


def config(short: str) -> Config:
    words = [part for word in short.split() for part in (SHORT[word.partition("=")[0]], word.partition("=")[2]) if part]
    parsed = parse([*SIZES.split(), *words])
    assert not parsed.problems
    return parsed.config


def split(short: str, vocab_size: int = 0) -> tuple[Stage, ...]:
    found = config(short)
    return partition(found.model, found.parallel, vocab_size=vocab_size)


@pytest.mark.parametrize(
    ("flags", "layers"),
    [
        ("L=4 pp=1", [4]),
        ("L=8 pp=4", [2, 2, 2, 2]),
        ("L=8 pp=2 v=2", [2, 2, 2, 2]),
        ("L=12 pp=2 n=2", [2, 2, 2, 2, 2, 2]),
        ("L=4 pp=2 n=2", [2, 2]),
        ("L=8 pp=2 schedule=zb-v", [2, 2, 2, 2]),
        # Not divisible: the middle has more.
        ("L=5 pp=2", [3, 2]),
        ("L=7 pp=4", [2, 2, 2, 1]),
        ("L=6 pp=4", [1, 2, 2, 1]),
        ("L=9 pp=4 v=2", [1, 1, 1, 2, 1, 1, 1, 1]),
        # Embedding and loss count as layers.
        ("L=6 pp=4 v=2 emb loss", [0, 1, 1, 1, 1, 1, 1, 0]),
        ("L=7 pp=4 emb", [1, 2, 2, 2]),
        ("L=7 pp=4 loss", [2, 2, 2, 1]),
        ("L=7 pp=2 n=4 loss", [4, 3]),
        ("L=7 pp=4 emb loss", [1, 3, 2, 1]),
        # The ends are given: of ranks, whose stages share them.
        ("L=12 pp=4 first=2", [2, 3, 4, 3]),
        ("L=13 pp=4 first=2 last=2", [2, 5, 4, 2]),
        ("L=12 pp=4 first=2 last=2 v=2", [1, 2, 2, 1, 1, 2, 2, 1]),
        ("L=12 pp=2 first=3 last=2 schedule=zb-v", [3, 4, 3, 2]),
        ("L=4 pp=1 last=4", [4]),
        ("L=4 pp=1 first=4 last=4", [4]),
        ("L=4 pp=2 first=1 last=3", [1, 3]),
        # Laid out.
        ("L=3 pp=6 layout=E|(t|)*3|L", [0, 1, 1, 1, 0, 0]),
        ("L=3 pp=3 layout=E|(t|)*3|L", [0, 1, 1, 1, 0, 0]),
        ("L=12 pp=3 layout=Et*3|((t,)*2|)*4,tL", [3, 2, 2, 2, 2, 1]),
        ("L=2 pp=1 layout=EttL", [2]),
        ("L=4 pp=1 layout=Et|t*3L schedule=zb-v", [1, 3]),
    ],
)
def test_layers_of_stages(flags, layers):
    assert [len(stage.layers) for stage in split(flags)] == layers


@pytest.mark.parametrize("pp", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("more", ["", "v=2", "v=3", "emb", "emb loss v=2", "schedule=zb-v", "first=2", "last=3 v=1"])
@pytest.mark.parametrize("vocab_size", [0, 3000])
def test_every_layer_exists_once(pp, more, vocab_size):
    """Or the two numbers that do not go together are named: never fewer layers than asked for."""
    kept = 0
    for layers in range(1, 31):
        try:
            stages = split(f"L={layers} pp={pp} {more}", vocab_size)
        except ValueError as error:
            assert f"--num-layers {layers}" in str(error)
            continue
        kept += 1
        asked = config(f"L={layers} pp={pp} {more}")
        assert len(stages) == pipeline(asked.model, asked.parallel).num_stages
        assert [stage.number for stage in stages] == list(range(len(stages)))
        assert [layer for stage in stages for layer in stage.layers] == list(range(layers))
        assert [stage.embedding for stage in stages] == [True] + [False] * (len(stages) - 1)
        assert [stage.loss for stage in stages] == [False] * (len(stages) - 1) + [True]
    assert kept > 0


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("L=10 pp=2 n=2", "--num-layers 10 is not divisible by --pipeline-model-parallel-size 2 x --num-layers-per-"),
        ("L=10 pp=2 n=3 emb", "--num-layers 10 + 1 for embedding and loss is not divisible by"),
        ("L=2 pp=4", "--pipeline-model-parallel-size 4 are more stages than --num-layers 2. Try --pipeline-model-par"),
        (
            "L=5 pp=3 v=2",
            "3 x 2 stages a rank are more stages than --num-layers 5. Try --pipeline-model-parallel-size 2,",
        ),
        ("L=3 pp=4 v=2", "--num-layers 3. Try --pipeline-model-parallel-size 3 with one stage a rank"),
        (
            "L=4 pp=1 last=2",
            "--decoder-last-pipeline-num-layers 2: that leaves 2 of --num-layers 4 for 0 other pipeline",
        ),
        ("L=4 pp=1 last=2 first=2", "Try --decoder-first-pipeline-num-layers 4 --decoder-last-pipeline-num-layers 4."),
        ("L=4 pp=2 last=4 first=2", "leaves -2 of --num-layers 4 for 0 other pipeline ranks. Try --decoder-first-pipe"),
        (
            "L=4 pp=4 first=2",
            "leaves 2 of --num-layers 4 for 3 other pipeline ranks. Try --decoder-first-pipeline-num-layers 1",
        ),
        (
            "L=12 pp=4 v=2 first=3",
            "--decoder-first-pipeline-num-layers 3 is not divisible by the 2 stages of a rank. Try 4",
        ),
        ("L=13 pp=4 v=2 first=2", "--num-layers 13 is not divisible by the 2 stages of a rank. Try 14."),
        ("L=12 pp=2 first=9 last=2 schedule=zb-v", "leaves 1 of --num-layers 12 for 2 other stages. Try"),
        ("L=6 pp=8 layout=E|(t|)*3,m|m||L", "'E|(t|)*3,m|m||L' has m, a layer that predicts further tokens"),
        ("L=3 pp=3 layout=E|t*3|L|L", "'E|t*3|L|L' must have one E, first of all, and one L, last of all."),
        ("L=3 pp=3 layout=t*3|L", "must have one E, first"),
        ("L=3 pp=3 layout=|Et*3|L", "must have one E, first"),
        ("L=3 pp=3 layout=Et*3|L|", "must have one E, first"),
        (
            "L=3 pp=3 layout=E(t|L",
            "has '('. It is written with E, t, L and |, and with repeats such as t*3 and (t|)*3.",
        ),
        ("L=3 pp=3 layout=E|((t*999|)*999)*999|L", "repeats"),
        ("L=3 pp=2 layout=E|t*3|L", "has 3 stages, no multiple of --pipeline-model-parallel-size 2."),
        ("L=4 pp=2 layout=E|t*3L", "'E|t*3L' has 3 layers, but --num-layers is 4. Try 'Ett|ttL'."),
        (
            "L=4 pp=2 layout=Ett|ttL schedule=zb-v",
            "has 2 stages, but --pipeline-model-parallel-size 2 x 2 stages a rank",
        ),
    ],
)
def test_what_cannot_be_split(flags, text):
    with pytest.raises(ValueError) as error:
        split(flags)
    assert text in str(error.value)


@pytest.mark.parametrize("layers", [5, 7, 10, 11])
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("vocab_size", [0, 500, 2000, 5000])
def test_no_other_split_has_a_smaller_largest_stage(layers, stages, vocab_size):
    """Against every contiguous split there is; the head weighs as much as its matrix."""
    if layers % stages == 0:
        return
    found = config(f"L={layers} pp={stages}")
    layer, head = layer_matrices(model_size(found.model, vocab_size=vocab_size)), 64 * vocab_size
    assert layer == 12 * 64**2

    def largest(counts):
        return max([*(count * layer for count in counts[:-1]), counts[-1] * layer + head])

    every = (c for c in itertools.product(range(layers + 1), repeat=stages) if sum(c) == layers)
    best = min(map(largest, every))
    assert largest([len(stage.layers) for stage in split(f"L={layers} pp={stages}", vocab_size)]) == best


def test_a_heavy_head_has_fewer_layers_beside_it():
    assert [len(stage.layers) for stage in split("L=13 pp=4", vocab_size=2 * 12 * 64)] == [4, 4, 4, 1]
    assert [len(stage.layers) for stage in split("L=12 pp=4", vocab_size=2 * 12 * 64)] == [3, 3, 3, 3], "as Megatron"


def test_a_layout_is_written_as_it_is_read():
    for counts in ([3], [0, 1, 2, 12], [2, 0, 0]):
        stages = layout_stages(to_layout(counts))
        assert [stage.count("t") for stage in stages] == counts


def test_shares_beside_what_is_held():
    assert deal(0, [0, 0]) == [0, 0]
    assert deal(5, [0, 9, 0]) == [3, 0, 2]


def test_stages_are_described():
    assert describe(split("L=4 pp=5 layout=E|ttt|t||L"), [0, 1, 2, 3, 4]) == [
        "stage 0: embedding (pipeline rank 0)",
        "stage 1: layers 0-2 (pipeline rank 1)",
        "stage 2: layer 3 (pipeline rank 2)",
        "stage 3: nothing (pipeline rank 3)",
        "stage 4: loss (pipeline rank 4)",
    ]
    assert str(split("L=2 pp=1")[0]) == "stage 0: embedding, layers 0-1, loss"
