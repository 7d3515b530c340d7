"""Derived numbers, against Megatron's where it produced them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from megalite.config.cli import parse
from megalite.config.derive import bucket_size, derive, padded_vocab_size
from megalite.config.size import model_size
from megalite.config.split import split_shares

MEGATRON = json.loads((Path(__file__).parents[1] / "data" / "megatron_values.json").read_text())

BASE = (
    "--num-layers 2 --hidden-size 128 --num-attention-heads 4 --seq-length 64 "
    "--micro-batch-size 2 --lr 1 --train-iters 100"
)


def config(flags: str):
    parsed = parse(f"{BASE} {flags}".split())
    assert not parsed.problems
    return parsed.config


def derived(flags: str, world_size: int = 4):
    return derive(config(flags), world_size)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", {"ffn_hidden_size": 512, "kv_channels": 32, "num_query_groups": 4, "max_position_embeddings": 64}),
        ("--swiglu", {"ffn_hidden_size": 320}),
        ("--swiglu --ffn-hidden-size 330", {"ffn_hidden_size": 330}),
        ("--num-query-groups 2", {"num_query_groups": 4}),
        ("--group-query-attention --num-query-groups 2", {"num_query_groups": 2}),
        ("--kv-channels 8 --max-position-embeddings 99", {"kv_channels": 8, "max_position_embeddings": 99}),
        ("", {"qkv_bias": True, "linear_bias": True, "norm_bias": True, "tied_embeddings": True}),
        ("--disable-bias-linear", {"qkv_bias": False, "linear_bias": False}),
        ("--disable-bias-linear --add-qkv-bias", {"qkv_bias": True, "linear_bias": False}),
    ],
)
def test_model_size(flags, expected):
    size = model_size(config(flags).model, vocab_size=100)
    assert {name: getattr(size, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", {"data_parallel_size": 4, "global_batch_size": 8, "num_micro_batches": 1}),
        ("--tensor-model-parallel-size 2", {"data_parallel_size": 2, "global_batch_size": 4}),
        ("--global-batch-size 24", {"num_micro_batches": 3, "train_samples": 2400, "lr_decay_samples": 2400}),
        ("--lr-decay-iters 50 --lr-warmup-iters 5", {"lr_decay_samples": 400, "lr_warmup_samples": 40}),
        ("--lr-warmup-fraction 0.015", {"lr_warmup_samples": 12.0}),
        ("--lr-wsd-decay-iters 3", {"lr_wsd_decay_samples": 24}),
        ("--global-batch-size 16 --rampup-batch-size 8 8 16 --lr-warmup-iters 3", {"lr_warmup_samples": 32}),
        (
            "--global-batch-size 16 --rampup-batch-size 8 8 16 --lr-decay-iters 5 --lr-wsd-decay-iters 4",
            {"train_samples": 1584, "lr_decay_samples": 64, "lr_wsd_decay_samples": 56, "global_batch_size": 16},
        ),
        ("--step-batch-size-schedule 0:8 2048:32", {"global_batch_size": 32, "num_micro_batches": 4}),
        ("--global-batch-size 23 --decrease-batch-size-if-needed", {"global_batch_size": 16, "train_samples": 1600}),
        ("--eval-global-batch-size 24 --eval-iters 3", {"data_samples": (800, 72, 72), "eval_batch_size": 24}),
        ("--full-validation --eval-iters 3", {"data_samples": (800, None, 24)}),
        ("--skip-train --eval-iters 3", {"data_samples": (0, 24, 24)}),
        ("", {"start_weight_decay": 0.01, "end_weight_decay": 0.01}),
        ("--start-weight-decay 0 --end-weight-decay 1", {"start_weight_decay": 0.0, "end_weight_decay": 1.0}),
        ("--eval-interval 40 --eval-iters 3", {"data_samples": (800, 24, 24)}),
    ],
)
def test_derived(flags, expected):
    found = derived(flags)
    for name, value in expected.items():
        exact = value is None or isinstance(value, tuple)
        assert getattr(found, name) == (value if exact else pytest.approx(value, rel=1e-12)), name


PP = "--pipeline-model-parallel-size 2"
V = "--num-virtual-stages-per-pipeline-rank 2"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", ("1f1b", 1, 1, 1)),
        (PP, ("1f1b", 2, 1, 2)),
        (f"{PP} --pipeline-schedule gpipe", ("gpipe", 2, 1, 2)),
        (f"{PP} --pipeline-schedule zb-v", ("zb-v", 2, 2, 2)),
        (f"{PP} {V}", ("interleaved", 2, 2, 2)),
        (f"{PP} --num-virtual-stages-per-pipeline-rank 1", ("1f1b", 2, 1, 2)),
        (f"{PP} {V} --microbatch-group-size-per-virtual-pipeline-stage 3", ("interleaved", 2, 2, 3)),
        (f"{PP} --num-layers 12 --num-layers-per-virtual-pipeline-stage 2", ("interleaved", 2, 3, 2)),
        (f"{PP} --pipeline-model-parallel-layout E|t|t|L", ("interleaved", 2, 2, 2)),
        (f"{PP} --pipeline-model-parallel-layout Et|tL", ("1f1b", 2, 1, 2)),
    ],
)
def test_pipeline(flags, expected):
    found = derived(flags)
    pipeline = found.pipeline
    assert (pipeline.schedule, pipeline.num_ranks, pipeline.num_chunks, pipeline.group_size) == expected
    assert pipeline.num_stages == pipeline.num_ranks * pipeline.num_chunks
    assert found.data_parallel_size == 4 // pipeline.num_ranks


def test_run_counted_in_samples():
    config = parse(f"{BASE} --global-batch-size 8 --lr-decay-samples 70 --lr-warmup-samples 9".split()).config
    config = replace(config, train=replace(config.train, train_iters=None, train_samples=90))
    found = derive(config, 4)
    assert (found.train_iters, found.train_samples) == (11, 90)
    assert (found.lr_decay_samples, found.lr_warmup_samples) == (70, 9)


@pytest.mark.parametrize(
    ("flags", "dp", "expected"),
    [
        ("", 4, None),
        ("--overlap-grad-reduce", 4, 40_000_000),
        ("--overlap-grad-reduce", 64, 64_000_000),
        ("--use-distributed-optimizer --data-parallel-sharding-strategy optim_grads", 4, 40_000_000),
        ("--ddp-bucket-size 7", 4, 7),
        ("--ddp-num-buckets 3 --overlap-grad-reduce", 4, 334),
    ],
)
def test_bucket_sizes(flags, dp, expected):
    assert bucket_size(config(flags).parallel, dp, 1000) == expected


@pytest.mark.parametrize(("case", "padded"), MEGATRON["padded_vocab"].items())
def test_padded_vocabulary(case, padded):
    vocab, multiple, tp = map(int, case.split(","))
    assert padded_vocab_size(vocab, divisible_by=multiple, tensor_parallel_size=tp) == padded


@pytest.mark.parametrize(("text", "expected"), [(text, row["vec"]) for text, row in MEGATRON["split_parse"].items()])
def test_split_as_megatron(text, expected):
    assert split_shares(text) == tuple(expected)
    assert split_shares(f"'{text}'") == tuple(expected)


@pytest.mark.parametrize(
    "text", ["-1,1,0", "-1,3,0", "90,abc5,5", "0,0,0", "nan,1,0", "inf,1,0", "50,50,0,0", "", ",", "1e308,1e308"]
)
def test_split_that_is_none(text):
    with pytest.raises(ValueError, match="--split"):
        split_shares(text)
