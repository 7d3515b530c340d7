"""The constants of the time model: what a machine and its software make of the figures of their data sheets."""

from dataclasses import dataclass


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
