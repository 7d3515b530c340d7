"""What a process holds of the machine's memory. A GPU's allocator keeps its own account (device.py)."""

import resource
import sys
from pathlib import Path


def peak_resident_bytes() -> int:
    """The most memory this process has held resident so far."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not ru_maxrss here: Linux lets that start at the size of the process that launched this one.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
