"""What each kernel promises, as data: its inputs and outputs in a case, its call, and the definition it must meet."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megalite.ops.activation import glu_backward_reference, glu_reference
from megalite.ops.cross_entropy import cross_entropy_backward_reference, cross_entropy_reference
from megalite.ops.norm import rms_norm_backward_reference, rms_norm_reference
from tests.ops.backends import Backend

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
ROUNDING = {F64: 1e-13, F32: 3e-6, F16: 6e-4, BF16: 5e-3}
"""What a result may be off, as a part of the largest number of its tensor: the last rounding, and sums in fp32."""

SHAPES = ((1, 1), (3, 1), (5, 7), (4, 8), (9, 16), (2, 64), (7, 65), (40, 256), (3, 1000), (2, 1024), (2, 3072),
          (3, 4095), (2, 4096), (2, 4097), (1, 16392), (0, 8))  # fmt: skip
PAIRS = ((F32, F32), (F16, F16), (BF16, BF16), (F64, F64), (F32, F16), (F32, BF16))
"""dtypes of activations and of weights."""

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    rows: int
    cols: int
    dtype: torch.dtype
    weight_dtype: torch.dtype
    offset: int = 0
    """How many elements every tensor starts behind an aligned address."""
    values: str = "usual"
    """usual, large, tiny, or nan: NaN in the last row alone."""
    option: str = ""
    """What else the contract varies."""

    @property
    def wide(self) -> torch.dtype:
        return torch.promote_types(self.dtype, F32)

    def __str__(self) -> str:
        names = [str(dtype).removeprefix("torch.") for dtype in (self.dtype, self.weight_dtype)]
        more = (
            [f"from {self.offset}"] * bool(self.offset)
            + [self.values] * (self.values != "usual")
            + [self.option] * bool(self.option)
        )
        return " ".join([f"{self.rows}x{self.cols}", *dict.fromkeys(names), *more])

    def random(self, name: str, *shape: int, dtype: torch.dtype) -> Tensor:
        """Numbers of this dtype that depend on the name and the case only."""
        generator = torch.Generator().manual_seed(len(name) + sum(map(ord, name)) + 1009 * self.rows + self.cols)
        x = torch.randn(*shape, dtype=F64, generator=generator)
        if name == "x":
            x = x * {"large": 100.0, "tiny": 1e-4}.get(self.values, 1.0) + 0.3
            if self.values == "nan":
                x[-1:, -1:] = torch.nan
        return x.to(dtype)


@dataclass(frozen=True, kw_only=True)
class Contract:
    name: str
    source: str
    """The file of csrc/cuda that has it."""
    cases: Sequence[Case]
    inputs: Callable[[Case], Tensors]
    outputs: Callable[[Case, Backend], dict[str, tuple[tuple[int, ...], torch.dtype]]]
    """Shapes and dtypes, scratch included, which is a name with an underscore."""
    call: Callable[[Case, Backend, Tensors], int]
    roundings: int = 1
    """How often the definition, in operations of torch, rounds on the way; kernels round once."""
    written: tuple[str, ...] = ()
    """Inputs that become results, before those of `outputs`."""
    definition: Callable[[Case, Tensors], Sequence[Tensor]]
    """The reference of the op: the outputs in their order, scratch left out."""


def cases(pairs: Sequence[tuple[torch.dtype, torch.dtype]] = PAIRS, option: str = "") -> list[Case]:
    """Every shape in fp32 and bf16, the awkward ones in the other dtypes; each misaligned start; special values."""
    found = [Case(*shape, *pair, option=option) for shape in SHAPES for pair in ((F32, F32), (BF16, BF16))]
    found += [Case(*shape, *pair, option=option) for shape in ((5, 7), (6, 256), (2, 2048)) for pair in pairs]
    found += [Case(3, 64, *pair, offset=1, option=option) for pair in pairs]
    found += [Case(3, 264, F32, F32, values=values, option=option) for values in ("large", "tiny", "nan")]
    return found


def _norm_inputs(case: Case) -> Tensors:
    shape, weight = (case.rows, case.cols), case.weight_dtype
    return {
        "x": case.random("x", *shape, dtype=case.dtype),
        "weight": case.random("weight", case.cols, dtype=weight),
    }


def _norm_backward_inputs(case: Case) -> Tensors:
    given = _norm_inputs(case)
    _, rstd = rms_norm_reference(given["x"], given["weight"], 1e-5, 1.0)
    return {"dy": case.random("dy", case.rows, case.cols, dtype=case.weight_dtype), **given, "rstd": rstd}


RMS_NORM = Contract(
    name="rms_norm",
    source="norm.cu",
    cases=cases(),
    inputs=_norm_inputs,
    outputs=lambda case, backend: {
        "y": ((case.rows, case.cols), case.weight_dtype),
        "rstd": ((case.rows,), case.wide),
    },
    call=lambda case, backend, t: backend.call(
        "ml_norm", t["x"], t["weight"], None, t["y"], None, t["rstd"], case.rows, case.cols, 1e-5, 1.0, case.dtype,
        case.weight_dtype,
    ),
    definition=lambda case, t: rms_norm_reference(t["x"], t["weight"], 1e-5, 1.0),
)  # fmt: skip
RMS_NORM_BACKWARD = Contract(
    name="rms_norm_backward",
    source="norm.cu",
    cases=cases(),
    inputs=_norm_backward_inputs,
    outputs=lambda case, backend: {
        "dx": ((case.rows, case.cols), case.dtype),
        "dweight": ((case.cols,), case.weight_dtype),
        "_partial": ((backend.count("ml_norm_parts", case.rows, case.cols), case.cols), case.wide),
    },
    call=lambda case, backend, t: backend.call(
        "ml_norm_backward", t["dy"], t["x"], t["weight"], None, t["rstd"], t["dx"], t["dweight"], None, t["_partial"],
        case.rows, case.cols, 1.0, case.dtype, case.weight_dtype,
    ),
    definition=lambda case, t: rms_norm_backward_reference(t["dy"], t["x"], t["weight"], t["rstd"], 1.0),
)  # fmt: skip


FIRST = 3
"""The first id of the part of the vocabulary."""


def _logits(case: Case) -> Tensors:
    """Targets are before, in and behind the part; a quarter of the columns is padding, of any values."""
    logits = case.random("x", case.rows, case.cols, dtype=case.dtype)
    return {"logits": logits, "target": torch.arange(case.rows) * 5 % (case.cols + 2 * FIRST)}


def _real(case: Case) -> int:
    if case.option == "all padding":
        return 0
    return case.cols if case.cols % 4 else case.cols * 3 // 4


def _given_loss(case: Case) -> Tensors:
    given = _logits(case)
    rows = given["logits"][:, : _real(case)].to(F64)
    dloss = case.random("dloss", case.rows, dtype=case.wide)
    return {**given, "log_sum": rows.logsumexp(-1).to(case.wide), "dloss": dloss}


def _in_place(case: Case, t: Tensors) -> list[Tensor]:
    logits = t["logits"].clone()
    cross_entropy_backward_reference(logits, t["target"], t["log_sum"], t["dloss"], FIRST, _real(case))
    return [logits]


ALIKE = [pair for pair in PAIRS if pair[0] == pair[1]]
CROSS_ENTROPY = Contract(
    name="cross_entropy",
    source="cross_entropy.cu",
    cases=[*cases(ALIKE), Case(3, 8, F32, F32, option="all padding")],
    inputs=_logits,
    outputs=lambda case, backend: {"stats": ((3, case.rows), case.wide)},
    call=lambda case, backend, t: backend.call(
        "ml_cross_entropy", t["logits"], t["target"], t["stats"], case.rows, _real(case), case.cols, FIRST, case.dtype
    ),
    definition=lambda case, t: [cross_entropy_reference(t["logits"], t["target"], FIRST, _real(case))],
)
CROSS_ENTROPY_BACKWARD = Contract(
    name="cross_entropy_backward",
    source="cross_entropy.cu",
    cases=cases(ALIKE),
    inputs=_given_loss,
    outputs=lambda case, backend: {},
    written=("logits",),
    call=lambda case, backend, t: backend.call(
        "ml_cross_entropy_backward", t["logits"], t["target"], t["log_sum"], t["dloss"], case.rows, _real(case),
        case.cols, FIRST, case.dtype,
    ),
    definition=_in_place,
)  # fmt: skip


def _halves(case: Case) -> Tensors:
    return {"x": case.random("x", case.rows, 2 * case.cols, dtype=case.dtype)}


SLOPE = 1.702
GLU = Contract(
    name="glu",
    source="glu.cu",
    cases=cases(ALIKE),
    inputs=_halves,
    outputs=lambda case, backend: {"y": ((case.rows, case.cols), case.dtype)},
    call=lambda case, backend, t: backend.call("ml_glu", t["x"], t["y"], case.rows, case.cols, SLOPE, case.dtype),
    roundings=4,
    definition=lambda case, t: [glu_reference(t["x"], SLOPE)],
)
GLU_BACKWARD = Contract(
    name="glu_backward",
    source="glu.cu",
    cases=cases(ALIKE),
    inputs=lambda case: {"dy": case.random("dy", case.rows, case.cols, dtype=case.dtype), **_halves(case)},
    outputs=lambda case, backend: {"dx": ((case.rows, 2 * case.cols), case.dtype)},
    call=lambda case, backend, t: backend.call(
        "ml_glu_backward", t["dy"], t["x"], t["dx"], case.rows, case.cols, SLOPE, case.dtype
    ),
    roundings=4,
    definition=lambda case, t: [glu_backward_reference(t["dy"], t["x"], SLOPE)],
)

CONTRACTS = (RMS_NORM, RMS_NORM_BACKWARD, CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD, GLU, GLU_BACKWARD)
