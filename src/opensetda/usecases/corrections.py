"""Manually corrected labels of targets: `osda review` writes them, `osda fit` learns from them.

A corrected target is a mark, which the fit spreads to similar targets (`methods/marks.py`), and
keeps its label. For methods that learn from labelled rows alone, those with a class join the source
with their features as they are: moving them by the difference of the domains' means did not help
(`docs/experiments.md`).

Targets of an audit, which were drawn at random, are called known or unknown, perhaps without a
label: they say how many targets are unknown.
"""

from __future__ import annotations

import csv
import shlex
import unicodedata
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, replace
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.data.names import folded, label_problem, shown
from opensetda.errors import InputError, one_line
from opensetda.rows import KNOWN, IntArray, Marks
from opensetda.runs.folder import CORRECTIONS, RunFolder
from opensetda.runs.predictions import IMAGE_ID, PredictionTable
from opensetda.share.audit import Audit, CheckedTargets
from opensetda.share.decision import Vector
from opensetda.share.evidence import ShareEstimate
from opensetda.system.files import file_record, near, open_regular
from opensetda.usecases.read_domains import FitData

_KNOWN = "known"
_UNKNOWN = "unknown"
_OTHER = ("", _UNKNOWN)  # no label, and of no class of the source
# Options of the first fit that the second must not repeat; those with a value first.
_WITH_VALUE = ("--out", "-o", "--corrections")
_ALONE = ("--overwrite", "--quiet", "-q")


