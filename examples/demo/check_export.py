"""Does `transformers` compute the logits that megalite does? It opens the exported folder and reads the same tokens."""

import argparse
import sys
from pathlib import Path

import torch

from megalite.environment import launch
from megalite.grid import Grid
from megalite.mesh import start
from megalite.model.context import Context
from megalite.train.opened import open_checkpoint

TOLERANCE = 1e-5
"""Relative to the largest logit: fp32 sums in another order."""


def main(arguments: list[str]) -> int:
    """Print the largest difference; 1 where it is too large."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--load", type=Path, required=True, help="the folder of checkpoints")
    parser.add_argument("--exported", type=Path, required=True, help="the Hugging Face folder")
    options = parser.parse_args(arguments)
    from transformers import AutoModelForCausalLM

    mesh = start(Grid(sizes={}), launch=launch(), backend="gloo", timeout_minutes=1, device=torch.device("cpu"))
    opened = open_checkpoint(options.load, mesh=mesh)
    assert opened.tokenizer is not None
    # Any text will do; this one is at hand.
    ids = opened.tokenizer.encode(Path(__file__).read_text(encoding="utf-8"))[: opened.max_positions]
    tokens = torch.tensor([ids])
    ours = opened.model(tokens, Context(position_ids=torch.arange(len(ids)).unsqueeze(0)))
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(options.exported).eval()(tokens).logits
    difference = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    print(f"{ours.shape[1]} tokens x {ours.shape[2]} logits: they differ by at most {difference:.1e} of the largest.")
    if difference < TOLERANCE:
        return 0
    print(f"That is more than the {TOLERANCE:.0e} that rounding explains: the export is wrong.")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
