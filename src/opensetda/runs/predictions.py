"""Tables of predictions: one row per sample, with label, scores and probabilities."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from opensetda.runs.checked import CheckedTable

if TYPE_CHECKING:
    from opensetda.base import OpenSetClassifier

_PREDICTED_ROWS = 8192
_ROUNDED_DIGITS = 6

# The column of image files, in predictions and in manifests.
IMAGE_ID = "path"

# "p_unknown" but "p:bike": no class name can collide with the other columns.
CLASS_PREFIX = "p:"
TOP, _P_TOP = "top_", "p_top_"


@dataclass(frozen=True)
class PredictionTable:
    """One row per sample, in the order of the file it came from.

    Attributes
    ----------
    ids, labels : arrays of str of shape (n,)
        Names of the samples, row numbers from 1 if they have none; classes or the unknown label.
    known_scores : array of shape (n,)
        Higher is more likely known; the scale is the method's own.
    nearest : array of str of shape (n,)
        The class the sample would get if nothing were rejected.
    proba : array of shape (n, C + 1)
        Probabilities of `classes`, then of unknown; calibrated without labels.
    id_name : str
        Name of the column of the ids: "id", for images "path".
    corrected : bool array of shape (n,) or None
        Which labels were manually corrected; None if there was no correction.
    """

    ids: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    known_scores: npt.NDArray[np.float64]
    nearest: npt.NDArray[Any]
    proba: npt.NDArray[np.float64]
    classes: tuple[str, ...]
    unknown_label: str = "unknown"
    id_name: str = "id"
    corrected: npt.NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def confidence(self) -> npt.NDArray[np.float64]:
        """The probability of the label that was given."""
        columns = _columns_of(self.labels.tolist(), self.classes)
        return np.asarray(self.proba[np.arange(len(self)), columns])

    @classmethod
    def of_targets(
        cls, classifier: OpenSetClassifier, ids: npt.NDArray[Any] | None, id_name: str = "id"
    ) -> Self:
        """Return the labels of the targets that were in `fit`."""
        return cls(
            row_numbers(len(classifier.transduction_)) if ids is None else ids,
            labels=classifier.transduction_.astype(np.str_),
            known_scores=classifier.transduction_scores_,
            nearest=classifier.transduction_nearest_.astype(np.str_),
            proba=classifier.transduction_proba_,
            classes=class_names(classifier),
            unknown_label=str(classifier.unknown_label),
            id_name=id_name,
        )

    @classmethod
    def of_samples(
        cls,
        classifier: OpenSetClassifier,
        X: npt.NDArray[np.float32],
        ids: npt.NDArray[Any] | None,
        id_name: str = "id",
    ) -> Self:
        """Label later samples in chunks, scoring each row once for all columns."""
        parts, known, nearest = [], [], []
        for start in range(0, len(X), _PREDICTED_ROWS):
            scores = classifier.open_set_scores(X[start : start + _PREDICTED_ROWS])
            parts.append(classifier.rejection.probabilities(scores))
            known.append(scores.known)
            nearest.append(scores.nearest)
        known_scores, classes = np.concatenate(known), np.concatenate(nearest)
        labels = classifier.rejection.labels(known_scores, classes, len(classifier.classes_))
        return cls(
            ids=row_numbers(len(X)) if ids is None else ids,
            labels=classifier.decode_labels(labels).astype(np.str_),
            known_scores=known_scores,
            nearest=classifier.classes_[classes].astype(np.str_),
            proba=np.concatenate(parts),
            classes=class_names(classifier),
            unknown_label=str(classifier.unknown_label),
            id_name=id_name,
        )

    def to_arrow(self, top_k: int | None = None) -> Any:
        """Return a pyarrow table.

        With `top_k`, it has that many of the likeliest labels instead of one column per class.
        """
        columns: dict[str, Any] = {
            self.id_name: pa.array(self.ids.tolist(), pa.string()),
            "label": pa.array(self.labels.tolist(), pa.string()),
            "confidence": self.confidence,
            "p_unknown": self.proba[:, -1],
            "known_score": self.known_scores,
            "nearest_class": pa.array(self.nearest.tolist(), pa.string()),
        }
        if self.corrected is not None:
            columns["corrected"] = self.corrected
        if top_k is None:
            for place, name in enumerate(self.classes):
                columns[CLASS_PREFIX + name] = self.proba[:, place]
            return pa.table(columns)
        names = np.array([*self.classes, self.unknown_label], dtype=np.str_)
        best = np.argsort(-self.proba, axis=1, kind="stable")[:, :top_k]
        for place in range(best.shape[1]):
            columns[f"{TOP}{place + 1}"] = pa.array(names[best[:, place]].tolist(), pa.string())
            columns[f"{_P_TOP}{place + 1}"] = self.proba[np.arange(len(self)), best[:, place]]
        return pa.table(columns)

    def write(self, path: Path) -> None:
        """Write ``.parquet`` with full precision, or ``.csv`` with rounded probabilities."""
        with PredictionWriter(path) as writer:
            writer.write(self)

    @classmethod
    def read_parquet(cls, path: Path) -> Self:
        """Read a Parquet file of `write` that has all classes."""
        with path.open("rb") as stream:
            return cls.of_table(CheckedTable(stream, path))

    @classmethod
    def of_table(cls, table: CheckedTable, classes: Sequence[str] = ()) -> Self:
        """Return the predictions of a file; classes that it leaves out have a probability of 0."""
        columns = [name for name in table.names if name.startswith(CLASS_PREFIX)]
        names = tuple(name.removeprefix(CLASS_PREFIX) for name in columns) or tuple(classes)
        proba = np.zeros((len(table), len(names) + 1))
        for place, name in enumerate(columns):
            proba[:, place] = table.numbers(name, 0, 1)
        for name in [name for name in table.names if name.startswith(TOP)]:
            of_rows = _columns_of(table.text(name).tolist(), names)
            shares = table.numbers(_P_TOP + name.removeprefix(TOP), 0, 1)
            proba[np.arange(len(table)), of_rows] = shares
        proba[:, -1] = table.numbers("p_unknown", 0, 1)
        return cls(
            ids=table.text(table.names[0]),
            labels=table.text("label"),
            known_scores=table.numbers("known_score"),
            nearest=table.text("nearest_class"),
            proba=proba,
            classes=names,
            id_name=table.names[0],
            corrected=table.flags("corrected") if "corrected" in table.names else None,
        )


def _columns_of(labels: Sequence[str], classes: Sequence[str]) -> list[int]:
    """Return the columns of labels; what is not a class is unknown, whatever it is called."""
    place = {name: column for column, name in enumerate(classes)}
    return [place.get(label, len(classes)) for label in labels]


class PredictionWriter:
    """Write predictions part by part, so that they need not fit into memory.

    In a ``.csv`` or ``.json`` (list of objects) file probabilities are rounded to six digits, a
    ``.parquet`` file has full precision. `top_k` is as in `PredictionTable.to_arrow`.
    """

    def __init__(self, path: Path, top_k: int | None = None) -> None:
        self.path, self.top_k = path, top_k
        self._writer: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def write(self, table: PredictionTable) -> None:
        """Add rows."""
        self.write_rows(table.to_arrow(self.top_k))

    def write_rows(self, rows: Any) -> None:
        """Add rows of a pyarrow table."""
        if self.path.suffix.lower() != ".parquet":
            rows = _rounded(rows)
        if self._writer is None:
            self._writer = self._open(rows.schema)
        self._writer.write_table(rows)

    def _open(self, schema: Any) -> Any:
        if self.path.suffix.lower() == ".parquet":
            # A dictionary of numbers that hardly repeat costs a megabyte per column.
            text = [field.name for field in schema if pa.types.is_string(field.type)]
            return pyarrow.parquet.ParquetWriter(self.path, schema, use_dictionary=text)
        if self.path.suffix.lower() == ".json":
            return _JsonRows(self.path)
        return pyarrow.csv.CSVWriter(self.path, schema)


class _JsonRows:
    """A JSON list with one object, and one line, per row."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open("w", encoding="utf-8")
        self._next = "[\n"

    def write_table(self, table: Any) -> None:
        for row in table.to_pylist():
            self._stream.write(self._next + json.dumps(row, ensure_ascii=False, allow_nan=False))
            self._next = ",\n"

    def close(self) -> None:
        self._stream.write("\n]\n")
        self._stream.close()


def _rounded(table: Any) -> Any:
    for place, field in enumerate(table.schema):
        # Not the score, whose scale is the method's own.
        if pa.types.is_floating(field.type) and field.name != "known_score":
            rounded = pyarrow.compute.round(table[place], ndigits=_ROUNDED_DIGITS)
            table = table.set_column(place, field.name, rounded)
    return table


def class_names(classifier: OpenSetClassifier) -> tuple[str, ...]:
    """Return the known classes as text."""
    return tuple(str(name) for name in classifier.classes_.tolist())


def row_numbers(n_rows: int) -> npt.NDArray[Any]:
    """Return "1", "2", ... for samples without names, as the error messages count."""
    return numbers_of(slice(0, n_rows))


def numbers_of(rows: slice) -> npt.NDArray[Any]:
    """Return the numbers of some rows, counted from 1, as text."""
    return np.arange(rows.start + 1, rows.stop + 1).astype(np.str_)
