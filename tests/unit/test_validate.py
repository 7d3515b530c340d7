"""Each rule, with a setting that breaks it, the words that must come, and the flags that must be at fault."""

import pytest

from megalite.config.cli import parse
from megalite.config.schema import Config
from megalite.validate import check, notices

BASE = {
    "--num-layers": "2",
    "--hidden-size": "64",
    "--num-attention-heads": "4",
    "--seq-length": "32",
    "--micro-batch-size": "2",
    "--train-iters": "100",
    "--lr": "1e-3",
    "--mock-data": None,
    "--tokenizer-type": "NullTokenizer",
    "--vocab-size": "100",
}
FILES = {"d/x.bin", "d/x.idx", "tok.model", "vocab.json", "merges.txt"}


def parsed(flags: str, without: str = ""):
    base = [word for flag, value in BASE.items() if flag not in without.split() for word in (flag, value) if word]
    found = parse(base + flags.split(" ") if flags else base)
    assert not found.problems
    return found


def problems(flags: str, world_size: int = 4, without: str = "") -> list[str]:
    config = parsed(flags, without).config
    return [problem.text for problem in check(config, world_size, exists=FILES.__contains__)]


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--tensor-model-parallel-size 4 --sequence-parallel",
        "--global-batch-size 24 --eval-iters 0 --min-lr 1e-3",
        "--global-batch-size 24 --rampup-batch-size 8 8 100",
        "--global-batch-size 24 --rampup-batch-size 24 8 100",
        "--step-batch-size-schedule 0:8 1M:16",
        "--global-batch-size 10 --decrease-batch-size-if-needed",
        "--iterations-to-skip 1 7",
        "--fp16 --fp32-residual-connection --min-loss-scale 128",
        "--bf16 --loss-scale 8",
        "--use-checkpoint-opt_param-scheduler --load nowhere",
        "--group-query-attention --num-query-groups 2 --tensor-model-parallel-size 2",
        "--lr-warmup-iters 99",
        "--lr-warmup-iters 100 --lr-decay-iters 101",
        "--lr-warmup-fraction 0.5",
        "--lr-decay-style WSD --lr-wsd-decay-iters 100",
        "--lr 0 --min-lr 0",
        "--split 100,0,0",
        "--weight-decay-incr-style linear --start-weight-decay 0 --end-weight-decay 1",
        "--save d --save-interval 5",
        "--save-interval 5",
        "--save d --save-interval 5 --save-retain-interval 15 --save-retain-last 3 --async-save",
        "--load nowhere --ckpt-step 3",
        "--kv-channels 7 --hidden-size 63",
        "--position-embedding-type rope --swiglu --no-rope-freq 2",
        "--pipeline-model-parallel-size 2 --num-layers 5 --tensor-model-parallel-size 2",
        "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 --num-layers 4",
        "--num-virtual-stages-per-pipeline-rank 1",
        "--pipeline-schedule zb-v --pipeline-trace trace.json",
        "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout E|t|t|L --pipeline-schedule zb-h1",
        "--eod-mask-loss --reset-position-ids --reset-attention-mask --dataloader-type cyclic --no-data-sharding",
    ],
)
def test_allowed(flags):
    assert problems(flags) == []


