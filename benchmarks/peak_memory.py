"""How much memory did a process take at most?"""

import resource
from pathlib import Path


def own_peak_mb() -> float:
    """Return the peak of this process since it began; what `getrusage` gives begins with its parent's."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    known = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return mb(known[0] if known else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def mb(kernel_kb: int) -> float:
    """Return megabytes, as files are counted in, of what the kernel calls kilobytes: 1,024 bytes each."""
    return kernel_kb * 1024 / 1e6
