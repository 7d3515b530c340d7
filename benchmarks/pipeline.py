"""Two pipeline ranks: megalite's schedules beside torch.distributed.pipelining's, and beside the simulation.

The GPT has 4 layers. A step trains 4 micro-batches, of 2 sequences each by default: with 1F1B two equal ranks would
wait for a fifth of the time, as more ranks do with as many times more micro-batches. Both sides cut the model into the
same stages, sum the gradients of the tied embedding, clip by the norm over all ranks, and update with fused AdamW. One
process with two threads computes the same micro-batches without a pipeline.

Contestants take turns as in train_step.py, whose columns these are. Then megalite's ranks note when each action begins
and ends, and the bubble of each step is compared with that of the schedule simulated with the step's own times: those
of each action, so that what is left is what messages and the executor take; and the mean of each stage, which knows
nothing of the unevenness of a machine. `--table` prints the simulated bubbles of larger pipelines instead.
"""

import argparse
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
from pipeline_ranks import CUTS, LAYERS, MICRO_BATCHES, RANKS, Diary
from plain import Sizes
from train_step import AT_LEAST_AS_FAST, Differs, Heat, Spread, check_equal, compare, markdown, print_row
from workers import Contestant, Timed, batch, keep_heap

from megalite.schedule.check import Timeline, simulate
from megalite.schedule.schedules import SCHEDULES, fixed_chunks, make_schedule
from megalite.schedule.trace import Event, Trace

CHECK_STEPS, WARM_UP = 3, 2
ONE_RANK = Heat(title="1 rank, 2 threads", threads=2, pairs=(("megalite", "plain torch", AT_LEAST_AS_FAST),))
TABLE_RANKS, TABLE_FACTORS, TABLE_CHUNKS = (4, 8, 16, 32, 64), (1, 2, 4, 8), 2
RACE = ("model", "setting", "megalite", "tokens/s", "rival", "tokens/s", "ratio", "limit", "")
BUBBLE = ("schedule", "bubble, measured", "simulated", "measured / simulated", "step", "with mean times", "step")


def main(arguments: list[str]) -> int:
    """Print the tables; the exit status is 1 where megalite is behind, 2 where contestants do not compute the same."""
    options = parse(arguments)
    if options.table:
        print(markdown([("ranks", "micro-batches", *SCHEDULES), *simulated()]), end="")
        return 0
    sizes = Sizes(
        family="gpt",
        layers=LAYERS,
        hidden=options.hidden_size,
        heads=options.num_attention_heads,
        groups=options.num_attention_heads,
        ffn=4 * options.hidden_size,
        sequence=options.seq_length,
        vocab=options.vocab_size,
        micro_batch=MICRO_BATCHES * options.micro_batch_size,
    )
    two = Heat(
        title=f"{RANKS} ranks, 1 thread each",
        ranks=RANKS,
        pairs=tuple((f"megalite {s}", CUTS[s].theirs.__name__, AT_LEAST_AS_FAST) for s in options.schedule),
    )
    heats = (two, ONE_RANK)
    try:
        times = race(heats, sizes, options)
    except Differs as error:
        print(error, file=sys.stderr)
        return 2
    rows = [RACE, *(("gpt", *row) for heat in heats for row in compare(heat, sizes, times, options.clock))]
    for row in rows:
        print_row(row)
    bubbles = [BUBBLE, *(bubble(trace) for trace in traces(sizes, options.schedule, options.bubble_steps))]
    print("\n" + markdown(bubbles), end="")
    if options.markdown:
        options.markdown.write_text(f"{markdown(rows)}\n{markdown(bubbles)}", encoding="utf-8")
    return int(any(row[-1] == "behind" for row in rows))


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", action="store_true", help="simulated bubbles for many ranks; starts none")
    parser.add_argument("--schedule", nargs="+", choices=tuple(CUTS), default=list(CUTS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3, help="steps of each contestant in a round")
    parser.add_argument("--bubble-steps", type=int, default=40, help="steps of each schedule whose bubble is measured")
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--num-attention-heads", type=int, default=8)
    parser.add_argument("--seq-length", type=int, default=256)
    parser.add_argument("--micro-batch-size", type=int, default=2)
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: what the ranks compute alone")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file")
    return parser.parse_args(arguments)


