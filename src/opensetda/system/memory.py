"""Memory: the peak of this process, what is free, and what glibc does with freed memory."""

from __future__ import annotations

import ctypes
import math
from contextlib import suppress
from pathlib import Path

import psutil

from opensetda.errors import InputError

# From malloc.h: map no block on its own, give nothing back, ask the kernel for large blocks.
_MALLOC_OPTIONS = ((-4, 0), (-1, 2**31 - 1), (-2, 2**28))


def reset_peak() -> None:
    """Start a new measurement, where the system can reset the peak."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_megabytes() -> float:
    """Return the largest resident size since `reset_peak` in MB (10^6 bytes); NaN but on Linux."""
    with suppress(OSError, IndexError):
        text = Path("/proc/self/status").read_text()
        return int(text.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6
    return math.nan


def free_bytes() -> float:
    """Return how much memory is available."""
    return float(psutil.virtual_memory().available)


def check_free(needed: float, what: str, advice: str) -> None:
    """Raise an `InputError` if `what` needs more memory than is free."""
    free = free_bytes()
    if needed > free:
        amounts = f"needs about {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free"
        raise InputError(f"{what} {amounts}; {advice}")


def keep_freed_memory() -> None:
    """Tell glibc to reuse freed memory instead of returning it, where it can.

    Otherwise the kernel takes freed activations back and hands them out zeroed: in a training step
    of EfficientNet-Lite0 that costs 70 of 240 ms of processor time per image.
    """
    # Other C libraries, such as musl, and Windows have no such options.
    with suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        for name, value in _MALLOC_OPTIONS:
            mallopt(name, value)
