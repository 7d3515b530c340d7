"""Where the optimizer's states live, made as the settings ask."""

from collections.abc import Sequence
from pathlib import Path

from megalite.arith.buckets import length
from megalite.config.offload import Offload
from megalite.data_parallel.buffer import GradBuffer
from megalite.device import HostLink
from megalite.mesh import ParallelMesh
from megalite.optimizer.offload import OnDisk, OnHost
from megalite.optimizer.optimizer import Homes, on_device
from megalite.optimizer.states import Resident, cut


def homes_of(offload: Offload, mesh: ParallelMesh) -> Homes:
    """All on the device, or the share that is offloaded on the host or in this rank's file."""
    if offload.share == 0:
        return on_device
    overlap = offload.overlap_cpu_optimizer_d2h_h2d

    def homes(buffer: GradBuffer, names: Sequence[str]) -> list[Resident]:
        link = HostLink(mesh.device, overlap=overlap)
        away, here = cut(buffer.owned, round(offload.share * sum(length(segment.local) for segment in buffer.owned)))
        first: OnHost
        if offload.optimizer_offload_device == "disk":
            assert offload.offload_dir is not None
            folder, ranks = Path(offload.offload_dir), mesh.world.size
            first = OnDisk(buffer, away, names, link=link, overlap=overlap, folder=folder, rank=mesh.rank, ranks=ranks)
        else:
            first = OnHost(buffer, away, names, link=link, overlap=overlap)
        return [first, *([Resident(buffer, here, names)] if here else [])]

    return homes
