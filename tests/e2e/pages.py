"""What a page shows is what happens: its commands run, scaled down by flags, and say what is quoted of them.

The blocks of a page run in order, in a folder that stands for a clone; what one page makes, another may use. A block
of sh is followed by what it prints, in a block of text: those lines must come, but for digits where something runs.
"""

import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from examples.demo.demo import BIN
from tests.house.rules import ROOT
from tests.house.test_documents import DOCUMENTS, joined

MADE_BY = {
    "docs/train.md": "docs/data.md",
    "docs/preprocess.md": "docs/data.md",
    "docs/checkpoints.md": "docs/train.md",
    "docs/generate.md": "docs/train.md",
    "examples/tiny-cpu/README.md": "docs/data.md",
}
"""Whose results a page uses."""

MADE_UP = r"--mock-data --tokenizer-type NullTokenizer --vocab-size 512"
SUBSTITUTES = {
    r"(pretrain_gpt\.py.*)": r"\1 --num-layers 2 --hidden-size 32 --ffn-hidden-size 64 --num-attention-heads 4"
    r" --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --eval-iters 1",
    r"--nproc-per-node 8 (.*gpt3-3d.*)": r"--nproc-per-node 4 \1 --pipeline-model-parallel-size 2",
    r"--nproc-per-node 8 (.*gpt-13b.*)": r"--nproc-per-node 4 \1",
    r"--nproc-per-node 8\b": "--nproc-per-node 2",
    r"--nnodes 4\b": "--nnodes 1",
    r"\bnode0:29500": "localhost:0",
    r":29500\b": ":0",
    r"--train-iters 1200\b": "--train-iters 4",
    r"(--config examples/(?:gpt|llama2|pcie|offload).*)": r"\1 --train-iters 4 --lr-warmup-iters 1 --save-interval 4",
    r"(--config examples/(?:gpt3|llama2).*)": r"\1 --tensor-model-parallel-size 2",
    r"(--config examples/pcie.*)": r"\1 --pipeline-model-parallel-size 2 --num-query-groups 2",
    r"--data-path \S+ (--vocab-file|--tokenizer-model) (data/vocab\S+ --merge-file \S+|data/llama\S+)": MADE_UP,
    r"python -m pytest": "python -m pytest --collect-only",
}
"""What makes a command small."""
STAND_INS = {
    "srun": '#!/bin/bash\nwhile [[ $1 == -* ]]; do shift 2; done\nexec "$@"\n',
    "scontrol": "#!/bin/bash\necho localhost\n",
}
"""Programs of a cluster, for a cluster of this machine alone."""
ONLY_PRINTS = re.compile(
    r"--(dry-run|print-config|help)\b|draw_schedule\.py --pipeline|# exit status 2"
    r"|tools/plan\.py (?!.*--(probe|calibrate))"
)
ELSEWHERE = re.compile(r"(make|pip|git|cd)\b")
"""Commands that other tests run."""


@dataclass
class Block:
    """Commands, and what a page says that they print."""

    commands: list[str]
    quoted: list[str] = field(default_factory=list)


def blocks(text: str) -> list[Block]:
    """The blocks of sh of a page."""
    found: list[Block] = []
    for kind, content in re.findall(r"^```(sh|text)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if kind == "sh":
            found.append(Block([line for line in joined(content) if line and not ELSEWHERE.match(line)]))
        elif found:
            found[-1].quoted += [line.strip() for line in content.splitlines() if line.strip(" .")]
    return found


def scaled(command: str) -> str:
    """The command made small, unless it only prints."""
    if ONLY_PRINTS.search(command):
        return command
    command, hash_, comment = command.partition(" #")
    for pattern, substitute in SUBSTITUTES.items():
        command = re.sub(pattern, substitute, command)
    return command + hash_ + comment


def masked(text: str) -> str:
    """The text without its digits."""
    return re.sub(r"[\d.,]*\d(e[+-]\d+)?", "0", text)


class Clone:
    """A folder that looks like the repository, in which pages are run, each once."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.done = folder, set[str]()
        for name in ("pretrain_gpt.py", "tools", "examples", "megalite", "tests", "pyproject.toml"):
            (folder / name).symlink_to(ROOT / name)
        (folder / "bin").mkdir()
        for name, script in STAND_INS.items():
            (folder / "bin" / name).write_text(script)
            (folder / "bin" / name).chmod(0o755)
        self.environment = os.environ | {"PATH": f"{folder}/bin:{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}

    def run_page(self, page: str) -> None:
        """Run the blocks of a page, and of the page whose results it uses."""
        if page in self.done:
            return
        if page in MADE_BY:
            self.run_page(MADE_BY[page])
        for block in blocks((ROOT / page).read_text()):
            self.run_block(block)
        self.done.add(page)

    def run_block(self, block: Block) -> None:
        """Run its commands. One whose comment says `exit status N` must end so, the others with 0."""
        said = "".join(self.output(scaled(command)) for command in block.commands)
        form = str if all(map(ONLY_PRINTS.search, block.commands)) else masked
        missing = [line for line in block.quoted if form(line) not in form(said)]
        assert not missing, f"not said: {missing}\n{said}"

    def output(self, command: str) -> str:
        status = re.search(r"# exit status (\d+)", command)
        run = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        assert run.returncode == (int(status[1]) if status else 0), f"{command}\n{run.stdout}"
        return run.stdout


def pages(folder: str) -> list[str]:
    """Those below a folder of the repository, or beside it (''), that have commands."""
    found = [page for page in DOCUMENTS if blocks((ROOT / page).read_text())]
    return [page for page in found if page.rpartition("/")[0].partition("/")[0] == folder]
