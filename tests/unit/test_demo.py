"""The demo's own parts: steps that are done once, and the model that it is measured against."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from examples.demo import demo
from examples.demo.bigram import Bigram, discount, smoothed
from examples.demo.demo import Runner, Step


def appending(path: Path, text: str, status: int = 0) -> Step:
    """A step whose command leaves a letter for every time that it ran on what is there."""
    program = f"import sys; open({str(path)!r}, 'a').write({text!r}); sys.exit({status})"
    return Step(title="Append", command=(sys.executable, "-c", program), makes=(path,))


def test_a_step_is_done_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made, log = tmp_path / "made", tmp_path / "log"
    step = appending(made, "x")
    watcher = Step(title="Watch", command=(sys.executable, "-c", f"open({str(log)!r}, 'a').write('w')"), makes=())
    for _ in range(2):
        runner = Runner(tmp_path)
        runner.run(step)
        runner.run(watcher)
    assert "Done before" in capfd.readouterr().out
    assert made.read_text() == "x" and log.read_text() == "ww"


def test_a_step_is_done_anew_after_another_forerunner(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    count = tmp_path / "count"
    second_step = Step(
        title="Second",
        command=(sys.executable, "-c", f"open({str(count)!r}, 'a').write('x'); open({str(second)!r}, 'w')"),
        makes=(second,),
    )
    for text in ("a", "a", "b", "a"):
        runner = Runner(tmp_path)
        runner.run(appending(first, text))
        runner.run(second_step)
    assert first.read_text() == "a" and count.read_text() == "xxx"


def test_a_lost_result_is_made_again(tmp_path: Path) -> None:
    made = tmp_path / "made"
    Runner(tmp_path).run(appending(made, "x"))
    made.unlink()
    Runner(tmp_path).run(appending(made, "x"))
    assert made.read_text() == "x"


def test_a_failure_stops_and_leaves_nothing_half_made(tmp_path: Path) -> None:
    made = tmp_path / "made"
    for _ in range(2):
        with pytest.raises(SystemExit, match="status 3"):
            Runner(tmp_path).run(appending(made, "x", status=3))
    assert made.read_text() == "x"  # the second run did not append to what the first left


def test_a_failed_repetition_is_not_taken_for_done(tmp_path: Path) -> None:
    made, broken = tmp_path / "made", tmp_path / "broken"
    program = f"import pathlib, sys; open({str(made)!r}, 'w'); sys.exit(pathlib.Path({str(broken)!r}).exists())"
    step = Step(title="Once well", command=(sys.executable, "-c", program), makes=(made,))
    Runner(tmp_path).run(step)
    made.unlink()
    broken.touch()
    for _ in range(2):
        with pytest.raises(SystemExit):
            Runner(tmp_path).run(step)


@pytest.mark.parametrize(("seconds", "iters"), [(0.1, 680), (330 / 680, 680), (0.5, 660), (3.0, 100), (60.0, 20)])
def test_a_slow_machine_gets_fewer_iterations(seconds: float, iters: int, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"iteration": 1, "iteration_time": 9.9}) + "\n" + json.dumps({"iteration_time": seconds}))
    assert demo.affordable_iters(log, 680) == iters


def test_commands_are_shown_as_typed() -> None:
    command = (str(Path.cwd() / ".venv/bin/python"), "tools/generate.py", "--prompt", "import os\n")
    assert demo.shown(command) == ".venv/bin/python tools/generate.py --prompt 'import os\n'"


class TestBigram:
    def test_probabilities_sum_to_one(self) -> None:
        tokens = np.random.RandomState(0).zipf(1.3, 4000) % 50
        bigram = Bigram(tokens, 64)
        for before in (0, 1, 7, 63):  # 63 never occurs
            rows = np.stack([np.full(64, before), np.arange(64)], axis=1)
            each = [np.exp(-bigram.loss(row[None])) for row in rows]
            assert min(each) > 0 and sum(each) == pytest.approx(1)
        assert bigram.unigram.sum() == pytest.approx(1) and bigram.unigram.min() > 0

    def test_approaches_the_entropy_of_its_source(self) -> None:
        random = np.random.RandomState(0)
        matrix = random.dirichlet(np.full(8, 0.3), 8)
        tokens = [0]
        for _ in range(40_000):
            tokens.append(random.choice(8, p=matrix[tokens[-1]]))
        row = np.array(tokens)
        held_out = row[30_000:].reshape(1, -1)
        entropy = -np.log(matrix[held_out[:, :-1], held_out[:, 1:]]).mean()
        bigram = Bigram(row[:30_000], 8)
        assert entropy < bigram.loss(held_out) < entropy + 0.005 < bigram.unigram_loss(held_out)

    def test_by_hand(self) -> None:
        # a b a b a c: after a, b twice and c once; once: ac; twice: ba, ab; so the discount is 1 / 5.
        bigram = Bigram(np.array([0, 1, 0, 1, 0, 2]), 4)
        assert bigram.discount == pytest.approx(0.2)
        # each of a, b, c follows one other token: 1 - 1 seen, plus its part of 3 freed quarters, of 3
        assert bigram.continuation == pytest.approx([0.25] * 4)
        assert np.exp(-bigram.loss(np.array([[0, 1]]))) == pytest.approx((2 - 0.2 + 2 * 0.2 * 0.25) / 3)

    def test_discounts(self) -> None:
        assert discount(np.array([1, 1, 2, 5])) == pytest.approx(0.5)
        assert smoothed(np.array([3, 0])).tolist() == pytest.approx([(2.5 + 0.25) / 3, 0.25 / 3])