FULL = "--recompute-granularity full"
NO_SHARD = "--data-parallel-sharding-strategy no_shard"
GRADS = "--use-distributed-optimizer --data-parallel-sharding-strategy optim_grads"
TP = "--tensor-model-parallel-size 2"
PP = "--pipeline-model-parallel-size 2"
V = "--num-virtual-stages-per-pipeline-rank 2"
GROUP = "--microbatch-group-size-per-virtual-pipeline-stage"
ACCOUNT = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
TABLE = [
    (
        "--tensor-model-parallel-size 3 --num-attention-heads 3 --hidden-size 63",
        "--tensor-model-parallel-size 3 does not divide the world size 4. Try 1, 2 or 4.",
    ),
    (
        "--pipeline-model-parallel-size 3 --num-layers 4",
        "--pipeline-model-parallel-size 3 does not divide the world size 4. Try 1, 2",
    ),
    (
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --num-layers 4",
        "--tensor-model-parallel-size 2 x --pipeline-model-parallel-size 4 does not divide the world size 4. "
        "Try --pipeline-model-parallel-size 1 or 2.",
    ),
    (f"{PP} --global-batch-size 6", "--micro-batch-size 2 x data-parallel size 2. Try 4 or 8."),
    (f"{PP} {V} --num-layers-per-virtual-pipeline-stage 1", "both say how many stages a rank has. Give one."),
    (f"{PP} {V} --pipeline-model-parallel-layout Et|tL", "both say how many stages a rank has. Give one."),
    (
        f"{PP} --pipeline-model-parallel-layout Et|tL --decoder-first-pipeline-num-layers 1",
        "--decoder-first-pipeline-num-layers does not go with --pipeline-model-parallel-layout, which says where",
    ),
    (
        f"{PP} --decoder-first-pipeline-num-layers 1 {ACCOUNT}",
        f"{ACCOUNT.replace(' ', ' and ')} do not go with --decoder-first-pipeline-num-layers. Give one",
    ),
    (
        f"{PP} --decoder-last-pipeline-num-layers 1 --num-layers-per-virtual-pipeline-stage 1",
        "does not go with --decoder-last-pipeline-num-layers. Use --num-virtual-stages-per-pipeline-rank.",
    ),
    (f"{PP} {V} --pipeline-schedule zb-v", "zb-v, which has two stages on each rank. Leave it out."),
    (f"{V}", f"{V[:-2]} asks for 2 stages a rank, but one rank alone has nobody to take turns with."),
    (f"{PP} --num-layers 4 {V} --pipeline-schedule 1f1b", "but --pipeline-schedule 1f1b has one. Try --pipeline-sche"),
    (f"{PP} --pipeline-schedule interleaved", "interleaved needs several stages a rank. Try --num-virtual-stages-per"),
    (f"{PP} {GROUP} 2", f"{GROUP} 2 needs several stages a rank."),
    (f"{PP} --num-layers 4 {V} {GROUP} 1", f"{GROUP} 1 is less than --pipeline-model-parallel-size 2"),
    (f"{PP} --num-layers 1", "--pipeline-model-parallel-size 2 are more stages than --num-layers 1."),
    (f"{PP} --pipeline-model-parallel-layout E|t|tL", "no multiple of --pipeline-model-parallel-size 2"),
    ("--decoupled-min-lr 1e-4", "--decoupled-min-lr 0.0001 needs --decoupled-lr. Try --decoupled-lr 0.001."),
    (
        "--decoupled-lr 1e-5 --min-lr 1e-4",
        "--min-lr 0.0001 is more than --decoupled-lr 1e-05. Try --decoupled-lr 0.001",
    ),
    ("--decoupled-lr 1e-5 --lr-warmup-init 1e-4", "--lr-warmup-init 0.0001 is more than --decoupled-lr 1e-05."),
    ("--optimizer muon --optimizer-cpu-offload", "--optimizer muon does not go with --optimizer-cpu-offload"),
    ("--optimizer muon --log-num-zeros-in-grad", "which leaves no gradients to count in. Leave one out."),
    ("--adam-kernel apex --device cpu", "--adam-kernel apex needs a GPU, but --device is cpu."),
    ("--adam-kernel apex --optimizer-cpu-offload", "--optimizer-cpu-offload, which updates on a CPU. Leave one out."),
    ("--fp16 --bf16", "--bf16 and --fp16 both give the precision. Give one."),
    ("--fp16 --grad-reduce-in-bf16", "--grad-reduce-in-bf16 needs --bf16"),
    ("--fp16 --min-loss-scale 8 --initial-loss-scale 4", "4 is below --min-loss-scale 8. Try --min-loss-scale 4."),
    ("--decoder-last-pipeline-num-layers 1", "that leaves 1 of --num-layers 2 for 0 other pipeline ranks. Try"),
    ("--pipeline-trace nowhere/trace.json", "--pipeline-trace nowhere/trace.json: there is no folder nowhere."),
    ("--tensor-model-parallel-size 4 --num-attention-heads 6 --hidden-size 60", "Try 4 or 8 heads."),
    ("--group-query-attention --num-query-groups 3", "--num-query-groups 3. Try 1, 2 or 4."),
    (
        "--tensor-model-parallel-size 4 --group-query-attention --num-query-groups 2",
        "--tensor-model-parallel-size 4 is more than --num-query-groups 2: each rank needs a whole query group",
    ),
    ("--hidden-size 65", "--hidden-size 65 is not divisible by --num-attention-heads 4. Try 64 or 68"),
    ("--position-embedding-type rope --kv-channels 5", "is 5. Try --kv-channels 6 --rotary-percent 1."),
    (
        "--tensor-model-parallel-size 4 --ffn-hidden-size 322",
        "--ffn-hidden-size 322 is not divisible by --tensor-model-parallel-size 4. Try 320 or 324.",
    ),
    ("--swiglu --hidden-size 16", "--hidden-size 16 with --swiglu leaves no MLP width. Give --ffn-hidden-size."),
    ("--no-rope-freq 2", "--no-rope-freq needs rotary positions, but --position-embedding-type is learned_absolute."),
    ("--position-embedding-type rope --no-rope-freq [1,0,1]", "nor a list of 2 ones and zeros, one for each layer."),
    ("--max-position-embeddings 16", "--seq-length 32 is more than --max-position-embeddings 16."),
    (
        "--sequence-parallel --tensor-model-parallel-size 4 --seq-length 34",
        "--seq-length 34 is not divisible by --tensor-model-parallel-size 4 under --sequence-parallel. Try 32 or 36.",
    ),
    ("--device cpu --distributed-backend nccl", "Try --distributed-backend gloo."),
    (
        "--recompute-method block --recompute-num-layers 1",
        "--recompute-method block and --recompute-num-layers 1 need --recompute-granularity full.",
    ),
    (
        "--recompute-granularity full --recompute-modules mlp",
        "--recompute-modules mlp needs --recompute-granularity selective.",
    ),
    ("--recompute-activations --recompute-modules moe_act", "moe_act is not supported: there are no experts yet."),
    ("--recompute-activations --recompute-modules core", "core is not one of core_attn, layernorm, mlp."),
    (f"{FULL} --distribute-saved-activations", "needs tensor parallel ranks to keep a part each."),
    ("--ddp-bucket-size 100 --ddp-num-buckets 3", "--ddp-bucket-size 100 and --ddp-num-buckets 3 both say"),
    ("--num-distributed-optimizer-instances 2", "instances 2 needs --use-distributed-optimizer. Give it, or leave"),
    (
        "--use-distributed-optimizer --num-distributed-optimizer-instances 3",
        "--num-distributed-optimizer-instances 3 does not divide the data parallel size 4. Try 1, 2 or 4.",
    ),
    ("--data-parallel-sharding-strategy optim_grads", "optim_grads needs --use-distributed-optimizer. Give it"),
    (f"{NO_SHARD} --use-distributed-optimizer", "no_shard does not go with --use-distributed-optimizer, which shards."),
    (f"{GRADS} --pipeline-model-parallel-size 2", "--pipeline-model-parallel-size 2 a step would send its"),
    (f"{GRADS} --pipeline-schedule zb-h1", "--pipeline-schedule zb-h1 splits it. Leave the schedule out."),
    (f"{GRADS} --optimizer muon", "optim_grads does not go with --optimizer muon, which makes whole matrices"),
    (
        "--data-parallel-sharding-strategy optim_grads_params",
        "Use --use-distributed-optimizer --data-parallel-sharding-strategy optim_grads with "
        "--tensor-model-parallel-size 4, which shares parameters, too.",
    ),
    (f"{FULL} {TP} --sequence-parallel --distribute-saved-activations", "under which each rank has its own part."),
    (
        f"{FULL} --tensor-model-parallel-size 4 --distribute-saved-activations --seq-length 33 --hidden-size 6 "
        "--kv-channels 4 --micro-batch-size 1",
        "x --hidden-size 6 is not divisible by --tensor-model-parallel-size 4. Try --micro-batch-size 4.",
    ),
    (
        "--tensor-model-parallel-size 2 --global-batch-size 10",
        "--global-batch-size 10 is not divisible by --micro-batch-size 2 x data-parallel size 2. Try 8 or 12.",
    ),
    (
        "--global-batch-size 2",
        "--global-batch-size 2 is not divisible by --micro-batch-size 2 x data-parallel size 4. Try 8.",
    ),
    ("--global-batch-size 24 --rampup-batch-size 4 10 100", "--rampup-batch-size with the size 4 is not divisible by"),
    ("--global-batch-size 24 --rampup-batch-size 8 8", "--rampup-batch-size 8 8 is not START INCREMENT SAMPLES"),
    ("--global-batch-size 24 --rampup-batch-size 8 0 100", "--rampup-batch-size 8 0 100 is not START INCREMENT"),
    ("--rampup-batch-size 8 8 100", "--rampup-batch-size needs --global-batch-size"),
    ("--global-batch-size 24 --rampup-batch-size 8 12 100", "in whole increments. Try --global-batch-size 20 or 32."),
    ("--global-batch-size 8 --rampup-batch-size 16 8 100", "in whole increments. Try --global-batch-size 16 or 24."),
    ("--step-batch-size-schedule 0:8 1M:12", "--step-batch-size-schedule with the size 12 is not divisible by"),
    ("--step-batch-size-schedule 1:8", "--step-batch-size-schedule 1:8 does not say the size at the start."),
    ("--step-batch-size-schedule 0:8 --global-batch-size 8", "and --step-batch-size-schedule both give"),
    (
        "--step-batch-size-schedule 0:8 --global-batch-size 8 --rampup-batch-size 8 8 8",
        "--rampup-batch-size and --step-batch-size-schedule both give the batch sizes. Give one.",
    ),
    (
        "--global-batch-size 6 --decrease-batch-size-if-needed",
        "--global-batch-size 6 is not divisible by --micro-batch-size 2 x data-parallel size 4. Try 8.",
    ),
    ("--eval-global-batch-size 9", "--eval-global-batch-size 9 is not divisible by --micro-batch-size 2 x data-"),
    ("--iterations-to-skip 0 4", "--iterations-to-skip 0 4: iterations are counted from 1."),
    (
        "--use-checkpoint-opt_param-scheduler --override-opt_param-scheduler",
        "--use-checkpoint-opt_param-scheduler and --override-opt_param-scheduler contradict each other.",
    ),
    ("--train-samples 100", "--train-iters 100 and --train-samples 100 both give the length of the run."),
    ("--lr-decay-samples 50", "--lr-decay-samples 50 does not go with --train-iters. Use --lr-decay-iters."),
    ("--lr-warmup-samples 50", "--lr-warmup-samples 50 does not go with --train-iters. Use --lr-warmup-iters."),
    ("--lr-warmup-fraction 0.1 --lr-warmup-iters 3", "--lr-warmup-fraction 0.1 and --lr-warmup-iters 3 both"),
    ("--min-lr 1e-2", "--min-lr 0.01 is more than --lr 0.001. Try --min-lr 0.0001."),
    ("--lr-warmup-init 1", "--lr-warmup-init 1.0 is more than --lr 0.001."),
    ("--lr-warmup-iters 9 --lr-decay-iters 9", "is to be lowest. Try --lr-warmup-iters 1."),
    ("--lr-warmup-iters 1 --lr-decay-iters 1", "is to be lowest. Leave it out."),
    ("--lr-warmup-iters 100", "--lr-warmup-iters 100 is not less than --train-iters 100"),
    ("--lr-warmup-iters 2000", "--lr-warmup-iters 2000 is not less than --train-iters 100"),
    ("--lr-warmup-iters 5 --lr-decay-iters 5", "--lr-warmup-iters 5 is not less than --lr-decay-iters 5"),
    ("--lr-warmup-fraction 1.0", "--lr-warmup-fraction 1.0 is out of range: it must be at least 0 and below 1."),
    ("--lr-decay-iters 0", "--lr-decay-iters 0 is out of range: it must be at least 1."),
    ("--lr-decay-style WSD", "--lr-decay-style WSD needs --lr-wsd-decay-iters. Try 10."),
    ("--lr-decay-style WSD --lr-warmup-iters 50 --lr-wsd-decay-iters 60", "--lr-wsd-decay-iters 60 does not fit"),
    ("--start-weight-decay 1", "--start-weight-decay and --end-weight-decay do not go with"),
    ("--weight-decay-incr-style cosine --end-weight-decay 1", "--weight-decay-incr-style cosine needs both"),
    ("--optimizer-offload-fraction 2 --optimizer-cpu-offload", "--optimizer-offload-fraction 2.0 is out of range"),
    ("--optimizer-offload-fraction 0.5", "--optimizer-offload-fraction 0.5 needs --optimizer-cpu-offload. Give it"),
    (
        "--optimizer-offload-device disk --offload-dir d",
        "--optimizer-offload-device disk needs --optimizer-cpu-offload",
    ),
    ("--optimizer-cpu-offload --optimizer-offload-device disk", "--optimizer-offload-device disk needs --offload-dir."),
    ("--optimizer-cpu-offload --offload-dir d", "Use --optimizer-offload-device disk."),
    ("--data-path d/x", "--data-path and --mock-data exclude each other."),
    ("--valid-data-path d/x --data-args-path f", "--data-args-path, --train-data-path and --mock-data exclude each"),
    ("--multiple-validation-sets", "--multiple-validation-sets does not go with --mock-data"),
    ("--fim-split-sample ;", "--fim-split-sample ; needs --fim-fragment-rate. Try --fim-fragment-rate 0.5."),
    ("--fim-fragment-rate 0.5", "--fim-fragment-rate 0.5 needs --fim-split-sample"),
    ("--save d", "--save d needs --save-interval. Try --save-interval 100."),
    ("--save d --save-interval 10 --save-retain-interval 25", "would rarely be retained. Try 20 or 30."),
    ("--save d --save-interval 10 --save-retain-interval 5", "is not a multiple of --save-interval 10: what is saved"),
    (
        "--save d --save-interval 10 --async-save --optimizer-cpu-offload --optimizer-offload-device disk "
        "--offload-dir d",
        "what --optimizer-offload-device disk keeps out of it. Leave out --async-save.",
    ),
    ("--ckpt-step 4", "--ckpt-step 4 needs --load."),
    ("--exit-on-missing-checkpoint", "--exit-on-missing-checkpoint needs --load."),
    ("--hidden-dropout 1", "--hidden-dropout 1.0 is out of range: it must be at least 0 and below 1."),
    ("--attention-dropout -0.1", "--attention-dropout -0.1 is out of range"),
    ("--num-layers 0", "--num-layers 0 is out of range: it must be at least 1."),
    ("--global-batch-size -8", "--global-batch-size -8 is out of range"),
    ("--eval-interval 0", "--eval-interval 0 is out of range"),
    ("--clip-grad -1", "--clip-grad -1.0 is out of range"),
    ("--adam-beta2 1", "--adam-beta2 1.0 is out of range"),
    ("--norm-epsilon 0", "--norm-epsilon 0.0 is out of range: it must be above 0."),
    ("--tokenizer-type HuggingFaceTokenizer", "--tokenizer-type HuggingFaceTokenizer needs --tokenizer-model."),
    ("--tokenizer-type Llama2Tokenizer --tokenizer-model nowhere", "--tokenizer-model nowhere does not exist."),
    (
        "--tokenizer-type GPT2BPETokenizer --vocab-file vocab.json",
        "--tokenizer-type GPT2BPETokenizer needs --merge-file.",
    ),
    *((f"--split {text}", f"--split {text!r}") for text in ("-1,1,0", "90,abc5,5", "0,0,0", "nan,1,0", "inf,1,0", "")),
    ("--split 50,50,0,0", "--split '50,50,0,0'"),
]


