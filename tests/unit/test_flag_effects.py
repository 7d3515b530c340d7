"""Each flag that works changes something: what a small run logs and writes, or the plan of a larger one."""

import contextlib
import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from megalite.checkpoint.stated import stated_model
from megalite.config.cli import parse
from megalite.config.derive import derive
from megalite.config.from_checkpoint import with_model_of_checkpoint
from megalite.config.options import options
from megalite.config.schema import Config
from megalite.config.size import model_size
from megalite.data.indexed_writer import IndexedWriter
from megalite.environment import Launch
from megalite.mesh import ParallelMesh, start
from megalite.plan.summary import summary
from megalite.train.run import run
from megalite.validate import check, notices
from tests.unit.test_tokenizer import ranked

BASE = (
    "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --micro-batch-size 2 "
    "--lr 1e-2 --tokenizer-type NullTokenizer --vocab-size 50 --eval-iters 1 --log-interval 1 "
    "--device cpu --hidden-dropout 0 --attention-dropout 0"
)
BATCH = "--global-batch-size 4"
COURSE = "--train-iters 3"
DATA = "--data-path DATA/a"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A value of a flag, and what else is set, with the flag and without it."""

    value: str = ""
    given: str = ""
    without: str = ""
    """What of BATCH, COURSE and DATA is left out of both."""
    plan: bool = False
    """The effect is one of layout, speed or memory, which one rank's losses must not show."""


ROPE = "--position-embedding-type rope"
SLOW = f"{ROPE} --rotary-base 500000 --init-method-std 0.5"
WSD = "--lr-decay-style WSD --lr-wsd-decay-iters 2"
RAMP = "--weight-decay-incr-style linear --start-weight-decay 0 --end-weight-decay 40"
SAMPLES = "--train-samples 12"
EOD = "--vocab-size 49"
"""Makes the highest id in the data the end of document."""
LOAD = "--load DATA/saved"
TIK = "--tokenizer-type TikTokenizer --tokenizer-model DATA/tik.json --tiktoken-pattern v1 --eod-mask-loss"
FIM = "--fim-data --fim-prefix-token 1 --fim-middle-token 2 --fim-suffix-token 3 --fim-pad-token 4"
FRAGMENTS = f"{FIM} --fim-rate 1 --fim-split-sample 9 --fim-fragment-rate 1"
PP = "--pipeline-model-parallel-size 2 --num-layers 4"
VPP = f"{PP} --num-virtual-stages-per-pipeline-rank 2"
MUON = "--optimizer muon"
WANDB = "--wandb-project tries"
DISK = "--optimizer-cpu-offload --optimizer-offload-device disk"
FULL = "--recompute-granularity full"

