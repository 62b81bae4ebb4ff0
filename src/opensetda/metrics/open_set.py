"""Open-set metrics: ALL, OS, OS*, UNK, HOS, AUROC, OSCR, calibration errors, a row per class.

For evaluation only: no method sees target labels. Every value is a fraction in [0, 1]; NaN means
"undefined on these samples", None "not asked for".
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from opensetda.errors import InputError
from opensetda.labels import is_missing
from opensetda.rows import FloatArray, IntArray
from opensetda.system.files import plain

Labels = list[Any]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ClassRow:
    """Predictions for the `n` samples of one true class.

    A sample of an unknown class is correct if it was rejected; `accuracy` is NaN if there is no
    sample. `confused_with` is the most frequent wrong label, of several the first in the order of
    the known classes, then unknown; None if there is none.
    """

    label: Hashable
    kind: Literal["known", "unknown"]
    n: int
    correct: int
    accuracy: float
    confused_with: Hashable
    confused_count: int


@dataclass(frozen=True)
class OpenSetMetrics:
    """The result of `evaluate`; all values are fractions in [0, 1]."""

    all: float
    """Accuracy over all samples, the unknown classes pooled into one."""
    os: float
    """Mean accuracy of the known classes and the pooled unknown class."""
    os_star: float
    """Mean accuracy of the known classes."""
    unk: float
    """Share of the unknown samples that were rejected."""
    unk_per_class: float
    """Mean over the true unknown classes of the share of each that was rejected."""
    hos: float
    """Harmonic mean of `os_star` and `unk`."""
    auroc: float | None
    """Chance that a known sample has a higher known score than an unknown one."""
    oscr: float | None
    """Area under the rate of accepted, correctly classified knowns over accepted unknowns."""
    ece: float | None
    """Calibration error of the labels, unknowns pooled."""
    unknown_ece: float | None
    """Calibration error of the probability of unknown."""
    per_class: tuple[ClassRow, ...]
    """The known classes in the order they were given, then the unknown ones, sorted."""

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics as a dict that JSON can hold: NaN becomes None."""
        return dict(plain(asdict(self)))


def evaluate(
    y_true: Any,
    y_pred: Any,
    known_classes: Any,
    *,
    unknown_label: Any = "unknown",
    known_score: Any = None,
    nearest_class: Any = None,
    probabilities: Any = None,
) -> OpenSetMetrics:
    """Compare open-set predictions with the truth (ALL, OS and OS* are Eq. 14).

    Parameters
    ----------
    y_true : array-like of shape (n,)
        True labels, text or numbers. A label that is not in `known_classes` counts as unknown.
    y_pred : array-like of shape (n,)
        Predicted labels: a known class or `unknown_label`, that of rejected samples.
    known_classes : array-like of shape (C,)
        The classes of the source, each once.
    known_score : array-like of shape (n,), optional
        Higher for samples more likely known; only the order matters. AUROC and OSCR need it.
    nearest_class : array-like of shape (n,), optional
        The known class each sample would get if nothing were rejected. OSCR needs it.
    probabilities : array-like of shape (n, C + 1), optional
        Probabilities of `known_classes`, in their order, then of unknown; each row sums to 1.
        The calibration errors need it; a predicted label need not be the most probable.

    Returns
    -------
    OpenSetMetrics
        A known class without a sample is left out of the means. Without an unknown sample `unk`,
        `unk_per_class`, `hos`, `auroc` and `oscr` are NaN and `os` equals `os_star`. Without a
        known sample `os_star`, `hos`, `auroc` and `oscr` are NaN and `os` equals `unk`. `hos` is 0
        if both its parts are.
    """
    known = _labels(known_classes)
    truth = _labels(y_true)
    [unknown_label] = _labels([unknown_label])
    if not known or not truth:
        raise InputError("y_true, known_classes: give at least one sample and one class")
    if len({*known, unknown_label}) <= len(known):
        given = f"and none that is the unknown label {unknown_label!r}"
        raise InputError(f"known_classes: give each class once, {given}")
    n = len(truth)
    n_known = len(known)
    true_classes = known + _unknown_classes(truth, known)
    answers = [*known, unknown_label]
    true_index = _encoded(truth, "y_true", n, true_classes)
    predicted_index = _encoded(y_pred, "y_pred", n, answers)
    is_unknown = true_index >= n_known

    auroc = oscr = ece = unknown_ece = None
    if known_score is not None:
        score = _finite(known_score, "known_score", (n,))
        auroc = _share_ranked_above(score, ~is_unknown, is_unknown)
        if nearest_class is not None:
            nearest = _encoded(nearest_class, "nearest_class", n, known)
            # An unknown sample's index is never that of a known class.
            oscr = _share_ranked_above(score, nearest == true_index, is_unknown)
    if probabilities is not None:
        rows = _finite(probabilities, "probabilities", (n, n_known + 1))
        right = predicted_index == np.minimum(true_index, n_known)
        ece = expected_calibration_error(rows[np.arange(n), predicted_index], right)
        unknown_ece = expected_calibration_error(rows[:, -1], is_unknown)

    per_class = _class_rows(true_index, predicted_index, true_classes, answers)
    unknown_rows = per_class[n_known:]
    accuracies = [row.accuracy for row in per_class[:n_known] if row.n]
    os_star = _mean(accuracies)
    unk = _pooled_accuracy(unknown_rows)
    return OpenSetMetrics(
        all=_pooled_accuracy(per_class),
        os=_mean([*accuracies, unk] if unknown_rows else accuracies),
        os_star=os_star,
        unk=unk,
        unk_per_class=_mean([row.accuracy for row in unknown_rows]),
        hos=harmonic_mean(os_star, unk),
        auroc=auroc,
        oscr=oscr,
        ece=ece,
        unknown_ece=unknown_ece,
        per_class=per_class,
    )


