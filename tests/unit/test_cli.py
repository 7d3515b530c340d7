"""The command line and configuration files: what is understood, what is refused, and that all of it is said at once."""

import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from megalite.config.alternatives import ALTERNATIVES, OVERRULES
from megalite.config.cli import parse
from megalite.config.options import options
from megalite.config.schema import Config
from megalite.config.show import differences, help_text, to_toml

ROOT = Path(__file__).parents[2]


def texts(*argv: str) -> list[str]:
    return [problem.text for problem in parse(argv).problems]


@pytest.mark.parametrize(
    ("argv", "section", "name", "value"),
    [
        ("--num-layers 4", "model", "num_layers", 4),
        ("--num-layers=4", "model", "num_layers", 4),
        ("--num-layers 4 --num-layers 5", "model", "num_layers", 5),
        ("--lr 1e-3", "optimizer", "lr", 1e-3),
        ("--lr -1e-3", "optimizer", "lr", -1e-3),
        ("--split -1,1,0", "data", "split", "-1,1,0"),
        ("--split=", "data", "split", ""),
        ("--data-path 0.3 a 0.7 b --lr 1", "data", "data_path", ("0.3", "a", "0.7", "b")),
        ("--disable-bias-linear", "model", "add_bias_linear", False),
        ("--disable-bias-linear --add-bias-linear", "model", "add_bias_linear", True),
        ("--sequence-parallel", "parallel", "sequence_parallel", True),
        ("--sequence-parallel --no-sequence-parallel", "parallel", "sequence_parallel", False),
        ("--no-load-optim", "checkpoint", "no_load_optim", True),
        ("--no-load-optim --load-optim", "checkpoint", "no_load_optim", False),
        ("--lr-decay-style WSD", "optimizer", "lr_decay_style", "WSD"),
        ("--use-rotary-position-embeddings", "model", "position_embedding_type", "rope"),
        ("--persistent-save-interval 7", "checkpoint", "save_interval", 7),
    ],
)
def test_flag_sets_field(argv, section, name, value):
    parsed = parse(argv.split(" "))
    assert not parsed.problems
    assert getattr(getattr(parsed.config, section), name) == value
    assert parsed.origins[name] == "the command line"


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ("--num-layer 4", "--num-layer is unknown. Did you mean --num-layers?"),
        ("--num-l 4", "--num-l is unknown."),
        ("--pipeline-model-paralel-size 2", "Did you mean --pipeline-model-parallel-size?"),
        ("--no-num-layers", "--no-num-layers is unknown. Did you mean --num-layers?"),
        ("--num-layers", "--num-layers takes one value, but got none."),
        ("--num-layers 4 5", "--num-layers takes one value, but got 4 5."),
        ("--num-layers 4.5", "--num-layers 4.5 is not a whole number."),
        ("--lr nan", "--lr nan is not a finite number."),
        ("--lr one", "--lr one is not a finite number."),
        ("--normalization rmsnorm", "--normalization rmsnorm is not one of LayerNorm, RMSNorm."),
        ("--bf16 true", "--bf16 takes no value, but got true. To undo it, write --no-bf16."),
        ("train --bf16", "'train' does not belong to a flag."),
        ("--dry-run now", "--dry-run takes no value, but got now."),
        ("--config", "--config takes one file, but got none."),
        ("--config /nowhere.toml", "--config /nowhere.toml cannot be read: No such file or directory."),
        ("--fp16-lm-cross-entropy", "is not supported: the loss is computed in fp32. Leave it out."),
        ("--context-parallel-size 2", "--context-parallel-size 2 is not supported yet"),
        ("--expert-model-parallel-size 2", "--expert-model-parallel-size 2 is not supported yet"),
        ("--use-torch-fsdp2", "--use-torch-fsdp2 is not supported yet"),
        ("--checkpoint-activations", "--checkpoint-activations is an old name. Use --recompute-granularity full."),
        ("--num-experts 8", "--num-experts 8 is not supported yet"),
        ("--moe-router-topk 2", "--moe-router-topk 2 is not supported yet"),
        ("--dataloader-type external", "--dataloader-type external is not one of single, cyclic"),
        ("--batch-size 4", "--batch-size 4 is an old name. Use --micro-batch-size."),
        ("--fp8-format hybrid --fp8-margin 0", "--fp8-format hybrid and --fp8-margin 0 are not supported."),
        ("--num-experts 8 --moe-a --moe-b 1", "--num-experts 8, --moe-a and --moe-b 1 are not supported yet: there"),
        ("--nproc_per_node 2", "--nproc_per_node 2 is for torchrun. Write it before pretrain_gpt.py."),
        (
            "--prompts " + 20 * "long ",
            "--prompts long long long long long long long long long ... is not for training.",
        ),
        ("--no-position-embedding", "Use --position-embedding-type rope."),
        ("--accumulate-allreduce-grads-in-fp32 --grad-reduce-in-bf16", "does not go with --grad-reduce-in-bf16."),
    ],
)
def test_mistake_is_named(argv, text):
    (problem,) = texts(*argv.split(" "))
    assert text in problem


