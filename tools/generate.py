"""Continue a prompt with a trained model: `python tools/generate.py --load DIR --prompt "import os"`.

On N ranks: `torchrun --nproc-per-node N tools/generate.py ...`, by tensor parallelism, or by pipeline stages where
`--pipeline-model-parallel-size` asks for them; the text is the same.
"""

import argparse
import sys
from pathlib import Path

from megalite.device import backend_for, pick
from megalite.environment import fail, launch
from megalite.generate.generate import generate
from megalite.generate.sampling import Sampling
from megalite.grid import Grid
from megalite.mesh import start, stop
from megalite.train.opened import open_checkpoint


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--load", required=True, type=Path, help="folder of a run's checkpoints, or one checkpoint")
    parser.add_argument("--ckpt-step", type=int, help="load this iteration instead of the latest")
    parser.add_argument("--prompt", default="", help="text to continue; empty: a new document")
    parser.add_argument(
        "--max-new-tokens", type=int, default=100, help="0 or more; the end of a document ends it sooner"
    )
    parser.add_argument("--temperature", type=float, default=1.0, help="below 1 is more careful, above 1 bolder")
    parser.add_argument("--top-k", type=int, default=0, help="draw from the k likeliest tokens; 0: from all")
    parser.add_argument("--top-p", type=float, default=1.0, help="draw from the likeliest tokens that reach this share")
    parser.add_argument("--greedy", action="store_true", help="always take the likeliest token")
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument(
        "--pipeline-model-parallel-size", type=int, default=1, help="stages; the rest of the ranks is tensor parallel"
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    return parser.parse_args()


def main() -> None:
    """Print the prompt and what follows it, as it is made."""
    args = arguments()
    if args.max_new_tokens < 0:
        raise ValueError(f"--max-new-tokens {args.max_new_tokens} must be 0 or more. Try 100.")
    sampling = Sampling(temperature=0 if args.greedy else args.temperature, top_k=args.top_k, top_p=args.top_p)
    here = launch()
    device = pick(args.device, here.local_rank)
    stages = args.pipeline_model_parallel_size
    if stages < 1 or here.world_size % stages:
        raise ValueError(
            f"--pipeline-model-parallel-size {stages} does not divide the world size {here.world_size}. Start it with "
            f"torchrun --nproc-per-node {max(stages, 1)}."
        )
    grid = Grid(sizes={"tp": here.world_size // stages, "pp": stages})
    mesh = start(grid, launch=here, backend=backend_for(device, "auto"), timeout_minutes=10, device=device)
    opened = open_checkpoint(args.load, mesh=mesh, step=args.ckpt_step)
    tokenizer = opened.tokenizer
    if tokenizer is None:
        raise ValueError(f"--load {args.load} carries no tokenizer, so that a text cannot be read or written.")
    prompt = tokenizer.encode(args.prompt) or [tokenizer.eod]
    if len(prompt) >= opened.max_positions:
        raise ValueError(f"--prompt has {len(prompt)} tokens; the model reads at most {opened.max_positions - 1}.")
    ids = [] if prompt == [tokenizer.eod] else prompt
    shown = tokenizer.decode(ids)
    write(shown, here.rank)
    for token in generate(
        opened.model,
        prompt,
        max_new_tokens=args.max_new_tokens,
        sampling=sampling,
        eod=tokenizer.eod,
        seed=args.seed,
        limit=opened.max_positions,
        device=device,
    ):
        ids = [*ids, token]
        text = tokenizer.decode(ids)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):  # the rest of a character is still to come
            write(text[len(shown) :], here.rank)
            shown = text
    write("\n", here.rank)
    stop()


def write(text: str, rank: int) -> None:
    """Rank 0 speaks for all."""
    if rank == 0:
        sys.stdout.write(text)
        sys.stdout.flush()


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(fail(launch(), "tools/generate.py", str(error), status=1))
