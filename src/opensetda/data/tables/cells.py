"""Cells of a table to text and numbers, and the errors for those that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.errors import InputError

TextColumn = npt.NDArray[np.object_]


def as_text(values: npt.NDArray[Any], where: str, first: int = 0) -> TextColumn:
    """Turn names or whole numbers into text; empty text and NaN become None.

    Whole numbers stored as 3.0, as in tables with gaps, become "3". `first` is the number of
    the first row, for messages.
    """
    if values.dtype.kind == "S":
        try:
            values = np.char.decode(values, "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{where} is not UTF-8 text; save it as text") from error
    plain = values.tolist()
    if values.dtype.kind == "U":
        return np.array([value or None for value in plain], dtype=object)
    if values.dtype.kind in "iub":
        return np.array([str(value) for value in plain], dtype=object)
    if values.dtype.kind not in "fO":
        raise InputError(f"{where} holds {values.dtype}; labels and ids are text or numbers")
    cells = [_cell(value, row, where) for row, value in enumerate(plain, start=first)]
    return np.array(cells, dtype=object)


def column_text(column: Any, where: str, first: int = 0) -> TextColumn:
    """Return an Arrow column as text; None where a cell is empty."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_floating(column.type) or pa.types.is_boolean(column.type):
        return as_text(np.asarray(column), where, first)
    if pa.types.is_nested(column.type) or pa.types.is_null(column.type):
        raise InputError(f"{where} holds {column.type}; labels and ids are text or numbers")
    try:
        values = np.array(column.cast(pa.string()).to_pylist(), dtype=object)
    except UnicodeDecodeError as error:
        raise InputError(f"{where} is not UTF-8 text; save it as text") from error
    values[values == ""] = None
    return values


def column_numbers(column: Any, path: Path, name: str, first: int = 0) -> npt.NDArray[np.float32]:
    """Return an Arrow column as finite float32 numbers, or float16 if it holds these.

    `first` is the number of its first row, for messages.
    """
    values = _numbers(column, f"{path}: column {name!r}")
    narrow = values if values.dtype == np.float16 else to_float32(values)
    finite = np.isfinite(narrow)
    if not finite.all():
        row = int(finite.argmin())
        raise not_finite(path, first + row, f"column {name!r}", values[row])
    return narrow


def _numbers(column: Any, where: str) -> npt.NDArray[Any]:
    """Return an Arrow column as floats; NaN where a cell is empty."""
    import pyarrow as pa

    check_numeric(column, where)
    if pa.types.is_null(column.type):
        return np.full(len(column), np.nan)
    if pa.types.is_floating(column.type):
        return np.asarray(column)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    return np.asarray(column.cast(pa.float64(), safe=False))


def check_numeric(column: Any, where: str) -> None:
    """Raise an `InputError` with an example unless an Arrow column is numeric."""
    import pyarrow as pa

    kind = column.type
    if not (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_null(kind)
    ):
        raise InputError(
            f"{where} is not numeric ({_example(column)}); name it "
            "with --label-column or --id-column, or leave it out with --drop"
        )


def not_finite(path: Path, row: int, column: str, value: Any) -> InputError:
    """Return the error for a feature that is not finite; `row` counts from 0."""
    place = f"{path}: row {row + 1}, {column}"
    if np.isnan(value):
        return InputError(f"{place}: NaN or empty; remove the row or fill in the value")
    if np.isinf(value):
        return InputError(f"{place}: infinite; remove the row or put a finite number there")
    return InputError(f"{place}: {value:g} is too large for 32-bit floats; rescale the column")


def empty_cell(path: Path, column: str, row: int, advice: str) -> InputError:
    """Return the error for an empty cell; `row` counts from 0."""
    return InputError(f"{path}: {column!r}, row {row + 1}: empty; {advice}")


def broken(path: Path, what: str, why: str) -> InputError:
    """Return the error for a file, or a part of it, that cannot be read."""
    return InputError(f"{path}: cannot read {what}: {why}")


def to_float32(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return numbers as float32; infinity for those beyond its range."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32, copy=False)


def one_line(error: Exception, most: int = 160) -> str:
    """Return the message of a reader's error in one line of limited length."""
    text = " ".join(str(error).split()).replace("CSV parse error: ", "").replace("Row #", "line ")
    return text if len(text) <= most else f"{text[:most]}..."


def _cell(value: Any, row: int, where: str) -> str | None:
    if value is None or value != value:
        return None
    if isinstance(value, float):
        if not value.is_integer():
            raise InputError(f"{where}, row {row + 1}: {value} is neither text nor a whole number")
        return str(int(value))
    return str(value)


def _example(column: Any) -> str:
    import pyarrow as pa

    if not pa.types.is_string(column.type):
        return f"it holds {column.type}"
    for row, value in enumerate(column.to_pylist()):
        try:
            float(value or "nan")
        except ValueError:
            shown = value if len(value) <= 40 else f"{value[:40]}..."
            return f"row {row + 1} holds {shown!r}"
    return "it holds text"
