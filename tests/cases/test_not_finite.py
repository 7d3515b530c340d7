"""C35 (b): one bad batch neither spoils the weights nor any checkpoint. (a) is in tests/parallel."""

from pathlib import Path

import pytest
import torch

from megalite.checkpoint.format import read_index
from megalite.checkpoint.load import read_tensor
from megalite.checkpoint.place import find
from tests.cases.fixtures import BATCH, SEQUENCE, WHOLE, Materials, transformers
from tests.cases.harness import Program
from tools import convert_checkpoint

RARE = 300
WORD = "embedding.word.weight"
SHARDED = "--use-distributed-optimizer"


def start(materials: Materials, folder: Path) -> Path:
    """START whose embedding of one rare word is infinite."""
    model = transformers.LlamaForCausalLM.from_pretrained(materials.model())
    with torch.no_grad():
        model.model.embed_tokens.weight[RARE] = torch.inf
    model.save_pretrained(folder / "hf")
    words = f"--from hf --to megalite --load {folder / 'hf'} --save {folder / 'start'}"
    assert convert_checkpoint.main(words.split()) == 0
    return folder / "start"


@pytest.mark.parametrize(
    ("precision", "clip", "flags"),
    [
        ("--bf16", "0", ""),
        ("--bf16", "1.0", f"{SHARDED} --data-parallel-sharding-strategy optim_grads"),
        ("--fp16 --initial-loss-scale 1024", "1.0", f"{SHARDED} --overlap-grad-reduce --overlap-param-gather"),
        pytest.param("--bf16", "1.0", "", marks=pytest.mark.soak),
        pytest.param("--bf16", "0", SHARDED, marks=pytest.mark.soak),
        pytest.param("--fp16 --initial-loss-scale 1024", "0", "", marks=pytest.mark.soak),
    ],
)
def test_the_run_stops_before_a_bad_batch_does_harm(
    program: Program, materials: Materials, tmp_path: Path, precision: str, clip: str, flags: str
) -> None:
    """Data parallel rank 0 or 1 meets the word, in one iteration; with it left out the run goes on to its end."""
    documents = [[5 + number % 200] * SEQUENCE for number in range(6 * BATCH)]
    documents[20][SEQUENCE // 2] = RARE
    data = materials.documents(f"rare-{tmp_path.name}", documents)
    [place] = [i for i, sample in enumerate(materials.samples(data, 5 * BATCH)) if RARE in sample[:-1]]
    bad, begun, saved = place // BATCH + 1, start(materials, tmp_path), tmp_path / "saved"
    words = materials.run().replace("--train-iters 20", "").replace(str(materials.checkpoint()), str(begun))
    kept = (
        f"--data-path {data} {WHOLE} --train-iters 5 {precision} --clip-grad {clip} {flags} --save {saved} "
        "--save-interval 1"
    )
    stopped = program("dp2", words, kept)
    assert stopped.status == 1
    assert all(f"iteration {bad}: loss nan" in said for said in stopped.said), stopped.said
    newest = find(saved)
    assert newest is not None and newest.name == f"iter_{bad - 1:07}"
    for name in read_index(newest).tensors:
        tensor = read_tensor(newest, name)
        rows = torch.arange(len(tensor)) != (RARE if name.endswith(WORD) else -1)
        assert tensor[rows].isfinite().all(), name
    resumed = words.replace("--finetune", "").replace(str(begun), str(saved))
    gone_on = program("dp2", resumed, kept, f"--iterations-to-skip {bad}")
    assert gone_on.status == 0, gone_on.said
    assert len(gone_on.losses) == 5 - bad
