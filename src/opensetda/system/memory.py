"""Memory: the peak of this process, what is free, and what glibc does with freed memory."""

from __future__ import annotations

import ctypes
import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from opensetda.errors import InputError
from opensetda.rows import CHUNK_NUMBERS, CHUNK_ROWS, KEPT_BYTES

# Measured by `python benchmarks/sizes.py`: arrays of double precision at a time, of the size of a
# chunk while it is scaled, and of the targets' probabilities.
CHUNK_TEMPORARIES, CLASS_TABLES = 8, 5

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


MOST_COLUMNS = 2**17
"""Of a table: with more, a fit would take minutes and gigabytes, however few rows there are."""


def check_columns(count: int, where: str) -> None:
    """Raise an `InputError` if a table has more columns than a fit can bear."""
    if count > MOST_COLUMNS:
        many = f"{count:,} columns, at most {MOST_COLUMNS:,} can be features"
        raise InputError(f"{where}: {many}; select columns, or reduce them, e.g. by PCA")


@dataclass(frozen=True)
class FitSize:
    """What the memory of a fit depends on: rows of both domains, columns and classes."""

    sources: int
    targets: int
    columns: int
    classes: int

    def bytes(self) -> float:
        """Return the memory that a fit of a quick method needs, about, beside what is read."""
        rows = self.sources + self.targets
        joined = 4.0 * rows * self.columns
        # Scaled rows of both domains are kept up to `KEPT_BYTES` each, otherwise read in chunks.
        kept = min(joined, 2.0 * KEPT_BYTES)
        in_chunk = min(max(self.sources, self.targets), CHUNK_ROWS) * self.columns
        chunks = CHUNK_TEMPORARIES * 8.0 * min(in_chunk, CHUNK_NUMBERS)
        probabilities = CLASS_TABLES * 8.0 * self.targets * self.classes
        return joined + kept + chunks + probabilities

    def check(self) -> None:
        """Raise an `InputError` if a fit needs more memory than is free."""
        sizes = f"{self.sources:,} + {self.targets:,} rows of {self.columns:,} columns"
        what = f"fitting {sizes} and {self.classes:,} classes"
        check_free(self.bytes(), what, "give fewer rows, columns or classes")


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
