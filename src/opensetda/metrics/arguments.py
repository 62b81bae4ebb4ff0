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
            raise InputError(
                f"{name}: row {row} is {label!r}; give one label per row, in a flat list"
            )
    if expected is not None and len(labels) != expected:
        raise InputError(
            f"{name}: {len(labels)} rows, but y_true has {expected}; "
            "give one value for each true label, in the same order"
        )
    return labels


def check_known_classes(known: Labels, unknown_label: Hashable) -> None:
    """Raise an `InputError` unless the known classes are distinct, and none is `unknown_label`."""
    if not known:
        raise InputError("known_classes: there is none; give the classes of the source")
    seen = set()
    for index, label in enumerate(known):
        if is_missing(label):
            raise InputError(f"known_classes: row {index} is {label!r}; give classes only")
        if label in seen:
            raise InputError(f"known_classes: {label!r} is there twice; give each class once")
        seen.add(label)
    if unknown_label in seen:
        raise InputError(f"unknown_label={unknown_label!r} is a known class; choose another")


def unknown_classes_of(truth: Labels, known: Labels) -> Labels:
    """Return the true classes that are not known ones, sorted."""
    known_by_text, is_known = {str(label): label for label in known}, set(known)
    found: set[Any] = set()
    for row, label in enumerate(truth):
        if label in is_known or label in found:
            continue
        if is_missing(label):
            raise InputError(
                f"y_true: row {row} has no label ({label!r}); leave the row out of the evaluation"
            )
        # Counting the text '3' as unknown because the class is the number 3 would go unnoticed.
        if str(label) in known_by_text:
            like = known_by_text[str(label)]
            raise InputError(
                f"y_true: row {row} is {label!r} ({type(label).__name__}), but the known class is "
                f"{like!r} ({type(like).__name__}); give both as the same type"
            )
        found.add(label)
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


def score_vector(values: Any, expected: int) -> Numbers:
    """Return known scores, one per sample, all finite."""
    score = _numbers(values, "known_score", "give one number per sample")
    if score.shape != (expected,):
        wanted = f"expected {expected} numbers, one for each true label"
        raise InputError(f"known_score: {wanted}, got shape {score.shape}")
    advice = "give finite numbers, higher for surer known"
    check_rows(score, np.isfinite(score), "known_score", advice)
    return score


def probability_rows(values: Any, expected: tuple[int, int]) -> Numbers:
    """Return rows of probabilities that each sum to 1."""
    rows = _numbers(values, "probabilities", "give one row per sample, one column per class")
    if rows.shape != expected:
        raise InputError(
            f"probabilities: expected shape {expected}, a row for each true label and a column "
            f"for each known class, then unknown, got shape {rows.shape}"
        )
    outside = np.argwhere(~((rows >= 0) & (rows <= 1 + _SUM_TOLERANCE)))
    if len(outside):
        row, value = outside[0][0], rows[tuple(outside[0])]
        raise InputError(f"probabilities: row {row} has {value}; give finite numbers in [0, 1]")
    totals = rows.sum(axis=1)
    wrong = np.flatnonzero(np.abs(totals - 1) > _SUM_TOLERANCE)
    if len(wrong):
        total = f"row {wrong[0]} sums to {totals[wrong[0]]:.6g}"
        raise InputError(f"probabilities: {total}; give rows that sum to 1")
    return np.minimum(rows, 1)


def fractions(values: Any, name: str) -> Numbers:
    """Return numbers in [0, 1], at least one."""
    numbers = _numbers(values, name, "give one number per sample")
    if numbers.ndim != 1 or not len(numbers):
        raise InputError(f"{name}: expected one number per sample, got shape {numbers.shape}")
    check_rows(numbers, (numbers >= 0) & (numbers <= 1), name, "give numbers in [0, 1]")
    return numbers


def check_rows(values: Numbers, good: BoolArray, name: str, advice: str) -> None:
    """Raise an `InputError` for the first value that is not good."""
    if not good.all():
        row = int(good.argmin())
        raise InputError(f"{name}: row {row} is {values[row]}; {advice}")


def _numbers(values: Any, name: str, advice: str) -> Numbers:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name}: not all are numbers; {advice}") from None
