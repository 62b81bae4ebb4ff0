"""The rows of a grid as a Parquet file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opensetda.benchmark.running import MEASURED
from opensetda.system.files import new_file

_TEXT = ("benchmark", "task", "method", "openness", "status", "error", "warnings")
_WHOLE = ("seed", "kept_step")
_ORDER = (
    *("benchmark", "task", "method", "openness", "target_openness", "seed"),
    *MEASURED,
    *("status", "error", "warnings"),
)


def write_parquet(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write one row a cell; what a cell has not is null."""
    import pyarrow as pa
    import pyarrow.parquet

    def kind(name: str) -> Any:
        if name in _TEXT:
            return pa.string()
        return pa.int64() if name in _WHOLE else pa.float64()

    # Types are told: a column of nulls alone would have none.
    schema = pa.schema([(name, kind(name)) for name in _ORDER])
    columns = {name: [row.get(name) for row in rows] for name in _ORDER}
    with new_file(path) as aside:
        pyarrow.parquet.write_table(pa.table(columns, schema=schema), aside)


def read_parquet(path: Path) -> list[dict[str, Any]]:
    """Return the rows that `write_parquet` wrote."""
    import pyarrow.parquet

    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    return rows
