"""The constants of the time model: what a machine and its software make of the figures of their data sheets."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Rates:
    """One set for a machine, whatever the model and the layout. Shares are of the device's own figures."""

    matmul: float = 0.9
    """Share of the best matrix rate that endlessly large products reach."""
    edge: float = 100.0
    """A dimension of n elements of a product works as well as n / (n + edge)."""
    attention: float = 0.5
    """Share of the best matrix rate of fused attention."""
    memory: float = 0.75
    """Share of the memory bandwidth of everything that is no product."""
    host: float = 2e-4
    """Seconds in which the host launches one pass through one layer."""
    intra: float = 0.7
    """Share of a node's link that collectives reach."""
    intra_wait: float = 2e-5
    """Seconds of a collective, or a message, without bytes within a node."""
    inter: float = 0.7
    """Share of the network that collectives and messages reach."""
    inter_wait: float = 3e-5
    """The same between nodes, for each doubling of the group."""
    step: float = 5e-3
    """Seconds of a step that nothing else explains: the batch, the norm, the log."""
    origin: str = "assumed"


def save_rates(path: Path, rates: Rates) -> None:
    """Write a profile that --profile reads."""
    path.write_text(json.dumps(asdict(rates), indent=1) + "\n", encoding="utf-8")


def load_rates(path: Path) -> Rates:
    """Read a profile. ValueError where it is none."""
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        known = {field.name for field in fields(Rates)}
        if strange := sorted(set(given) - known):
            raise ValueError(f"it has {', '.join(strange)}")
        return Rates(**given)
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"--profile {path} is no profile of --calibrate: {error}.") from error
