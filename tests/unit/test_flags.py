"""Megatron's flags: each is of one kind, launch configurations are understood, and torchrun lets every flag pass."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from megalite.config.absent import absent, absent_flags
from megalite.config.cli import ACTIONS, parse
from megalite.config.flag_table import CLASHES, NO_EFFECT, REFUSED, SYNONYMS
from megalite.config.options import options
from megalite.config.reference import PATH, reference
from megalite.config.show import help_text

ROOT = Path(__file__).parents[2]
MEGATRON = (ROOT / "tests/data/megatron_flags.txt").read_text().split()
LAUNCHES = ROOT.parent / "shared" / "launch_flags.json"
NAMES = {row.flag for row in absent_flags() if row.flag[-1] != "*"}
WORKS = {flag for option in options() for flag in ([option.flag, option.opposite][: 1 + (option.kind is bool)])}

REVISIT = {
    "context_parallel_size": "--cp-comm-type",
    "num_experts": "--moe-* --expert-model-parallel-size",
    "multi_latent_attention": "--q-lora-rank --kv-lora-rank",
    "mtp_num_layers": "--mtp-*",
}
"""When this field comes, what the table says of these flags may be wrong."""


def kinds(flag: str) -> list[str]:
    """Every kind that a flag is of."""
    row = absent(flag)
    found = {
        "works": flag in WORKS or flag in ACTIONS or flag in SYNONYMS,
        "accepted without effect": row is not None and not row.refused,
        "refused": row is not None and row.refused,
    }
    return [kind for kind, applies in found.items() if applies]


def launches() -> dict[str, Any]:
    if not LAUNCHES.exists():
        pytest.skip(f"{LAUNCHES.name} is not beside the checkout")
    return json.loads(LAUNCHES.read_text())


@pytest.mark.parametrize("flag", MEGATRON)
def test_a_flag_of_megatron_is_of_one_kind(flag):
    assert len(kinds(flag)) == 1, f"{flag} is {' and '.join(kinds(flag)) or 'unknown'}"


def test_every_listed_flag_is_there():
    assert len(MEGATRON) == len(set(MEGATRON)) == 252


def test_a_flag_of_a_launch_is_of_one_kind():
    found = launches()
    flags = {flag for given in [*found["configs"].values(), *found["scripts"].values()] for flag in given}
    assert len(flags) > 200
    assert {flag: kinds(flag) for flag in sorted(flags) if len(kinds(flag)) != 1} == {}


def command_line(given: dict[str, Any]) -> list[str]:
    """A configuration as its launcher would write it: `true` is a bare flag, lists are spread."""
    words: list[str] = []
    for flag, value in given.items():
        if value is not False and value is not None:
            values = value if isinstance(value, list) else [] if value is True else [value]
            words += [flag, *map(str, values)]
    return words


def test_launch_configurations_are_understood():
    """All that stands against a configuration is flags refused by the table.

    `pytest -s` shows what is refused in each, and how often.
    """
    configs = launches()["configs"]
    assert len(configs) == 94
    counts: Counter[str] = Counter()
    lines = []
    for name, given in configs.items():
        problems = parse(command_line(given)).problems
        flags = [flag for problem in problems for flag in problem.flags]
        for problem in problems:
            assert all(kinds(flag) == ["refused"] for flag in problem.flags), (name, problem)
        counts.update(flags)
        lines.append(f"{name:80} {len(problems):3} problems: {' '.join(flags)}")
    print("\n".join([*lines, "", *(f"{count:4} {flag}" for flag, count in counts.most_common())]))


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"--split": "'99,1,0'"}, "split", "'99,1,0'"),
        ({"--split": "949,50,1"}, "split", "949,50,1"),
        ({"--adam-eps": "1e-8"}, "adam_eps", 1e-8),
        ({"--clip-grad": 1}, "clip_grad", 1.0),
        ({"--lr-warmup-fraction": 0.01}, "lr_warmup_fraction", 0.01),
        ({"--data-path": ["0.5", "a", "0.5", "b"]}, "data_path", ("0.5", "a", "0.5", "b")),
        ({"--disable-bias-linear": True}, "add_bias_linear", False),
        ({"--bf16": False}, "bf16", False),
    ],
)
def test_forms_of_values(given, name, value):
    parsed = parse(command_line(given))
    assert not parsed.problems
    (found,) = [vars(part)[name] for part in vars(parsed.config).values() if name in vars(part)]
    assert found == value


def test_no_row_of_the_table_is_a_setting():
    stale = sorted(WORKS & ({row.flag for row in absent_flags()} | set(SYNONYMS)))
    assert not stale, f"these are settings now: take them out of config/flag_table.py: {' '.join(stale)}"


@pytest.mark.parametrize("name", REVISIT)
def test_no_row_outlives_its_reason(name):
    fields = {option.name for option in options()}
    rows = {row.flag for row in absent_flags()}
    left = [flag for flag in REVISIT[name].split() if flag in rows]
    assert name not in fields or not left, (
        f"{name} is a setting now: does config/flag_table.py still tell the truth of {' '.join(left)}? Then drop them "
        "from REVISIT."
    )


def test_table_is_sound():
    flags = [row.flag for row in absent_flags()]
    assert [flag for flag, count in Counter(flags).items() if count > 1] == []
    assert [row for _, row in NO_EFFECT if "=" in row] == [], "other values than the neutral one would pass unheard"
    assert [reason for reason, _ in REFUSED if not re.fullmatch(r"is .+\.", reason)] == []
    reasons = [reason for reason, _ in (*NO_EFFECT, *REFUSED)]
    assert [reason for reason, count in Counter(reasons).items() if count > 1] == []
    assert {flag for flag in CLASHES if kinds(flag) != ["accepted without effect"]} == set()


def test_replacements_work():
    advised = {
        flag: reason
        for reason, _ in REFUSED
        for flag in re.findall(r"--[a-z][\w-]*", reason)
        if "tools/" not in reason and flag not in WORKS | set(ACTIONS)
    }
    assert advised == {"--rerun-mode": "is not supported: no step is run twice. Use --rerun-mode disabled."}
    tools = {path for reason, _ in REFUSED for path in re.findall(r"tools/\w+\.py", reason)}
    assert tools
    assert all((ROOT / path).exists() for path in tools)


def test_torchrun_lets_every_flag_pass():
    """argparse reads what follows the script, too, and stops at an ambiguous abbreviation of its own options."""
    run = pytest.importorskip("torch.distributed.run")
    ours = sorted({*WORKS, *ACTIONS, *SYNONYMS, *MEGATRON, *NAMES})
    for argv in ([word for flag in ours for word in (flag, "1")], ["--help"], *([flag] for flag in ours)):
        found = run.get_args_parser().parse_args(["--nproc-per-node", "2", "pretrain_gpt.py", *argv])
        assert (found.training_script, found.training_script_args) == ("pretrain_gpt.py", argv)
        assert found.nproc_per_node == "2"


def test_no_flag_abbreviates_one_of_torchrun():
    run = pytest.importorskip("torch.distributed.run")
    theirs = {text for action in run.get_args_parser()._actions for text in action.option_strings}
    assert {"--nnodes", "--log-dir"} <= theirs
    ours = WORKS | set(ACTIONS) | set(SYNONYMS) | set(MEGATRON)
    clashes = {(flag, other) for flag in ours for other in theirs if other.startswith(flag) and flag != "--help"}
    assert clashes == set()
    with pytest.raises(SystemExit):
        run.get_args_parser().parse_args(["pretrain_gpt.py", "--log", "3"])


def test_reference_is_current():
    assert PATH.read_text(encoding="utf-8") == reference(), "write it anew: python -m megalite.config.reference"


def test_reference_and_help_hold_every_flag():
    text, shown = reference(), help_text("x")
    for option in options():
        assert f"`{option.flag}`" in text
        assert f"  {option.flag}" in shown
    for flag in [*ACTIONS, *SYNONYMS, *(row.flag for row in absent_flags())]:
        assert f"`{flag}`" in text
