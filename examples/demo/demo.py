"""The whole job, for real, on a laptop: text, tokenizer, training in two layouts, evaluation, a sample, and an export.

Each step is a command that you could type; it is printed before it runs. A step whose command and forerunners have not
changed since it last succeeded is not run again. Everything lies in ./demo, which `make demo-clean` removes.
"""

import argparse
import hashlib
import json
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from megalite.observe import jsonl

CONFIG = Path("examples/tiny-cpu/config.toml")
BIN = Path(sys.prefix) / "bin"
VOCAB_SIZE = 2048
TRAIN_ITERS = 1200
WARM_UP_ITERS = 30
TRAINING_SECONDS = 330.0
"""What the training may take. A machine that is too slow for TRAIN_ITERS gets fewer."""
TP_FLAGS = ("--tensor-model-parallel-size", "2", "--sequence-parallel")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command, and what it makes. That is removed before the command runs, so that nothing half-made is used.

    A step that makes nothing is there to be read, and always runs.
    """

    title: str
    command: tuple[str, ...]
    makes: tuple[Path, ...]


class Runner:
    """Runs steps in order, and remembers in `directory` which of them are done."""

    def __init__(self, directory: Path) -> None:
        self.stamps = directory / "stamps"
        self.stamps.mkdir(parents=True, exist_ok=True)
        self.history = hashlib.sha256(CONFIG.read_bytes())
        self.number = 0

    def run(self, step: Step) -> None:
        """Run the command, unless it was done after the same forerunners. SystemExit where it fails."""
        print(f"\n== {step.title}\n$ {shown(step.command)}", flush=True)
        self.history.update(json.dumps(step.command).encode())
        self.number += 1
        stamp, identity = self.stamps / f"{self.number:02}", self.history.hexdigest()
        is_done = stamp.exists() and stamp.read_text() == identity and all(path.exists() for path in step.makes)
        if step.makes and is_done:
            print("Done before; its results are kept.", flush=True)
            return
        stamp.unlink(missing_ok=True)
        for path in step.makes:
            remove(path)
        begin = time.monotonic()
        status = subprocess.run(step.command).returncode
        if status:
            sys.exit(
                f"\nThis step failed, with status {status}. Once the cause is mended, `make demo` goes on from here."
            )
        stamp.write_text(identity)
        print(f"({time.monotonic() - begin:.1f} s)", flush=True)


def shown(command: tuple[str, ...]) -> str:
    """The command as one would type it in the repository."""
    return shlex.join(part.removeprefix(f"{Path.cwd()}/") for part in command)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def python(script: str, *arguments: str | Path) -> tuple[str, ...]:
    """A command that runs one of our scripts in one process."""
    return (str(BIN / "python"), script, *map(str, arguments))


def pretrain(*arguments: str | Path) -> tuple[str, ...]:
    """A command that trains on two ranks."""
    launcher = (str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", "pretrain_gpt.py")
    return (*launcher, "--config", str(CONFIG), *map(str, arguments))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The steps of the demo, with everything under `root`."""

    root: Path

    @property
    def data(self) -> tuple[str | Path, ...]:
        """The flags that say what is read."""
        return ("--tokenizer-model", self.root / "tokenizer.model", "--data-path", self.root / "corpus_text_document")

    def log(self, name: str) -> Path:
        return self.root / f"{name}.jsonl"

    def prepare(self) -> list[Step]:
        """From nothing to token files."""
        corpus, model = self.root / "corpus.jsonl", self.root / "tokenizer.model"
        tokens = ("--output-prefix", self.root / "corpus", "--append-eod", "--workers", "2")
        return [
            Step(
                title="Text: the sources of Python's own standard library",
                command=python("tools/build_stdlib_corpus.py", "--output", corpus),
                makes=(corpus,),
            ),
            Step(
                title="A tokenizer for it",
                command=python(
                    *("tools/train_tokenizer.py", "--input", corpus),
                    *("--output-prefix", self.root / "tokenizer", "--vocab-size", str(VOCAB_SIZE)),
                ),
                makes=(model,),
            ),
            Step(
                title="Text to tokens",
                command=python(
                    *("tools/preprocess_data.py", "--input", corpus, "--tokenizer-type", "SentencePieceTokenizer"),
                    *("--tokenizer-model", model, *tokens),
                ),
                makes=(self.root / "corpus_text_document.bin", self.root / "corpus_text_document.idx"),
            ),
        ]

    def warm_up(self) -> Step:
        """A few iterations, to see how fast this machine is."""
        log = self.log("warm-up")
        short = ("--train-iters", str(WARM_UP_ITERS), "--eval-iters", "0", "--log-jsonl", log)
        return Step(title="How fast is this machine?", command=pretrain(*TP_FLAGS, *self.data, *short), makes=(log,))

    def train(self, iters: int) -> list[Step]:
        """One run in two halves, each with its own layout."""
        half, quarter = str(iters // 2), str(iters // 4)
        first, second = self.root / "checkpoints-tp2", self.root / "checkpoints-dp2"
        run = (*self.data, "--train-iters", str(iters), "--eval-interval", quarter, "--save-interval", half)
        return [
            Step(
                title="Train the first half: tensor and sequence parallelism over two ranks",
                command=pretrain(
                    *(*TP_FLAGS, *run, "--exit-interval", half),
                    *("--save", first, "--log-jsonl", self.log("tp2-sp")),
                ),
                makes=(first, self.log("tp2-sp")),
            ),
            Step(
                title="Resume from its checkpoint in another layout: data parallelism over two ranks",
                command=pretrain(
                    *(*run, "--load", first, "--exit-on-missing-checkpoint"),
                    *("--save", second, "--log-jsonl", self.log("dp2")),
                ),
                makes=(second, self.log("dp2")),
            ),
        ]

    def judge(self) -> Step:
        """Is it better than counting?"""
        result = self.root / "bigram.json"
        return Step(
            title="A smoothed bigram model on the same validation tokens",
            command=python(
                *("examples/demo/bigram.py", "--log", self.log("dp2"), "--output", result),
                *("--config", CONFIG, *self.data),
            ),
            makes=(result,),
        )

    def use(self, bigram_loss: float) -> list[Step]:
        """What the trained model is good for."""
        trained, exported, image = self.root / "checkpoints-dp2", self.root / "huggingface", self.root / "loss.png"
        return [
            Step(
                title="The loss curve, both halves",
                command=python(
                    *("tools/plot_loss.py", self.log("tp2-sp"), self.log("dp2"), "--output", image),
                    *("--level", f"smoothed bigram={bigram_loss:.4f}"),
                ),
                makes=(image,),
            ),
            Step(
                title="A sample",
                command=python(
                    *("tools/generate.py", "--load", trained, "--prompt", "class Test", "--max-new-tokens", "120"),
                    *("--temperature", "0.8", "--top-p", "0.9", "--seed", "1"),
                ),
                makes=(),
            ),
            Step(
                title="Export to a Hugging Face folder",
                command=python(
                    *("tools/convert_checkpoint.py", "--from", "megalite", "--to", "hf"),
                    *("--load", trained, "--save", exported),
                ),
                makes=(exported,),
            ),
            Step(
                title="Does transformers compute the same logits?",
                command=python("examples/demo/check_export.py", "--load", trained, "--exported", exported),
                makes=(),
            ),
        ]


def affordable_iters(log: Path, wanted: int) -> int:
    """How many of the wanted iterations fit in TRAINING_SECONDS, by the warm-up; an even number of tens."""
    seconds = jsonl.read(log)[-1]["iteration_time"]
    fitting = int(TRAINING_SECONDS / seconds) // 20 * 20
    if fitting >= wanted:
        print(f"One iteration takes {seconds:.2f} s: all {wanted} iterations will do.")
        return wanted
    print(f"One iteration takes {seconds:.2f} s: {wanted} iterations are cut to {max(fitting, 20)}.")
    return max(fitting, 20)


def finale(recipe: Recipe) -> str:
    """Where everything lies, and what to try next."""
    root = recipe.root
    scores = json.loads((root / "bigram.json").read_text())
    sample = python(
        *("tools/generate.py", "--load", root / "checkpoints-dp2", "--prompt", "import os"),
        *("--max-new-tokens", "100", "--temperature", "0.7", "--seed", "2"),
    )
    plan = python(
        *("pretrain_gpt.py", "--config", CONFIG, *recipe.data, "--train-iters", "1000"),
        *("--tensor-model-parallel-size", "4", "--sequence-parallel", "--dry-run"),
    )
    return f"""
== Done
Validation loss, in nats per token: {scores["model"]:.3f}
  of a smoothed bigram model: {scores["bigram"]:.3f}, of a unigram model: {scores["unigram"]:.3f}

  {root}/loss.png                      the loss curve
  {root}/tp2-sp.jsonl, dp2.jsonl       the logs of both halves
  {root}/checkpoints-tp2, -dp2         the model half way and at the end; any layout loads them
  {root}/huggingface                   the model for transformers
  {root}/tokenizer.model               the tokenizer
  {root}/corpus_text_document.bin      the tokens

Try next
  another sample:
    {shown(sample)}
  what a job on 8 ranks would be, without starting it:
    WORLD_SIZE=8 {shown(plan)}
  every flag:
    {shown(python("pretrain_gpt.py", "--help"))}
  another model: change {CONFIG} and run `make demo` again.
"""


def main(arguments: list[str]) -> int:
    """Run the steps."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--directory", type=Path, default=Path("demo"), help="where everything is put")
    parser.add_argument(
        "--train-iters", type=int, default=TRAIN_ITERS, help="optimizer steps, if the machine is fast enough"
    )
    options = parser.parse_args(arguments)
    begin = time.monotonic()
    recipe, runner = Recipe(root=options.directory), Runner(options.directory)
    for step in [*recipe.prepare(), recipe.warm_up()]:
        runner.run(step)
    iters = affordable_iters(recipe.log("warm-up"), options.train_iters)
    for step in [*recipe.train(iters), recipe.judge()]:
        runner.run(step)
    bigram_loss = json.loads((options.directory / "bigram.json").read_text())["bigram"]
    for step in recipe.use(bigram_loss):
        runner.run(step)
    print(finale(recipe))
    print(f"({time.monotonic() - begin:.0f} s in all)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
