"""The settings of offload; config/schema.py says how fields are read."""

from dataclasses import dataclass
from typing import Literal

from megalite.config.field import option


@dataclass(frozen=True, kw_only=True)
class Offload:
    """Where the optimizer's states live, and its update runs, if not on the device."""

    optimizer_cpu_offload: bool = False
    """Keep main parameters and optimizer states on the host, and update them there."""
    optimizer_offload_fraction: float = option(1.0, at_least=0, at_most=1)
    """Share of them that is offloaded."""
    overlap_cpu_optimizer_d2h_h2d: bool = False
    """Send the gradients of each bucket to the host as soon as they are summed, and let parameters return while others
    are updated."""
    optimizer_offload_device: Literal["cpu", "disk"] = "cpu"
    """Where offloaded states are kept: in the host's memory, or in files of --offload-dir, one a rank."""
    offload_dir: str | None = None
    """Folder for the files of --optimizer-offload-device disk, best on a local disk. They are removed at the end."""

    @property
    def share(self) -> float:
        """How much of the states is offloaded."""
        return self.optimizer_offload_fraction if self.optimizer_cpu_offload else 0.0