def expected_calibration_error(confidence: Any, correct: Any, bins: int = 15) -> float:
    """Return the expected calibration error, in [0, 1]: how far confidence is from accuracy.

    The samples, sorted by confidence, are divided into bins of equal size (of equal width, most
    would be empty), and::

        error = 1 / bins * sum over the bins of | mean confidence - share correct |

    Samples of equal confidence on both sides of a boundary are divided in proportion, so that the
    order of rows does not matter. Chance alone keeps the error above 0, more so for small bins.

    Parameters
    ----------
    confidence : array-like of shape (n,)
        Predicted probability of being correct, in [0, 1].
    correct : array-like of shape (n,)
        Whether the prediction was correct: booleans, or 0 and 1.
    bins : int
        Number of bins; at most n are used.
    """
    n = np.size(confidence)
    promised = _finite(confidence, "confidence", (n,))
    kept = _finite(correct, "correct", (n,))
    values, group = np.unique(promised, return_inverse=True)
    sizes = np.bincount(group)
    surplus = values * sizes - np.bincount(group, weights=kept)
    # Sum of confidence minus correct up to each of the sorted samples, linear within ties.
    ends = np.linspace(0, n, min(int(bins), n) + 1)
    surplus_before = np.interp(ends, np.append(0, sizes.cumsum()), np.append(0, surplus.cumsum()))
    return min(float(np.abs(np.diff(surplus_before)).sum()) / n, 1.0)


def _labels(values: Any) -> Labels:
    """Copy labels into a list of Python values."""
    # tolist, not np.asarray: numpy would turn the number 3 beside "unknown" into "3".
    labels = values.tolist() if hasattr(values, "tolist") else list(values)
    return [label.tolist() if hasattr(label, "tolist") else label for label in labels]


def _unknown_classes(truth: Labels, known: Labels) -> Labels:
    """Return the true classes that are not known ones, sorted."""
    classes = {*known}
    as_text = {*map(str, known)}
    for row, label in enumerate(truth):
        # Counting the text '3' as unknown because the class is the number 3 would go unnoticed.
        if label not in classes and (is_missing(label) or str(label) in as_text):
            raise InputError(
                f"y_true: row {row} is {label!r} ({type(label).__name__}); leave out rows without "
                "a label, and give labels of the type of known_classes"
            )
    # By type first: numbers beside text have no order.
    return sorted({*truth} - classes, key=lambda label: (type(label).__name__, label))


def _encoded(values: Any, name: str, n: int, possible: Labels) -> IntArray:
    """Return the index of each of `n` labels among the possible ones."""
    labels = _labels(values)
    if len(labels) != n:
        raise InputError(f"{name}: {len(labels)} rows, but y_true has {n}; give as many")
    index_of = {label: index for index, label in enumerate(possible)}
    for row, label in enumerate(labels):
        if label not in index_of:
            raise InputError(f"{name}: row {row} is {label!r}, which is not in known_classes")
    return np.array([index_of[label] for label in labels], dtype=np.intp)


def _finite(values: Any, name: str, shape: tuple[int, ...]) -> FloatArray:
    """Return finite numbers of a shape."""
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.shape != shape:
        raise InputError(f"{name}: expected shape {shape}, got shape {numbers.shape}")
    if len(wrong := np.argwhere(~np.isfinite(numbers))):
        raise InputError(f"{name}: row {wrong[0][0]} has NaN or infinity; give finite numbers")
    return numbers


def _class_rows(
    true_index: IntArray, predicted: IntArray, true_classes: Labels, answers: Labels
) -> tuple[ClassRow, ...]:
    shape = len(true_classes), len(answers)
    cells = np.bincount(true_index * shape[1] + predicted, minlength=shape[0] * shape[1])
    rows = []
    for index, (label, counts) in enumerate(zip(true_classes, cells.reshape(shape), strict=True)):
        right = min(index, len(answers) - 1)
        n = int(counts.sum())
        correct = int(counts[right])
        kind: Literal["known", "unknown"] = "known" if index < len(answers) - 1 else "unknown"
        counts[right] = 0
        most = int(counts.argmax())
        rows.append(
            ClassRow(
                label=label,
                kind=kind,
                n=n,
                correct=correct,
                accuracy=_share(correct, n),
                confused_with=answers[most] if counts[most] else None,
                confused_count=int(counts[most]),
            )
        )
    return tuple(rows)


def _share_ranked_above(score: FloatArray, counted: BoolArray, is_unknown: BoolArray) -> float:
    """Share of the (known, unknown) pairs whose known is `counted` and has the higher score.

    A tied pair counts one half. With every known counted it is the AUROC, with the correctly
    classified ones the OSCR. Whole numbers make it exact and independent of the order of rows.
    """
    values, rank = np.unique(score, return_inverse=True)
    counted_at = np.bincount(rank[counted], minlength=len(values))
    unknown_at = np.bincount(rank[is_unknown], minlength=len(values))
    counted_above = counted_at.sum() - counted_at.cumsum()
    twice_the_pairs = int(unknown_at @ (2 * counted_above + counted_at))
    n_unknown = int(is_unknown.sum())
    return _share(twice_the_pairs, 2 * (len(score) - n_unknown) * n_unknown)


def _pooled_accuracy(rows: tuple[ClassRow, ...]) -> float:
    return _share(sum(row.correct for row in rows), sum(row.n for row in rows))


def harmonic_mean(first: float, second: float) -> float:
    """Return the harmonic mean, 0 if both are."""
    return 2 * first * second / (first + second) if first + second else 0.0


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def _mean(values: list[float]) -> float:
    # fmean rounds once: the order of the classes cannot change the last bit.
    return fmean(values) if values else math.nan