def race(heats: tuple[Heat, ...], sizes: Sizes, options: argparse.Namespace) -> dict[str, list[Timed]]:
    """For each contestant its fastest step of each round. The first steps, before the rounds, prove them equal."""
    field = {
        Contestant(name, sizes, ranks=heat.ranks, kept_heap=True, module="pipeline_ranks"): heat.threads
        for heat in heats
        for name in heat.names
    }
    try:
        for contestant in field:
            contestant.wait_until_built()
        check_equal({c.name: [t.loss for t in c.run(CHECK_STEPS, threads=threads)] for c, threads in field.items()})
        rounds: dict[str, list[Timed]] = {contestant.name: [] for contestant in field}
        for number in range(options.rounds):
            order = list(field.items())
            first = number % len(order)
            for contestant, threads in order[first:] + order[:first]:
                steps = contestant.run(options.steps, threads=threads)
                rounds[contestant.name].append(Timed(*map(min, zip(*steps, strict=True))))
        return rounds
    finally:
        for contestant in field:
            contestant.stop()


def traces(sizes: Sizes, schedules: list[str], steps: int) -> Iterator[Trace]:
    """What megalite's ranks did in the steps of each schedule."""
    for schedule in schedules:
        with (
            tempfile.TemporaryDirectory() as folder,
            ProcessPoolExecutor(RANKS, mp_context=multiprocessing.get_context("spawn")) as pool,
        ):
            jobs = [pool.submit(record, sizes, rank, schedule, steps, f"{folder}/store") for rank in range(RANKS)]
            events = [event for job in jobs for event in job.result()]
        yield Trace(
            schedule=schedule,
            num_ranks=RANKS,
            num_micro_batches=MICRO_BATCHES,
            num_chunks=CUTS[schedule].chunks,
            group_size=RANKS,
            events=tuple(event for event in events if event.step > WARM_UP),
        )


def record(sizes: Sizes, rank: int, schedule: str, steps: int, store: str) -> list[Event]:
    """Train some steps, in a process of its own; what it did, of the first WARM_UP steps too."""
    keep_heap()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, store=dist.FileStore(store, RANKS))
    diary = Diary(sizes, rank, schedule)
    for number in range(WARM_UP + steps):
        tokens, labels = batch(sizes, number, 0)
        dist.barrier()
        diary.step(tokens, labels)
    dist.destroy_process_group()
    return diary.events


def bubble(trace: Trace) -> tuple[str, ...]:
    """The row of a schedule: bubbles and lengths of its steps as they were, beside those of the simulation.

    Of the steps, the fourth part is taken whose computations were the fastest: interruptions only ever add.
    """
    steps = sorted(trace.steps, key=lambda step: sum(trace.timeline(step).busy))[: -(-len(trace.steps) // 4)]
    measured = [trace.timeline(step) for step in steps]
    replayed = [trace.replayed(step) for step in steps]
    return (
        trace.schedule,
        Spread.of([ours.bubble for ours in measured]).show(".1%"),
        Spread.of([simulation.bubble for simulation in replayed]).show(".1%"),
        *_ratios(measured, replayed),
        *_ratios(measured, [trace.predicted(step) for step in steps]),
    )


def _ratios(measured: list[Timeline], simulations: list[Timeline]) -> tuple[str, str]:
    """How much larger the bubbles of steps were than those of their simulations, and how much longer the steps."""
    pairs = list(zip(measured, simulations, strict=True))
    return (
        Spread.of([ours.bubble / simulation.bubble for ours, simulation in pairs]).show(".3f"),
        Spread.of([ours.length / simulation.length for ours, simulation in pairs]).show(".3f"),
    )


def simulated() -> Iterator[tuple[str, ...]]:
    """The bubble of every schedule, where a backward takes twice as long as a forward and messages take no time."""
    for ranks in TABLE_RANKS:
        for micro_batches in (factor * ranks for factor in TABLE_FACTORS):
            bubbles = (
                simulate(
                    make_schedule(
                        name,
                        num_ranks=ranks,
                        num_micro_batches=micro_batches,
                        num_chunks=fixed_chunks(name) or TABLE_CHUNKS,
                    )
                ).bubble
                for name in SCHEDULES
            )
            yield (str(ranks), str(micro_batches), *(f"{bubble:.1%}" for bubble in bubbles))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
