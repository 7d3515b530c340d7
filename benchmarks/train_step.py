"""A training step of megalite beside others' that compute the same: tokens per second, in fp32, on the CPU.

Each contestant runs in processes of its own with the same allocator settings; in each round every contestant trains
some steps in turn, so that what else the machine does falls on all alike. The fastest of them counts, for interruptions
only ever add. A ratio is formed within a round: megalite's tokens per second over the rival's. Shown are medians over
the rounds, with quartiles in brackets.
"""

import argparse
import statistics
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from megatron_core import reason_absent
from plain import Sizes
from workers import Contestant, Timed

CHECK_STEPS, TOLERANCE = 3, 1e-4
AT_LEAST_AS_FAST, WRAPPERS = 1.00, 0.98
"""Limits of a ratio. The second is what parallel wrappers at world size 1 may cost: 2 %."""


@dataclass(frozen=True, kw_only=True)
class Heat:
    """Contestants that take turns, and which of them are compared: (megalite's, the rival, the limit)."""

    title: str
    ranks: int = 1
    threads: int = 1
    tokens: int = 1
    """Micro-batches that a step trains, over all ranks."""
    pairs: tuple[tuple[str, str, float], ...]

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for ours, theirs, _ in self.pairs for name in (ours, theirs)))


ONE_RANK = (
    ("megalite", "plain torch", AT_LEAST_AS_FAST),
    ("megalite", "Hugging Face", AT_LEAST_AS_FAST),
    ("megalite", "plain torch", WRAPPERS),
)
HEATS = {
    "1x1": Heat(title="1 rank, 1 thread", pairs=ONE_RANK),
    "1x2": Heat(title="1 rank, 2 threads", threads=2, pairs=ONE_RANK),
    "dp2": Heat(
        title="2 ranks, 1 thread each",
        ranks=2,
        tokens=2,
        pairs=(
            ("megalite DP", "torch DDP", AT_LEAST_AS_FAST),
            ("megalite DP, overlapped", "torch DDP", AT_LEAST_AS_FAST),
        ),
    ),
    "tp2": Heat(
        title="2 ranks, 1 thread each",
        ranks=2,
        pairs=(
            ("megalite TP", "DTensor TP", AT_LEAST_AS_FAST),
            ("megalite TP", "megatron-core TP", AT_LEAST_AS_FAST),
            ("megalite TP + SP", "DTensor TP + SP", AT_LEAST_AS_FAST),
        ),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Median and quartiles of the rounds."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        return cls(low=low, median=median, high=high)

    def show(self, form: str) -> str:
        return f"{self.median:{form}} [{self.low:{form}}, {self.high:{form}}]"


def main(arguments: list[str]) -> int:
    """Print the table; the exit status is 1 where a limit is missed, 2 where contestants do not compute the same."""
    options = parse(arguments)
    rows = [("model", "setting", "megalite", "tokens/s", "rival", "tokens/s", "ratio", "limit", "")]
    print_row(rows[0])
    for family in options.family:
        sizes = sizes_of(options, family)
        for heat in present(HEATS[name] for name in options.heat):
            try:
                times = race(heat, sizes, options)
            except Differs as error:
                print(error, file=sys.stderr)
                return 2
            for row in compare(heat, sizes, times, options.clock):
                rows.append((family, *row))
                print_row(rows[-1])
    if options.markdown:
        options.markdown.write_text(markdown(rows), encoding="utf-8")
    return int(any(row[-1] == "behind" for row in rows))


def present(heats: Iterable[Heat]) -> Iterator[Heat]:
    """The heats, without rivals that are not installed; each is named with the reason."""
    absent = {"megatron-core TP": reason} if (reason := reason_absent()) else {}
    for heat in heats:
        for name in absent.keys() & set(heat.names):
            print(f"{name} is left out: {absent[name]}", file=sys.stderr)
        yield replace(heat, pairs=tuple(pair for pair in heat.pairs if pair[1] not in absent))


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--family", nargs="+", choices=("gpt", "llama"), default=["gpt", "llama"])
    parser.add_argument(
        "--heat", nargs="+", choices=tuple(HEATS), default=list(HEATS), help="one rank x threads, or two ranks"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3, help="steps of each contestant in a round")
    parser.add_argument("--num-layers", type=int, default=4)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--num-attention-heads", type=int, default=8)
    parser.add_argument("--num-query-groups", type=int, help="of the Llama model; default: as many as heads")
    parser.add_argument("--seq-length", type=int, default=256)
    parser.add_argument("--micro-batch-size", type=int, default=8)
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--allocator", choices=("kept", "default"), default="kept", help="kept: freed memory stays")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: for a busy machine, one rank")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    return parser.parse_args(arguments)


def sizes_of(options: argparse.Namespace, family: str) -> Sizes:
    hidden, heads = options.hidden_size, options.num_attention_heads
    llama = family == "llama"
    return Sizes(
        family=family,
        layers=options.num_layers,
        hidden=hidden,
        heads=heads,
        groups=options.num_query_groups if llama and options.num_query_groups else heads,
        ffn=8 * hidden // 3 // 64 * 64 if llama else 4 * hidden,
        sequence=options.seq_length,
        vocab=options.vocab_size,
        micro_batch=options.micro_batch_size,
    )


class Differs(Exception):
    """Two contestants do not compute the same."""


def race(heat: Heat, sizes: Sizes, options: argparse.Namespace) -> dict[str, list[Timed]]:
    """For each contestant its fastest step of each round. The first steps, before the rounds, prove them equal."""
    kept = options.allocator == "kept"
    field = [Contestant(name, sizes, ranks=heat.ranks, kept_heap=kept) for name in heat.names]
    try:
        for contestant in field:
            contestant.wait_until_built()
        losses = {c.name: [t.loss for t in c.run(CHECK_STEPS, threads=heat.threads)] for c in field}
        check_equal(losses)
        rounds: dict[str, list[Timed]] = {contestant.name: [] for contestant in field}
        for number in range(options.rounds):
            first = number % len(field)
            for contestant in field[first:] + field[:first]:
                steps = contestant.run(options.steps, threads=heat.threads)
                rounds[contestant.name].append(Timed(*map(min, zip(*steps, strict=True))))
        return rounds
    finally:
        for contestant in field:
            contestant.stop()


def check_equal(losses: dict[str, list[float]]) -> None:
    """From the same weights and batches, all losses agree: of the first step, and after updates too."""
    (_, ours), *others = losses.items()
    for name, theirs in others:
        if any(abs(a - b) > TOLERANCE for a, b in zip(ours, theirs, strict=True)):
            listed = "\n".join(f"  {each}: {values}" for each, values in losses.items())
            raise Differs(f"{name} does not compute what megalite does; losses of the first steps:\n{listed}")


def compare(heat: Heat, sizes: Sizes, rounds: dict[str, list[Timed]], clock: str) -> Iterator[tuple[str, ...]]:
    """The rows of one heat. Within the spread of the rounds, equal counts as fast enough."""
    tokens = heat.tokens * sizes.micro_batch * sizes.sequence
    rates = {name: [tokens / getattr(timed, clock) for timed in times] for name, times in rounds.items()}
    for ours, theirs, limit in heat.pairs:
        ratio = Spread.of([a / b for a, b in zip(rates[ours], rates[theirs], strict=True)])
        verdict = "ahead" if ratio.low > limit else "met" if ratio.median >= limit else "tie"
        rival = f"{theirs}, for the wrappers" if limit == WRAPPERS else theirs
        yield (
            heat.title,
            ours,
            Spread.of(rates[ours]).show(",.0f"),
            rival,
            Spread.of(rates[theirs]).show(",.0f"),
            ratio.show(".3f"),
            f">= {limit:.2f}",
            verdict if ratio.high >= limit else "behind",
        )


WIDTHS = (6, 23, 24, 22, 27, 22, 22, 8, 6)


def print_row(row: tuple[str, ...]) -> None:
    print(" ".join(cell.ljust(width) for cell, width in zip(row, WIDTHS, strict=True)).rstrip(), flush=True)


def markdown(rows: list[tuple[str, ...]]) -> str:
    """The rows as a Markdown table."""
    head, *body = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([head, "|" + " --- |" * len(rows[0]), *body, ""])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