@pytest.mark.parametrize(
    "argv",
    [
        "--context-parallel-size=1",
        "--expert-model-parallel-size 1",
        "--rotary-percent 1.0",
        "--dataloader-type single",
        "--spec local",
        "--context-parallel-size 2 --context-parallel-size 1",
    ],
)
def test_neutral_value_is_accepted_silently(argv):
    parsed = parse(argv.split(" "))
    assert not parsed.problems
    assert not parsed.notices


def test_flags_without_effect_are_said_in_one_line():
    flags = "--use-mcore-models --transformer-impl local --no-mmap-bin-files --use-mcore-models --disable-rope-fusion"
    parsed = parse([*flags.split(), "--no-position-embedding", "--position-embedding-type", "rope"])
    assert not parsed.problems
    (line,) = parsed.notices
    assert line.count("--use-mcore-models") == 1
    assert "--transformer-impl" in line
    assert "--no-mmap-bin-files" in line


def test_every_mistake_at_once():
    found = texts(*["--fo", "1", "--lr", "x", "--log-straggler", "--bar", "--num-layers"])
    assert len(found) == 5


def test_unknown_flag_puts_its_likely_target_at_fault():
    assert "--num-layers" in parse(["--num-layer", "4"]).problems[0].flags


def test_file_then_flag(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        'seed = 7\n[model]\nnum_layers = 4\nhidden_size = 8\n[data]\ndata_path = ["a", "b"]\n[x]\nbf16=true\nlr=1'
    )
    parsed = parse(["--num-layers", "5", "--config", str(file), "--no-bf16"])
    assert not parsed.problems
    assert (parsed.config.model.num_layers, parsed.config.model.hidden_size) == (5, 8)
    assert parsed.config.data.data_path == ("a", "b")
    assert parsed.config.optimizer.lr == 1.0
    assert parsed.config.train.bf16 is False
    assert parsed.origins["num_layers"] == "the command line"
    assert parsed.origins["hidden_size"] == parsed.origins["seed"] == str(file)
    assert "micro_batch_size" not in parsed.origins


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("num_layer = 4", "num_layer in FILE is unknown. Did you mean num_layers?"),
        ("num_layers = 'four'", "num_layers = 'four' in FILE is not a whole number."),
        ("num_layers = true", "num_layers = True in FILE is not a whole number."),
        ("num_layers = 4.0", "num_layers = 4.0 in FILE is not a whole number."),
        ("lr = inf", "lr = inf in FILE is not a finite number."),
        ("bf16 = 1", "bf16 = 1 in FILE is not true or false."),
        ("split = 99", "split = 99 in FILE is not a text in quotes."),
        ("normalization = 'x'", "normalization = 'x' in FILE is not one of LayerNorm, RMSNorm."),
        (
            "disable_bias_linear = true",
            "disable_bias_linear in FILE is a flag, not a key. Write add_bias_linear = false.",
        ),
        ("log_straggler = true", "log_straggler in FILE is not supported. Use --timing-log-level 1 with"),
        ("context_parallel_size = 2", "context_parallel_size = 2 in FILE is not supported yet"),
        ("num_layers = ", "is not valid TOML"),
    ],
)
def test_mistake_in_file_is_named(tmp_path, line, text):
    file = tmp_path / "run.toml"
    file.write_text(line)
    (problem,) = texts("--config", str(file))
    assert text in problem.replace(str(file), "FILE")


@pytest.mark.parametrize("line", ["context_parallel_size = 1", "log_straggler = false"])
def test_neutral_key_is_accepted(tmp_path, line):
    file = tmp_path / "run.toml"
    file.write_text(line)
    assert not texts("--config", str(file))


def test_yaml_where_installed(tmp_path):
    pytest.importorskip("yaml")
    file = tmp_path / "run.yaml"
    file.write_text("model:\n  num_layers: 4\n  kv_channels: null\noptimizer: {lr: 0.1}\n")
    parsed = parse(["--config", str(file)])
    assert not parsed.problems
    assert (parsed.config.model.num_layers, parsed.config.optimizer.lr) == (4, 0.1)


