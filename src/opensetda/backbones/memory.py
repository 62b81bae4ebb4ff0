"""Memory that is used again instead of being given back.

glibc gives freed activations back to the kernel, which hands them out again page by page,
zeroed: in a training step of EfficientNet-Lite0 19,000 page faults an image, 70 of the 240 ms
that the processor is busy. With the settings here there are none.
"""

from __future__ import annotations

import ctypes
import sys

# Names and numbers of malloc.h. No block is mapped on its own, nothing is given back, and
# memory is asked for in large steps.
_SETTINGS = {-4: 0, -1: 2**31 - 1, -2: 2**28}


def keep_freed_memory() -> bool:
    """Tell glibc to keep what is freed for what comes next; return whether it can.

    For the whole process and for good: its memory stays at its peak. Good for a training
    that allocates the same again and again, and needless for extraction, where one image
    at a time is in memory.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        # Another C library, such as musl.
        return False
    taken = [mallopt(name, value) for name, value in _SETTINGS.items()]
    return all(taken)
