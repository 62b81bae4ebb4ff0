"""Domains that are given as arrays: checked and named as rows of a feature table are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.data.tables.mapped import (
    as_text,
    check_filled,
    check_finite_values,
    to_float32,
)
from opensetda.errors import InputError
from opensetda.rows import row_chunks
from opensetda.runs.request import ARRAY

_CHUNK = 4096


@dataclass(frozen=True)
class DomainArrays:
    """Features of source and target, and the labels of the source as text."""

    source: npt.NDArray[Any]
    labels: npt.NDArray[np.str_]
    target: npt.NDArray[Any]

    @classmethod
    def of(cls, source: Any, labels: Any, target: Any) -> DomainArrays:
        """Check what a caller gave, or raise an `InputError` that names the array and the row."""
        if labels is None:
            if not isinstance(source, tuple) or len(source) != 2:
                raise InputError("source: labels are missing; give (X, y), or X with labels=y")
            source, labels = source
        X = feature_rows(source, "source")
        y = label_text(labels, "source labels", "label the row or remove it")
        if len(y) != len(X):
            raise InputError(f"source labels: {len(y)} entries for {len(X)} rows of features")
        classes = np.unique(y)
        if len(classes) < 2:
            raise InputError(
                f"source labels: one class only ({str(classes[0])!r}); "
                "give labelled rows of at least two classes"
            )
        return cls(X, y, feature_rows(target, "target", (X.shape[1], "the source")))


def are_paths(*values: Any) -> bool:
    """Whether all values are paths, and not arrays; an `InputError` if only some are."""
    kinds = {isinstance(value, str | Path) for value in values}
    if len(kinds) > 1:
        raise InputError("source and target: one is a path, one an array; give two of one kind")
    return kinds.pop()


def feature_rows(X: Any, name: str, expected: tuple[int, str] | None = None) -> npt.NDArray[Any]:
    """Return an array as finite float32 rows; a memory map stays one.

    `expected` is the number of features it must have, and what has that number.
    """
    try:
        values = X if isinstance(X, np.memmap) else np.asarray(X)
    except ValueError as error:
        raise InputError(f"{name}: not an array of numbers ({error})") from None
    if values.ndim != 2 or values.dtype.kind not in "biuf":
        raise InputError(
            f"{name}: shape {values.shape} of {values.dtype}; features need numbers in two "
            "dimensions, one row per sample"
        )
    if 0 in values.shape:
        what = "row" if not len(values) else "feature"
        raise InputError(f"{name}: shape {values.shape}; give at least one {what}")
    if expected is not None and values.shape[1] != expected[0]:
        raise InputError(
            f"{name}: {values.shape[1]} features, but {expected[1]} has {expected[0]}; "
            "both must come from the same feature extractor"
        )
    for start in range(0, len(values), _CHUNK):
        check_finite_values(Path(name), start, np.asarray(values[start : start + _CHUNK]))
    return values if isinstance(values, np.memmap) else np.ascontiguousarray(to_float32(values))


def label_text(labels: Any, name: str, advice: str) -> npt.NDArray[np.str_]:
    """Return labels as text, or raise an `InputError` that names the first empty one."""
    values = np.asarray(labels)
    if values.ndim != 1 or not len(values):
        raise InputError(f"{name}: shape {values.shape}; give one label per row")
    text = as_text(values, name)
    check_filled(text, Path(name), "labels", advice)
    return text.astype(np.str_)


def array_record(
    X: npt.NDArray[Any] | None, labels: npt.NDArray[np.str_] | None = None
) -> dict[str, Any]:
    """Return what distinguishes arrays from others, for the record of a run."""
    digest = hashlib.sha256()
    record: dict[str, Any] = {"path": ARRAY}
    if X is not None:
        for _, chunk in row_chunks(X, range(len(X)), _CHUNK):
            digest.update(np.ascontiguousarray(chunk).data)
        record |= {"rows": len(X), "features": X.shape[1]}
    if labels is not None:
        digest.update("\n".join(labels.tolist()).encode("utf-8", "surrogateescape"))
        names, counts = np.unique(labels, return_counts=True)
        record |= {
            "rows": len(labels),
            "classes": dict(zip(names.tolist(), counts.tolist(), strict=True)),
        }
    return {**record, "sha256": digest.hexdigest()}
