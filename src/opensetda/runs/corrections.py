"""Manually corrected labels of targets: `osda review` writes them, `osda fit` learns from them.

A target with a corrected class counts as a labelled sample, of a new class too, and keeps its
label. It joins the source with its features as they are: moving them by the difference of the
domains' means did not help (`docs/experiments.md`).

Targets of an audit, which were drawn at random, are called known or unknown, perhaps without a
label: they say how many targets are unknown.
"""

from __future__ import annotations

import csv
import shlex
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from opensetda.data.limits import LONGEST_LABEL
from opensetda.data.names import folded, is_visible, shown, unseen
from opensetda.errors import InputError
from opensetda.openness.audit import Audit, CheckedTargets
from opensetda.openness.decision import Vector
from opensetda.openness.report import OpennessReport
from opensetda.openness.share_model import ShareEstimate
from opensetda.rows import IntArray
from opensetda.runs.fit_data import FitData
from opensetda.runs.folder import SETTINGS, RunFolder
from opensetda.runs.predictions import IMAGE_ID, PredictionTable
from opensetda.system.files import file_record, near, open_regular

Labels = npt.NDArray[Any]

_KNOWN, _UNKNOWN = "known", "unknown"
# Classes that a message names.
_MOST_NAMED = 5
# Warn if a class has lost this many targets, and this share of them.
_FEWEST, _SHARE = 3, 0.1

# Options of the first fit that the second must not repeat; those with a value first.
_WITH_VALUE, _ALONE = ("--out", "-o", "--corrections"), ("--overwrite", "--quiet", "-q")


@dataclass(frozen=True)
class Corrections:
    """Manually corrected labels of some targets: rows of the target, ascending, and their labels.

    A label is a class, perhaps one of `new` ones that the source does not have, or the unknown
    label. The targets of the `audit` were drawn at random and called known or unknown.
    """

    path: Path
    rows: IntArray
    labels: Labels
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
        n_source, ids, paths = len(data.source), data.source_ids, data.image_paths
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
            source_ids=None if ids is None else np.concatenate([ids, data.target_names[told]]),
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
            # Audited without a label: of the source, or either of a new class or unknown.
            for rows, possible in (
                (self._known_only, np.append(~is_new, False)),
                (unsettled, np.append(is_new, True)),
            ):
                part = proba[rows] * possible
                # All may be so near to 0 that they are 0.
                part[:, :-1] += 1e-12 * possible[:-1]
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


@dataclass(frozen=True)
class ReviewedRun:
    """The run that was corrected: its labels and scores, and the share of unknowns it used."""

    path: Path
    labels: Labels
    known_scores: Vector
    unknown_label: str
    share: float

    @classmethod
    def beside(cls, corrections: Path, data: FitData) -> ReviewedRun | None:
        """Read the run in whose folder the corrections are; None if it is not there, or another."""
        if not (corrections.parent / SETTINGS).is_file():
            return None
        try:
            run = RunFolder.open(corrections.parent)
            table, estimates = run.predictions(), run.estimates()
        except InputError:
            # The corrections are all that is needed.
            return None
        if not np.array_equal(table.ids, data.target_names):
            return None
        share = estimates["openness"]["share"]
        return cls(run.path, table.labels, table.known_scores, run.unknown_label, share)

    def warning(
        self, corrections: Corrections, labels: Labels, found: OpennessReport
    ) -> str | None:
        """Name classes whose targets have become unknown, though nobody decided on them.

        `labels` are the method's own for all targets, `found` is the share that it rejected.
        """
        others = np.setdiff1d(np.arange(len(labels)), corrections.rows)
        before, now = self.labels[others], labels[others].astype(np.str_)
        was_unknown, is_unknown = before == self.unknown_label, now == corrections.unknown_label
        of, lost = Counter(before.tolist()), Counter(before[is_unknown & ~was_unknown].tolist())
        lost -= Counter(now[was_unknown & ~is_unknown].tolist())
        words = [
            f"{n:,} of {of[name]:,} {name!r:.60}"
            for name, n in sorted(lost.items(), key=lambda item: (-item[1], item[0]))
            if n >= max(_FEWEST, _SHARE * of[name])
        ]
        if not words:
            return None
        more = ", ..." if len(words) > _MOST_NAMED else ""
        return (
            f"unknown now, but not in {self.path.name}: {', '.join(words[:_MOST_NAMED])}{more}; "
            f"the share of unknowns is {found.share:.2f} ({self.share:.2f} there): audit it with "
            "'osda review', or give it (--openness)"
        )


