"""The labels of the source rows: missing ones are refused, the others become class indices."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from opensetda.errors import InputError
from opensetda.rows import IntArray

LabelArray = npt.NDArray[Any]


def source_labels(y: Any, rows: IntArray, domain_given: bool) -> LabelArray:
    """Return the labels of the source, `rows` of y; labels of other rows are never looked at.

    "", None and NaN are no labels. -1 is none (skada's convention) if no domain was given and
    there are two or more other classes, all of them numbers from 0 on: -1 beside one class, as in
    {-1, 1}, or beside other negative numbers is a class.
    """
    if isinstance(y, list | tuple):
        # From the source's labels alone: numpy turns numbers beside a target's "" into text.
        given: Any = [y[row] for row in rows]
    else:
        given = (y.to_numpy() if hasattr(y, "iloc") else np.asarray(y))[rows]
    values = given if isinstance(given, list) else given.tolist()
    lost = [row for row, label in zip(rows, values, strict=True) if _is_empty(label)]
    labels = np.asarray(given)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = column_or_1d(labels, warn=True)
    one_type = labels.dtype == object and len({type(label) for label in labels}) == 1
    if one_type or labels.dtype.kind == "U":
        # Long target labels would widen the dtype.
        labels = np.asarray(labels.tolist())
    if not domain_given and labels.ndim == 1 and labels.dtype.kind in "if":
        classes = np.unique(labels)
        if len(classes) > 2 and classes[0] == -1:
            lost += [*rows[labels == -1]]
    if lost:
        raise InputError(
            f"y: row {lost[0]} has no label ({values[[*rows].index(lost[0])]!r}); label it, leave "
            "it out, or pass sample_domain, also if -1 is a class: 0 or more for source rows, "
            "negative for target rows"
        )
    return labels


def _is_empty(label: Any) -> bool:
    label = label.tolist() if hasattr(label, "tolist") else label
    return not label.strip() if isinstance(label, str) else is_missing(label)


def is_missing(label: Any) -> bool:
    """Return whether a label is None, NaN, NaT or NA."""
    # NaN and NaT differ from themselves; comparing pandas' NA gives NA, which is not True.
    return label is None or (label == label) is not True


def encode_classes(labels: LabelArray, unknown_label: Any) -> tuple[LabelArray, IntArray]:
    """Return the classes, sorted, and the index of each label; check the unknown label, too."""
    labels = column_or_1d(labels, warn=True)
    assert_all_finite(labels, input_name="y")
    with warnings.catch_warnings():
        # Classes of one or two rows are classes.
        warnings.filterwarnings("ignore", "The number of unique classes is greater than 50%")
        check_classification_targets(labels)
    classes, encoded = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        advice = "give labelled rows of at least two classes"
        raise InputError(f"the source has one class only ({classes.tolist()[0]!r}); {advice}")
    given = f"unknown_label={unknown_label!r}"
    if np.ndim(unknown_label) != 0 or unknown_label in (-1, "-1", "", None):
        reason = "which other libraries read as 'label missing'"
        raise InputError(f"{given}: give one value, not empty and not -1, {reason}")
    if unknown_label in classes.tolist():
        raise InputError(f"{given} is a class of the source; choose another")
    return classes, encoded.astype(np.intp)
