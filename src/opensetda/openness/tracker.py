"""How many targets are unknown, and which step to keep, without target labels.

`OpennessTracker` holds the share of unknowns, given, audited by a person or estimated before the
first step, and reports on it. `StableStepRule` chooses the step to keep.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.errors import InputError
from opensetda.openness.audit import CheckedTargets
from opensetda.openness.evidence import Evidence, gather_evidence
from opensetda.openness.mixtures import ScoreHistogram, fit_mixture
from opensetda.openness.share_model import (
    CONFIDENCE,
    FEWEST_TARGETS,
    LARGEST_SHARE,
    ShareEstimate,
    estimate_share,
)
from opensetda.rows import FloatArray, IntArray

Vector = npt.NDArray[np.float64]

AUTO = "auto"
NO_UNKNOWNS = 0.03
"""A target without unknowns gives shares up to this, too: below, nothing is rejected."""
DISAGREEMENT = 0.3
"""Warn if a given share is further than this from the estimate, and outside its interval."""
WIDE = 0.55
"""Warn if the interval is wider than this, as it is with up to seven known classes."""
WIDE_AUDIT = 0.4
"""Warn if that of an audit is, as it is with 12 targets or fewer."""
HARDLY_KNOWN = 0.95
"""Warn if this share of the targets scores below nine tenths of the source rows."""
NOT_SEPARATED = 0.05
"""Warn if the share that is rejected differs by more than this from the one to use."""


@dataclass(frozen=True)
class OpennessReport:
    """The share of unknowns that was used, and what the data say about it."""

    share: float
    low: float
    high: float
    told: bool
    """Whether the share was given (oracle); the estimate is then only reported."""
    found_unknowns: bool
    """Whether the data show unknowns at all."""
    estimates: dict[str, ShareEstimate]
    """The estimate, and what hidden classes alone would say."""
    evidence: Evidence
    """What the estimate is made of."""
    by_step: tuple[float, ...]
    """The share that the scores of each step speak for, by hidden classes alone."""
    warnings: tuple[str, ...]
    own_boundary: bool = False
    """Whether the share is what the method's own boundary rejects."""
    audit: str = ""
    """What an audit found, in words, if the share is that of an audit."""

    @property
    def origin(self) -> str:
        """Where the share comes from, in words."""
        found = self.estimates[ESTIMATE]
        why = (
            f"hidden classes alone say {self.evidence.hidden:.2f}, and "
            f"{self.evidence.below:.0%} of the targets score below nine tenths of the source"
        )
        looks = f"look like {found}" if self.found_unknowns else "show no unknowns"
        if self.audit:
            return f"audited: {self.audit}; the data {looks} ({why})"
        if self.told:
            return f"as given; the data {looks} ({why})"
        if self.own_boundary:
            return f"what the method's own boundary rejects; the data {looks} ({why})"
        if not self.found_unknowns:
            return f"no unknowns were found, so nothing is rejected ({why})"
        return f"estimated: {why}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        first = {"share": self.share, "low": self.low, "high": self.high, "confidence": CONFIDENCE}
        lists = {"by_step": list(self.by_step), "warnings": list(self.warnings)}
        evidence = {"evidence": self.evidence._asdict()}
        return first | asdict(self) | lists | evidence | {"origin": self.origin}


# How to give the share, at the end of a warning.
_HOW = "--openness, or openness= in Python"

ESTIMATE, HIDDEN, AUDIT = "estimate", "hidden classes alone", "audit"
"""The names of the estimates in a report."""


