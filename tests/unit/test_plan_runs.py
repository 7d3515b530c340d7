"""The planner against runs that were measured elsewhere; their tables are no part of the repository."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT.parent / "shared" / "plan_data"
TABLE = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"the tables of runs are not in {FOLDER}")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("plan")


@TABLE
@pytest.mark.parametrize("table", ["flops", "memory"])
def test_flops_and_memory_keep_their_limits(bench: ModuleType, table: str) -> None:
    assert getattr(bench, table)(FOLDER)


@TABLE
def test_times_keep_their_limits(bench: ModuleType) -> None:
    assert bench.times(bench.timed(FOLDER), bench.MACHINES)


@TABLE
def test_layouts_of_one_node_are_ranked(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    cases = [case for case in bench.timed(FOLDER) if case.source == "vTrain single-node"]
    assert bench.choices(cases, bench.MACHINES), capsys.readouterr().out


@TABLE
def test_a_limit_that_is_not_kept_is_told(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    slow = {name: bench.Rates(matmul=0.4) for name in bench.MACHINES}
    cases = [case for case in bench.timed(FOLDER) if case.machine == "selene"]
    assert not bench.times(cases, slow)
    assert ": NO" in capsys.readouterr().out


def test_order_is_counted_in_pairs(bench: ModuleType) -> None:
    assert bench.kendall([1, 2, 3], [10, 20, 30]) == 1
    assert bench.kendall([3, 2, 1], [10, 20, 30]) == -1
    assert bench.kendall([1, 3, 2], [10, 20, 30]) == pytest.approx(1 / 3)


def test_without_tables_the_benchmark_says_so(bench: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--data", str(tmp_path / "none")])
