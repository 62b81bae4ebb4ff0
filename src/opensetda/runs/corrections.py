"""Manually corrected labels of targets: `osda review` writes them, `osda fit` learns from them.

A target with a corrected class counts as a labelled sample, of a new class too, and keeps its
label. It joins the source with its features as they are: moving them by the difference of the
domains' means did not help (`docs/experiments.md`).

Targets of an audit, which were drawn at random, are called known or unknown, perhaps without a
label: they say how many targets are unknown.
"""

from __future__ import annotations

import csv
import os
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import numpy.typing as npt

from opensetda.data.limits import LONGEST_LABEL
from opensetda.data.names import folded, is_visible, shown, unseen
from opensetda.errors import InputError
from opensetda.openness.audit import Audit, CheckedTargets, Vector
from opensetda.openness.share_model import ShareEstimate
from opensetda.rows import IntArray
from opensetda.runs.fit_data import FitData
from opensetda.runs.predictions import IMAGE_ID, PredictionTable, row_numbers
from opensetda.system.files import file_record, open_regular

_ID_COLUMNS = ("id", IMAGE_ID)
_LABEL, _AUDIT = "label", "audit"
_KNOWN, _UNKNOWN = "known", "unknown"
_USUAL_UNKNOWN = "unknown"
# New classes that a note names.
_MOST_NAMED = 5