class OpennessTracker:
    """The share of unknowns: given, audited, or estimated from the rows before the first step.

    `checked` are targets that a person has checked; a share that is given overrules an audit.
    """

    def __init__(self, openness: float | str, checked: CheckedTargets | None = None) -> None:
        self.told = check_openness(openness)
        """The share that a person vouches for, if any."""
        self._checked = checked if self.told is None else None
        self._audited: ShareEstimate | None = None
        self._audit = ""
        # What the scores of each step so far speak for; the step to keep is chosen by it.
        self.estimates: list[float] = []
        self.kept = 0
        # Warnings about the rows themselves.
        self.doubts: list[str] = []
        self._followed: float | None = None
        self._rejected: float | None = None

    def estimate(self, source: FloatArray, y: IntArray, target: FloatArray, n_targets: int) -> None:
        """Estimate the share from aligned unit rows or samples: (n_s, d), (n_s,), (n_t, d)."""
        self.n_targets = n_targets
        self.evidence = gather_evidence(source, y, target)
        self.found = estimate_share(self.evidence, n_targets)
        if self._checked is not None:
            audit = self._checked.audit
            self.found = self._checked.bound(self.found, n_targets)
            if audit is not None:
                self._audited = self._checked.bound(audit.share(self.found), n_targets)
                self._audit, self.told = audit.sentence, self._audited.share

    @property
    def share(self) -> float:
        """The share to reject: the given or audited one, or the estimate."""
        return self._estimated if self.told is None else self.told

    @property
    def step_share(self) -> float:
        """The share by which steps label targets: the same, or the estimate if an audit permits it.

        Steps that begin with another share, however near, may take whole classes for others: an
        audit then moves the threshold alone.
        """
        audited = self._audited
        is_possible = audited is not None and audited.low <= self._estimated <= audited.high
        return self._estimated if is_possible else self.share

    @property
    def _estimated(self) -> float:
        return self.found.share if self.found.share >= NO_UNKNOWNS else 0.0

    def follow(self, share: float) -> None:
        """Report the share that a method's own boundary rejects."""
        self._followed = share

    def note_rejected(self, share: float) -> None:
        """Note how many targets are rejected: equal ones cannot be separated."""
        self._rejected = share

    def update(self, known: Vector, held_out: Vector) -> float:
        """Note what the scores of a step speak for, and return the share for its labels."""
        estimate = 0.0
        if len(known):
            estimate = fit_mixture(ScoreHistogram.of(known, held_out)).share
        self.estimates.append(min(estimate, LARGEST_SHARE))
        return self.step_share if len(known) else 0.0

    def keep(self, step: int) -> None:
        """Report on this step (from 1) instead of the last."""
        self.kept = step

    def report(self) -> OpennessReport:
        """Return the share, the evidence, and what the user should check."""
        hidden, found, audited = self.evidence.hidden, self.found, self._audited
        estimates = {ESTIMATE: found, HIDDEN: ShareEstimate(hidden, hidden, hidden)}
        used = found
        if audited is not None:
            estimates[AUDIT] = used = audited
        report = OpennessReport(
            share=self.share if self._followed is None else self._followed,
            low=used.low,
            high=used.high,
            told=self.told is not None and audited is None,
            found_unknowns=found.share >= NO_UNKNOWNS,
            estimates=estimates,
            evidence=self.evidence,
            by_step=tuple(self.estimates),
            warnings=(),
            own_boundary=self._followed is not None,
            audit=self._audit,
        )
        return replace(report, warnings=(*self.doubts, *_warnings(report), *self._about_targets()))

    def _about_targets(self) -> list[str]:
        estimated = self.told is None and self._followed is None
        if self.n_targets < FEWEST_TARGETS and not estimated:
            few = f"fewer than {FEWEST_TARGETS} targets say little about their domain"
            return [f"{few}: their labels are uncertain"]
        rejected = self.share if self._rejected is None else self._rejected
        if abs(rejected - self.share) <= max(NOT_SEPARATED, 1 / self.n_targets):
            return []
        return [
            f"the share of unknowns is {self.share:.2f}, but {rejected:.0%} of the targets are "
            "rejected: many of them score the same; check that they are not copies of each other"
        ]


