"""Dropout masks: a function of place, different at every place, of the asked share."""

from itertools import combinations

import pytest
import torch

from megalite.ops.dropout import Draw, attention_dropout, hidden_dropout
from megalite.ops.philox import derive_key, philox

DRAW = Draw(seed=1, step=2, samples=torch.tensor([4, 9]))
S, B, H = 32, 2, 32


def hidden(site: str, layer: int, draw: Draw = DRAW, p: float = 0.3) -> torch.Tensor:
    """[b, s, h] True where kept."""
    ones = torch.ones(S, B, H)
    return hidden_dropout(ones, p, draw=draw, site=site, layer=layer, rows=slice(0, S)).transpose(0, 1) > 0


def probabilities(layer: int, head: int = 0) -> torch.Tensor:
    """[b, q, k] True where kept, of one head."""
    return attention_dropout(torch.ones(B, 1, S, S), 0.3, draw=DRAW, layer=layer, first_head=head)[:, 0] > 0


def test_philox_gives_the_published_words() -> None:
    """Known answers of Philox4x32-10 from the authors' Random123 test vectors."""
    for counter, key, words in [
        ([0] * 4, (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, (0xFFFFFFFF,) * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            (0xA4093822, 0x299F31D0),
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ]:
        a, b, c, d = (torch.tensor(word) for word in counter)
        assert [int(word) for word in philox(key, (a, b, c, d))] == words


def test_every_place_has_a_mask_of_its_own() -> None:
    masks = {
        **{(site, layer): hidden(site, layer) for site in ("embedding", "attention", "mlp") for layer in (0, 1)},
        **{("probabilities", layer, head): probabilities(layer, head) for layer in (0, 1) for head in (0, 1)},
        "another step": hidden("mlp", 0, Draw(seed=1, step=3, samples=DRAW.samples)),
        "another seed": hidden("mlp", 0, Draw(seed=2, step=2, samples=DRAW.samples)),
    }
    for (a, one), (b, other) in combinations(masks.items(), 2):
        agreement = (one == other).double().mean().item()
        assert abs(agreement - (0.7**2 + 0.3**2)) < 0.06, f"{a} and {b} agree in {agreement:.2f} of their elements"
    assert not torch.equal(masks["mlp", 0][0], masks["mlp", 0][1]), "samples share a mask"


@pytest.mark.parametrize("p", [0.05, 0.3, 0.5, 0.9])
def test_the_share_and_the_scale(p: float) -> None:
    x = hidden_dropout(torch.ones(256, 2, 256), p, draw=DRAW, site="mlp", layer=0, rows=slice(0, 256))
    assert abs((x == 0).double().mean().item() - p) < 0.005
    assert torch.allclose(x[x > 0], torch.tensor(1 / (1 - p)))


def test_a_part_of_the_sequence_has_its_part_of_the_mask() -> None:
    whole = torch.ones(S, B, H)
    args = {"p": 0.3, "draw": DRAW, "site": "mlp", "layer": 0}
    part = hidden_dropout(whole[8:16], rows=slice(8, 16), **args)
    assert torch.equal(part, hidden_dropout(whole, rows=slice(0, S), **args)[8:16])


def test_keys_depend_on_every_fact() -> None:
    keys = [derive_key(1, 2, "mlp", 3), derive_key(1, 2, "mlp", 4), derive_key(1, 23, "mlp"), derive_key(12, 3, "mlp")]
    assert len(set(keys)) == len(keys)
