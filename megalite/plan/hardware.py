"""Accelerators and clusters of them: published figures, each of which a flag can overrule.

The peaks are dense 16-bit tensor rates of NVIDIA's and AMD's data sheets (A100, H100, H200, DGX B200 and B300, L40S,
RTX 4090, Instinct MI300X and MI325X), without sparsity. Bandwidths count one direction. `matmul` is what public
measurements of large 16-bit products reach (mamf-finder, of the ml-engineering book); where none is known it is a
share of the peak that parts of the same generation reach.
"""

from dataclasses import dataclass, replace

from megalite.config.options import nearest

GB = 1e9


@dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator. Rates are a second's; bytes are decimal."""

    name: str
    peak: float
    """Dense 16-bit FLOPs."""
    matmul: float
    """FLOPs that large 16-bit products reach."""
    memory: float
    """Bytes on the device."""
    bandwidth: float
    """Bytes to and from its memory."""
    intra: float
    """Bytes that leave it over NVLink or what stands for it; 0 without."""
    pcie: float
    """Bytes to the host."""
    network: float
    """Bytes that its share of the usual network takes."""
    units: int
    """Multiprocessors, or compute units."""


def _device(
    name: str,
    tflops: float,
    matmul: float,
    gigabytes: float,
    bandwidth: float,
    intra: float,
    pcie: float,
    network: float,
    units: int,
) -> Device:
    return Device(
        name=name,
        peak=tflops * 1e12,
        matmul=matmul * 1e12,
        memory=gigabytes * GB,
        bandwidth=bandwidth * GB,
        intra=intra * GB,
        pcie=pcie * GB,
        network=network * GB,
        units=units,
    )


DEVICES = {
    device.name: device
    for device in (
        # name, dense 16-bit TFLOP/s, reached, GB, then GB/s: memory, NVLink, PCIe, network; multiprocessors
        _device("v100", 125, 105, 32, 900, 150, 15.75, 12.5, 80),
        _device("a100-40", 312, 271, 40, 1555, 300, 31, 25, 108),
        _device("a100", 312, 271, 80, 2039, 300, 31, 25, 108),
        _device("a800", 312, 271, 80, 2039, 200, 31, 25, 108),
        _device("h100", 989.4, 794, 80, 3350, 450, 63, 50, 132),
        _device("h100-pcie", 756, 590, 80, 2000, 300, 63, 50, 114),
        _device("h100-96", 989.4, 720, 96, 2400, 450, 63, 50, 132),
        _device("h800", 989.4, 794, 80, 3350, 200, 63, 50, 132),
        _device("h200", 989.4, 794, 141, 4800, 450, 63, 50, 132),
        _device("gh200", 989.4, 828, 141, 4800, 450, 450, 50, 132),
        _device("b200", 2250, 1745, 180, 8000, 900, 63, 50, 148),
        _device("gb200", 2500, 1822, 186, 8000, 900, 450, 50, 148),
        _device("b300", 2250, 1769, 288, 8000, 900, 63, 100, 148),
        _device("gb300", 2500, 1850, 288, 8000, 900, 450, 100, 148),
        _device("l40s", 362, 290, 48, 864, 0, 31, 12.5, 142),
        _device("rtx-4090", 165.2, 150, 24, 1008, 0, 31, 12.5, 128),
        _device("rtx-3090", 71, 64, 24, 936, 56, 31, 12.5, 82),
        _device("a10g", 70, 60, 24, 600, 0, 31, 12.5, 80),
        _device("l4", 121, 90, 24, 300, 0, 15.75, 12.5, 58),
        _device("mi300x", 1307, 668, 192, 5300, 448, 63, 50, 304),
        _device("mi325x", 1307, 785, 256, 6000, 448, 63, 50, 304),
    )
}
"""By the names of --gpu."""

OTHER_NAMES = {"a100-80": "a100", "h100-sxm": "h100", "4090": "rtx-4090", "3090": "rtx-3090", "v100-32": "v100"}


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Nodes of equal devices."""

    device: Device
    gpus_per_node: int
    nodes: int

    @property
    def gpus(self) -> int:
        return self.gpus_per_node * self.nodes


def find_device(name: str) -> Device:
    """The device of this name, in any spelling. ValueError with the nearest known name."""
    wanted = name.lower().replace("_", "-").replace(" ", "-")
    known = DEVICES.get(OTHER_NAMES.get(wanted, wanted))
    if known:
        return known
    near = nearest(wanted, DEVICES)
    raise ValueError(f"--gpu {name} is not known. Try {near or 'h100'}; known are {', '.join(DEVICES)}.")


def make_cluster(
    device: Device,
    *,
    gpus_per_node: int,
    nodes: int,
    intra: str = "nvlink",
    inter_gbps: float | None = None,
    memory_gb: float | None = None,
) -> Cluster:
    """A cluster as the flags tell it. `intra` is nvlink or pcie, `inter_gbps` the gigabits a second of each GPU's share
    of the network.
    """
    for flag, value in (("--gpus-per-node", gpus_per_node), ("--nodes", nodes)):
        if value < 1:
            raise ValueError(f"{flag} {value} must be 1 or more. Try {flag} 1.")
    for flag, given in (("--inter-gbps", inter_gbps), ("--device-mem", memory_gb)):
        if given is not None and given <= 0:
            raise ValueError(f"{flag} {given:g} must be above 0. Try {flag} {400 if 'inter' in flag else 80}.")
    if intra == "nvlink" and not device.intra and gpus_per_node > 1:
        raise ValueError(f"--intra nvlink: {device.name} has no NVLink. Try --intra pcie.")
    return Cluster(
        device=replace(
            device,
            intra=device.intra if intra == "nvlink" else 0.0,
            network=device.network if inter_gbps is None else inter_gbps * GB / 8,
            memory=device.memory if memory_gb is None else memory_gb * GB,
        ),
        gpus_per_node=gpus_per_node,
        nodes=nodes,
    )