def _warnings(report: OpennessReport) -> list[str]:
    """Return what the user should check."""
    share, found = report.share, report.estimates[ESTIMATE]
    if report.audit:
        if report.high - report.low <= WIDE_AUDIT:
            return []
        return [
            f"the audited share of unknowns is uncertain ({report.low:.2f} to {report.high:.2f}): "
            "mark more targets in the audit of 'osda review'"
        ]
    if report.told or report.own_boundary:
        if abs(share - found.share) <= DISAGREEMENT or found.low <= share <= found.high:
            return []
        if report.told:
            what, advice = f"openness {share:.2f} was given", "check it, or have it estimated"
        else:
            what = f"the method's own boundary rejects {share:.0%} of the targets"
            advice = f"give the share to overrule it ({_HOW})"
        return [f"{what}, but the data look like {found}; {advice}"]
    warnings = []
    if not report.found_unknowns:
        warnings.append(
            f"no unknowns were found, and nothing is rejected; up to {found.high:.0%} of the "
            f"targets may be unknown all the same: give the share if you know better ({_HOW})"
        )
    if report.evidence.below >= HARDLY_KNOWN or found.share >= LARGEST_SHARE:
        warnings.append(
            "hardly any target looks like a known class: all may be unknown, or the domains differ "
            "too much for an estimate; check that the rows of both mean the same, and give the "
            f"share if you know better ({_HOW})"
        )
    # Twice the longer side: near 0 and 1 an interval is cut off, and no more certain for it.
    if 2 * max(found.share - found.low, found.high - found.share) > WIDE:
        known = report.evidence.n_classes
        reason = (
            f"{known} known classes show too little of how unknowns score"
            if found.high - found.low < 1
            else f"a share of fewer than {FEWEST_TARGETS} targets says little"
        )
        warnings.append(
            f"the share of unknowns is uncertain ({found.low:.2f} to {found.high:.2f}): {reason}; "
            f"look at the groups of unknowns in the report, and give the share if you know better "
            f"({_HOW})"
        )
    return warnings


def check_openness(openness: Any) -> float | None:
    """Return `openness` as a float, None for "auto", or raise an `InputError`."""
    if isinstance(openness, str) and openness == AUTO:
        return None
    number = isinstance(openness, int | float | np.number) and not isinstance(openness, bool)
    if not number or not 0 <= openness < 1:
        raise InputError(
            f"openness={openness!r}: give the share of unknowns, a number in [0, 1), "
            f"or {AUTO!r} to have it estimated"
        )
    return float(openness)


@dataclass(frozen=True)
class KeptStep:
    """The step (from 1) whose network and labels are kept, of how many, and why."""

    step: int
    steps: int
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        return asdict(self)


class StableStepRule:
    """Keep the last step before the method begins to follow its own mistakes.

    Where classes overlap, wrongly labelled targets pull the class means towards them, score
    higher for it, and take their neighbours along. Then the share of unknowns estimated from a
    step's scores departs from that of the other steps. The latest step is kept whose estimate is
    within `band` of the median of all steps; a band of 1 always keeps the last. With `early`,
    training stops after two steps in a row outside of the band.
    """

    def __init__(self, band: float, early: bool = False) -> None:
        self.band, self.early = band, early
        self.estimates: list[float] = []

    def add(self, estimate: float) -> None:
        """Add the estimated share of unknowns of the next step."""
        self.estimates.append(estimate)

    @property
    def should_stop(self) -> bool:
        """Whether to stop now, with `early`."""
        return self.early and len(self.estimates) > 2 and not self._stable()[-2:].any()

    def kept(self) -> KeptStep:
        """Return the step to keep, of those so far."""
        steps = len(self.estimates)
        step = int(np.flatnonzero(self._stable())[-1]) + 1
        if self.band >= 1 or steps == 1:
            return KeptStep(step, steps, "the last step")
        if step == steps:
            return KeptStep(step, steps, "the last step: its estimate agrees with the others'")
        median, last = np.median(self.estimates), self.estimates[-1]
        reason = (
            f"the last stable step: later ones speak for other shares of unknowns "
            f"({last:.2f} at the end) than the steps together ({median:.2f})"
        )
        return KeptStep(step, steps, reason)

    def _stable(self) -> npt.NDArray[np.bool_]:
        estimates = np.asarray(self.estimates)
        # With an even number the median is between two: the nearest are always stable.
        apart = np.abs(estimates - np.median(estimates))
        return np.asarray(apart <= max(self.band, float(apart.min())) + 1e-9)