EFFECTS: dict[str, Row] = {
    "--num-layers": Row(value="3"),
    "--hidden-size": Row(value="64"),
    "--ffn-hidden-size": Row(value="48"),
    "--num-attention-heads": Row(value="2"),
    "--group-query-attention": Row(given="--num-query-groups 2"),
    "--num-query-groups": Row(value="2", given="--group-query-attention"),
    "--kv-channels": Row(value="4"),
    "--seq-length": Row(value="8"),
    "--max-position-embeddings": Row(value="64", plan=True),
    "--position-embedding-type": Row(value="rope"),
    "--rotary-base": Row(value="10", given=ROPE),
    "--rotary-percent": Row(value="0.5", given=ROPE),
    "--rotary-interleaved": Row(given=ROPE),
    "--rotary-seq-len-interpolation-factor": Row(value="4", given=ROPE),
    "--no-rope-freq": Row(value="2", given=f"{ROPE} --init-method-std 0.5"),
    "--use-rope-scaling": Row(given=SLOW),
    "--rope-scaling-factor": Row(value="2", given=f"{SLOW} --use-rope-scaling"),
    "--normalization": Row(value="RMSNorm"),
    "--norm-epsilon": Row(value="0.5"),
    "--apply-layernorm-1p": Row(given="--log-params-norm"),
    "--apply-residual-connection-post-layernorm": Row(),
    "--fp32-residual-connection": Row(given="--bf16"),
    "--qk-layernorm": Row(),
    "--swiglu": Row(),
    "--quick-geglu": Row(),
    "--squared-relu": Row(),
    "--gelu": Row(value="exact", given="--init-method-std 0.5"),
    "--disable-bias-linear": Row(),
    "--add-qkv-bias": Row(given="--disable-bias-linear"),
    "--untie-embeddings-and-output-weights": Row(),
    "--hidden-dropout": Row(value="0.5"),
    "--attention-dropout": Row(value="0.5", given="--init-method-std 0.5"),
    "--apply-query-key-layer-scaling": Row(given="--init-method-std 0.5 --bf16"),
    "--window-size": Row(value="2,0"),
    "--window-attn-skip-freq": Row(value="2", given="--window-size 2,0"),
    "--softmax-type": Row(value="learnable"),
    "--init-method-xavier-uniform": Row(),
    "--init-method-std": Row(value="0.5"),
    "--embedding-init-method-std": Row(value="0.5"),
    "--make-vocab-size-divisible-by": Row(value="1000", plan=True),
    "--tensor-model-parallel-size": Row(value="2", plan=True),
    "--sequence-parallel": Row(given="--tensor-model-parallel-size 2", plan=True),
    "--pipeline-model-parallel-size": Row(value="2", plan=True),
    "--pipeline-schedule": Row(value="gpipe", given=PP, plan=True),
    "--num-virtual-stages-per-pipeline-rank": Row(value="2", given=PP, plan=True),
    "--num-layers-per-virtual-pipeline-stage": Row(value="1", given=PP, plan=True),
    "--microbatch-group-size-per-virtual-pipeline-stage": Row(value="3", given=VPP, plan=True),
    "--pipeline-model-parallel-layout": Row(value="Et|t*3L", given=PP, plan=True),
    "--decoder-first-pipeline-num-layers": Row(value="3", given=PP, plan=True),
    "--decoder-last-pipeline-num-layers": Row(value="3", given=PP, plan=True),
    "--account-for-embedding-in-pipeline-split": Row(given=f"{PP} --num-layers 3", plan=True),
    "--account-for-loss-in-pipeline-split": Row(given=f"{PP} --num-layers 6", plan=True),
    "--use-tp-pp-dp-mapping": Row(given=PP, plan=True),
    "--ddp-bucket-size": Row(value="100", plan=True),
    "--ddp-num-buckets": Row(value="3", plan=True),
    "--overlap-grad-reduce": Row(plan=True),
    "--grad-reduce-in-bf16": Row(given="--bf16", plan=True),
    "--use-distributed-optimizer": Row(plan=True),
    "--num-distributed-optimizer-instances": Row(value="2", given="--use-distributed-optimizer", plan=True),
    "--data-parallel-sharding-strategy": Row(value="optim_grads", given="--use-distributed-optimizer", plan=True),
    "--overlap-param-gather": Row(given="--use-distributed-optimizer", plan=True),
    "--distributed-backend": Row(value="nccl"),
    "--distributed-timeout-minutes": Row(value="1"),
    "--cpu-threads": Row(value="2"),
    "--device": Row(value="auto", given="--distributed-backend nccl", plan=True),
    "--micro-batch-size": Row(value="1", plan=True),
    "--global-batch-size": Row(value="2"),
    "--rampup-batch-size": Row(value="2 2 4"),
    "--step-batch-size-schedule": Row(value="0:2 64:4", without=BATCH),
    "--decrease-batch-size-if-needed": Row(given="--global-batch-size 5"),
    "--train-iters": Row(value="2"),
    "--train-samples": Row(value="8", without=COURSE),
    "--seed": Row(value="1"),
    "--eval-interval": Row(value="1"),
    "--eval-iters": Row(value="2"),
    "--bf16": Row(),
    "--fp16": Row(given="--initial-loss-scale 65536"),
    "--loss-scale": Row(value="1024", given="--fp16"),
    "--initial-loss-scale": Row(value="1024", given="--fp16"),
    "--min-loss-scale": Row(value="2e9", given="--fp16 --hysteresis 1"),
    "--loss-scale-window": Row(value="2", given="--fp16 --initial-loss-scale 1024"),
    "--hysteresis": Row(value="1", given="--fp16"),
    "--no-check-for-nan-in-loss-and-grad": Row(given="--bf16 --loss-scale 1e38"),
    "--eval-global-batch-size": Row(value="8"),
    "--full-validation": Row(given="--split 90,5,5"),
    "--skip-train": Row(),
    "--exit-interval": Row(value="2"),
    "--exit-duration-in-mins": Row(value="0"),
    "--exit-signal-handler": Row(),
    "--exit-signal": Row(value="SIGUSR1", given="--exit-signal-handler"),
    "--iterations-to-skip": Row(value="2"),
    "--check-weight-hash-across-dp-replicas-interval": Row(value="2"),
    "--deterministic-mode": Row(),
    "--kernels": Row(value="reference"),
    "--manual-gc": Row(),
    "--manual-gc-interval": Row(value="2", given="--manual-gc"),
    "--recompute-granularity": Row(value="full", plan=True),
    "--recompute-method": Row(value="block", given=FULL, plan=True),
    "--recompute-num-layers": Row(value="2", given=FULL, plan=True),
    "--recompute-modules": Row(value="mlp", given="--recompute-granularity selective", plan=True),
    "--distribute-saved-activations": Row(given=f"{FULL} --tensor-model-parallel-size 2", plan=True),
    "--optimizer": Row(value="sgd"),
    "--adam-kernel": Row(value="apex"),
    "--muon-momentum": Row(value="0.5", given=MUON),
    "--muon-use-nesterov": Row(given=MUON),
    "--muon-num-ns-steps": Row(value="1", given=MUON),
    "--muon-scale-mode": Row(value="shape_scaling", given=MUON),
    "--muon-extra-scale-factor": Row(value="0.2", given=MUON),
    "--muon-no-split-qkv": Row(given=MUON),
    "--decoupled-lr": Row(value="1e-4"),
    "--decoupled-min-lr": Row(value="1e-2", given="--decoupled-lr 1e-2"),
    "--lr": Row(value="2e-2"),
    "--min-lr": Row(value="9e-3"),
    "--lr-decay-style": Row(value="cosine"),
    "--lr-decay-iters": Row(value="2"),
    "--lr-decay-samples": Row(value="8", given=SAMPLES, without=COURSE),
    "--lr-warmup-fraction": Row(value="0.5"),
    "--lr-warmup-iters": Row(value="2"),
    "--lr-warmup-samples": Row(value="8", given=SAMPLES, without=COURSE),
    "--lr-warmup-init": Row(value="5e-3", given="--lr-warmup-iters 2"),
    "--lr-wsd-decay-style": Row(value="linear", given=WSD),
    "--lr-wsd-decay-iters": Row(value="3", given=WSD),
    "--lr-wsd-decay-samples": Row(
        value="12", given=f"{SAMPLES} --lr-decay-style WSD --lr-wsd-decay-samples 8", without=COURSE
    ),
    "--weight-decay": Row(value="40"),
    "--weight-decay-incr-style": Row(value="cosine", given=RAMP),
    "--start-weight-decay": Row(value="20", given=RAMP),
    "--end-weight-decay": Row(value="20", given=RAMP),
    "--adam-beta1": Row(value="0"),
    "--adam-beta2": Row(value="0.1"),
    "--adam-eps": Row(value="1"),
    "--sgd-momentum": Row(value="0", given="--optimizer sgd --lr 1"),
    "--clip-grad": Row(value="0.01", given="--optimizer sgd"),
    "--optimizer-cpu-offload": Row(plan=True),
    "--optimizer-offload-fraction": Row(value="0.5", given="--optimizer-cpu-offload", plan=True),
    "--overlap-cpu-optimizer-d2h-h2d": Row(given="--optimizer-cpu-offload", plan=True),
    "--optimizer-offload-device": Row(value="disk", given="--optimizer-cpu-offload --offload-dir away", plan=True),
    "--offload-dir": Row(value="away", given=f"{DISK} --offload-dir elsewhere", plan=True),
    "--data-path": Row(value="DATA/b"),
    "--split": Row(value="10,90", given="--train-iters 3"),
    "--data-args-path": Row(value="DATA/blend.txt", without=DATA),
    "--train-data-path": Row(value="DATA/b", given="--train-data-path DATA/a", without=DATA),
    "--valid-data-path": Row(value="DATA/b", given="--train-data-path DATA/a", without=DATA),
    "--test-data-path": Row(value="DATA/b", given="--train-data-path DATA/a", without=DATA),
    "--per-split-data-args-path": Row(value="DATA/parts.json", without=DATA),
    "--mock-data": Row(without=DATA),
    "--mid-level-dataset-surplus": Row(value="100", given="--data-path 0.5 DATA/a 0.5 DATA/b"),
    "--multiple-validation-sets": Row(given="--data-path DATA/a DATA/b"),
    "--dataloader-type": Row(value="cyclic"),
    "--eod-mask-loss": Row(given=EOD),
    "--reset-position-ids": Row(given=EOD),
    "--reset-attention-mask": Row(given=f"{EOD} --init-method-std 0.5"),
    "--dataloader-inter-document-masking": Row(given=EOD),
    "--data-cache-path": Row(value="cache"),
    "--max-epochs": Row(value="0.01"),
    "--num-workers": Row(value="0"),
    "--fim-data": Row(given=FIM.removeprefix("--fim-data ")),
    "--fim-rate": Row(value="0", given=FIM),
    "--fim-spm-rate": Row(value="0", given=f"{FIM} --fim-rate 1"),
    "--fim-split-sample": Row(value="8", given=f"{FRAGMENTS} --fim-split-sample 9"),
    "--fim-fragment-rate": Row(value="0", given=FRAGMENTS),
    "--fim-no-prefix": Row(value="2", given=f"{FIM} --fim-rate 1"),
    "--fim-prefix-token": Row(value="11", given=FIM),
    "--fim-middle-token": Row(value="12", given=FIM),
    "--fim-suffix-token": Row(value="13", given=FIM),
    "--fim-pad-token": Row(value="14", given=FIM),
    "--tokenizer-type": Row(value="ByteLevelTokenizer"),
    "--tokenizer-model": Row(value="nowhere", given="--tokenizer-type SentencePieceTokenizer"),
    "--vocab-file": Row(value="nowhere", given="--tokenizer-type GPT2BPETokenizer"),
    "--merge-file": Row(value="nowhere", given="--tokenizer-type GPT2BPETokenizer"),
    "--vocab-size": Row(value="70"),
    "--tiktoken-pattern": Row(value="v2", given=TIK.replace("--tiktoken-pattern v1", "")),
    "--tiktoken-num-special-tokens": Row(value="44", given=f"{TIK} --vocab-size 300"),
    "--tiktoken-special-tokens": Row(value="</s>", given=f"{TIK} --tiktoken-num-special-tokens 9 --vocab-size 265"),
    "--save": Row(value="saved", given="--save-interval 3"),
    "--save-interval": Row(value="2", given="--save saved --save-interval 3"),
    "--async-save": Row(given="--save saved --save-interval 3"),
    "--save-retain-last": Row(value="1", given="--save saved --save-interval 1"),
    "--save-retain-interval": Row(value="2", given="--save saved --save-interval 1"),
    "--load": Row(value="DATA/saved"),
    "--finetune": Row(given=LOAD),
    "--no-load-optim": Row(given=LOAD),
    "--no-save-optim": Row(given="--save saved --save-interval 3"),
    "--use-checkpoint-opt-param-scheduler": Row(given=f"{LOAD} --lr 2e-2"),
    "--override-opt-param-scheduler": Row(given=f"{LOAD} --lr 2e-2"),
    "--ckpt-step": Row(value="1", given=LOAD),
    "--pretrained-checkpoint": Row(value="DATA/saved"),
    "--use-checkpoint-args": Row(given=f"{LOAD} --num-layers 3"),
    "--verify-integrity": Row(given=LOAD),
    "--allow-other-data": Row(given=f"{LOAD} --data-path DATA/b"),
    "--exit-on-missing-checkpoint": Row(given="--load saved --save saved --save-interval 3"),
    "--log-interval": Row(value="2"),
    "--log-jsonl": Row(value="log.jsonl"),
    "--tensorboard-dir": Row(value="board"),
    "--tensorboard-log-interval": Row(value="2", given=WANDB),
    "--wandb-project": Row(value="tries"),
    "--wandb-exp-name": Row(value="first", given=WANDB),
    "--wandb-save-dir": Row(value="kept", given=WANDB),
    "--log-progress": Row(given="--save saved --save-interval 3"),
    "--log-params-norm": Row(),
    "--log-num-zeros-in-grad": Row(),
    "--timing-log-level": Row(value="1"),
    "--timing-log-option": Row(value="max", given="--timing-log-level 1"),
    "--log-timers-to-tensorboard": Row(given=f"--timing-log-level 1 {WANDB}"),
    "--memory-report": Row(),
    "--pipeline-trace": Row(value="trace.json"),
}
"""Each flag with a value that has an effect. A new setting needs its row."""