@pytest.mark.parametrize(("flags", "text"), TABLE, ids=[flags for flags, _ in TABLE])
def test_refused(flags, text):
    (problem,) = problems(flags)
    assert text in problem


@pytest.mark.parametrize(
    ("without", "flags", "text"),
    [
        ("--train-iters", "", "The length of the run is missing. Give --train-iters or --train-samples."),
        ("--train-iters", "--train-samples 7 --global-batch-size 8", "--train-samples 7 is less than one"),
        ("--train-iters", "--train-samples 7 --global-batch-size 16 --rampup-batch-size 8 8 9", "one global batch"),
        ("--train-iters", "--train-samples 99 --lr-warmup-iters 3", "Use --lr-warmup-samples."),
        ("--train-iters", "--train-samples 99 --lr-warmup-samples 99", "--lr-warmup-samples 99 is not less than"),
        ("--mock-data", "", "There are no data. Give --data-path PREFIX, or --mock-data"),
        ("--mock-data", "--data-path 0.5 d/x 0.5 d/y", "--data-path d/y: there is no d/y.bin and no d/y.idx."),
        ("--mock-data", "--data-path d/x.bin", "Leave the ending out."),
        ("--mock-data", "--data-path 0.5 d/x 0.5", "--data-path 0.5 d/x 0.5: give either prefixes only, or a weight"),
        ("--mock-data", "--train-data-path 0 d/x", "--train-data-path has the weights [0.0]; each must be above 0."),
        ("--mock-data", "--train-data-path d/x --test-data-path d/y", "--test-data-path d/y: there is no d/y.bin"),
        ("--mock-data", "--valid-data-path d/x", "There is nothing to train on: give --train-data-path a prefix."),
        ("--mock-data", "--train-data-path d/x --split 1,1,1", "--split 1,1,1 does not go with --train-data-path"),
        ("--mock-data", "--data-args-path nowhere.txt", "--data-args-path nowhere.txt cannot be read: No such file"),
        ("--vocab-size", "", "--tokenizer-type NullTokenizer needs --vocab-size."),
        ("--vocab-size", "--tokenizer-type TikTokenizer", "TikTokenizer needs --tokenizer-model and --tiktoken-p"),
        *((flag, "", f"{flag} is missing.") for flag in list(BASE)[:5] + ["--lr"]),
    ],
)
def test_refused_where_something_is_missing(without, flags, text):
    (problem,) = problems(flags, without=without)
    assert text in problem