_LARGEST_FILE, _LONGEST_LINE = 1 << 28, 1 << 20


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
    new : tuple of str
        Classes that the source does not have.
    audit : Audit or None
        Targets that were drawn at random and called known or unknown, with a label or without.
    """

    path: Path
    rows: IntArray
    labels: npt.NDArray[Any]
    unknown_label: str
    new: tuple[str, ...] = ()
    audit: Audit | None = None

    @property
    def names_class(self) -> npt.NDArray[np.bool_]:
        """Which of them name a class; the others are unknown."""
        return np.asarray(self.labels != self.unknown_label)

    @property
    def _known_only(self) -> IntArray:
        """Audited rows of some class of the source, which one was not said."""
        if self.audit is None:
            return self.rows[:0]
        is_known = ~(self.audit.unknown | self.audit.unsettled)
        return np.setdiff1d(self.audit.rows[is_known], self.rows)

    @property
    def checked(self) -> CheckedTargets:
        """How many targets are known and unknown."""
        n_class = int(self.names_class.sum())
        return CheckedTargets(n_class + len(self._known_only), len(self.rows) - n_class, self.audit)

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
        if self.audit is not None:
            found = self.audit.share(ShareEstimate(0.0, 0.0, 1.0))
            counts = {"targets": len(self.audit.rows), "unknown": int(self.audit.unknown.sum())}
            # With the share, which the reviewed run has a part in: `resume` must find the same.
            record["audit"] = counts | asdict(found)
        return replace(
            data,
            source=np.concatenate([data.source, data.target[told]]),
            labels=np.concatenate([data.labels, self.labels[self.names_class]]),
            source_ids=None if ids is None else np.concatenate([ids, names[told]]),
            image_paths=paths,
            inputs={**data.inputs, "corrections": record},
            notes=(*data.notes, self._note()),
        )

    def _note(self) -> str:
        """Return a note: a misspelt name shows as a new class."""
        n_told, n_rows = int(self.names_class.sum()), len(self.rows)
        targets = "1 target" if n_rows == 1 else f"{n_rows:,} targets"
        line = f"corrections: {targets}, {n_told:,} of a class, {n_rows - n_told:,} unknown"
        if self.new:
            more = ", ..." if len(self.new) > _MOST_NAMED else ""
            line += f"; new: {', '.join(map(repr, self.new[:_MOST_NAMED]))}{more}"
        return line if self.audit is None else f"{line}; audit: {self.audit.sentence}"

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
        if self.audit is not None:
            is_new = np.isin(np.array(predictions.classes), self.new)
            unsettled = self.audit.rows[self.audit.unsettled]
            for rows, possible in ((self._known_only, ~is_new), (unsettled, is_new)):
                unknown = np.full(1, rows is unsettled)
                part = proba[rows] * np.concatenate([possible, unknown])
                # All may be so near to 0 that they are 0.
                part[:, :-1] += 1e-12 * possible
                proba[rows] = part = part / part.sum(axis=1, keepdims=True)
                nearest[rows] = np.array(predictions.classes)[part[:, :-1].argmax(axis=1)]
                labels[rows] = np.where(part[:, -1] > 0.5, self.unknown_label, nearest[rows])
        return replace(
            predictions,
            labels=labels.astype(np.str_),
            nearest=nearest.astype(np.str_),
            proba=proba,
            corrected=corrected,
        )


class _Line(NamedTuple):
    """What is said about a target; `number` is its row as an editor counts lines."""

    number: int
    name: str
    label: str
    audit: str

    def contradiction(self, other: _Line) -> str | None:
        """Return how another line about the same target differs."""
        if self.label != other.label:
            return f"{self.label!r} here and {other.label!r} in row {other.number}"
        if self.audit != other.audit:
            words = [f"audit {line.audit!r}" for line in (self, other)]
            return f"{words[0]} here and {words[1]} in row {other.number}"
        return None


def read_corrections(
    path: Path, data: FitData, unknown_label: str, known_scores: Vector | None = None
) -> Corrections:
    """Read a CSV file with the columns ``id`` (or ``path``) and ``label``, perhaps ``audit``.

    Raises an `InputError` that names the row if it does not fit the target. `known_scores` are
    those of all targets in the run that was reviewed.
    """
    ids = row_numbers(len(data.target)) if data.ids is None else data.ids
    place = {name: row for row, name in enumerate(ids.tolist())}
    source = set(np.unique(data.labels).tolist())
    names = Names(sorted(source), unknown_label)
    told: dict[int, _Line] = {}
    for line in _lines(path):
        try:
            if line.name not in place:
                raise InputError(
                    f"{shown(line.name)} is no sample of the target; "
                    "give the target that was reviewed"
                )
            line = _consistent(line, names, source)
            both = line.contradiction(told.get(place[line.name], line))
            if both is not None:
                raise InputError(f"{shown(line.name)} is {both}; keep one of them")
        except InputError as error:
            raise InputError(f"{path}, row {line.number}: {error}") from None
        told[place[line.name]] = line
    new = {line.label for line in told.values()} - source - {unknown_label, ""}
    audit = _audit(told, unknown_label, bool(new), known_scores)
    if not new:
        # Nothing else is left for an audited unknown without a label.
        told = {
            row: line if line.audit != _UNKNOWN else line._replace(label=unknown_label)
            for row, line in told.items()
        }
    rows = np.array(sorted(row for row, line in told.items() if line.label), dtype=np.intp)
    labels = np.array([told[row].label for row in rows.tolist()], dtype=np.str_)
    return Corrections(path, rows, labels, unknown_label, tuple(sorted(new)), audit)


def _audit(
    told: Mapping[int, _Line], unknown_label: str, has_new: bool, known_scores: Vector | None
) -> Audit | None:
    """Return the audited targets; those of a new class count as known from now on."""
    rows = sorted(row for row, line in told.items() if line.audit)
    if not rows:
        return None
    lines = [told[row] for row in rows]
    no_class = [line.audit == _UNKNOWN and line.label in ("", unknown_label) for line in lines]
    unsettled = np.array([has_new and not line.label for line in lines]) & np.array(no_class)
    unknown = np.array(no_class) & ~unsettled
    return Audit(np.array(rows, dtype=np.intp), unknown, unsettled, known_scores)


def _consistent(line: _Line, names: Names, source: set[str]) -> _Line:
    """Return a line as it is meant; a new class joins the names."""
    audit = line.audit.strip().lower()
    if audit not in ("", _KNOWN, _UNKNOWN):
        raise InputError(
            f"audit {shown(line.audit)}; write {_KNOWN} or {_UNKNOWN}, or leave it empty"
        )
    if not line.label.strip():
        if not audit:
            raise InputError("no label; fill it in, or remove the row")
        return line._replace(label="", audit=audit)
    label = _checked(line.label, names)
    is_class = label in source if audit == _UNKNOWN else label != names.unknown_label
    if audit and is_class != (audit == _KNOWN):
        what = f"the class {label!r} of the source" if is_class else repr(label)
        raise InputError(f"audit {audit!r}, but the label is {what}; change one of them")
    return line._replace(label=label, audit=audit)


def _checked(label: str, names: Names) -> str:
    """Return a label as it is meant; a new class joins the others."""
    label = names.checked(label)
    if label not in names and folded(label) == _USUAL_UNKNOWN:
        # The reviewed run had this unknown label: it does not mean a class.
        raise InputError(
            f"{label!r} is no class of the source, and unknowns are called "
            f"{names.unknown_label!r} here; give the --unknown-label of the run that was reviewed"
        )
    names.add(label)
    return label


def check_corrections(path: Path) -> None:
    """Raise an `InputError` if a file of corrections cannot be read, before any data is."""
    if not sum(1 for _ in _lines(path)):
        raise InputError(f"{path}: no correction in it; leave out --corrections")


def _lines(path: Path) -> Iterator[_Line]:
    """Yield the rows."""
    try:
        with open_regular(path) as file, TextIOWrapper(file, "utf-8-sig", newline="") as stream:
            if os.fstat(stream.fileno()).st_size > _LARGEST_FILE:
                raise InputError(f"{path}: larger than {_LARGEST_FILE >> 20} MiB; give fewer rows")
            reader = csv.reader(_bounded(stream))
            header = next(reader, [])
            places = _columns(path, header)
            for row in filter(None, reader):
                if len(row) != len(header):
                    raise InputError(
                        f"{path}, row {reader.line_num}: not as many cells as the header; repair it"
                    )
                cells = ("" if place is None else row[place] for place in places)
                yield _Line(reader.line_num, *cells)
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; 'osda review' writes one") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not a CSV file that can be read ({error})") from error


def _bounded(stream: TextIO) -> Iterator[str]:
    """Yield lines; one may be as long as the file."""
    while line := stream.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE:
            raise csv.Error(f"a line of more than {_LONGEST_LINE:,} characters")
        yield line


def _columns(path: Path, header: Sequence[str]) -> tuple[int, int, int | None]:
    """Return the places of id, label and audit, if there is one."""
    found = [name for name in _ID_COLUMNS if name in header]
    if not found or _LABEL not in header:
        lacks = _LABEL if found else " or ".join(_ID_COLUMNS)
        raise InputError(f"{path}: no column {lacks}; 'osda review' writes one that has it")
    for name in (found[0], _LABEL, _AUDIT):
        if header.count(name) > 1:
            raise InputError(f"{path}: two columns {name}; keep one of them")
    audit = header.index(_AUDIT) if _AUDIT in header else None
    return header.index(found[0]), header.index(_LABEL), audit


class Names:
    """Names in use: known classes, new ones so far, and the label of unknowns."""

    def __init__(self, classes: Iterable[str], unknown_label: str) -> None:
        self.unknown_label = unknown_label
        self._names, self._alike = set[str](), dict[str, str]()
        for name in (unknown_label, *classes):
            self.add(name)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def add(self, name: str) -> None:
        """Use a name from now on."""
        if name not in self._names:
            self._names.add(name)
            self._alike.setdefault(folded(name), name)

    def checked(self, name: str) -> str:
        """Return a label as it is to be stored, or raise an `InputError` that says what is wrong.

        A name in use is taken as it is. A new one is trimmed and composed (NFC), so that the same
        word typed on two machines is the same class; one that looks like another is refused.
        """
        if name in self:
            return name
        name = unicodedata.normalize("NFC", name).strip()
        if not name:
            raise InputError("the name is empty; type one")
        if len(name) > LONGEST_LABEL:
            raise InputError(f"the name has {len(name)} characters; {LONGEST_LABEL} are allowed")
        if name in self:
            return name
        if which := unseen(name):
            raise InputError(f"the name has {which} in it, which cannot be seen; type it by hand")
        if not is_visible(name):
            raise InputError("the name has nothing in it that can be seen; type one")
        alike = self._alike.get(folded(name))
        if alike == self.unknown_label:
            # Files that say "unknown" and "Unknown" and mean two things would be read wrongly.
            raise InputError(
                f"{name!r} is too like {alike!r}, which means no class; choose another"
            )
        if alike is not None:
            raise InputError(
                f"{name!r} is too like the class {alike!r}; take that or choose another"
            )
        return name
