"""How a job is laid out over its devices, and how the software at hand goes about it."""

from dataclasses import dataclass
from typing import Literal

Recompute = Literal["none", "selective", "full"]
RECOMPUTES: tuple[Recompute, ...] = ("none", "selective", "full")
"""What is computed again instead of kept: nothing, the core of attention, whole layers."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One way to spread a step over devices."""

    tensor: int = 1
    sequence_parallel: bool = False
    pipeline: int = 1
    chunks: int = 1
    """Stages on each pipeline rank."""
    schedule: str = "1f1b"
    context: int = 1
    data: int = 1
    micro_batch_size: int = 1
    global_batch_size: int = 1
    zero: int = 0
    """What data parallel ranks share out: 1 optimizer states, 2 gradients too, 3 parameters too."""
    recompute: Recompute = "none"
    recomputed_layers: int | None = None
    """Under full, so many layers of each stage alone. None: all."""
    counted_ends: int = 0
    """Ends of the model that count as a layer where layers are dealt out: the loss, or both. 0: by what they cost."""
    offload: float = 0.0
    """Share of the optimizer's states that lives on the host."""

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline * self.context * self.data

    @property
    def num_micro_batches(self) -> int:
        return self.global_batch_size // (self.micro_batch_size * self.data)

    def __str__(self) -> str:
        parts = [
            f"tp {self.tensor}" + "+sp" * self.sequence_parallel,
            f"pp {self.pipeline}" + f"x{self.chunks} {self.schedule}" * (self.pipeline > 1),
            *([f"cp {self.context}"] if self.context > 1 else []),
            f"dp {self.data}",
            f"micro-batch {self.micro_batch_size}",
            *([f"zero {self.zero}"] if self.zero else []),
            *([f"recompute {self._recomputed()}"] if self.recompute != "none" else []),
            *([f"offload {self.offload:g}"] if self.offload else []),
        ]
        return ", ".join(parts)

    def recomputed(self, layers: int, stages: int) -> int:
        """Of so many layers in so many stages, those that are computed again as a whole."""
        if self.recompute != "full":
            return 0
        return layers if self.recomputed_layers is None else min(layers, stages * self.recomputed_layers)

    def _recomputed(self) -> str:
        return self.recompute if self.recomputed_layers is None else f"{self.recomputed_layers} layers a stage"


@dataclass(frozen=True, kw_only=True)
class Practice:
    """What of a run's cost its layout leaves open. The defaults are this trainer's in 16 bits."""

    attention: Literal["fused", "softmax", "dropout"] = "fused"
    """One kernel that keeps no probabilities, or products and a softmax, or those with dropout."""
    dropout: bool = False
    """On hidden activations."""
    param_bytes: int = 2
    grad_bytes: int = 4
    """Of an element of a gradient that is sent."""
    overlap_grads: bool = False
    """Gradients are summed under the last backward."""
    overlap_params: bool = False
    """Sharded parameters are gathered under the first forward."""
    cut_messages: bool = True
    """Tensor parallel ranks each send a part of what goes to the next stage."""
    flat: bool = False
    """Collectives bring all bytes over each device's own share of the network, as if no others were in its node."""
    hidden_messages: bool = True
    """Messages along an interleaved pipeline travel while something is computed."""
    software: Literal["megalite", "megatron"] = "megalite"
    """Whose layers: which tensors they keep."""
    workspace: float = 4e8
    """Bytes that the libraries take."""
    wide_gradients: bool = False
    """Gradients of matrices pass through a buffer of their own before they are added up."""
