"""C47: weights are loaded, and the optimizer does not go on with the random ones."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.cases.fixtures import COURSE, PROBE, WHOLE, Materials
from tests.cases.harness import Program
from tests.cases.test_resuming import SMALL
from tests.parallel.harness import soak
from tools import convert_checkpoint


@pytest.fixture(scope="module")
def trained(program: Program, materials: Materials, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """START for C47: 200 iterations, after which the loss is far below ln 320."""
    folder = tmp_path_factory.mktemp("c47")
    course = (
        f"{SMALL} {COURSE} {materials.tokenizer()} --data-path {materials.corpus()} {WHOLE} --lr 1e-2 --min-lr 1e-2"
    )
    found = program("one", course, f"--train-iters 200 --save {folder}/run --save-interval 200")
    assert found.status == 0 and found.losses[-1] < 3.5, found.losses
    shutil.copytree(folder / "run", folder / "weights")
    for file in (folder / "weights").glob("*/optimizer-*"):
        file.unlink()
    return folder


def exported(root: Path) -> dict[str, torch.Tensor]:
    target = root.with_name(f"{root.name}-hf")
    if not target.exists():
        assert convert_checkpoint.main(f"--from megalite --to hf --load {root} --save {target}".split()) == 0
    return load_file(target / "model.safetensors")


C47 = [
    ("one", "--finetune", ""),
    ("one", "--no-load-optim", "--bf16"),
    ("dp2-sharded", "--finetune", "--bf16"),
    ("tp2-sp", "--no-load-optim", "--fp16"),
    ("pp2", "deleted", "--bf16"),
]
C47_ALL = [
    (layout, how, precision)
    for layout in ("one", "dp2", "dp2-sharded", "tp2", "pp2")
    for how in ("--finetune", "--no-load-optim", "deleted")
    for precision in ("", "--bf16", "--fp16")
]


@pytest.mark.parametrize(("layout", "how", "precision"), C47 + [soak(*row) for row in C47_ALL if row not in C47])
def test_c47_weights_alone(
    program: Program, materials: Materials, trained: Path, tmp_path: Path, layout: str, how: str, precision: str
) -> None:
    source, flag = (trained / "run", how) if how != "deleted" else (trained / "weights", "--no-load-optim")
    course = f"{SMALL} {COURSE} {materials.tokenizer()} --data-path {materials.corpus()} {WHOLE} {precision}"
    schedule = "--override-opt_param-scheduler --allow-other-data --initial-loss-scale 4096"
    given = f"{course} --load {source} {flag} {schedule} --train-iters {5 if how == '--finetune' else 205}"
    found = program(layout, given, "--lr 1e-6 --min-lr 1e-6")
    assert found.status == 0, found.said
    probe = program(layout, given, f"{PROBE} --save {tmp_path}/probe --save-interval 2")
    assert probe.status == 0, probe.said
    # Batches differ from each other by more than 2 percent: each is held against itself under weights that stand still.
    assert len(found.losses) == 5 and max(found.losses) < 3
    assert found.losses == pytest.approx(probe.losses, rel=0.02)
    before, after = exported(trained / "run"), exported(tmp_path / "probe")
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor.to(after[name].dtype)), name


def test_c47_a_deleted_optimizer_is_told(program: Program, materials: Materials, trained: Path) -> None:
    course = f"{SMALL} {COURSE} {materials.tokenizer()} --data-path {materials.corpus()} {WHOLE} --train-iters 205"
    found = program("dp2", course, f"--load {trained}/weights --override-opt_param-scheduler --allow-other-data")
    assert found.status == 1
    assert "missing file: optimizer-00000.safetensors" in found.said[0]
    assert "--no-load-optim starts without the state of the optimizer" in found.said[0]
