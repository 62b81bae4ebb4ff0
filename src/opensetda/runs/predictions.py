"""Tables of predictions: one row per sample, with label, scores and probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet
from pyarrow.csv import CSVWriter

from opensetda.runs.integrity import CheckedTable

if TYPE_CHECKING:
    from opensetda.methods.base import OpenSetClassifier

_ROUNDED_DIGITS = 6

# The column of image files, in predictions and in manifests.
IMAGE_ID = "path"

# "p_unknown" but "p:bike": no class name can collide with the other columns.
CLASS_PREFIX = "p:"


@dataclass(frozen=True)
class PredictionTable:
    """One row per sample, in the order of the file it came from.

    Attributes
    ----------
    ids, labels, nearest : arrays of str of shape (n,)
        Names, or row numbers from 1; classes or the unknown label; classes without rejection.
    known_scores : array of shape (n,)
        Higher is more likely known; the scale is the method's own.
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
        columns = self.columns_of(self.labels)
        return np.asarray(self.proba[np.arange(len(self)), columns])

    def columns_of(self, labels: npt.NDArray[Any]) -> list[int]:
        """Return the columns of labels; what is not a class is unknown, whatever it is called."""
        place = {name: column for column, name in enumerate(self.classes)}
        return [place.get(label, len(place)) for label in labels.tolist()]

    @classmethod
    def of_targets(
        cls, classifier: OpenSetClassifier, ids: npt.NDArray[Any] | None, id_name: str = "id"
    ) -> Self:
        """Return the labels of the targets that were in `fit`."""
        return cls._of(
            classifier,
            ids,
            id_name,
            labels=classifier.transduction_,
            known_scores=classifier.transduction_scores_,
            nearest=classifier.transduction_nearest_,
            proba=classifier.transduction_proba_,
        )

    @classmethod
    def of_samples(
        cls,
        classifier: OpenSetClassifier,
        X: npt.NDArray[np.float32],
        ids: npt.NDArray[Any] | None,
        id_name: str = "id",
    ) -> Self:
        """Label later samples, scoring each row once for all columns."""
        decided = classifier.decide(X)
        return cls._of(
            classifier,
            ids,
            id_name,
            labels=decided.labels,
            known_scores=decided.scores.known,
            nearest=classifier.classes_[decided.scores.nearest],
            proba=decided.probabilities,
        )

    @classmethod
    def _of(
        cls,
        classifier: OpenSetClassifier,
        ids: Any,
        id_name: str,
        *,
        labels: npt.NDArray[Any],
        known_scores: npt.NDArray[np.float64],
        nearest: npt.NDArray[Any],
        proba: npt.NDArray[np.float64],
    ) -> Self:
        return cls(
            ids=row_numbers(len(labels)) if ids is None else ids,
            labels=labels.astype(np.str_),
            known_scores=known_scores,
            nearest=nearest.astype(np.str_),
            proba=proba,
            classes=tuple(map(str, classifier.classes_.tolist())),
            unknown_label=str(classifier.unknown_label),
            id_name=id_name,
        )

    def names(self) -> Iterator[str]:
        """Yield the texts of all cells: ids and labels."""
        return chain([self.id_name], self.ids.tolist(), self.classes, [self.unknown_label])

    def to_arrow(self) -> Any:
        """Return a pyarrow table: the one schema of all predictions."""
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
        for place, name in enumerate(self.classes):
            columns[CLASS_PREFIX + name] = self.proba[:, place]
        return pa.table(columns)

    def to_pandas(self) -> Any:
        """Return a DataFrame of pandas, with the columns of the file."""
        return self.to_arrow().to_pandas()

    def write(self, path: Path) -> None:
        """Write a file, as `PredictionWriter` does."""
        with PredictionWriter(path) as writer:
            writer.write(self.to_arrow())

    @classmethod
    def of_table(cls, table: CheckedTable) -> Self:
        """Return the predictions of a file."""
        columns = [name for name in table.names if name.startswith(CLASS_PREFIX)]
        names = tuple(name.removeprefix(CLASS_PREFIX) for name in columns)
        proba = np.zeros((len(table), len(names) + 1))
        for place, name in enumerate(columns):
            proba[:, place] = table.numbers(name, 0, 1)
        proba[:, -1] = table.numbers("p_unknown", 0, 1)
        corrected = None
        if "corrected" in table.names:
            corrected = np.array(table.column("corrected", pa.bool_()).to_pylist(), dtype=bool)
        id_name = table.names[0]
        return cls(
            ids=table.text(id_name),
            labels=table.text("label"),
            known_scores=table.numbers("known_score"),
            nearest=table.text("nearest_class"),
            proba=proba,
            classes=names,
            id_name=id_name,
            corrected=corrected,
        )


class PredictionWriter:
    """Write predictions part by part, so that they need not fit into memory.

    A ``.csv`` file has probabilities rounded to six digits, a ``.parquet`` file full precision.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._suffix = path.suffix.lower()
        self._writer: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, rows: Any) -> None:
        """Add rows of a pyarrow table."""
        if self._suffix != ".parquet":
            rows = _rounded(rows)
        if self._writer is None:
            self._writer = self._open(rows.schema)
        self._writer.write_table(rows)

    def _open(self, schema: Any) -> Any:
        if self._suffix == ".parquet":
            # A dictionary of numbers that hardly repeat costs a megabyte per column.
            text = [field.name for field in schema if pa.types.is_string(field.type)]
            return pyarrow.parquet.ParquetWriter(self.path, schema, use_dictionary=text)
        return CSVWriter(self.path, schema)


def _rounded(table: Any) -> Any:
    for place, field in enumerate(table.schema):
        # Not the score, whose scale is the method's own.
        if pa.types.is_floating(field.type) and field.name != "known_score":
            rounded = pyarrow.compute.round(table[place], ndigits=_ROUNDED_DIGITS)
            table = table.set_column(place, field.name, rounded)
    return table


def row_numbers(stop: int, start: int = 0) -> npt.NDArray[Any]:
    """Return "1", "2", ... for samples without names, as the error messages count."""
    return np.arange(start + 1, stop + 1).astype(np.str_)
