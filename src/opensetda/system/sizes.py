"""What a machine can bear: the limit of columns, and the memory that a fit will need."""

from __future__ import annotations

from dataclasses import dataclass

from opensetda.errors import InputError
from opensetda.rows import CHUNK_NUMBERS, CHUNK_ROWS, KEPT_BYTES, WIDE, WIDE_NUMBERS
from opensetda.system.memory import check_free

# Arrays of double precision at a time, rounded up from peaks of `osda fit`: of the size of a chunk
# while it is scaled, of the numbers that quantiles come from, of the targets' probabilities.
CHUNK_TEMPORARIES = 16
QUANTILE_TABLES = 5
CLASS_TABLES = 5
# Arrays of the size of the map onto principal components, and how many of these there are.
PROJECTIONS = 6
COMPONENTS = 64
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
        # Ranks of wide rows need quantiles of every column.
        read = min(WIDE_NUMBERS, max(self.sources, self.targets) * self.columns)
        quantiles = QUANTILE_TABLES * 8.0 * read if self.columns > WIDE else 0.0
        components = min(COMPONENTS, rows, self.columns)
        projections = PROJECTIONS * 8.0 * components * self.columns
        probabilities = CLASS_TABLES * 8.0 * self.targets * self.classes
        return joined + kept + chunks + quantiles + projections + probabilities

    def check(self) -> None:
        """Raise an `InputError` if a fit needs more memory than is free."""
        sizes = f"{self.sources:,} + {self.targets:,} rows of {self.columns:,} columns"
        what = f"fitting {sizes} and {self.classes:,} classes"
        check_free(self.bytes(), what, "give fewer rows, columns or classes")
