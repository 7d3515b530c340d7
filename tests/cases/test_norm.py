"""C25: one gradient norm for the whole model."""

import pytest

from tests.cases.fixtures import SEQUENCE, WHOLE, Materials, same
from tests.cases.harness import ALL, OTHERS, Program

GRADS = "--use-distributed-optimizer --data-parallel-sharding-strategy optim_grads"
FP16 = "--fp16 --initial-loss-scale 1024"


def data(materials: Materials) -> str:
    return f"--data-path {materials.corpus()} {WHOLE} --clip-grad 0.05 --optimizer sgd"


@pytest.mark.parametrize("model", ["llama", "gpt"])
@pytest.mark.parametrize("layout", OTHERS)
def test_clipped_runs_agree(program: Program, materials: Materials, layout: str, model: str) -> None:
    words = (materials.run() if model == "llama" else materials.fresh_gpt(), data(materials))
    one = program("one", *words)
    assert min(one.norms) > 0.05, "clipping was never active"
    same(program(layout, *words), one)


def test_it_is_logged_by_one_rank(program: Program, materials: Materials) -> None:
    found = program("tp2", materials.run(), data(materials))
    assert [said.count("grad norm") for said in found.said] == [20, 0]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("layout", ALL)
def test_it_is_that_of_plain_transformers(program: Program, materials: Materials, layout: str, tied: bool) -> None:
    sizes = {"tie_word_embeddings": True} if tied else {}
    word = materials.documents("word", [[17] * 500] * 4)
    found = program(layout, materials.run(**sizes), f"--data-path {word} {WHOLE} --train-iters 1 --clip-grad 0.05")
    oracle, sample = materials.oracle(**sizes), [17] * (SEQUENCE + 1)
    assert found.losses == pytest.approx([oracle.mean([sample])], rel=1e-4)
    assert found.norms == pytest.approx([oracle.gradient_norm(sample)], rel=1e-3)


def test_zero_clips_nothing_and_still_logs(program: Program, materials: Materials) -> None:
    run = (materials.run(), f"--data-path {materials.corpus()} {WHOLE} --optimizer sgd")
    never, beyond, always = (program("one", *run, f"--clip-grad {limit}") for limit in ("0", "1e9", "0.05"))
    assert never.losses == beyond.losses and never.norms == beyond.norms and min(never.norms) > 0
    assert never.losses[0] == always.losses[0] and never.norms[0] == always.norms[0]
    assert never.losses[1:] != always.losses[1:]


@pytest.mark.parametrize(
    ("layout", "flags"),
    [("dp2", "--use-distributed-optimizer"), ("dp2", GRADS), pytest.param("tp2-pp2", "", marks=pytest.mark.soak)],
)
def test_it_is_the_same_in_fp16_without_the_scale(
    program: Program, materials: Materials, layout: str, flags: str
) -> None:
    words = (materials.fresh_gpt(), data(materials), FP16)
    one, found = program("one", *words), program(layout, *words, flags)
    assert one.status == found.status == 0, found.said
    assert found.losses == pytest.approx(one.losses, rel=2e-3)
    assert found.norms == pytest.approx(one.norms, rel=2e-2)
    exact = program("one", *words[:2])
    assert found.norms[0] == pytest.approx(exact.norms[0], rel=2e-2)
