"""The run that corrections are from: its scores, and what speaks against the new one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.errors import InputError
from opensetda.openness.tracker import OpennessReport
from opensetda.runs.corrections import Corrections
from opensetda.runs.fit_data import FitData
from opensetda.runs.folder import SETTINGS, RunFolder
from opensetda.runs.predictions import row_numbers
from opensetda.system.files import in_shell

Labels = npt.NDArray[Any]

# A class has lost targets if it has this many fewer, and this share of them.
_FEWEST, _SHARE = 3, 0.1
# Decisions that may contradict a share.
_ENOUGH = 10
_MOST_NAMED = 5


@dataclass(frozen=True)
class ReviewedRun:
    """Labels and known scores of the targets, and the share of unknowns that was used."""

    path: Path
    labels: Labels
    known_scores: npt.NDArray[np.float64]
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
        ids = row_numbers(len(data.target)) if data.ids is None else data.ids
        if not np.array_equal(table.ids, ids):
            return None
        share = estimates["openness"]["share"]
        return cls(run.path, table.labels, table.known_scores, run.unknown_label, share)


def warnings_after(
    corrections: Corrections,
    reviewed: ReviewedRun | None,
    labels: Labels,
    found: OpennessReport,
    out: Path,
) -> list[str]:
    """Return warnings of classes that lost targets, and of a share that decisions contradict.

    `labels` are the method's own for all targets, before corrections are applied, and `found` is
    the share that it rejected; `out` is the run's folder, for the advice.
    """
    share = f"the share of unknowns is {found.share:.2f}"
    if reviewed is not None and abs(reviewed.share - found.share) >= 0.005:
        share += f" ({reviewed.share:.2f} in {reviewed.path.name})"
    if found.audit:
        origin = "by the audit; mark more targets to be surer"
    elif found.told:
        origin = "as given; check it"
    else:
        how = f"audit it with 'osda review {in_shell(out)}', or give it (--openness)"
        origin = f"estimated: {how}"
    losses = _rejected(corrections, labels)
    if reviewed is not None:
        losses += _lost(corrections, reviewed, labels)
    warnings = []
    if losses:
        warnings.append(f"known classes lost targets: {'; '.join(losses)}; {share}, {origin}")
    if reviewed is not None and not found.audit:
        surprise = _surprise(corrections, reviewed)
        warnings += [f"{words}; {share}, {origin}" for words in surprise]
    return warnings


def _rejected(corrections: Corrections, labels: Labels) -> list[str]:
    """Name classes to which targets were corrected that the method still rejects."""
    told = corrections.labels[corrections.names_class]
    own = labels[corrections.rows[corrections.names_class]]
    missed = Counter(told[own == corrections.unknown_label].tolist())
    listed = _listed(missed, Counter(told.tolist()))
    return [f"of targets corrected to a class, the model itself rejects {listed}"] if listed else []


def _lost(corrections: Corrections, reviewed: ReviewedRun, labels: Labels) -> list[str]:
    """Name classes of the reviewed run whose targets nobody decided on, and that are unknown."""
    others = np.setdiff1d(np.arange(len(labels)), corrections.rows)
    before, now = reviewed.labels[others], labels[others]
    gone = Counter(before[now == corrections.unknown_label].tolist())
    gone.subtract(now[before == reviewed.unknown_label].tolist())
    del gone[reviewed.unknown_label], gone[corrections.unknown_label]
    listed = _listed(gone, Counter(before.tolist()))
    return [f"unknown now, but not in {reviewed.path.name}: {listed}"] if listed else []


def _surprise(corrections: Corrections, reviewed: ReviewedRun) -> list[str]:
    """Say if most decisions contradict the side of the threshold on which the targets were."""
    is_known = corrections.names_class & ~np.isin(corrections.labels, corrections.new)
    was_known = reviewed.labels[corrections.rows] != reviewed.unknown_label
    words = []
    for side, wrong, what, is_ in (
        (~was_known, is_known, "unknown", "of a known class"),
        (was_known, ~is_known, "known", "not"),
    ):
        n, n_wrong = int(side.sum()), int((side & wrong).sum())
        if n >= _ENOUGH and 2 * n_wrong > n:
            run, by = reviewed.path.name, "high" if what == "unknown" else "low"
            words.append(
                f"of {n:,} decided targets that {run} called {what}, {n_wrong:,} are {is_}: its "
                f"share of unknowns may be too {by}"
            )
    return words


def _listed(lost: Counter[str], of: Counter[str]) -> str:
    """Name the classes that lost enough, the largest loss first; empty if there is none."""
    names = [name for name, n in lost.items() if n >= max(_FEWEST, _SHARE * of[name])]
    names.sort(key=lambda name: (-lost[name], name))
    words = [f"{lost[name]:,} of {of[name]:,} {name!r:.60}" for name in names[:_MOST_NAMED]]
    return ", ".join(words) + (", ..." if len(names) > _MOST_NAMED else "")
