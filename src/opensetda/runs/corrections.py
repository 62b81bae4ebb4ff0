"""Manually corrected labels of targets: `osda review` writes them, `osda fit` learns from them.

A target with a corrected class counts as a labelled sample, of a new class too, and keeps its
label. It joins the source with its features as they are: moving them by the difference of the
domains' means did not help (`docs/experiments.md`).
"""

from __future__ import annotations

import csv
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.errors import InputError
from opensetda.rows import IntArray
from opensetda.runs.fit_data import FitData
from opensetda.runs.predictions import IMAGE_ID, PredictionTable, row_numbers
from opensetda.system.files import file_record

_ID_COLUMNS = ("id", IMAGE_ID)
_LABEL = "label"
_USUAL_UNKNOWN = "unknown"
# New classes that a note names.
_MOST_NAMED = 5

LONGEST_NAME = 200

# Controls, halves of characters, and the ends of lines and paragraphs that are no controls.
_REFUSED = frozenset({"Cc", "Cs", "Zl", "Zp"})
# They change the direction of the text that follows: a name could look like another one.
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


@dataclass(frozen=True)
class Corrections:
    """Manually corrected labels of some targets.

    Attributes
    ----------
    path : Path
        The file they are from.
    rows : array of int of shape (n,)
        Rows of the target, ascending.
    labels : array of str of shape (n,)
        A class, perhaps a new one, or the unknown label.
    unknown_label : str
        The label of unknowns.
    """

    path: Path
    rows: IntArray
    labels: npt.NDArray[Any]
    unknown_label: str

    @property
    def names_class(self) -> npt.NDArray[np.bool_]:
        """Which of them name a class; the others are unknown."""
        return np.asarray(self.labels != self.unknown_label)

    def new_classes(self, labels: npt.NDArray[Any]) -> list[str]:
        """Return the classes that the source, whose labels are given, does not have."""
        return sorted(set(self.labels[self.names_class].tolist()) - set(labels.tolist()))

    def joined_to(self, data: FitData) -> FitData:
        """Return the data with the targets of a corrected class among the labelled samples.

        They stay among the targets as well, so that every target gets its prediction.
        """
        told = self.rows[self.names_class]
        n_source, ids = len(data.source), data.source_ids
        names = row_numbers(len(data.target)) if data.ids is None else data.ids
        paths = data.image_paths
        if paths:
            theirs = tuple(paths[n_source + row] for row in told.tolist())
            paths = (*paths[:n_source], *theirs, *paths[n_source:])
        record = {**file_record(self.path), "rows": len(self.rows)}
        return replace(
            data,
            source=np.concatenate([data.source, data.target[told]]),
            labels=np.concatenate([data.labels, self.labels[self.names_class]]),
            source_ids=None if ids is None else np.concatenate([ids, names[told]]),
            image_paths=paths,
            inputs={**data.inputs, "corrections": record},
            notes=(*data.notes, self._note(self.new_classes(data.labels))),
        )

    def _note(self, new: list[str]) -> str:
        """Return a note: a misspelt name shows as a new class."""
        n_told, n_rows = int(self.names_class.sum()), len(self.rows)
        targets = "1 target" if n_rows == 1 else f"{n_rows:,} targets"
        line = f"corrections: {targets}, {n_told:,} of a class, {n_rows - n_told:,} unknown"
        if not new:
            return line
        more = ", ..." if len(new) > _MOST_NAMED else ""
        return f"{line}; new: {', '.join(map(repr, new[:_MOST_NAMED]))}{more}"

    def applied_to(self, predictions: PredictionTable) -> PredictionTable:
        """Return predictions with the corrected labels, which have a probability of 1."""
        labels, nearest = predictions.labels.astype(object), predictions.nearest.astype(object)
        proba, corrected = predictions.proba.copy(), np.zeros(len(labels), dtype=bool)
        place = {name: column for column, name in enumerate(predictions.classes)}
        columns = [place.get(label, len(place)) for label in self.labels.tolist()]
        labels[self.rows], corrected[self.rows] = self.labels, True
        nearest[self.rows[self.names_class]] = self.labels[self.names_class]
        proba[self.rows] = 0.0
        proba[self.rows, columns] = 1.0
        return replace(
            predictions,
            labels=labels.astype(np.str_),
            nearest=nearest.astype(np.str_),
            proba=proba,
            corrected=corrected,
        )