@dataclass(frozen=True)
class Corrections:
    """Manually corrected labels of some targets: rows of the target, ascending, and their labels.

    A label is a class, perhaps one of `new` ones that the source does not have, or the unknown
    label. The targets of the `audit` were drawn at random and called known or unknown.
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

    def marks(self, classes: npt.NDArray[Any]) -> Marks:
        """Return what was said about rows of the target, with the classes of the source."""
        named = self.labels[self.names_class]
        all_classes = np.union1d(classes, named)
        labels = np.full(len(self.rows), len(all_classes))
        labels[self.names_class] = np.searchsorted(all_classes, named)
        rows = np.concatenate([self.rows, self._known_only])
        labels = np.concatenate([labels, np.full(len(self._known_only), KNOWN)])
        order = np.argsort(rows)
        return Marks(rows[order], labels[order], all_classes)

    def noted_in(self, data: FitData) -> FitData:
        """Return the data with a record of the corrections, and a note about them."""
        n_class = int(self.names_class.sum())
        record: dict[str, Any] = {**file_record(self.path), "rows": len(self.rows)}
        note = f"corrections: {n_class:,} of a class, {len(self.rows) - n_class:,} unknown"
        if self.new:
            # A misspelt name shows as a new class.
            note += f"; new: {', '.join(map(repr, self.new[:5]))}{', ...' * (len(self.new) > 5)}"
        if self.audit is not None:
            note += f"; audit: {self.audit.sentence}"
            # The reviewed run has a part in the share: `resume` must find the same.
            record["audit"] = asdict(self.audit.share(ShareEstimate(0.0, 0.0, 1.0)))
        return replace(
            data,
            inputs={**data.inputs, "corrections": record},
            notes=(*data.notes, note),
        )

    def applied_to(self, predictions: PredictionTable) -> PredictionTable:
        """Return predictions with the corrected labels, which have a probability of 1."""
        labels = predictions.labels.astype(object)
        nearest = predictions.nearest.astype(object)
        proba = predictions.proba.copy()
        corrected = np.zeros(len(labels), dtype=bool)
        labels[self.rows] = self.labels
        corrected[self.rows] = True
        nearest[self.rows[self.names_class]] = self.labels[self.names_class]
        proba[self.rows] = 0.0
        proba[self.rows, predictions.columns_of(self.labels)] = 1.0
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


def read_corrections(path: Path, data: FitData, unknown_label: str) -> Corrections:
    """Read a CSV file with the columns ``id`` (or ``path``) and ``label``, perhaps ``audit``.

    Raises an `InputError` that names the row if it does not fit the target. Where `label` and
    `audit` differ, the label counts.
    """
    place = {name: row for row, name in enumerate(data.target_names.tolist())}
    source = {*np.unique(data.labels).tolist()}
    in_use = {unknown_label, *source}
    told: dict[int, tuple[str, str]] = {}
    for number, name, label, audit in _lines(path):
        try:
            if (row := place.get(name)) is None:
                problem = f"{shown(name)} is no sample of the target"
                raise InputError(f"{problem}; give the target that was reviewed")
            if row in told:
                raise InputError(f"{shown(name)} is there twice; keep one of them")
            if audit not in ("", _KNOWN, _UNKNOWN):
                raise InputError(f"audit {shown(audit)}; write {_KNOWN} or {_UNKNOWN}, or nothing")
            if label or not audit:
                label = class_name(label, in_use)
                in_use.add(label)
        except InputError as error:
            raise InputError(f"{path}, row {number}: {error}") from None
        told[row] = label, audit
    new = in_use - source - {unknown_label}
    if not new:
        # Without new classes, it cannot be anything else.
        told |= {row: (unknown_label, _UNKNOWN) for row, said in told.items() if said == _OTHER}
    named = sorted(row for row, (label, _) in told.items() if label)
    audited = sorted(row for row, (_, audit) in told.items() if audit)
    found = None
    if audited:
        unknown = np.array([told[row][0] == unknown_label for row in audited])
        unsettled = np.array([told[row] == _OTHER for row in audited])
        scores = _reviewed_scores(path.parent, data)
        found = Audit(np.array(audited, dtype=np.intp), unknown, unsettled, scores)
    labels = np.array([told[row][0] for row in named], dtype=np.str_)
    rows = np.array(named, dtype=np.intp)
    return Corrections(path, rows, labels, unknown_label, tuple(sorted(new)), found)


def _reviewed_scores(folder: Path, data: FitData) -> Vector | None:
    """Return the scores of the targets in the run of this folder; None if it is not theirs."""
    try:
        table = RunFolder.open(folder).predictions()
    except InputError:
        return None  # The audit alone says how many are unknown, if less exactly.
    return table.known_scores if np.array_equal(table.ids, data.target_names) else None


def marked_targets(run: RunFolder, rows: IntArray) -> tuple[list[str], IntArray]:
    """Return the labels that a person gave to some of these targets of a run, and their places."""
    path = run.path / CORRECTIONS
    if not path.exists():
        return [], rows[:0]
    names = run.predictions().ids[rows].tolist()
    place = {name: number for number, name in enumerate(names)}
    in_use = {run.unknown_label, *run.settings["classes"]}
    marked: dict[int, str] = {}
    for number, name, label, _ in _lines(path):
        try:
            own = class_name(label, in_use) if label else run.unknown_label
        except InputError as error:
            raise InputError(f"{path}, row {number}: {error}") from None
        in_use.add(own)
        if name in place:
            marked[place[name]] = own
    return list(marked.values()), np.array(list(marked), dtype=np.intp)


def check_corrections(path: Path) -> None:
    """Raise an `InputError` if a file of corrections cannot be read, before any data is."""
    if not any(True for _ in _lines(path)):
        raise InputError(f"{path}: no correction in it; leave out --corrections")


def labels_in(path: Path) -> dict[str, str]:
    """Return the labels of a file of corrections by the names of the samples."""
    found: dict[str, str] = {}
    for number, name, label, _ in _lines(path):
        if label and found.setdefault(name, label) != label:
            twice = f"{shown(name)} is there twice, as {shown(found[name])} and {shown(label)}"
            raise InputError(f"{path}, row {number}: {twice}; keep one of them")
    return found


def _lines(path: Path) -> Iterator[tuple[int, str, str, str]]:
    """Yield number (as an editor counts lines), name of the target, label and audit of each row."""
    try:
        with open_regular(path) as file, TextIOWrapper(file, "utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, restval="")
            header = list(reader.fieldnames or ())
            name = "id" if "id" in header else IMAGE_ID
            if not {name, "label"} <= {*header}:
                columns = f"a column id or {IMAGE_ID}, and one label"
                raise InputError(f"{path}: needs {columns}, as 'osda review' writes them")
            for row in reader:
                audit = row.get("audit", "").strip().lower()
                label = row["label"] if row["label"].strip() else ""
                yield reader.line_num, row[name], label, audit
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; 'osda review' writes one") from None
    except (OSError, UnicodeDecodeError, csv.Error, MemoryError) as error:
        raise InputError(f"{path}: not a CSV file that can be read ({one_line(error)})") from error


def class_name(name: str, in_use: Collection[str]) -> str:
    """Return a label as it is to be stored, or raise an `InputError` that says what is wrong.

    A name in use is taken as it is. A new one is trimmed and composed (NFC), so that the same
    word typed on two machines is the same class; one that looks like another is refused.
    """
    if name in in_use:
        return name
    name = unicodedata.normalize("NFC", name).strip()
    if name in in_use:
        return name
    if problem := label_problem(name):
        raise InputError(f"not the name of a class ({problem}); type another")
    for other in in_use:
        if folded(other) == folded(name):
            raise InputError(f"{name!r} is too like {other!r}; take that or choose another")
    return name


def refit_words(run: RunFolder, out: Path, corrections: Path) -> list[str] | None:
    """Return the command of a run with corrections and another folder; None of other runs."""
    command = run.settings["command"] or []
    if command[:2] not in (["osda", "fit"], ["osda", "adapt"]):
        return None
    kept: list[str] = []
    words = iter(command)
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif word not in _ALONE and not word.startswith(tuple(f"{n}=" for n in _WITH_VALUE)):
            kept.append(word)
    return [*kept, "--out", str(out), "--corrections", str(near(corrections))]


def next_folder(run: Path) -> Path:
    """Return a free name for the next run beside this one: RUN-2, RUN-3, ..."""
    stem, _, number = run.name.rpartition("-")
    first = 2
    if stem and number.isdecimal() and int(number) > 1:
        first = int(number) + 1
    else:
        stem = run.name
    while run.with_name(f"{stem}-{first}").exists():
        first += 1
    return run.with_name(f"{stem}-{first}")


def refit_command(run: RunFolder, corrections: Path) -> str:
    """Return the command that learns from corrections, in a new folder; paths are as they were."""
    out = Path(near(next_folder(run.path)))
    words = refit_words(run, out, corrections)
    if words is None:
        made = ["osda", "fit", "SOURCE", "TARGET", "--out", str(out)]
        words = [*made, "--corrections", str(near(corrections))]
    return shlex.join(words)


def as_new_class(name: str, in_use: Collection[str], unknown_label: str) -> str:
    """Return `class_name`, unless a new name only decorates the word for unknown samples."""
    name = class_name(name, in_use)
    bare = "".join(filter(str.isalnum, folded(name)))
    words = {"".join(filter(str.isalnum, folded(word))) for word in (unknown_label, _UNKNOWN)}
    if name not in in_use and bare in words:
        raise InputError(f"{name!r} says unknown; call the sample {unknown_label!r} instead")
    return name
