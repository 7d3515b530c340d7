"""The planner against published and measured runs: memory, time, and whether it picks the right layout.

`--data` is the folder with the tables of runs. Times are predicted with the constants of megalite/plan/machines.py, one
set for each machine and its software; `--halves SEED` fits them to a random half of each machine's runs instead and
reports on the other half, `--fit` prints constants fitted to all. An entry with a limit fails above it.
"""

import argparse
import random
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, median

from plan_fit import errors, fit, predicted
from plan_rows import Case, b200, golden, reported, timed

from megalite.plan.flops import CONVENTIONS
from megalite.plan.layout import Layout
from megalite.plan.machines import MACHINES
from megalite.plan.memory import memory_of_ranks
from megalite.plan.rates import Rates

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "plan_data"
MOST_FITTED = 300
"""Runs of one machine that constants are fitted to: more change nothing but the time that it takes."""
TIME_LIMITS = {
    "Korthikanti": (0.03, "Calculon 3.65 % on its eight rows"),
    "vTrain": (0.08, "vTrain 8.4 % on one node, 14.7 % on several"),
    "BLOOM": (0.06, ""),
    "SimuMax B200": (0.05, "SimuMax 5.6 %"),
}
"""Mean absolute errors by how sources begin, with what a published tool reaches."""
REGRETS = {"vTrain multi": 0.01, "vTrain single": 0.05, "BLOOM": 0.03}
LEAST_GROUP = 5


