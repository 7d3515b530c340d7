"""Which stage has which layers. Each layer is in exactly one, or it is a ValueError: none is ever left out."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from megalite.arith.parameters import layer_matrices
from megalite.config.model import Model
from megalite.config.parallel import Parallel
from megalite.config.pipeline import Pipeline, counted_as_layers, pipeline, say_layers
from megalite.config.pipeline_layout import layout_stages, quoted, to_layout
from megalite.config.size import model_size


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of the model that one rank runs."""

    number: int
    layers: range
    embedding: bool
    """It looks up the tokens."""
    loss: bool
    """It has the final norm, the head and the loss."""

    def __str__(self) -> str:
        first, count = self.layers.start, len(self.layers)
        layers = f"layer {first}" if count == 1 else f"layers {first}-{first + count - 1}"
        parts = ["embedding"] * self.embedding + [layers] * (count > 0) + ["loss"] * self.loss
        return f"stage {self.number}: {', '.join(parts) or 'nothing'}"


def partition(model: Model, parallel: Parallel, *, vocab_size: int) -> tuple[Stage, ...]:
    """The stages of the pipeline that the flags ask for, in the order in which a micro-batch passes them.

    Where stages do not divide layers, the largest cost of a stage is made as small as it can be. A `vocab_size` of 0 is
    one that is not known yet: then the head weighs nothing. ValueError names the flags that contradict each other.
    """
    asked = pipeline(model, parallel)
    if parallel.pipeline_model_parallel_layout is not None:
        counts = _as_laid_out(parallel.pipeline_model_parallel_layout, model.num_layers, asked)
    elif parallel.decoder_first_pipeline_num_layers or parallel.decoder_last_pipeline_num_layers:
        counts = _with_given_ends(model, parallel, asked, vocab_size)
    else:
        counts = _balanced(model, parallel, asked, vocab_size)
    last = len(counts) - 1
    return tuple(
        Stage(number=number, layers=range(end - count, end), embedding=number == 0, loss=number == last)
        for number, (count, end) in enumerate(zip(counts, accumulate(counts), strict=True))
    )


def describe(stages: Sequence[Stage], placement: Sequence[int]) -> list[str]:
    """A line for each stage; `placement` is the pipeline rank of each."""
    return [f"{stage} (pipeline rank {rank})" for stage, rank in zip(stages, placement, strict=True)]


def _as_laid_out(layout: str, layers: int, asked: Pipeline) -> list[int]:
    counts = [letters.count("t") for letters in layout_stages(layout)]
    cure = f"Try '{to_layout(deal(layers, [0] * asked.num_stages))}'." if layers >= asked.num_stages else ""
    if len(counts) != asked.num_stages:
        raise ValueError(
            f"{quoted(layout)} has {len(counts)} stages, but {_stages(asked)} are {asked.num_stages}. {cure}"
        )
    if sum(counts) != layers:
        raise ValueError(f"{quoted(layout)} has {sum(counts)} layers, but --num-layers is {layers}. {cure}")
    return counts


def _balanced(model: Model, parallel: Parallel, asked: Pipeline, vocab_size: int) -> list[int]:
    stages = asked.num_stages
    _check_enough(model, parallel, asked)
    size = model_size(model, vocab_size=vocab_size)
    layer = layer_matrices(size)
    held = [0] * stages
    held[0] += layer * parallel.account_for_embedding_in_pipeline_split
    if parallel.account_for_loss_in_pipeline_split:
        held[-1] += layer
    elif counted_as_layers(model, parallel) % stages:
        held[-1] += size.hidden_size * vocab_size
    return deal(model.num_layers, held, layer=layer)


def _with_given_ends(model: Model, parallel: Parallel, asked: Pipeline, vocab_size: int) -> list[int]:
    """The given numbers are of ranks, whose stages share them evenly, as in Megatron; in a V each end is a stage."""
    layers, chunks = model.num_layers, 1 if asked.schedule == "zb-v" else asked.num_chunks
    ranks = asked.num_stages // chunks
    flags = {
        "--decoder-first-pipeline-num-layers": parallel.decoder_first_pipeline_num_layers,
        "--decoder-last-pipeline-num-layers": parallel.decoder_last_pipeline_num_layers,
    }
    for flag, number in {"--num-layers": layers, **flags}.items():
        if number and number % chunks:
            more = (number // chunks + 1) * chunks
            raise ValueError(f"{flag} {number} is not divisible by the {chunks} stages of a rank. Try {more}.")
    _check_enough(model, parallel, asked)
    given = {place: number for place, number in zip((0, ranks - 1), flags.values(), strict=True) if number}
    between, rest = ranks - len(given), layers - sum(given.values())
    disagree = ranks == 1 and len({number for number in flags.values() if number}) > 1
    if rest < between * chunks or (rest and not between) or disagree:
        said = " and ".join(f"{flag} {number}" for flag, number in flags.items() if number)
        even = [count * chunks for count in deal(layers // chunks, [0] * ranks)]
        others = f"{between} other {'stages' if asked.schedule == 'zb-v' else 'pipeline ranks'}"
        cure = " ".join(f"{flag} {even[place]}" for place, flag in zip((0, -1), flags, strict=True) if flags[flag])
        raise ValueError(f"{said}: that leaves {rest} of --num-layers {layers} for {others}. Try {cure}.")
    size = model_size(model, vocab_size=vocab_size)
    held = [0] * between
    if between and rest // chunks % between and ranks - 1 not in given:
        held[-1] = size.hidden_size * vocab_size
    middle = iter(deal(rest // chunks, held, layer=layer_matrices(size)))
    return [given[rank] // chunks if rank in given else next(middle) for rank in range(ranks)] * chunks


def deal(layers: int, held: Sequence[int], *, layer: int = 1) -> list[int]:
    """How many layers each stage gets, beside the cost that it holds already, so that the largest sum is least.

    Each layer goes where the sum is least so far: layers are alike, so nothing does better. Of equal sums the one
    nearest to the middle is taken, since the ends have the embedding and the loss besides.
    """
    counts, middle = [0] * len(held), (len(held) - 1) / 2
    for _ in range(layers):
        place = min(range(len(held)), key=lambda i: (held[i] + counts[i] * layer, abs(i - middle)))
        counts[place] += 1
    return counts


def _check_enough(model: Model, parallel: Parallel, asked: Pipeline) -> None:
    counted = counted_as_layers(model, parallel)
    if counted < asked.num_stages:
        ranks = counted // asked.num_chunks
        cure = f"{ranks}" if ranks > 1 else f"{min(counted, asked.num_ranks)} with one stage a rank"
        raise ValueError(
            f"{_stages(asked)} are more stages than {say_layers(model, parallel)}. Try --pipeline-model-parallel-size "
            f"{cure}, or give --pipeline-model-parallel-layout, which may leave stages empty."
        )


def _stages(asked: Pipeline) -> str:
    chunks = f" x {asked.num_chunks} stages a rank" if asked.num_chunks > 1 else ""
    return f"--pipeline-model-parallel-size {asked.num_ranks}{chunks}"
