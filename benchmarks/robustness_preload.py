"""The library `faults.c`: compiled at run time, controlled through a file that is mapped."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path

_FIELDS = ("count", "fail_at", "fail_all", "error", "clock_shift", "log")


def build(place: Path) -> Path | None:
    """Compile the library into a folder; None without a C compiler."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        return None
    source, library = Path(__file__).parent / "faults.c", place / "faults.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
    return library


class Control:
    """What the library does, from now on, in all processes that have it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            path.write_bytes(bytes(8 * len(_FIELDS)))
        with path.open("r+b") as stream:
            self._map = mmap.mmap(stream.fileno(), 8 * len(_FIELDS))

    def set(self, **values: int) -> None:
        """Set fields; the others become 0."""
        numbers = [values.get(name, 0) for name in _FIELDS]
        self._map[:] = struct.pack(f"{len(_FIELDS)}q", *numbers)

    @property
    def count(self) -> int:
        """The number of calls so far."""
        return int(struct.unpack_from("q", self._map)[0])

    def environment(self, library: Path, log: Path, *folders: Path) -> dict[str, str]:
        """Return the variables of a process that is to have the library."""
        places = ":".join(str(folder) for folder in folders)
        own = {"LD_PRELOAD": str(library), "FAULTS_CONTROL": str(self.path)}
        return {**own, "FAULTS_LOG": str(log), "FAULTS_FOLDERS": places}


def is_preloaded() -> bool:
    """Whether this process has the library."""
    return "faults.so" in os.environ.get("LD_PRELOAD", "")
