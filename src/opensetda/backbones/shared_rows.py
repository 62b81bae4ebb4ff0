"""A matrix of features that does not fit into memory, or that several processes fill together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.rows import IntArray
from opensetda.system.files import new_array_file
from opensetda.system.team import Team

# As float32: a larger matrix of one process goes to a file, too.
LARGE_BYTES = 2**28
_MOVED_ROWS = 4096
_NAME = "features.npy"


class SharedRows:
    """Rows of float32, in memory or in a file that all processes of a team see.

    Parameters
    ----------
    n, width : int
        The shape of all rows.
    scratch : Path or None
        The folder of the file; None keeps them in memory, which a team of one can only.
    """

    def __init__(self, n: int, width: int, scratch: Path | None, team: Team) -> None:
        self.team, self.shape = team, (n, width)
        self.path: Path | None = None
        if scratch is not None and n and (team.size > 1 or 4 * n * width > LARGE_BYTES):
            self.path = scratch / _NAME
            team.first_does(self._make)
            self._whole: Any = np.lib.format.open_memmap(self.path, mode="r+")
        else:
            assert team.size == 1, "a team needs a folder"
            self._whole = np.zeros(self.shape, dtype=np.float32)
        rows = team.rows(n)
        self.own: npt.NDArray[np.float32] = self._whole[rows.start : rows.stop]

    def _make(self) -> None:
        assert self.path is not None
        new_array_file(self.path, np.float32, self.shape)

    def take(self, rows: IntArray) -> npt.NDArray[np.float32]:
        """Return some rows, in rising order, when every process has filled its own."""
        if self.path is None:
            return np.asarray(self._whole if len(rows) == len(self._whole) else self._whole[rows])
        self._whole.flush()
        self.team.wait()
        if len(rows) < self.shape[0] and self.team.is_first:
            # In place: a row only moves up.
            for start in range(0, len(rows), _MOVED_ROWS):
                part = rows[start : start + _MOVED_ROWS]
                self._whole[start : start + len(part)] = self._whole[part]
            self._whole.flush()
        self.team.wait()
        del self._whole, self.own
        # Read-only: its pages can be given back.
        rows_of_file: npt.NDArray[np.float32] = np.load(self.path, mmap_mode="r")
        return rows_of_file[: len(rows)]
