"""Closed forms against the literature's formulas, published models, and counting by hand."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from megalite.arith.buckets import length, place, rooms, shared
from megalite.arith.flops import model_flops
from megalite.arith.kept import Kept, first_activations, head_activations, kept, weight_activations
from megalite.arith.memory import Keeping, layer_activations, region_activations, state_bytes
from megalite.arith.parameters import count_parameters, weights
from megalite.arith.part import Part, whole
from megalite.arith.traffic import (
    Sent,
    data_parallel_traffic,
    ends_traffic,
    pipeline_traffic,
    tensor_parallel_traffic,
)
from megalite.arith.treatment import Kind, Treatment
from megalite.config.size import ModelSize
from megalite.plan import claims


def gpt(L: int, h: int, a: int, s: int, V: int) -> ModelSize:
    """In the order of the papers."""
    return claims.gpt(L, h, a, vocab=V, seq=s)


def llama(L: int, h: int, f: int, a: int, g: int, V: int, tied: bool = False) -> ModelSize:
    return replace(
        gpt(L, h, a, 4096, V),
        ffn_hidden_size=f,
        num_query_groups=g,
        rotary_dim=h // a,
        gated_mlp=True,
        learned_positions=False,
        linear_bias=False,
        qkv_bias=False,
        norm_bias=False,
        tied_embeddings=tied,
    )


GPTS = [(12, 768, 12, 1024, 50257), (96, 12288, 96, 2048, 51200), (2, 64, 4, 32, 100)]


@pytest.mark.parametrize(("L", "h", "a", "s", "V"), GPTS)
def test_parameters_as_narayanan(L, h, a, s, V):
    formula = 12 * L * h**2 * (1 + 13 / (12 * h) + (V + s) / (12 * L * h)) + 2 * h
    assert count_parameters(gpt(L, h, a, s, V)).total == round(formula)


@pytest.mark.parametrize(
    ("size", "published"),
    [
        (gpt(12, 768, 12, 1024, 50257), 124_439_808),
        (llama(32, 4096, 11008, 32, 32, 32000), 6_738_415_616),
        (llama(32, 4096, 14336, 32, 8, 128256), 8_030_261_248),
        (llama(80, 8192, 28672, 64, 8, 128256), 70_553_706_496),
        (llama(16, 2048, 8192, 32, 8, 128256, tied=True), 1_235_814_400),
    ],
    ids=["GPT-2", "Llama-2-7B", "Llama-3-8B", "Llama-3-70B", "Llama-3.2-1B"],
)
def test_parameters_of_published_models(size, published):
    assert count_parameters(size).total == published


def test_parameters_on_a_rank():
    count = count_parameters(gpt(2, 64, 4, 32, 100))
    assert count.per_rank(1) == count.total
    assert count.per_rank(4) == count.split // 4 + count.replicated
    assert count.replicated == 32 * 64 + 2 * (4 * 64 + 2 * 64) + 2 * 64


@pytest.mark.parametrize(("L", "h", "a", "s", "V"), GPTS)
def test_flops_as_korthikanti(L, h, a, s, V):
    formula = 72 * 8 * L * s * h**2 * (1 + s / (6 * h) + V / (12 * L * h))
    assert model_flops(gpt(L, h, a, s, V), samples=8) == pytest.approx(formula, rel=1e-14)


def test_flops_follow_the_matrices():
    """Six FLOPs per token and weight of a matrix product, and 12 s (heads x head) per token and layer for attention."""
    size = llama(4, 128, 320, 8, 2, 1000)
    matrices = 4 * (128 * (8 + 4) * 16 + 128 * 128 + 3 * 128 * 320) + 128 * 1000
    per_token = 6 * matrices + 4 * 12 * 4096 * 128
    assert model_flops(size, samples=3) == 3 * 4096 * per_token


@pytest.mark.parametrize(
    ("param_bytes", "moments", "per_parameter"),
    [(4, 2, 16), (4, 1, 12), (4, 0, 8), (2, 2, 18), (2, 0, 10), (8, 2, 32)],
)
def test_state_bytes(param_bytes, moments, per_parameter):
    assert state_bytes(1000, param_bytes=param_bytes, moments=moments).total == 1000 * per_parameter
    kept = 1000 * (param_bytes + max(param_bytes, 4))
    sharded = state_bytes(1000, param_bytes=param_bytes, moments=moments, shards=4).total
    assert sharded == kept + (1000 * per_parameter - kept) // 4


HOW = Keeping(
    micro_batch_size=2,
    param_bytes=2,
    hidden_bytes=2,
    tensor_parallel_size=2,
    sequence_parallel=False,
    core="dropout",
    dropout=True,
)


@pytest.mark.parametrize("t", [1, 2, 8])
@pytest.mark.parametrize("sp", [False, True])
@pytest.mark.parametrize("core_attn", [frozenset(), frozenset({"core_attn"})])
def test_activations_as_korthikanti(t, sp, core_attn):
    s, b, h, a = 2048, 2, 1024, 16
    how = replace(HOW, tensor_parallel_size=t, sequence_parallel=sp, recomputed=core_attn)
    terms = layer_activations(gpt(4, h, a, s, 51200), how)
    statistics = sum(nbytes for name, nbytes in terms.items() if name.startswith(("mean", "deviation")))
    assert statistics == 2 * 2 * s * b * 4 // (t if sp else 1)
    square = 0 if core_attn else 5 * a * s / h
    formula = s * b * h * ((34 + square) / t if sp else 10 + (24 + square) / t)
    assert sum(terms.values()) - statistics == formula


@pytest.mark.parametrize(("sp", "distributed", "share"), [(False, False, 1), (True, False, 4), (False, True, 4)])
def test_the_input_of_a_region_as_korthikanti(sp, distributed, share):
    how = replace(HOW, tensor_parallel_size=4, sequence_parallel=sp, distributed=distributed)
    assert region_activations(gpt(4, 64, 4, 32, 100), how) == {"input": 2 * 32 * 2 * 64 // share}


def test_a_stage_keeps_its_layers_and_its_ends():
    size, part = gpt(4, 64, 4, 32, 100), whole(gpt(4, 64, 4, 32, 100))
    layer, region = (sum(terms(size, HOW).values()) for terms in (layer_activations, region_activations))
    ends = kept(size, HOW, replace(part, layers=0)).after_forward
    waiting, head = (
        sum(found.values()) for found in (weight_activations(size, HOW), head_activations(size, HOW, part))
    )
    assert kept(size, HOW, part) == Kept(after_forward=4 * layer + ends, to_weights=4 * waiting + head)
    assert head == 2 * 32 * 2 * (64 + 100 // 2) and not head_activations(size, HOW, replace(part, loss=False))
    found = kept(size, HOW, part, [2, 1])
    assert found.after_forward == layer + 2 * region + ends
    first = sum(first_activations(size, HOW, part).values())
    assert found.in_backward == first + 2 * layer, "the first region: its input is that of its first layer"
    mlp = kept(size, replace(HOW, recomputed=frozenset({"mlp"})), part)
    assert kept(size, HOW, part).after_forward - mlp.after_forward == 4 * 32 * 2 * (4 + 4) * 64 * 2 // 2


@pytest.mark.parametrize(("L", "m", "t"), [(1, 1, 2), (4, 3, 2), (3, 2, 8)])
def test_tensor_parallel_collectives(L, m, t):
    size, b = gpt(L, 64, 8, 32, 100), 2
    settings = {"tensor_parallel_size": t, "micro_batch_size": b, "num_micro_batches": m, "param_bytes": 2}
    activation, loss = 32 * b * 64 * 2, 32 * b * t * 3 * 4
    assert tensor_parallel_traffic(size, sequence_parallel=False, **settings) == {
        "all_reduce": Sent(calls=m * (4 * L + 2), nbytes=m * (4 * L + 2) * activation),
        "all_gather": Sent(calls=m, nbytes=m * loss),
    }
    replicated = L * 6 * 64 + 2 * 64 + 32 * 64
    assert tensor_parallel_traffic(size, sequence_parallel=True, **settings) == {
        "all_gather": Sent(calls=m * (6 * L + 4), nbytes=m * ((6 * L + 3) * activation + loss)),
        "reduce_scatter": Sent(calls=m * (4 * L + 2), nbytes=m * (4 * L + 2) * activation),
        "all_reduce": Sent(calls=1, nbytes=replicated * 4),
    }


def test_a_group_of_one_sends_nothing():
    settings = {"micro_batch_size": 1, "num_micro_batches": 1, "param_bytes": 4, "sequence_parallel": True}
    assert tensor_parallel_traffic(gpt(1, 64, 4, 32, 100), tensor_parallel_size=1, **settings) == {}
    assert dp_traffic(1, 1, sharded=True) == {}


def test_data_parallel_collectives():
    assert dp_traffic(2, 3, sharded=False) == {"all_reduce": Sent(calls=3, nbytes=40)}
    gathered = Sent(calls=3, nbytes=20)
    assert dp_traffic(2, 3, sharded=True) == {"reduce_scatter": Sent(calls=3, nbytes=40), "all_gather": gathered}
    often = {"reduce_scatter": Sent(calls=15, nbytes=200), "all_gather": gathered}
    assert dp_traffic(2, 3, sharded=True, sums=5) == often
    assert dp_traffic(4, 3, sharded=False, ordered=True) == {"all_gather": Sent(calls=3, nbytes=160)}
    assert dp_traffic(4, 3, sharded=True, ordered=True) == {"all_gather": Sent(calls=6, nbytes=180)}


def dp_traffic(ranks: int, buckets: int, **how: Any) -> dict[str, Sent]:
    return data_parallel_traffic(
        parameters=10, data_parallel_size=ranks, buckets=buckets, grad_bytes=4, param_bytes=2, **how
    )


FIRST = Part(layers=1, embedding=True, loss=False)
MIDDLE = Part(layers=2, embedding=False, loss=False)
LAST = Part(layers=1, embedding=False, loss=True)
PARTS = [FIRST, MIDDLE, LAST]
SIZE = gpt(4, 64, 8, 32, 96)


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_of_parts_add_up(tied):
    size = replace(SIZE, tied_embeddings=tied)
    assert count_parameters(size, whole(size)) == count_parameters(size)
    parts = sum(count_parameters(size, part).total for part in PARTS)
    assert parts == count_parameters(size).total + tied * 96 * 64
    both = Part(layers=2, embedding=True, loss=True)
    assert count_parameters(size, both).total + count_parameters(size, MIDDLE).total == count_parameters(size).total
    assert count_parameters(size, FIRST).total - count_parameters(size, MIDDLE).total // 2 == 96 * 64 + 32 * 64


def test_activations_of_parts_add_up():
    assert sum(kept(SIZE, HOW, part).after_forward for part in PARTS) == kept(SIZE, HOW, whole(SIZE)).after_forward


@pytest.mark.parametrize("sp", [True, False])
@pytest.mark.parametrize("qk_norm", [True, False])
def test_tensor_parallel_collectives_of_parts_add_up(sp, qk_norm):
    """But for those that a rank does once, and for gathering what comes from another stage."""
    size, m, t = replace(SIZE, qk_norm=qk_norm), 3, 2
    settings = {"tensor_parallel_size": t, "micro_batch_size": 1, "num_micro_batches": m, "param_bytes": 2}
    settings |= {"sequence_parallel": sp}
    activation = 32 * 64 * 2
    total = tensor_parallel_traffic(size, **settings)
    parts = [
        tensor_parallel_traffic(size, part, neighbours=neighbours, **settings)
        for part, neighbours in zip(PARTS, (1, 2, 1), strict=True)
    ]
    received = 0 if sp else 4 * m
    once = {"all_reduce": 2 * sp or 2 * qk_norm, "all_gather": received, "reduce_scatter": 0}
    for name, sent in total.items():
        assert sum(part[name].calls for part in parts if name in part) == sent.calls + once[name]
        extra = received * activation if name == "all_gather" else 0
        assert sum(part[name].nbytes for part in parts if name in part) == sent.nbytes + extra
    assert ("all_gather" in parts[0]) is True
    assert parts[1].get("all_gather") == (
        Sent(calls=12 * m, nbytes=12 * m * activation) if sp else Sent(calls=2 * m, nbytes=2 * m * activation)
    )


def test_a_part_without_anything_sends_nothing():
    nothing = Part(layers=0, embedding=False, loss=False)
    settings = {"tensor_parallel_size": 2, "micro_batch_size": 1, "num_micro_batches": 3, "param_bytes": 2}
    for sp in (True, False):
        assert tensor_parallel_traffic(SIZE, nothing, sequence_parallel=sp, **settings) == {}


@pytest.mark.parametrize(
    ("t", "sp", "seq_length", "elements"),
    [(1, False, 32, 2 * 32 * 64), (2, False, 32, 32 * 64), (2, True, 32, 32 * 64), (8, False, 33, 2 * 33 * 8)],
)
def test_pipeline_messages(t, sp, seq_length, elements):
    size, m = replace(SIZE, seq_length=seq_length), 5
    settings = {"tensor_parallel_size": t, "sequence_parallel": sp, "micro_batch_size": 2, "num_micro_batches": m}
    for neighbours in (1, 2, 3):
        one_way = Sent(calls=neighbours * m, nbytes=neighbours * m * elements * 2)
        assert pipeline_traffic(size, neighbours=neighbours, hidden_bytes=2, **settings) == {
            "send": one_way,
            "recv": one_way,
        }
    assert pipeline_traffic(size, neighbours=0, hidden_bytes=2, **settings) == {}


def test_a_message_that_ranks_do_not_divide_is_sent_whole():
    size = replace(SIZE, seq_length=3, hidden_size=5)
    settings = {"tensor_parallel_size": 2, "sequence_parallel": False, "micro_batch_size": 1, "num_micro_batches": 1}
    sent = pipeline_traffic(size, neighbours=1, hidden_bytes=4, **settings)
    assert sent["send"] == Sent(calls=1, nbytes=15 * 4)
    received = tensor_parallel_traffic(size, MIDDLE, neighbours=1, param_bytes=4, **settings)
    assert "all_gather" not in received


def test_ends_of_a_pipeline_sum_tied_embeddings():
    assert ends_traffic(owed=48 * 64, grad_bytes=4) == {"all_reduce": Sent(calls=1, nbytes=48 * 64 * 4)}
    assert ends_traffic(owed=0, grad_bytes=4) == {}


@pytest.mark.parametrize("part", [*PARTS, whole(SIZE)])
@pytest.mark.parametrize("size", [SIZE, llama(4, 64, 96, 8, 4, 96), llama(4, 64, 96, 8, 4, 96, tied=True)])
def test_the_listed_weights_are_those_that_are_counted(size, part):
    listed, counted = weights(size, part), count_parameters(size, part)
    assert sum(weight.on_rank(1) for weight in listed) == counted.total
    assert sum(weight.on_rank(4) for weight in listed) == counted.per_rank(4)


def test_buckets_are_closed_once_they_hold_enough():
    """Five parameters of two kinds and a tied one; padding behind each kind, and to a multiple for two ranks."""
    a, b = (
        Kind(treatment=Treatment(decayed=decayed), replicated=False, owes_tp=False, owes_ends=False)
        for decayed in (False, True)
    )
    stages = {0: [("tied", 5, a), ("e", 1, b), ("d", 200, a), ("c", 64, a)], 1: [("b", 10, a), ("a", 70, b)]}

    def placed(bucket_size):
        return place(
            stages,
            sized=lambda one: one[1:],
            is_tied=lambda one: one[0] == "tied",
            bucket_size=bucket_size,
            shards=2,
        )

    first, second = placed(75), placed(None)
    assert [bucket.range for bucket in first] == [slice(0, 256), slice(256, 640), slice(640, 768), slice(768, 896)]
    assert [(one.parameter[0], one.range) for one in first[0].parameters] == [
        ("b", slice(0, 10)),
        ("a", slice(64, 134)),
    ]
    assert list(first[0].runs()) == [(a, slice(0, 64)), (b, slice(64, 256))]
    assert [(bucket.stage, bucket.tied) for bucket in first] == [(1, False), (0, False), (0, False), (0, True)]
    assert [bucket.range for bucket in second] == [slice(0, 256), slice(256, 640), slice(640, 768)]
    assert place({0: []}, sized=lambda one: one, is_tied=bool, bucket_size=80, shards=2) == []


@pytest.mark.parametrize(
    ("lengths", "size"), [([], 0), ([7], 7), ([3, 4], 7), ([90, 1, 2, 3, 80], 91), ([1, 2, 50, 3], 53)]
)
def test_neighbouring_buckets_have_room_beside_each_other(lengths, size):
    """A large one does not ask for twice its length."""
    found = rooms(lengths)
    assert [length(room) for room in found] == lengths
    assert max((room.stop for room in found), default=0) == size
    assert not any(length(shared(a, b)) for a, b in pairwise(found))
