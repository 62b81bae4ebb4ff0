"""Checks of the arguments of the metrics: an `InputError` names the argument and the row."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.errors import InputError
from opensetda.rows import IntArray

Labels = list[Hashable]
Numbers = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

# Rows in single precision, or rounded in a file, do not sum to 1 exactly.
_SUM_TOLERANCE = 1e-3


def label_list(values: Any, name: str, expected: int | None = None) -> Labels:
    """Copy labels into a list of Python values, which must have `expected` entries."""
    try:
        # tolist, not np.asarray: numpy would turn the number 3 beside "unknown" into "3".
        labels = values.tolist() if hasattr(values, "tolist") else list(values)
        labels = [label.tolist() if hasattr(label, "tolist") else label for label in labels]
    except TypeError:
        raise InputError(
            f"{name}: expected a list of labels, got {type(values).__name__}"
        ) from None
    for row, label in enumerate(labels):
        if not isinstance(label, Hashable):
            raise InputError(f"{name}: row {row} is {label!r}; give one label per row")
    if expected is not None and len(labels) != expected:
        raise InputError(f"{name}: {len(labels)} rows, but y_true has {expected}; give as many")
    return labels


def check_known_classes(known: Labels, unknown_label: Hashable) -> None:
    """Raise an `InputError` unless the known classes are distinct, and none is `unknown_label`."""
    if not known:
        raise InputError("known_classes: there is none; give the classes of the source")
    for row, label in enumerate(known):
        if is_missing(label) or label in known[:row]:
            raise InputError(f"known_classes: row {row} is {label!r}; give each class once")
    if unknown_label in known:
        raise InputError(f"unknown_label={unknown_label!r} is a known class; choose another")


def unknown_classes_of(truth: Labels, known: Labels) -> Labels:
    """Return the true classes that are not known ones, sorted."""
    # Counting the text '3' as unknown because the class is the number 3 would go unnoticed.
    known_by_text = {str(label): label for label in known}
    row_of = {label: row for row, label in reversed([*enumerate(truth)])}
    found: set[Any] = {*row_of} - {*known}
    for label in found:
        row = row_of[label]
        if is_missing(label):
            raise InputError(f"y_true: row {row} has no label ({label!r}); leave the row out")
        if str(label) in known_by_text:
            like = known_by_text[str(label)]
            raise InputError(
                f"y_true: row {row} is {label!r} ({type(label).__name__}), but the known class is "
                f"{like!r} ({type(like).__name__}); give both as the same type"
            )
    try:
        return sorted(found)
    except TypeError:  # numbers beside text
        return sorted(found, key=lambda label: (type(label).__name__, str(label)))


def is_missing(label: Any) -> bool:
    """Return whether a label is None, NaN, NaT or NA."""
    # NaN and NaT differ from themselves; comparing pandas' NA gives NA, which is not True.
    return label is None or (label == label) is not True


def encoded(values: Any, name: str, expected: int, possible: Labels, complaint: str) -> IntArray:
    """Return the index of each label among the possible ones."""
    labels = label_list(values, name, expected)
    index_of = {label: index for index, label in enumerate(possible)}
    for row, label in enumerate(labels):
        if label not in index_of:
            raise InputError(f"{name}: row {row} is {label!r}, {complaint}")
    return np.array([index_of[label] for label in labels], dtype=np.intp)


def finite_numbers(
    values: Any, name: str, shape: tuple[int, ...], low: float = -np.inf, high: float = np.inf
) -> Numbers:
    """Return finite numbers of a shape, all of them from `low` to `high`."""
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name}: not all are numbers; give an array of shape {shape}") from None
    if numbers.shape != shape:
        raise InputError(f"{name}: expected shape {shape}, got shape {numbers.shape}")
    wrong = np.argwhere(~(np.isfinite(numbers) & (numbers >= low) & (numbers <= high)))
    if len(wrong):
        where = "" if low == -np.inf else " in [0, 1]"
        value = numbers[tuple(wrong[0])]
        raise InputError(f"{name}: row {wrong[0][0]} has {value}; give finite numbers{where}")
    return numbers


def probability_rows(values: Any, shape: tuple[int, int]) -> Numbers:
    """Return rows of probabilities that each sum to 1."""
    rows = finite_numbers(values, "probabilities", shape, 0.0, 1 + _SUM_TOLERANCE)
    totals = rows.sum(axis=1)
    wrong = np.flatnonzero(np.abs(totals - 1) > _SUM_TOLERANCE)
    if len(wrong):
        total = f"row {wrong[0]} sums to {totals[wrong[0]]:.6g}"
        raise InputError(f"probabilities: {total}; give rows that sum to 1")
    return np.minimum(rows, 1)