def test_toml_repeats_the_run(tmp_path):
    argv = [
        "--num-layers",
        "4",
        "--disable-bias-linear",
        "--lr",
        "1e-05",
        "--data-path",
        "a b",
        'c"\\d',
        "--split",
        "é\x7f",
    ]
    config = parse(argv).config
    file = tmp_path / "run.toml"
    file.write_text(to_toml(config), encoding="utf-8")
    again = parse(["--config", str(file)])
    assert not again.problems
    assert again.config == config
    assert set(tomllib.loads(to_toml(Config()))) == {section.name for section in fields(Config)}


def test_differences_tell_where_from():
    parsed = parse(["--seed", "1", "--lr", "0.5", "--clip-grad", "1.0"])
    assert [line.split() for line in differences(parsed.config, parsed.origins)] == [
        ["seed", "=", "1", "from", "the", "command", "line,", "instead", "of", "1234"],
        ["lr", "=", "0.5", "from", "the", "command", "line"],
    ]


def test_differences_of_a_file_are_a_paragraph(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("lr = 0.5\nseed = 1\nclip_grad = 1.0\nnum_layers = 3")
    parsed = parse(["--config", str(file), "--seed", "2"])
    paragraph, seed = differences(parsed.config, parsed.origins)
    assert paragraph == f"from {file}: num_layers = 3, lr = 0.5"
    assert seed.split()[:3] == ["seed", "=", "2"]


@pytest.mark.parametrize(
    ("file", "flags", "left", "said"),
    [
        ("split='1,1,1'", "--train-data-path a", "", "--train-data-path overrules split in FILE."),
        ("split='1,1,1'", "--data-path a", "split", ""),
        ("train_data_path='a'", "--split 1,1,1", "train_data_path", ""),
        ("mock_data=true", "--no-mock-data --split 1,1,1", "", ""),
        ("data_path='a'", "--mock-data", "", "--mock-data overrules data_path in FILE."),
        ("train_data_path='a'", "--valid-data-path b", "train_data_path", ""),
        (
            "train_iters=4\nlr_decay_iters=3",
            "--train-samples 9",
            "lr_decay_iters",
            "--train-samples overrules train_iters",
        ),
        (
            "lr_warmup_iters=4",
            "--lr-warmup-fraction 0.5",
            "",
            "--lr-warmup-fraction overrules lr_warmup_iters in FILE.",
        ),
        ("lr_warmup_iters=4", "--lr-warmup-iters 0 --lr-warmup-samples 5", "", ""),
        ("swiglu=true", "--squared-relu", "", "--squared-relu overrules swiglu in FILE."),
        (
            "num_layers_per_virtual_pipeline_stage=1",
            "--num-virtual-stages-per-pipeline-rank 2",
            "",
            "--num-virtual-stages-per-pipeline-rank overrules num_layers_per_virtual_pipeline_stage in FILE.",
        ),
        ("train_iters=4\ntrain_samples=4", "", "train_iters train_samples", ""),
    ],
)
def test_a_flag_overrules_what_it_excludes_in_a_file(tmp_path, file, flags, left, said):
    path = tmp_path / "run.toml"
    path.write_text(file)
    parsed = parse(["--config", str(path), *flags.split()])
    assert not parsed.problems
    assert {name for name, origin in parsed.origins.items() if origin == str(path)} == set(left.split())
    text = "\n".join(parsed.notices).replace(str(path), "FILE")
    assert said in text and bool(said) == bool(text)
    given = {option.name: option.section for option in options()}
    for name in (line.partition("=")[0] for line in file.split("\n")):
        value = getattr(getattr(parsed.config, given[name]), name)
        default = getattr(getattr(Config(), given[name]), name)
        assert (value != default) == (name in left.split())


def test_alternatives_are_fields():
    names = {option.name for option in options()}
    said = [name for row in (*ALTERNATIVES, *OVERRULES) for together in row for name in together.split()]
    assert set(said) <= names


def test_every_option_is_documented_and_unique():
    names = [option.name for option in options()]
    assert len(names) == len(set(names))
    for option in options():
        assert option.help.endswith("."), option.name
        assert option.flag in help_text("x")
        assert (option.kind is bool) <= (option.default in (True, False))


def test_bad_flags_end_quickly_without_torch():
    """The real program: everything listed, status 2, and torch never imported."""
    argv = ["--num-layer", "4", "--log-straggler", "--context-parallel-size", "2", "--split", "a,b", "--lr", "x"]
    command = [sys.executable, "-X", "importtime", "pretrain_gpt.py", *argv]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    for word in ("--num-layers?", "--log-straggler", "--context-parallel-size 2", "--split", "--lr x", "--hidden-size"):
        assert word in done.stderr
    assert "torch" not in {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "numpy" not in {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
