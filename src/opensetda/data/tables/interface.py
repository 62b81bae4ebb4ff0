"""What all formats of tables have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from opensetda.data.tables.mapped import OnRead, StoredText, TextColumn, ignore

Matrix = npt.NDArray[Any]
Fill = Mapping[str, float] | None


class TableFile(Protocol):
    """An open table, whose features may be columns with names.

    `names` are its columns, or the arrays of an ``.npz`` file; empty for an ``.npy`` file. `kinds`
    are the Arrow types of columns.
    """

    path: Path
    names: tuple[str, ...]
    has_columns: bool
    kinds: Mapping[str, Any] = {}

    def text(self, name: str) -> TextColumn:
        """Return a column as text; None where the cell is empty."""
        ...

    def labels(self, name: str) -> TextColumn:
        """Return a column of labels as text; None where the cell is empty."""
        return self.text(name)

    def width(self, names: Sequence[str]) -> int | None:
        """Return the number of features if it is known before a large table is read."""
        return None

    def features(self, names: Sequence[str], on_read: OnRead = ignore, fill: Fill = None) -> Matrix:
        """Return columns, or one array, as a matrix of finite numbers.

        In memory it is float32; a large one is a read-only `numpy.memmap` of any number type.
        `on_read` is called with the number of bytes read since its last call. An empty cell of a
        column is an error, or gets the value in `fill`, NaN if that has none; arrays have no
        empty cells.
        """
        ...

    def check_kinds(self, names: Sequence[str]) -> None:
        """Raise an error for the first column that is not numeric."""
        return

    def example(self, name: str) -> str:
        """Return what a column that is not numeric holds, in words."""
        return ""

    def stored_text(self, name: str, advice: str) -> StoredText | None:
        """Return a column of text without gaps that stays in a file; None if it cannot."""
        return None
