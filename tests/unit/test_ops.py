"""The operations of the model against formulas written down anew, and against transformers."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from megalite.config.model import Model
from megalite.config.windows import layers_without_rotary, windows
from megalite.model.attention import DropoutCore, FusedCore, SoftmaxCore
from megalite.model.context import Context
from megalite.ops.activation import gelu_exact, gelu_tanh, quick_geglu, squared_relu, swiglu
from megalite.ops.attention import fused_attention, hidden_keys, softmax_attention
from megalite.ops.blocked_attention import BLOCK, LONGEST, blocked_attention, suits
from megalite.ops.registry import Kernels
from megalite.ops.rotary import Scaling, rotary_angles, rotary_table, rotate
from megalite.ops.table import OPS

CPU = torch.device("cpu")
F64 = torch.float64
REFERENCE = Kernels("reference", "cpu", OPS)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize(
    ("activation", "formula"),
    [
        (gelu_exact, lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))),
        (gelu_tanh, lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
        (squared_relu, lambda x: torch.where(x > 0, x * x, 0)),
        (partial(swiglu, kernels=REFERENCE), lambda x: x[:, :4] / (1 + torch.exp(-x[:, :4])) * x[:, 4:]),
        (partial(quick_geglu, kernels=REFERENCE), lambda x: x[:, :4] / (1 + torch.exp(-1.702 * x[:, :4])) * x[:, 4:]),
    ],
)
def test_activations(activation, formula) -> None:
    x, dy = random(5, 8).requires_grad_(), random(5, 8)
    found, expected = activation(x), formula(x)
    assert torch.allclose(found, expected, atol=1e-12)
    dx = (torch.autograd.grad(y, x, dy[:, : y.shape[1]])[0] for y in (found, expected))
    assert torch.allclose(*dx, atol=1e-12)


def test_halves_turn_as_in_transformers() -> None:
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    q, positions = random(6, 2, 3, 8), torch.tensor([0, 1, 2, 5, 9, 13])
    table = rotary_table(16, 8, 500.0, dtype=F64, device=CPU)
    cos, sin = (t[:, :, 0] for t in rotary_angles(table, positions.repeat(2, 1)))
    table = table[:, positions]
    theirs_cos, theirs_sin = (torch.cat([t, t], dim=-1).unsqueeze(0) for t in table)
    expected, _ = modeling.apply_rotary_pos_emb(*(q.permute(1, 2, 0, 3),) * 2, theirs_cos, theirs_sin)
    assert torch.allclose(rotate(q, cos, sin), expected.permute(2, 0, 1, 3), atol=1e-12)


def test_neighbours_turn_as_complex_numbers() -> None:
    q = random(6, 2, 3, 8)
    cos, sin = rotary_table(6, 8, 500.0, dtype=F64, device=CPU)[:, :, None, None]
    expected = torch.view_as_real(torch.view_as_complex(q.reshape(6, 2, 3, 4, 2)) * torch.complex(cos, sin))
    assert torch.allclose(rotate(q, torch.cat([cos, cos], -1), sin, neighbours=True), expected.flatten(-2), atol=1e-12)


@pytest.mark.parametrize("neighbours", [False, True])
@pytest.mark.parametrize("turned", [4, 8])
def test_rotation_gradient_and_rest(neighbours: bool, turned: int) -> None:
    q = random(3, 1, 2, 8).requires_grad_()
    cos, sin = rotary_table(3, turned, 10.0, dtype=F64, device=CPU)[:, :, None, None]
    cos = torch.cat([cos, cos], -1)
    assert torch.autograd.gradcheck(lambda x: rotate(x, cos, sin, neighbours=neighbours), q)
    assert torch.equal(rotate(q, cos, sin, neighbours=neighbours)[..., turned:], q[..., turned:])


@pytest.mark.parametrize(("factor", "base"), [(8.0, 500000.0), (32.0, 10000.0)])
def test_llama_3_scaling_is_that_of_transformers(factor: float, base: float) -> None:
    transformers = pytest.importorskip("transformers")
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    settings = {
        "rope_type": "llama3",
        "rope_theta": base,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = transformers.LlamaConfig(
        hidden_size=512, num_attention_heads=4, max_position_embeddings=131072, rope_parameters=settings
    )
    theirs, _ = utils.ROPE_INIT_FUNCTIONS["llama3"](config, CPU)
    table = rotary_table(2, 128, base, scaling=Scaling(factor=factor), dtype=F64, device=CPU)
    ours = torch.atan2(table[1, 1], table[0, 1])
    assert torch.allclose(ours, theirs.to(F64), rtol=1e-5)


def test_interpolation_divides_positions() -> None:
    near = rotary_table(8, 8, 100.0, dtype=F64, device=CPU)
    far = rotary_table(32, 8, 100.0, interpolation=4, dtype=F64, device=CPU)
    assert torch.allclose(far[:, ::4], near, atol=1e-12)


DOCUMENTS = torch.tensor([[0, 0, 1, 1, 1, 2], [0, 0, 0, 0, 0, 0]])


@pytest.mark.parametrize("queries", [6, 4, 1])
@pytest.mark.parametrize("window", [None, 0, 2, 9])
@pytest.mark.parametrize("segment_ids", [None, DOCUMENTS])
def test_hidden_keys(queries: int, window: int | None, segment_ids: Tensor | None) -> None:
    keys = 6
    if segment_ids is not None and queries != keys:
        pytest.skip("documents are apart in whole sequences only")
    hidden = hidden_keys(queries, keys, window=window, segment_ids=segment_ids, device=CPU)
    for b, i, j in torch.cartesian_prod(torch.arange(2), torch.arange(queries), torch.arange(keys)).tolist():
        at = keys - queries + i
        expected = j > at or (window is not None and at - j > window)
        if segment_ids is not None:
            expected = expected or bool(segment_ids[b, at] != segment_ids[b, j])
        found = j > at if hidden is None else bool(torch.broadcast_to(hidden, (2, 1, queries, keys))[b, 0, i, j])
        assert found == expected


def test_layers_alike_share_what_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int | None] = []

    def counting(queries: int, keys: int, **given) -> Tensor | None:
        made.append(given["window"])
        return hidden_keys(queries, keys, **given)

    monkeypatch.setattr("megalite.model.context.hidden_keys", counting)
    q, k, v = random(3, 2, 4, 6, 8)
    given = {"position_ids": torch.arange(6).repeat(2, 1)}
    settings = {"layer": 0, "first_head": 0}
    cores = [
        *(FusedCore(window=window) for window in (2, None, 2, 3)),
        DropoutCore(0.5, window=3, **settings),
        SoftmaxCore(0.0, window=None, coefficient=2.0, sink=None, **settings),
    ]
    context = Context(**given)
    shared = [core(q, k, v, context) for core in cores]
    assert made == [2, None, 3]
    for core, out in zip(cores, shared, strict=True):
        assert torch.equal(out, core(q, k, v, Context(**given)))
    grown = cores[0](q[:, :, -1:], k, v, Context(position_ids=torch.full((1, 1), 5)))
    assert torch.allclose(grown, shared[0][:, :, -1:], atol=1e-12)


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("segment_ids", [None, DOCUMENTS])
@pytest.mark.parametrize("coefficient", [1.0, 7.0])
def test_both_attentions_agree(window: int | None, segment_ids: Tensor | None, coefficient: float) -> None:
    q, k, v = random(2, 4, 6, 8), random(2, 2, 6, 8), random(2, 2, 6, 8) * 2
    hidden = hidden_keys(6, 6, window=window, segment_ids=segment_ids, device=CPU)
    explicit = softmax_attention(q, k, v, hidden, coefficient=coefficient)
    assert torch.allclose(explicit, fused_attention(q, k, v, hidden), atol=1e-12)


@pytest.mark.parametrize(
    ("attend", "dtype", "tolerance"),
    [
        (blocked_attention, F64, 1e-14),
        (blocked_attention, torch.float32, 2e-6),
        (lambda q, k, v: fused_attention(q, k, v, None), torch.bfloat16, 2e-2),  # by torch's kernel
    ],
)
@pytest.mark.parametrize("blocks", [1, 3, 8])
def test_attention_of_whole_blocks(attend, dtype: torch.dtype, tolerance: float, blocks: int) -> None:
    given = random(4, 2, 3, blocks * BLOCK, 8).to(dtype)
    results = []
    for how, wide in ((attend, dtype), (lambda q, k, v: softmax_attention(q, k, v, None), F64)):
        *inputs, dout = [t.to(wide).requires_grad_() for t in given]
        out = how(*inputs)
        results.append([out, *torch.autograd.grad(out, inputs, dout)])
    for a, b in zip(*results, strict=True):
        assert a.dtype == dtype
        assert (a.to(F64) - b).abs().max() <= tolerance * b.abs().max()


@pytest.mark.parametrize(
    ("length", "groups", "dtype", "grad", "expected"),
    [(BLOCK, 4, F64, True, True), (LONGEST, 4, torch.float32, True, True), (BLOCK + 1, 4, F64, True, False),
     (2 * LONGEST, 4, F64, True, False), (BLOCK, 2, F64, True, False), (BLOCK, 4, F64, False, False),
     (BLOCK, 4, torch.bfloat16, True, False), (BLOCK, 4, torch.float16, True, False)],
)  # fmt: skip
def test_what_suits_blocks(length: int, groups: int, dtype: torch.dtype, grad: bool, expected: bool) -> None:
    with torch.set_grad_enabled(grad):
        assert suits(random(1, 4, length, 2).to(dtype), random(1, groups, length, 2).to(dtype)) == expected


def test_a_sink_is_one_more_score() -> None:
    q, k, v, sink = random(1, 2, 5, 4), random(1, 2, 5, 4), random(1, 2, 5, 4) + 1, torch.tensor([0.0, 1.5])
    scores = (q @ k.mT / 2).exp().tril()
    expected = scores / (scores.sum(-1, keepdim=True) + sink.exp().view(1, 2, 1, 1)) @ v
    assert torch.allclose(softmax_attention(q, k, v, None, sink=sink.to(F64)), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("size", "skip", "expected"),
    [
        (None, None, [None] * 4),
        ("128,0", None, [128] * 4),
        ("(128, 0)", "2", [128, None, 128, None]),
        ("-1,0", "2", [None] * 4),
        ("3,0", "[1,0,0,1]", [3, None, None, 3]),
        ("3,0", "[1]*3+[0]", [3, 3, 3, None]),
        ("3,0", "([1,0])*2", [3, None, 3, None]),
    ],
)
def test_windows(size: str | None, skip: str | None, expected: list[int | None]) -> None:
    assert windows(Model(num_layers=4, window_size=size, window_attn_skip_freq=skip)) == expected


@pytest.mark.parametrize(
    ("size", "skip", "flag"),
    [
        ("128", None, "--window-size"),
        ("128,1", None, "--window-size"),
        ("-2,0", None, "--window-size"),
        ("3,0", "0", "--window-attn-skip-freq"),
        ("3,0", "[1,0]", "--window-attn-skip-freq"),
        ("3,0", "[2]*4", "--window-attn-skip-freq"),
        ("3,0", "__import__('os')", "--window-attn-skip-freq"),
    ],
)
def test_wrong_windows_name_the_flag(size: str, skip: str | None, flag: str) -> None:
    with pytest.raises(ValueError, match=f"^{flag} "):
        windows(Model(num_layers=4, window_size=size, window_attn_skip_freq=skip))


@pytest.mark.parametrize(
    ("freq", "position", "expected"),
    [
        (None, "rope", [False] * 4),
        ("2", "rope", [False, True, False, True]),
        ("3", "rope", [False, False, True, False]),
        ("1", "rope", [True] * 4),
        ("[1]*2+[0,1]", "rope", [True, True, False, True]),
        ("2", "none", [True] * 4),
    ],
)
def test_layers_without_rotary(freq: str | None, position: str, expected: list[bool]) -> None:
    model = Model(num_layers=4, position_embedding_type=position, no_rope_freq=freq)
    assert layers_without_rotary(model) == expected


@pytest.mark.parametrize("freq", ["0", "[1]*3", "[0,2]*2", "x"])
def test_wrong_layers_without_rotary_name_the_flag(freq: str) -> None:
    with pytest.raises(ValueError, match=r"--no-rope-freq .* a list of 4 ones and zeros, one for each layer. Try 2"):
        layers_without_rotary(Model(num_layers=4, position_embedding_type="rope", no_rope_freq=freq))
