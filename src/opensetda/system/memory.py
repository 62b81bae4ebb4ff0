"""How much memory a piece of work takes at most."""

from __future__ import annotations

import math
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def reset_peak() -> bool:
    """Begin to measure anew; False where the system cannot forget the peak so far."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return True


def peak_megabytes() -> float:
    """Return the largest resident size of this process since `reset_peak`, in MB (10^6 bytes).

    Linux: VmHWM. Elsewhere: the largest since the process began; NaN on Windows.
    """
    try:
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    except OSError:
        pass
    try:
        import resource
    except ImportError:
        return math.nan
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used * (1 if sys.platform == "darwin" else 1024) / 1e6