IN_PASSING = r"(?<= )\d+\.\d\d(?=\s)|[\d,.]+ tokens/s|ETA \S+|in [\d.]+ s|\d+\.\d+\.\S+"
"""What differs from run to run: rates, times, and names made of them."""


@pytest.fixture(scope="module")
def observe(tmp_path_factory) -> Callable[..., object]:
    """What comes of a command line; each is run once."""
    data = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for name in "ab":
        with IndexedWriter(data / name, np.dtype("uint16")) as writer:
            for _ in range(40):
                writer.add_document(rng.integers(0, 49, 100))
    (data / "tik.json").write_text(json.dumps(ranked([bytes([byte]) for byte in range(256)])))
    (data / "blend.txt").write_text(f"0.5 {data}/a\n0.5 {data}/b\n")
    (data / "parts.json").write_text(json.dumps({"train": f"{data}/a", "valid": [f"{data}/b"], "test": None}))

    @cache
    def observe(words: str, *, plan: bool) -> object:
        parsed = with_model_of_checkpoint(parse(words.replace("DATA", str(data)).split()), stated_model)
        config = parsed.config
        if parsed.problems:
            return [problem.text for problem in parsed.problems]
        if plan:
            return planned(config)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path_factory.mktemp("run"))
            patch.setattr("megalite.train.run.start", telling_start)
            patch.setitem(sys.modules, "wandb", SimpleNamespace(init=TellingRun))
            return happened(config)

    observe(f"{BASE} {BATCH} {COURSE} {DATA} --save DATA/saved --save-interval 1 --exit-interval 2", plan=False)
    return observe


