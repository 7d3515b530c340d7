"""Tokens per second of each layout on this machine, with the demo's model and made-up tokens.

Each row is a run of its own; the first logged iterations, in which memory is first touched, are left out.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from megalite.observe import jsonl

LAYOUTS = {
    "1 rank": (1, []),
    "DP 2": (2, []),
    "DP 2, overlapped": (2, ["--overlap-grad-reduce"]),
    "TP 2": (2, ["--tensor-model-parallel-size", "2"]),
    "TP 2 + SP": (2, ["--tensor-model-parallel-size", "2", "--sequence-parallel"]),
}
"""Name: (ranks, flags)."""
LOG_INTERVAL = 5


def main(arguments: list[str]) -> int:
    """Print a table; arguments that are not ours go to pretrain_gpt.py."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--iters", type=int, default=30, help="iterations of each run, more than 10")
    options, extra = parser.parse_known_args(arguments)
    print(f"{'layout':<20} {'tokens/s':>10} {'ms/iteration':>14} {'MB/rank':>9}")
    for name, (ranks, flags) in LAYOUTS.items():
        records = measure(ranks, [*flags, *extra], options.iters)[2:]
        rate, seconds = (
            statistics.median(record[key] for record in records) for key in ("tokens_per_second", "iteration_time")
        )
        memory = max(record["memory_bytes"] for record in records)
        print(f"{name:<20} {rate:>10,.0f} {1e3 * seconds:>14.1f} {memory / 1e6:>9.0f}", flush=True)
    return 0


def measure(ranks: int, flags: list[str], iters: int) -> list[dict[str, float]]:
    """What a run of this layout logged."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)),
            *("pretrain_gpt.py", "--config", "examples/demo/config.toml", "--mock-data"),
            *("--tokenizer-type", "NullTokenizer", "--vocab-size", "2048", "--eval-iters", "0"),
            *("--train-iters", str(iters), "--log-interval", str(LOG_INTERVAL), "--log-jsonl", str(log)),
        ]
        run = subprocess.run([*command, *flags], capture_output=True, text=True)
        if run.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{run.stdout}{run.stderr}")
        return jsonl.read(log)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
