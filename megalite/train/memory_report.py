"""What the first step has kept in memory, measured, beside what was computed: --memory-report."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

from torch import Tensor

from megalite.comm.collectives import all_gather_object
from megalite.config.derive import Derived, padded_vocab_size
from megalite.config.schema import Config
from megalite.device import peak_memory
from megalite.observe.memory import SavedTensors, memory_of, peak_resident_bytes
from megalite.observe.record import Sink
from megalite.optimizer.offload import OnHost
from megalite.plan.rank import rank_plans
from megalite.schedule.action import Action
from megalite.train.build import Engine
from megalite.train.resume import Progress

Bytes = dict[str, int]
"""By kind."""

TO_WEIGHTS = "kept for weights"
"""Of a split backward, from its first half to its second."""


def held_states(engine: Engine) -> Bytes:
    """What lives as long as the run."""
    held = Counter({"params": engine.buffer.params.nbytes, "main grads": engine.buffer.grads.vector.nbytes})
    for home in engine.optimizer.homes:
        where = "" if home.memory == "device" else f", {home.memory}"
        for name, nbytes in home.held().items():
            held[f"{'main params' if name == 'main' else 'moments'}{where}"] += nbytes
        if isinstance(home, OnHost):
            held["staging, host"] += home.staging
    return {kind: nbytes for kind, nbytes in held.items() if nbytes}


def computed(config: Config, derived: Derived, vocab_size: int, pipeline_rank: int) -> Bytes:
    """The same and more by the closed forms; zeros are left out."""
    plan = rank_plans(config, derived, vocab_size)[pipeline_rank]
    where = f", {config.offload.optimizer_offload_device}".replace("cpu", "host")
    kinds = {
        "params": plan.states.params,
        "main grads": plan.states.main_grads,
        "main params": plan.states.main_params,
        "moments": plan.states.moments,
        f"main params{where}": plan.away.main_params,
        f"moments{where}": plan.away.moments,
        "gradients not yet summed": plan.lent,
        "activations": plan.saved,
        "logits": plan.logits,
        TO_WEIGHTS: plan.to_weights,
    }
    return {kind: nbytes for kind, nbytes in kinds.items() if nbytes}


class MemoryReport:
    """Looks on while the first step is made, and tells of it behind it."""

    def __init__(self, config: Config, derived: Derived, engine: Engine, logger: Sink, *, vocab_size: int) -> None:
        self.engine, self.logger, self._watch = engine, logger, engine.watch
        mesh = engine.mesh
        device: Literal["cpu", "cuda"] = "cpu" if mesh.device.type == "cpu" else "cuda"
        here = replace(config, parallel=replace(config.parallel, device=device))
        self.computed = computed(here, derived, vocab_size, mesh.pp.rank)
        rows = padded_vocab_size(
            vocab_size, divisible_by=config.model.make_vocab_size_divisible_by, tensor_parallel_size=mesh.tp.size
        )

        shape = (config.model.seq_length, config.train.micro_batch_size, rows // mesh.tp.size)
        has_loss = engine.mail.last_stage in engine.stages

        def kind(tensor: Tensor) -> str:
            # By their shape, for autograd knows no names: hidden activations as wide as that would be taken for them.
            of_logits = has_loss and tensor.is_floating_point() and tensor.shape == shape
            return "logits" if of_logits else "activations"

        lasting = [engine.buffer.params, *(buffer for chunk in engine.stages.values() for buffer in chunk.buffers())]
        self.saved = SavedTensors(lasting, kind)
        self.in_flight = self.to_weights = 0
        self._is_seen = self._is_told = False

    @contextmanager
    def watch(self, action: Action) -> Iterator[None]:
        """Look on while an action is executed."""
        if self._is_told:
            with self._watch(action):
                yield
            return
        with self._watch(action), self.saved.watching():
            yield
        self._is_seen = True
        self.in_flight = max(self.in_flight, self.engine.buffer.grads.in_flight())
        sources = (source for stage in self.engine.stages.values() for source in stage.weight_grads.sources)
        self.to_weights = max(self.to_weights, memory_of(sources))

    def measured(self) -> Bytes:
        """What this rank has held of each kind at most."""
        device = self.engine.mesh.device
        return {
            **held_states(self.engine),
            **({"gradients not yet summed": lent} if (lent := self.engine.buffer.grads.lent) else {}),
            "buckets in flight": self.in_flight,
            **self.saved.peak,
            **({TO_WEIGHTS: self.to_weights} if self.to_weights else {}),
            "peak": peak_memory(device) or peak_resident_bytes(),
        }

    def tell(self, progress: Progress) -> None:
        """Print the table, once a step was made. Every rank must call it."""
        if self._is_told or not self._is_seen:  # a rank whose stages are empty has seen a step, and nothing in it
            return
        self._is_told = True
        ranks = all_gather_object((self.measured(), self.computed), self.engine.mesh.world)
        self.logger.note("\n".join(table(ranks)))


def table(ranks: Sequence[tuple[Bytes, Bytes]]) -> list[str]:
    """A line for each kind: least and most over the ranks, measured and computed."""
    kinds = list(dict.fromkeys(kind for pair in ranks for part in reversed(pair) for kind in part))
    kinds.sort(key=["buckets in flight", "peak"].count)
    lines = [f"{'bytes of a rank':20}{'measured: least':>18}{'most':>18}{'computed: least':>18}{'most':>18}"]
    for kind in kinds:
        cells = ""
        for part in (0, 1):
            values = [rank[part].get(kind, 0) for rank in ranks]
            known = any(kind in rank[part] for rank in ranks)
            cells += "".join(f"{value:18,}" if known else f"{'-':>18}" for value in (min(values), max(values)))
        lines.append(f"{kind:20}{cells}")
    return lines
