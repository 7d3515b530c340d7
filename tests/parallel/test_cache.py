"""Generation token by token gives what whole sequences give, in every variant of the model."""

from dataclasses import replace

import pytest
import torch

from megalite.generate.generate import generate
from megalite.generate.sampling import Sampling
from megalite.mesh import ParallelMesh
from megalite.model.context import Context
from megalite.train.opened import inference
from tests.parallel import harness
from tests.parallel.harness import MODELS, SEQUENCE, VOCAB
from tests.pool import Pool


def both(mesh: ParallelMesh, model: str) -> tuple[list[int], list[int]]:
    """The greedy continuation with a cache, and by whole sequences."""
    settings = harness.config(model, {"tp": mesh.tp.size})
    settings = replace(settings, model=replace(settings.model, seq_length=SEQUENCE, max_position_embeddings=SEQUENCE))
    engine = harness.make(mesh, settings, torch.float64)
    gpt = inference(engine.stages, engine.mail, vocab_size=VOCAB, dtype=torch.float64)
    prompt = [5, 17, 3]
    sampling = Sampling(temperature=0)
    cached = list(
        generate(gpt, prompt, max_new_tokens=99, sampling=sampling, eod=-1, seed=0, limit=SEQUENCE, device=mesh.device)
    )
    whole = list(prompt)
    while len(whole) < SEQUENCE:
        context = Context(position_ids=torch.arange(len(whole)).unsqueeze(0))
        whole.append(int(gpt(torch.tensor([whole]), context)[0, -1].argmax()))
    return cached, whole[len(prompt) :]


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("model", MODELS)
def test_cached_and_whole_agree(pool: Pool, model: str, tp: int) -> None:
    for cached, whole in pool.run(harness.grid({"tp": tp}), both, model):
        assert cached == whole
