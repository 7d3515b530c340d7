"""C23: tied embeddings at both ends of a pipeline. C31: layers that the stages do not divide."""

import re
from pathlib import Path

import pytest

from megalite.checkpoint.format import read_index
from megalite.checkpoint.load import read_tensor
from megalite.checkpoint.place import find
from tests.cases.fixtures import WHOLE, Materials, same
from tests.cases.harness import Outcome, Program
from tests.parallel.harness import soak

TIED = {"tie_word_embeddings": True}
WORD = "embedding.word.weight"
BESIDE = {
    "pp2-dp2": "",
    "pp2-dp2, overlapped": "--overlap-grad-reduce --ddp-bucket-size 2000",
    "pp2-dp2, sharded": "--use-distributed-optimizer",
    "pp2-dp2, sharded and overlapped": (
        "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 2000"
    ),
    "tp2-pp2": "",
    "pp2": "--pipeline-schedule zb-v",
}
FP16 = "--fp16 --initial-loss-scale 1024"
SHOWN = ("pp2-dp2", "pp2-dp2, sharded and overlapped", "pp2")


def parameters(outcome: Outcome) -> str:
    """The number of parameters that the log tells."""
    [count] = re.findall(r"([\d,]+) parameters", outcome.said[0])
    return count


@pytest.mark.parametrize("optimizer", ["sgd", pytest.param("adam", marks=pytest.mark.soak)])
@pytest.mark.parametrize("beside", [name if name in SHOWN else soak(name) for name in BESIDE])
def test_tied_embeddings_stay_one(
    program: Program, materials: Materials, tmp_path: Path, beside: str, optimizer: str
) -> None:
    words = f"{materials.run(**TIED)} --data-path {materials.corpus()} {WHOLE} --optimizer {optimizer}"
    found, alone = tmp_path / "found", tmp_path / "alone"
    outcome = program(beside.partition(",")[0], words, BESIDE[beside], f"--save {found} --save-interval 20")
    reference = program("one", words, f"--save {alone} --save-interval 20")
    same(outcome, reference)
    assert parameters(outcome) == parameters(reference)
    assert "head.weight" not in read_index(find(found)).tensors
    off = (read_tensor(find(found), WORD) - read_tensor(find(alone), WORD)).abs().mean()
    assert off < 1e-5


def test_tied_embeddings_stay_one_in_fp16(program: Program, materials: Materials, tmp_path: Path) -> None:
    """PARITY to the precision: the two ends hold the same numbers, bit by bit, or the run would have stopped."""
    checked = "--check-weight-hash-across-dp-replicas-interval 5"
    words = f"{materials.run(**TIED)} --data-path {materials.corpus()} {WHOLE} {FP16} {checked}"
    outcome = program(
        "pp2-dp2", words, BESIDE["pp2-dp2, sharded and overlapped"], f"--save {tmp_path} --save-interval 20"
    )
    reference = program("one", words)
    assert outcome.losses == pytest.approx(reference.losses, rel=2e-3)
    assert outcome.norms == pytest.approx(reference.norms, rel=2e-2)
    assert "head.weight" not in read_index(find(tmp_path)).tensors


SPLITS = {
    "10 layers, 2 a stage, pp 2": (
        "pp2",
        10,
        "--num-layers-per-virtual-pipeline-stage 2",
        r"num-layers 10 .* 2 x \S+ 2\.",
    ),
    "5 layers, pp 2": ("pp2", 5, "", ""),
    "7 layers, pp 4": ("pp4", 7, "", ""),
    "3 layers, pp 4": ("pp4", 3, "", r"3\b.*\b4\b|4\b.*\b3\b"),
    "a first stage too large": ("pp2", 4, "--decoder-first-pipeline-num-layers 5", r"5\b.*\b4\b|4\b.*\b5\b"),
    "a wrong sum": (
        *("pp2", 4, "--decoder-first-pipeline-num-layers 1 --decoder-last-pipeline-num-layers 2"),
        r"1 and \S+ 2: that leaves 1 of --num-layers 4 ",
    ),
    "a wrong sum on one rank": ("one", 4, "--decoder-last-pipeline-num-layers 3", r"3\b.*\b4\b|4\b.*\b3\b"),
    "a given first stage": ("pp2", 5, "--decoder-first-pipeline-num-layers 2", ""),
}
"""A layout, layers, flags; and what says no, naming the two numbers, where that is right."""


@pytest.mark.parametrize("split", SPLITS)
def test_no_layer_is_left_out(program: Program, materials: Materials, tmp_path: Path, split: str) -> None:
    layout, layers, flags, refusal = SPLITS[split]
    words = f"{materials.run(num_hidden_layers=layers)} --data-path {materials.corpus()} {WHOLE} --train-iters 2"
    outcome = program(layout, words, flags, f"--save {tmp_path} --save-interval 2")
    if refusal:
        assert outcome.status != 0 and re.search(refusal, outcome.said[0]), outcome.said[0]
        assert not list(tmp_path.iterdir())
        return
    reference = program("one", words)
    same(outcome, reference, iterations=2)
    assert parameters(outcome) == parameters(reference)
    numbers = {name.split(".")[1] for name in read_index(find(tmp_path)).tensors if name.startswith("layers.")}
    assert numbers == {str(number) for number in range(layers)}
