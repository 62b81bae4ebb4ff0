"""The run that corrections are from: its scores, and classes that lost targets since."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.errors import InputError
from opensetda.openness.report import OpennessReport
from opensetda.runs.corrections import Corrections
from opensetda.runs.fit_data import FitData
from opensetda.runs.folder import SETTINGS, RunFolder
from opensetda.runs.predictions import row_numbers

Labels = npt.NDArray[Any]

# A class has lost targets if it has this many fewer, and this share of them.
_FEWEST, _SHARE = 3, 0.1
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


def warning_after(
    corrections: Corrections, reviewed: ReviewedRun, labels: Labels, found: OpennessReport
) -> str | None:
    """Name known classes of the reviewed run whose targets nobody decided on and that are unknown.

    `labels` are the method's own for all targets, `found` is the share that it rejected.
    """
    others = np.setdiff1d(np.arange(len(labels)), corrections.rows)
    before, now = reviewed.labels[others], labels[others]
    lost = Counter(before[now == corrections.unknown_label].tolist())
    lost.subtract(now[before == reviewed.unknown_label].tolist())
    del lost[reviewed.unknown_label], lost[corrections.unknown_label]
    of = Counter(before.tolist())
    names = [name for name, n in lost.items() if n >= max(_FEWEST, _SHARE * of[name])]
    if not names:
        return None
    names.sort(key=lambda name: (-lost[name], name))
    words = [f"{lost[name]:,} of {of[name]:,} {name!r:.60}" for name in names[:_MOST_NAMED]]
    more = ", ..." if len(names) > _MOST_NAMED else ""
    return (
        f"unknown now, but not in {reviewed.path.name}: {', '.join(words)}{more}; the share of "
        f"unknowns is {found.share:.2f} ({reviewed.share:.2f} there): audit it with 'osda review', "
        "or give it (--openness)"
    )
