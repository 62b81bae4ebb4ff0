"""Tables of predictions that several processes write, and the first puts together."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet

from opensetda.runs.predictions import PredictionWriter
from opensetda.system.files import new_file
from opensetda.system.team import Team

if TYPE_CHECKING:
    from opensetda.backbones.extraction import Broken

_READ_ROWS = 4096
# Largest numbers of rows and of cells that are written at a time.
_ROWS, _CELLS = 65_536, 2**22


class Parts:
    """One Parquet file per process, in a shared folder, in the order of the ranks."""

    def __init__(self, folder: Path, team: Team, top_k: int | None = None) -> None:
        self.folder, self.team, self.top_k = folder, team, top_k

    def path(self, rank: int) -> Path:
        """Return the file of a process."""
        return self.folder / f"part-{rank:04d}.parquet"

    def writer(self) -> PredictionWriter:
        """Return the writer of this process's part."""
        return PredictionWriter(self.path(self.team.rank), self.top_k)

    def batches(self, columns: list[str] | None = None) -> Iterator[Any]:
        """Yield all rows, in tables of the same size for any number of parts."""
        waiting: list[Any] = []
        for table in self._pieces(columns):
            size = max(1, min(_ROWS, _CELLS // table.num_columns))
            waiting.append(table)
            while sum(len(piece) for piece in waiting) >= size:
                whole = pa.concat_tables(waiting)
                yield whole.slice(0, size)
                waiting = [whole.slice(size)]
        if sum(len(piece) for piece in waiting):
            yield pa.concat_tables(waiting)

    def _pieces(self, columns: list[str] | None) -> Iterator[Any]:
        for path in self._written():
            with pyarrow.parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(_READ_ROWS, columns=columns):
                    yield pa.Table.from_batches([batch])

    def _written(self) -> list[Path]:
        """Return the files by rank; a process without rows has written none."""
        paths = [self.path(rank) for rank in range(self.team.size)]
        return [path for path in paths if path.exists()]

    def names(self) -> list[str]:
        """Return the columns."""
        return list(pyarrow.parquet.read_schema(self._written()[0]).names)

    def write(self, path: Path, columns: Mapping[str, str] | None = None) -> None:
        """Write all rows to one file; `columns` maps the columns to keep to new names."""
        with PredictionWriter(path) as writer:
            for rows in self.batches(None if columns is None else list(columns)):
                named = rows if columns is None else rows.rename_columns([*columns.values()])
                writer.write_rows(named)


class WrittenTogether:
    """A file of predictions that all processes write, each its share by its own writer."""

    def __init__(self, writer: PredictionWriter, team: Team) -> None:
        self.writer, self.team = writer, team

    def add_up(
        self, counts: Counter[str], broken: Sequence[Broken], warnings: Sequence[str]
    ) -> tuple[Counter[str], list[Broken], list[str]]:
        """Close this process's part; return counts, broken images and warnings of all."""
        self.writer.close()
        if self.team.size == 1:
            return counts, list(broken), list(warnings)
        from opensetda.backbones.extraction import Broken

        mine = [counts, [asdict(image) for image in broken], list(warnings)]
        total: Counter[str] = Counter()
        all_broken: list[Broken] = []
        lines: dict[str, None] = {}
        for part in self.team.gather_bytes(json.dumps(mine).encode()):
            theirs, images, said = json.loads(part)
            total.update(theirs)
            all_broken += [Broken(**image) for image in images]
            lines |= dict.fromkeys(said)
        return total, all_broken, list(lines)


@contextmanager
def written_together(
    path: Path, scratch: Path, team: Team, top_k: int | None
) -> Iterator[WrittenTogether]:
    """Yield the writer of a new file of predictions, for all processes of a team.

    Several write their parts to `scratch`; the first joins them, after `WrittenTogether.add_up`.
    """
    if team.size == 1:
        with new_file(path) as aside, PredictionWriter(aside, top_k) as writer:
            yield WrittenTogether(writer, team)
        return
    parts = Parts(scratch, team, top_k)
    with parts.writer() as writer:
        yield WrittenTogether(writer, team)
    if team.is_first:
        with new_file(path) as aside:
            parts.write(aside)
    # No process continues, and nothing is removed, before the file exists.
    team.wait()