@pytest.mark.parametrize(
    ("flag", "content", "text"),
    [
        ("--data-args-path", "", "is empty. Give the prefix"),
        ("--data-args-path", "0.3 d/x\n 0.7", "give either prefixes only, or a weight before each prefix"),
        ("--data-args-path", "d/y", "args: d/y: there is no d/y.bin and no d/y.idx."),
        ("--per-split-data-args-path", "d/x", "is not valid JSON"),
        ("--per-split-data-args-path", "[]", "must be an object with the keys train, valid and test."),
        ("--per-split-data-args-path", '{"train": "d/x"}', "must be an object with the keys train, valid and test."),
        ("--per-split-data-args-path", '{"train": {}, "valid": 3, "test": null}', "valid is neither a list of texts"),
        ("--per-split-data-args-path", '{"train": null, "valid": "d/x", "test": null}', "nothing to train on in"),
        ("--per-split-data-args-path", '{"train": ["d/x"], "valid": "d/y", "test": []}', "args: valid: d/y: there is"),
        ("--per-split-data-args-path --split 1", '{"train": "d/x", "valid": null, "test": null}', "--split 1 does not"),
        ("--data-args-path", "d/x", ""),
        ("--data-args-path", "0.3 d/x\n0.7\td/x\n", ""),
        ("--per-split-data-args-path", '{"train": [0.3, "d/x", 0.7, "d/x"], "valid": "d/x d/x", "test": null}', ""),
    ],
)
def test_files_that_name_data(tmp_path, flag, content, text):
    (tmp_path / "args").write_text(content)
    flag, _, more = flag.partition(" ")
    found = problems(f"{flag} {tmp_path}/args {more}".strip(), without="--mock-data")
    assert [text in problem for problem in found] == [True] * bool(text), found