def telling_start(*args: Any, timeout_minutes: int, **kwargs: Any) -> ParallelMesh:
    """A rank alone waits for nobody: what it would do is told."""
    print(f"ranks wait for {timeout_minutes} minutes")
    return start(*args, timeout_minutes=timeout_minutes, **kwargs)


class TellingRun:
    """A run of Weights & Biases that prints what it is told."""

    def __init__(self, *, project: str, name: str | None, dir: str, config: dict[str, Any]) -> None:
        print(f"wandb: {project} {name} {dir} {len(config)} sections")

    def log(self, scalars: dict[str, float], *, step: int) -> None:
        print(f"wandb: step {step}: {sorted(scalars)}")

    def finish(self) -> None:
        print("wandb: finished")


def planned(config: Config) -> object:
    """All that is worked out for two ranks, and all that is said."""
    size = model_size(config.model, vocab_size=config.tokenizer.vocab_size or 0)
    said = [problem.text for problem in check(config, 2)] or notices(config, 2)
    _, layout = summary(config, {}, 2).split("\nlayout:")
    return said or [asdict(derive(config, 2)), asdict(size), layout]


def happened(config: Config) -> object:
    """What a run on one rank prints and leaves in its folder."""
    if problems := check(config, 1):
        return [problem.text for problem in problems]
    out, end = io.StringIO(), ""
    with contextlib.redirect_stdout(out):
        try:
            run(config, Launch())
        except (ValueError, OSError, FloatingPointError) as error:
            end = str(error)
    return re.sub(IN_PASSING, "", "\n".join([out.getvalue(), end, *sorted(map(str, Path().rglob("*")))]))


