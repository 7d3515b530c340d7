"""C43 for conversions: whatever a kill leaves is whole or not there, and the next conversion goes through.

A kill leaves the disk as it was at that moment, so the folder is copied at every flush: before it, after it, and with
what is written in between not yet complete. And processes are killed, at random moments.
"""

import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from megalite.checkpoint.format import read_index
from megalite.checkpoint.hf.exporting import export_folder
from megalite.checkpoint.hf.importing import import_folder
from megalite.checkpoint.load import check_checksums
from megalite.checkpoint.place import find
from tests.families import make
from tests.parallel.harness import soak

AGAIN = 3
"""After every so many moments the conversion is started again."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    make("llama", folder / "hf", max_shard_size="30KB")
    import_folder(folder / "hf", folder / "ours")
    return folder


def moments(work: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, convert: Callable[[], object]) -> list[Path]:
    """The folder `work` at every flush and every rename during a conversion."""
    found: list[Path] = []

    def recorded(function: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            for act in (lambda: None, lambda: function(*arguments)):
                act()
                found.append(kept / f"{len(found):03d}")
                shutil.copytree(work, found[-1])

        return call

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", recorded(os.fsync))
        for name in ("rename", "replace"):
            patch.setattr(f"os.{name}", recorded(getattr(os, name)))
        convert()
    return found


def weights(folder: Path) -> dict[str, Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


@pytest.mark.parametrize("over", [False, True], ids=["fresh", "over an older one"])
def test_an_import_is_whole_or_not_there(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over: bool
) -> None:
    work, unseen = tmp_path / "work", 0
    work.mkdir()
    if over:
        import_folder(source / "hf", work / "ours", dtype=torch.bfloat16)
    taken = moments(work, tmp_path / "kept", monkeypatch, lambda: import_folder(source / "hf", work / "ours"))
    assert len(taken) > 12
    for number, left in enumerate(taken):
        try:
            checkpoint = find(left / "ours")
        except ValueError:
            assert not over  # the older one never goes out of sight
            unseen += 1
        else:
            assert not check_checksums(checkpoint, read_index(checkpoint), read_index(checkpoint).files)
        for half in left.glob("ours/.*.saving"):
            if half.is_dir() and not (half / "index.json").is_file():
                with pytest.raises(ValueError, match=r"is not a complete checkpoint|there is no checkpoint"):
                    export_folder(find(half), left / "hf")
        if number % AGAIN == 0:
            again = import_folder(source / "hf", left / "ours").directory
            assert not check_checksums(again, read_index(again), read_index(again).files)
    assert over or unseen > 5


@pytest.mark.parametrize("over", [False, True], ids=["fresh", "over an older one"])
def test_an_export_is_whole_or_not_there(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over: bool
) -> None:
    work, checkpoint = tmp_path / "work", find(source / "ours")
    work.mkdir()
    expected = weights(source / "hf")
    if over:
        export_folder(checkpoint, work / "back", max_file_bytes=20_000)
    taken = moments(
        work,
        tmp_path / "kept",
        monkeypatch,
        lambda: export_folder(checkpoint, work / "back", max_file_bytes=40_000),
    )
    assert len(taken) > 12
    for number, left in enumerate(taken):
        for again in (False, True) if number % AGAIN == 0 else (False,):
            if again:
                export_folder(checkpoint, left / "back", max_file_bytes=40_000)
            if (left / "back").exists():
                held = weights(left / "back")
                assert held.keys() == expected.keys() and all(torch.equal(held[k], expected[k]) for k in held)
                assert (left / "back" / "config.json").is_file()
        if number % AGAIN == 0:
            assert sorted(path.name for path in left.iterdir()) == ["back"]


def check_import(root: Path) -> None:
    checkpoint = find(root)
    assert not check_checksums(checkpoint, read_index(checkpoint), read_index(checkpoint).files)


@pytest.mark.parametrize("kills", [4, soak(60)])
@pytest.mark.parametrize("direction", ["import", "export"])
def test_a_killed_process_leaves_nothing_under_the_final_name(
    source: Path, tmp_path: Path, direction: str, kills: int
) -> None:
    expected, checkpoint = weights(source / "hf"), find(source / "ours")

    def convert(target: Path) -> None:
        if direction == "import":
            import_folder(source / "hf", target)
        else:
            export_folder(checkpoint, target, max_file_bytes=20_000)

    def check(target: Path) -> None:
        if direction == "import":
            check_import(target)
        else:
            held = weights(target)
            assert held.keys() == expected.keys() and all(torch.equal(held[k], expected[k]) for k in held)

    started = time.monotonic()
    convert(tmp_path / "whole")
    lasts, draws = time.monotonic() - started, random.Random(kills)
    unseen, context = 0, multiprocessing.get_context("fork")
    for number in range(kills):
        target = tmp_path / str(number)
        process = context.Process(target=convert, args=(target,))
        process.start()
        # The first is killed as soon as it is there.
        time.sleep(lasts * (0 if number == 0 else draws.uniform(0, 1.2)))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        if (target / "release").exists() if direction == "import" else target.exists():
            # A release that the tracker does not name yet is whole, too.
            check(target / "release" if direction == "import" else target)
        else:
            unseen += 1
        convert(target)
        check(target)
    assert unseen