class _Line(NamedTuple):
    """What is said about a target; `number` is its row as an editor counts lines."""

    number: int
    name: str
    label: str
    audit: str


def read_corrections(
    path: Path, data: FitData, unknown_label: str, known_scores: Vector | None = None
) -> Corrections:
    """Read a CSV file with the columns ``id`` (or ``path``) and ``label``, perhaps ``audit``.

    Raises an `InputError` that names the row if it does not fit the target. `known_scores` are
    those of all targets in the run that was reviewed.
    """
    place = {name: row for row, name in enumerate(data.target_names.tolist())}
    source = set(np.unique(data.labels).tolist())
    names = Names(sorted(source), unknown_label)
    told: dict[int, _Line] = {}
    for line in _lines(path):
        try:
            row = place.get(line.name)
            if row is None:
                raise InputError(
                    f"{shown(line.name)} is no sample of the target; "
                    "give the target that was reviewed"
                )
            if row in told:
                raise InputError(
                    f"{shown(line.name)} is in row {told[row].number}, too; keep one of them"
                )
            told[row] = _consistent(line, names, source)
        except InputError as error:
            raise InputError(f"{path}, row {line.number}: {error}") from None
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
    label = names.checked(line.label)
    if label not in names and folded(label) == _UNKNOWN:
        # The reviewed run had this unknown label: it does not mean a class.
        raise InputError(
            f"{label!r} is no class of the source, and unknowns are called "
            f"{names.unknown_label!r} here; give the --unknown-label of the run that was reviewed"
        )
    names.add(label)
    is_class = label in source if audit == _UNKNOWN else label != names.unknown_label
    if audit and is_class != (audit == _KNOWN):
        what = f"the class {label!r} of the source" if is_class else repr(label)
        raise InputError(f"audit {audit!r}, but the label is {what}; change one of them")
    return line._replace(label=label, audit=audit)


def check_corrections(path: Path) -> None:
    """Raise an `InputError` if a file of corrections cannot be read, before any data is."""
    if not sum(1 for _ in _lines(path)):
        raise InputError(f"{path}: no correction in it; leave out --corrections")


def _lines(path: Path) -> Iterator[_Line]:
    """Yield the rows."""
    try:
        with open_regular(path) as file, TextIOWrapper(file, "utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, restval=None)
            header = list(reader.fieldnames or ())
            name = next((name for name in ("id", IMAGE_ID) if name in header), None)
            if name is None or "label" not in header:
                lacks = f"id or {IMAGE_ID}" if name is None else "label"
                raise InputError(f"{path}: no column {lacks}; 'osda review' writes one that has it")
            if len({*header}) < len(header):
                raise InputError(f"{path}: two columns of one name; keep one of them")
            for row in reader:
                if None in row or None in row.values():
                    raise InputError(
                        f"{path}, row {reader.line_num}: not as many cells as the header; repair it"
                    )
                yield _Line(reader.line_num, row[name], row["label"], row.get("audit", ""))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; 'osda review' writes one") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not a CSV file that can be read ({error})") from error


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
        if name in self:
            return name
        if len(name) > LONGEST_LABEL:
            raise InputError(f"the name has {len(name)} characters; {LONGEST_LABEL} are allowed")
        if which := unseen(name):
            raise InputError(f"the name has {which} in it, which cannot be seen; type it by hand")
        if not is_visible(name):
            raise InputError("the name has nothing in it that can be seen; type one")
        alike = self._alike.get(folded(name))
        if alike is not None:
            # Files that say "unknown" and "Unknown" and mean two things would be read wrongly.
            which = f"the class {alike!r}; take that or"
            if alike == self.unknown_label:
                which = f"{alike!r}, which means no class;"
            raise InputError(f"{name!r} is too like {which} choose another")
        return name


def refit_command(run: RunFolder, corrections: Path) -> str:
    """Return the command of a run, with corrections and a new folder; paths are as they were."""
    command = run.settings["command"] or []
    is_fit = command[:2] == ["osda", "fit"]
    kept, words = [], iter(command if is_fit else ["osda", "fit", "SOURCE", "TARGET"])
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif word not in _ALONE and not word.startswith(tuple(f"{n}=" for n in _WITH_VALUE)):
            kept.append(word)
    out = f"{near(run.path)}-2"
    return shlex.join([*kept, "--out", out, "--corrections", str(near(corrections))])
