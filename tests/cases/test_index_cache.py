"""C19: two jobs, many ranks, one index cache. What one process sees of a cache is in tests/unit/test_gpt_dataset.py."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from megalite.data.indexed_writer import IndexedWriter
from tests.cases.fixtures import WHOLE, Materials
from tests.cases.harness import ROOT, command

pytestmark = pytest.mark.soak


def job(materials: Materials, prefix: Path, cache: Path, log: Path) -> subprocess.Popen[str]:
    """RUN 2, in a group of its own."""
    words = f"{materials.run()} --data-path {prefix} {WHOLE} --data-cache-path {cache} --log-jsonl {log} --device cpu"
    return subprocess.Popen(
        [*command(2), *words.split()],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def losses(started: subprocess.Popen[str], log: Path) -> list[float]:
    said, _ = started.communicate(timeout=120)
    assert started.returncode == 0, said
    return [record["lm_loss"] for record in map(json.loads, log.read_text().splitlines()) if "lm_loss" in record]


@pytest.fixture(scope="module")
def alone(materials: Materials, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    folder = tmp_path_factory.mktemp("alone")
    return losses(job(materials, materials.corpus(), folder / "cache", folder / "log"), folder / "log")


@pytest.mark.parametrize("attempt", range(5))
def test_three_jobs_at_once(materials: Materials, alone: list[float], tmp_path: Path, attempt: int) -> None:
    logs = [tmp_path / f"log{number}" for number in range(3)]
    jobs = [job(materials, materials.corpus(), tmp_path / "cache", log) for log in logs]
    assert [losses(started, log) for started, log in zip(jobs, logs, strict=True)] == [alone] * 3
    assert len(alone) == 20
    assert not [path for path in (tmp_path / "cache").iterdir() if path.suffix not in (".npy", ".txt")]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents enough that building takes a while."""
    prefix = tmp_path_factory.mktemp("many") / "many"
    random = np.random.default_rng(0)
    with IndexedWriter(prefix, np.dtype("uint16")) as writer:
        for _ in range(8):
            lengths = random.integers(1, 8, 1_000_000)
            writer.add_documents(random.integers(0, 320, lengths.sum()), lengths)
    return prefix


@pytest.fixture(scope="module")
def undisturbed(materials: Materials, many: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return losses(job(materials, many, folder / "cache", folder / "log"), folder / "log")


@pytest.mark.parametrize("later", [0.0, 0.05, 0.5])
def test_a_job_killed_while_it_builds(
    materials: Materials, many: Path, undisturbed: list[float], tmp_path: Path, later: float
) -> None:
    cache = tmp_path / "cache"
    killed = job(materials, many, cache, tmp_path / "killed")
    until = time.monotonic() + 60
    while not (cache.exists() and any(cache.iterdir())):
        assert killed.poll() is None and time.monotonic() < until
        time.sleep(0.001)
    time.sleep(later)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    again = losses(job(materials, many, cache, tmp_path / "again"), tmp_path / "again")
    assert again == undisturbed and len(again) == 20
    assert not list(cache.glob(".*"))