def command_lines(flag: str) -> tuple[str, str]:
    """Without the flag and with it; what a row gives comes before the flag, which overrules it."""
    row = EFFECTS[flag]
    parts = [part for part in (BASE, BATCH, COURSE, DATA, row.given) if part and part != row.without]
    return " ".join(parts), " ".join([*parts, flag, row.value]).rstrip()


@pytest.mark.parametrize("option", options(), ids=lambda option: option.flag)
def test_a_flag_changes_its_setting_alone(option):
    assert option.flag in EFFECTS, f"{option.flag} has no row: say in EFFECTS where it is seen to work"
    before, after = (parse(words.split()) for words in command_lines(option.flag))
    assert not after.problems
    flat = [
        {k: v for part in vars(parsed.config).values() for k, v in vars(part).items()} for parsed in (before, after)
    ]
    assert {name for name in flat[0] if flat[0][name] != flat[1][name]} == {option.name}


@pytest.mark.parametrize("option", options(), ids=lambda option: option.flag)
def test_a_flag_has_an_effect(option, observe):
    row = EFFECTS[option.flag]
    before, after = (observe(words, plan=row.plan) for words in command_lines(option.flag))
    assert before != after


def test_a_run_repeats(observe):
    """Else every flag would seem to have an effect."""
    words = f"{BASE} {BATCH} {COURSE} {DATA} --save saved --save-interval 3 --timing-log-level 2"
    before, after = (observe(line, plan=False) for line in (words, f"{words} --save-interval 3"))
    assert before == after
    assert "step 3/3" in str(before)


def test_no_row_is_left_behind():
    assert set(EFFECTS) == {option.flag for option in options()}


@pytest.mark.parametrize("option", [o for o in options() if o.kind is bool], ids=lambda option: option.flag)
def test_an_opposite_undoes_its_flag(option):
    assert parse([option.flag]).config != Config()
    assert parse([option.flag, option.opposite]).config == Config()