def read_corrections(path: Path, data: FitData, unknown_label: str) -> Corrections:
    """Read a CSV file with the columns ``id`` (or ``path``) and ``label``.

    Raises an `InputError` that names the row if it does not fit the target.
    """
    ids = row_numbers(len(data.target)) if data.ids is None else data.ids
    place = {name: row for row, name in enumerate(ids.tolist())}
    classes = dict.fromkeys(np.unique(data.labels).tolist())
    told: dict[int, tuple[str, int]] = {}
    for number, (name, label) in _lines(path):
        if name not in place:
            raise InputError(
                f"{path}, row {number}: {name!r} is no sample of the target; give the target "
                "that was reviewed"
            )
        if not label.strip():
            raise InputError(f"{path}, row {number}: no label; fill it in, or remove the row")
        try:
            label = _checked(label, classes, unknown_label)
        except InputError as error:
            raise InputError(f"{path}, row {number}: {error}") from None
        earlier = told.get(place[name])
        if earlier is not None and earlier[0] != label:
            raise InputError(
                f"{path}, row {number}: {name!r} is {label!r} here and {earlier[0]!r} in row "
                f"{earlier[1]}; keep one of them"
            )
        told[place[name]] = (label, number)
    rows = np.array(sorted(told), dtype=np.intp)
    labels = np.array([told[row][0] for row in rows.tolist()], dtype=np.str_)
    return Corrections(path, rows, labels, unknown_label)


def _checked(label: str, classes: dict[str, None], unknown_label: str) -> str:
    """Return a label as it is meant; a new class joins the others."""
    label = check_name(label, classes, unknown_label)
    if label in classes or label == unknown_label:
        return label
    if label.casefold() == _USUAL_UNKNOWN:
        # The reviewed run had this unknown label: it does not mean a class.
        raise InputError(
            f"{label!r} is no class of the source, and unknowns are called {unknown_label!r} here; "
            "give the --unknown-label of the run that was reviewed"
        )
    classes[label] = None
    return label


def check_corrections(path: Path) -> None:
    """Raise an `InputError` if a file of corrections cannot be read, before any data is."""
    if not _lines(path):
        raise InputError(f"{path}: no correction in it; leave out --corrections")


def _lines(path: Path) -> list[tuple[int, tuple[str, str]]]:
    """Return the number of each row, as an editor counts lines, with its id and label."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            id_column = _columns(path, reader.fieldnames or ())
            return [(reader.line_num, _cells(path, reader, row, id_column)) for row in reader]
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; 'osda review' writes one") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not a CSV file that can be read ({error})") from error


def _columns(path: Path, names: Any) -> str:
    found = [name for name in _ID_COLUMNS if name in names]
    if not found or _LABEL not in names:
        lacks = _LABEL if found else " or ".join(_ID_COLUMNS)
        raise InputError(f"{path}: no column {lacks}; 'osda review' writes one that has it")
    return found[0]


def _cells(
    path: Path, reader: Any, row: Mapping[str | None, Any], id_column: str
) -> tuple[str, str]:
    name, label = row[id_column], row[_LABEL]
    if name is None or label is None or None in row:
        raise InputError(
            f"{path}, row {reader.line_num}: not as many cells as the header; repair it"
        )
    return str(name), str(label)


def check_name(name: str, in_use: Iterable[str], unknown_label: str) -> str:
    """Return a label as it is to be stored, or raise an `InputError` that says what is wrong.

    A name in use (known classes, new ones so far, the unknown label) is taken as it is. A new one
    is trimmed and composed (NFC), so that the same word typed on two machines is the same class.
    """
    in_use = [*in_use, unknown_label]
    if name in in_use:
        return name
    name = unicodedata.normalize("NFC", name).strip()
    if not name:
        raise InputError("the name is empty; type one")
    if len(name) > LONGEST_NAME:
        raise InputError(f"the name has {len(name)} characters; {LONGEST_NAME} are allowed")
    if any(unicodedata.category(c) in _REFUSED or c in _TURNING for c in name):
        raise InputError("the name has control characters in it; type it by hand")
    if name in in_use:
        return name
    alike = next((other for other in in_use if other.casefold() == name.casefold()), None)
    if alike == unknown_label:
        # Files that say "unknown" and "Unknown" and mean two things would be read wrongly.
        raise InputError(f"{name!r} is too like {alike!r}, which means no class; choose another")
    if alike is not None:
        raise InputError(f"{name!r} is too like the class {alike!r}; take that or choose another")
    return name