def main(arguments: Iterable[str] | None = None) -> int:
    """Print every table; the exit status is 1 where a limit is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--data", type=Path, default=FOLDER)
    parser.add_argument("--halves", type=int, metavar="SEED", help="fit one half of the runs, report the other")
    parser.add_argument("--fit", action="store_true", help="print constants that are fitted to all runs, and stop")
    args = parser.parse_args(arguments)
    if not args.data.is_dir():
        parser.error(f"--data {args.data} is no folder: the tables of runs are not part of this repository")
    cases = timed(args.data)
    if args.fit:
        for machine, rates in fitted(cases).items():
            print(f'    "{machine}": {rates!r},')
        return 0
    if args.halves is None:
        told, rates = cases, MACHINES
    else:
        half, told = halves(cases, args.halves)
        rates = fitted(half)
    kept = [flops(args.data), memory(args.data), times(told, rates), choices(told, rates)]
    return 0 if all(kept) else 1


def by_machine(cases: Sequence[Case]) -> dict[str, list[Case]]:
    """The runs of each machine."""
    machines: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        machines[case.machine].append(case)
    return machines


def halves(cases: Sequence[Case], seed: int) -> tuple[list[Case], list[Case]]:
    """A random half of each machine's runs, the larger where they are odd, and the rest."""
    first: list[Case] = []
    rest: list[Case] = []
    for runs in by_machine(cases).values():
        mixed = random.Random(seed).sample(runs, len(runs))
        first += mixed[: (len(runs) + 1) // 2]
        rest += mixed[(len(runs) + 1) // 2 :]
    return first, rest


def fitted(cases: Sequence[Case]) -> dict[str, Rates]:
    """One set of constants for each machine."""
    return {
        machine: fit(random.Random(0).sample(runs, min(len(runs), MOST_FITTED)), origin=f"fitted to {machine}")
        for machine, runs in by_machine(cases).items()
    }


def flops(folder: Path) -> bool:
    """How closely the conventions give the reported FLOPs where a report is consistent in itself."""
    found: dict[str, list[float]] = defaultdict(list)
    for size, samples, seconds, gpus, tflops, convention in reported(folder / "throughput.csv"):
        ours = CONVENTIONS[convention](size, samples=samples) / seconds / gpus / 1e12
        found[convention].append(abs(ours / tflops - 1))
    print("FLOPs by convention: runs, mean and largest error")
    for convention, off in found.items():
        print(f"  {convention:40} {len(off):5} {fmean(off):8.2%} {max(off):8.2%}")
    return all(max(off) <= 0.005 for off in found.values())


def memory(folder: Path) -> bool:
    """Bytes at the peak: the last pipeline rank's for the golden runs, as they report, and the largest elsewhere."""
    dense = [
        abs(memory_of_ranks(size, layout, practice)[-1].total / nbytes - 1)
        for _, size, layout, practice, nbytes in golden(folder / "megatron_golden_mem_time.csv")
    ]
    large = [
        abs(max(rank.total for rank in memory_of_ranks(case.size, case.layout, case.practice)) / nbytes - 1)
        for case, nbytes in b200(folder / "simumax_b200_measured.csv")
    ]
    print("\nMemory at the peak: runs, mean and median error")
    print(f"  {'Megatron, dense GPTs':40} {len(dense):5} {fmean(dense):8.2%} {median(dense):8.2%}  median at most 3 %")
    told = "mean at most 0.5 %; SimuMax 0.46 %"
    print(f"  {'B200, dense':40} {len(large):5} {fmean(large):8.2%} {median(large):8.2%}  {told}")
    return median(dense) <= 0.03 and fmean(large) <= 0.005


def times(cases: Sequence[Case], rates: dict[str, Rates]) -> bool:
    """Seconds of a step, by source."""
    sources: dict[str, list[float]] = defaultdict(list)
    for case in cases:
        sources[case.source] += errors([case], rates[case.machine])
    print("\nTime of a step: runs, mean absolute error, bias, largest error")
    for source, off in sources.items():
        most = max(off, key=abs)
        print(f"  {source[:40]:40} {len(off):5} {_mean(off):8.1%} {fmean(off):+8.1%} {most:+8.1%}")
    kept = True
    print("  limits:")
    for start, (limit, peer) in TIME_LIMITS.items():
        off = [error for source, found in sources.items() if source.startswith(start) for error in found]
        kept &= not off or _mean(off) <= limit
        print(f"  {start:40} {len(off):5} {_mean(off):8.1%}  at most {limit:.0%}{_no(_mean(off) > limit)}  {peer}")
    every = [error for found in sources.values() for error in found]
    near = sum(abs(error) <= 0.2 for error in every) / len(every)
    print(f"  {'all':40} {len(every):5} {_mean(every):8.1%}  at most 10 %, {near:.1%} within 20 %, at least 90 %")
    return kept and _mean(every) <= 0.1 and near >= 0.9


def choices(cases: Sequence[Case], rates: dict[str, Rates]) -> bool:
    """Where one job ran in several layouts: what the pick costs beside the best, and how alike the orders are.

    A layout that ran several times counts once, with its mean.
    """
    groups: dict[str, dict[Layout, list[Case]]] = defaultdict(lambda: defaultdict(list))
    for case in cases:
        groups[case.group][case.layout].append(case)
    told: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for layouts in groups.values():
        if len(layouts) >= LEAST_GROUP:
            ones = [runs[0] for runs in layouts.values()]
            ours = [predicted(case, rates[case.machine]) for case in ones]
            real = [fmean(case.seconds for case in runs) for runs in layouts.values()]
            told[ones[0].source].append((real[ours.index(min(ours))] / min(real) - 1, kendall(ours, real)))
    print("\nChoice: groups of layouts, mean regret of the pick, mean Kendall tau")
    kept = True
    for source, found in told.items():
        regret, tau = fmean(pair[0] for pair in found), fmean(pair[1] for pair in found)
        limit = next((most for start, most in REGRETS.items() if source.startswith(start)), None)
        wanted = f"  at most {limit:.0%}{_no(regret > limit)}, tau at least 0.8{_no(tau < 0.8)}" if limit else ""
        kept &= limit is None or (regret <= limit and tau >= 0.8)
        print(f"  {source[:40]:40} {len(found):5} {regret:8.1%} {tau:8.2f}{wanted}")
    return kept


def kendall(ones: Sequence[float], others: Sequence[float]) -> float:
    """Pairs in the same order less pairs in the opposite one, over all that are not equal."""
    pairs = [(i, j) for i in range(len(ones)) for j in range(i) if others[i] != others[j]]
    signs = [(ones[i] - ones[j]) * (others[i] - others[j]) for i, j in pairs]
    return sum((sign > 0) - (sign < 0) for sign in signs) / len(signs) if signs else 1.0


def _mean(off: Sequence[float]) -> float:
    return fmean(map(abs, off)) if off else 0.0


def _no(broken: bool) -> str:
    return ": NO" if broken else ""


if __name__ == "__main__":
    sys.exit(main())
