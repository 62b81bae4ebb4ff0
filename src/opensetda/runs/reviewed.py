"""The run that corrections are from: its scores, and which classes lost targets since."""

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
    """Return a warning for known targets that the fit takes for unknown, class by class.

    `labels` are the method's own for all targets, before corrections are applied, and `found` is
    the share that it rejected; `out` is the run's folder, for the advice.
    """
    unknown = corrections.unknown_label
    told = corrections.names_class
    rejected = labels[corrections.rows[told]] == unknown
    losses = []
    if (missed := Counter(corrections.labels[told][rejected].tolist())).total() >= _FEWEST:
        of = Counter(corrections.labels[told].tolist())
        some = [(name, f"{n:,} of {of[name]:,}") for name, n in missed.items()]
        lost = [pair for pair in some if missed[pair[0]] > _SHARE * of[pair[0]]]
        if lost:
            listed = _listed(lost, missed)
            losses.append(f"of the targets corrected to a class, it takes for unknown: {listed}")
    if reviewed is not None:
        undecided = np.ones(len(labels), dtype=bool)
        undecided[corrections.rows] = False
        before, now = reviewed.labels[undecided], labels[undecided]
        gone = Counter(before[now == unknown].tolist())
        come = Counter(now[before == reviewed.unknown_label].tolist())
        had = Counter(before.tolist())
        fewer = {
            name: gone[name] - come[name]
            for name in gone
            if name != reviewed.unknown_label
            and gone[name] - come[name] >= max(_FEWEST, _SHARE * had[name])
        }
        if fewer:
            pairs = [(name, f"{n:,} of {had[name]:,}") for name, n in fewer.items()]
            listed = _listed(pairs, Counter(fewer))
            losses.append(f"unknown now, but not in {reviewed.path.name}: {listed}")
    if not losses:
        return []
    share = f"the share of unknowns is {found.share:.2f}"
    if reviewed is not None and abs(reviewed.share - found.share) >= 0.005:
        share += f" ({reviewed.share:.2f} in {reviewed.path.name})"
    if found.audit:
        advice = "the audit speaks for it; mark more targets to be surer"
    elif found.told:
        advice = "it was given; check it"
    else:
        advice = (
            f"it was estimated: audit it with 'osda review {in_shell(out)}', or give it "
            "(--openness)"
        )
    return [f"known classes lost targets: {'; '.join(losses)}; {share}, and {advice}"]


def _listed(pairs: list[tuple[str, str]], weights: Counter[str]) -> str:
    ordered = sorted(pairs, key=lambda pair: (-weights[pair[0]], pair[0]))
    words = [f"{count} {name!r:.60}" for name, count in ordered[:_MOST_NAMED]]
    return ", ".join(words) + (", ..." if len(ordered) > _MOST_NAMED else "")
