"""C17: more than 2^31 tokens, more than 4 GiB of offsets."""

import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from megalite.data.indexed import HEADER, MAGIC, VERSION, IndexedCorpus
from megalite.data.merge import merge
from tests.cases.fixtures import PROBE, Materials, read_back
from tests.cases.harness import ROOT, Program

LENGTHS = np.array([1_200_000_000, 1_200_000_000, 300], "<i4")
TOKENS = 2_400_000_300
WORD = 7
SIZES = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 44}
SEQUENCE = 256


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A sparse file of 4.8 GB: id 0, and at the end 300 times WORD."""
    prefix = tmp_path_factory.mktemp("big") / "big"
    ends = np.cumsum(LENGTHS, dtype="<i8") * 2
    with Path(f"{prefix}.bin").open("wb") as file:
        file.truncate(int(ends[1]))
        file.seek(0, 2)
        file.write(np.full(LENGTHS[2], WORD, "<u2").tobytes())
    offsets, documents = np.insert(ends[:-1], 0, 0), np.arange(4, dtype="<i8")
    header = HEADER.pack(MAGIC, VERSION, 8, 3, 4)
    Path(f"{prefix}.idx").write_bytes(header + LENGTHS.tobytes() + offsets.tobytes() + documents.tobytes())
    yield prefix
    Path(f"{prefix}.bin").unlink()


def flags(materials: Materials, prefix: Path) -> str:
    return (
        f"{materials.run(**SIZES)} --data-path {prefix} --split 67,33,0 --seq-length {SEQUENCE} --train-iters 2 "
        f"--max-position-embeddings {SEQUENCE} --eval-iters 1 --eval-interval 1 {PROBE}"
    )


def test_what_lies_beyond_4_gib_is_read(program: Program, materials: Materials, big: Path) -> None:
    found = program("one", flags(materials, big))
    assert found.status == 0, found.said
    [said] = found.said
    assert f"{TOKENS} tokens" in said and not re.search(r"(?<!\S)-\d|overflow", said), said
    constant = [materials.oracle(**SIZES).mean([[word] * (SEQUENCE + 1)]) for word in (0, WORD)]
    assert found.losses == pytest.approx([constant[0]] * 2, rel=1e-5)
    assert found.evaluation()["validation_loss"] == pytest.approx(constant[1], rel=1e-5)
    assert constant[0] != pytest.approx(constant[1], rel=1e-3)


@pytest.mark.soak
def test_start_up_is_short_and_small(materials: Materials, big: Path) -> None:
    words = [sys.executable, "pretrain_gpt.py", *flags(materials, big).split(), "--device", "cpu"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 2 << 20


@pytest.mark.soak
def test_it_can_be_merged(materials: Materials, big: Path, tmp_path: Path) -> None:
    merged = merge([str(big), str(materials.corpus())], str(tmp_path / "both"))
    try:
        assert merged.tokens == TOKENS + IndexedCorpus(materials.corpus()).tokens
        assert merged[2].tolist() == [WORD] * 300
        assert [merged[index].tolist() for index in range(3, len(merged))] == read_back(materials.corpus())
    finally:
        Path(f"{tmp_path}/both.bin").unlink()
