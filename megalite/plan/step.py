"""Seconds of one training step, by what they are spent on."""

from collections.abc import Sequence
from dataclasses import dataclass

from megalite.arith.parameters import count_parameters
from megalite.arith.part import Part
from megalite.config.size import ModelSize
from megalite.plan.bubble import closed_length, simulated_length
from megalite.plan.compute import Kernels, Pass, head_pass, layer_pass
from megalite.plan.hardware import Cluster
from megalite.plan.layout import Layout, Practice
from megalite.plan.links import Links
from megalite.plan.rates import Rates
from megalite.plan.stages import held_stages, joined, stage_parts

UPDATE_BYTES = 38
"""What an update of Adam moves for each parameter: gradient, main parameter and two moments are read, all but the first
written, with the parameter in 16 bits, and the gradient is read for its norm and cleared."""
HOST_BANDWIDTH = 25e9
"""Bytes of the host's memory that an update there moves for each GPU, in a second."""


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of a step on the pipeline rank that has most to do."""

    compute: float
    tensor: float
    """Collectives of the tensor parallel group."""
    messages: float
    """Between stages, where nothing hides them."""
    bubble: float
    data: float
    """Collectives of the data parallel group that nothing hides."""
    optimizer: float
    offload: float
    rest: float

    @property
    def total(self) -> float:
        return sum(vars(self).values())


def slower(one: float, other: float) -> float:
    """The longer of two times that run beside each other, and a little more where they are alike."""
    if not one or not other:
        return one + other
    ratio = min(one, other) / max(one, other)
    return max(one, other) * (1 + ratio**4) ** 0.25


def step_time(
    size: ModelSize,
    layout: Layout,
    practice: Practice,
    cluster: Cluster,
    rates: Rates,
    *,
    exact: bool = False,
) -> StepTime:
    """The time of a step. `size` has the padded vocabulary; `exact` runs the schedule on paper."""
    return _Step(size, layout, practice, cluster, rates).time(exact=exact)


def stage_times(size: ModelSize, layout: Layout, practice: Practice, cluster: Cluster, rates: Rates) -> list[Pass]:
    """The time of each stage for one micro-batch, with its collectives."""
    return _Step(size, layout, practice, cluster, rates).stages()


class _Step:
    def __init__(self, size: ModelSize, layout: Layout, practice: Practice, cluster: Cluster, rates: Rates) -> None:
        self.size, self.layout, self.practice, self.rates = size, layout, practice, rates
        self.kernels, self.links = Kernels(cluster.device, rates), Links(cluster, rates)
        self.pcie = cluster.device.pcie
        self.layer = layer_pass(size, layout, practice, self.kernels)
        self.head = head_pass(size, layout, practice, self.kernels)
        tokens = size.seq_length * layout.micro_batch_size / layout.context
        self.activation = tokens * size.hidden_size * practice.param_bytes
        self.inner = layout.tensor * layout.context
        self.sum = self.links.reduce(self.activation, layout.tensor)

    def time(self, *, exact: bool) -> StepTime:
        layout, m = self.layout, self.layout.num_micro_batches
        held = [joined(parts) for parts in held_stages(self.size, layout)]
        passes = {part: self._pass(part, sums=self.sum) for part in {*held}}
        ranks = [passes[part] for part in held]
        busiest = max(ranks, key=lambda r: r.forward + r.backward)
        silent = self._pass(held[ranks.index(busiest)], sums=0.0)
        busy = m * (busiest.forward + busiest.backward)
        compute = m * (silent.forward + silent.backward)
        length = self._length(ranks, exact=exact)
        data, optimizer, offload = self._update(held, busiest)
        return StepTime(
            compute=compute,
            tensor=busy - compute,
            messages=self._messages(),
            bubble=length - busy,
            data=data,
            optimizer=optimizer,
            offload=offload,
            rest=self.rates.step,
        )

    def _pass(self, part: Part, *, sums: float, alone: bool = False) -> Pass:
        """What a part of the model does with one micro-batch, with collectives of `sums` seconds: two in each pass of a
        layer, one more at each end of the model. `alone`: the part is one stage, not all of a rank.
        """
        layers, first, last = part.layers, part.embedding, part.loss
        host = self.rates.host * layers
        ends, head = first + last, self.head if last else Pass(forward=0.0, inputs=0.0, weights=0.0)
        stages = 1 if alone else self.layout.chunks
        again = self.layout.recomputed(layers, stages)
        forward = layers * (self.layer.forward + 2 * sums) + head.forward + first * sums
        inputs = layers * (self.layer.inputs + 2 * sums) + head.inputs + last * sums
        inputs += again * (self.layer.forward + 2 * sums)
        weights = layers * self.layer.weights + head.weights
        forward = slower(forward, host + ends * self.rates.host)
        whole = slower(inputs + weights, host + self.rates.host * again + ends * self.rates.host)
        return Pass(forward=forward, inputs=whole - weights, weights=weights)

    def _length(self, ranks: Sequence[Pass], *, exact: bool) -> float:
        layout, m = self.layout, self.layout.num_micro_batches
        if layout.pipeline == 1:
            return m * (ranks[0].forward + ranks[0].backward)
        if not exact:
            return closed_length(layout.schedule, ranks, chunks=layout.chunks, micro_batches=m)
        return simulated_length(
            layout.schedule, self.stages(), ranks=layout.pipeline, chunks=layout.chunks, micro_batches=m
        )

    def stages(self) -> list[Pass]:
        """What each stage does with one micro-batch."""
        return [self._pass(part, sums=self.sum, alone=True) for part in stage_parts(self.size, self.layout)]

    def _messages(self) -> float:
        """In the steady state each micro-batch waits for one message each way and stage, while others fill the pipe."""
        layout, m = self.layout, self.layout.num_micro_batches
        if layout.pipeline == 1:
            return 0.0
        cut = layout.sequence_parallel or self.practice.cut_messages
        nbytes = self.activation / (layout.tensor if cut else 1)
        one = self.links.message(nbytes, self.inner * layout.data)
        if cut and not layout.sequence_parallel:
            one += self.links.gather(self.activation, layout.tensor)
        hidden = layout.chunks > 1 and self.practice.hidden_messages
        return 2 * one * ((layout.pipeline - 1) + (0 if hidden else m * layout.chunks))

    def _update(self, held: Sequence[Part], busiest: Pass) -> tuple[float, float, float]:
        size, layout, practice = self.size, self.layout, self.practice
        d = layout.data
        parameters = max(count_parameters(size, part).per_rank(layout.tensor) for part in {*held})
        owned = parameters / d if layout.zero else parameters
        data = self._data(parameters, held[0].layers, busiest)
        if layout.pipeline > 1 and size.tied_embeddings:
            table = size.vocab_size * size.hidden_size / layout.tensor * practice.grad_bytes
            data += self.links.reduce(table, 2, self.inner * d)
        here = self.kernels.moved(UPDATE_BYTES * owned * (1 - layout.offload))
        away = owned * layout.offload
        sent = (practice.grad_bytes + practice.param_bytes) / self.pcie
        return data, here, away * (sent + UPDATE_BYTES / HOST_BANDWIDTH)

    def _data(self, parameters: float, layers: int, busiest: Pass) -> float:
        layout, practice, links = self.layout, self.practice, self.links
        d, m = layout.data, layout.num_micro_batches
        inner = links.gpus_per_node if practice.flat else self.inner
        if d == 1:
            return 0.0
        grads, params = parameters * practice.grad_bytes, parameters * practice.param_bytes
        if layout.zero == 3:
            gather, scatter = links.gather(params, d, inner), links.gather(grads, d, inner)
            forward, backward = busiest.forward, busiest.backward
            return m * (slower(forward, gather) - forward + slower(backward, gather + scatter) - backward) + (
                gather + scatter
            ) / max(layers, 1)
        reduce = links.gather(grads, d, inner) if layout.zero else links.reduce(grads, d, inner)
        gather = links.gather(params, d, inner) if layout.zero else 0.0
        sums = m if layout.zero == 2 else 1
        return sums * _exposed(reduce, busiest.backward, practice.overlap_grads, layers) + _exposed(
            gather, busiest.forward, practice.overlap_params, layers
        )


def _exposed(time: float, beside: float, overlapped: bool, pieces: int) -> float:
    """What a collective adds to what it runs beside, in pieces of which one at least is alone."""
    return max(slower(beside, time) - beside, time / max(pieces, 1)) if overlapped else time