def test_one_process_is_told_how_to_start_more():
    (problem,) = problems("--tensor-model-parallel-size 2", world_size=1)
    assert problem.endswith("Start the job with torchrun --nproc-per-node 2.")


def test_everything_at_once_and_nothing_twice():
    found = problems("--max-position-embeddings 3 --split a --min-lr 1 --save d --num-layers 0")
    assert len(found) == 5


def test_rules_that_read_a_faulty_flag_are_silent():
    config = parsed("--global-batch-size 10").config
    assert check(config, 4, exists=FILES.__contains__)
    assert not check(config, 4, faulty={"--tensor-model-parallel-size"}, exists=FILES.__contains__)


def test_nothing_is_missing_where_the_file_could_not_be_read():
    assert check(Config(), 4, faulty={"--config"}) == []


def test_nothing_given_names_what_is_required():
    text = "\n".join(map(str, check(Config(), 1)))
    for flag in (
        "--num-layers",
        "--hidden-size",
        "--seq-length",
        "--micro-batch-size",
        "--lr",
        "--train-iters",
        "--vocab-file",
    ):
        assert flag in text


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("--sequence-parallel", "--sequence-parallel has no effect with --tensor-model-parallel-size 1."),
        (
            f"{PP} --global-batch-size 4",
            "A step has 1 micro-batches, fewer than --pipeline-model-parallel-size 2: ranks wait most of the time.",
        ),
        ("--split 1,1,1", "--split is not read with --mock-data, which is cut into three equal parts."),
    ],
)
def test_without_effect_is_said(flags, text):
    (notice,) = notices(parsed(flags).config, 4)
    assert text in notice


def test_ordinary_settings_need_no_notice():
    assert notices(parsed("").config, 4) == []
