"""Memory: the peak of this process, what is free, and what glibc does with freed memory."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from opensetda.errors import InputError

# From malloc.h: map no block on its own, give nothing back, ask the kernel for large blocks.
_MALLOC_OPTIONS = ((-4, 0), (-1, 2**31 - 1), (-2, 2**28))

# Limit, use and releasable pages of control groups, of version 2 and of version 1.
_GROUP_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def reset_peak() -> bool:
    """Start a new measurement; return False where the system cannot reset the peak."""
    try:
        return Path("/proc/self/clear_refs").write_text("5") > 0
    except OSError:
        return False


def peak_megabytes() -> float:
    """Return the largest resident size since `reset_peak` in MB (10^6 bytes); NaN on Windows."""
    with suppress(OSError, IndexError):
        return _entry(Path("/proc/self/status"), "VmHWM:") * 1024 / 1e6
    try:
        import resource
    except ImportError:
        return math.nan
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used * (1 if sys.platform == "darwin" else 1024) / 1e6


def free_bytes() -> float:
    """Return how much memory can still be taken; infinity where the system does not say.

    On Linux it is what the machine has available, or the container, if that is less.
    """
    free = [math.inf, *_left_in_groups()]
    with suppress(OSError, IndexError, ValueError):
        free.append(_entry(Path("/proc/meminfo"), "MemAvailable:") * 1024)
    return min(free)


def check_free(needed: float, what: str, advice: str) -> None:
    """Raise an `InputError` if `what` needs more memory than is free."""
    free = free_bytes()
    if needed > free:
        amounts = f"needs about {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free"
        raise InputError(f"{what} {amounts}; {advice}")


def _left_in_groups(root: Path = Path("/sys/fs/cgroup")) -> Iterator[float]:
    """Yield what is left of each limit on the control groups of this process."""
    own = dict.fromkeys(_GROUP_FILES, "")
    with suppress(OSError, ValueError):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        own |= {name: path for _, name, path in (line.split(":", 2) for line in lines)}
    for version, (limit, used, files) in _GROUP_FILES.items():
        folder = Path(f"{root / version}{own[version]}")
        for group in (folder, *folder.parents):
            # Without a limit there is no number; in a container outer groups are not visible.
            with suppress(OSError, ValueError, IndexError):
                left = _entry(group / limit) - _entry(group / used)
                # Pages of files are given back when they are needed.
                yield left + _entry(group / "memory.stat", f"\n{files} ")


def _entry(path: Path, name: str = "") -> int:
    """Return the number after a name in a file of the kernel, or the only one."""
    text = path.read_text()
    return int((text.partition(name)[2] if name else text).split()[0])


def keep_freed_memory() -> bool:
    """Tell glibc to reuse freed memory instead of returning it; return whether it can.

    The memory of the process then stays at its peak. Otherwise the kernel takes freed activations
    back and hands them out zeroed: in a training step of EfficientNet-Lite0 that costs 70 of
    240 ms of processor time per image. Feature extraction does not need it.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, such as musl, or Windows
        return False
    return all(mallopt(name, value) for name, value in _MALLOC_OPTIONS)
