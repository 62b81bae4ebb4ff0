"""How many targets are unknown, and which step to keep, without target labels.

`OpennessTracker` estimates the share of unknowns at every step of a method, and reports at the
end. `StableStepRule` chooses the step to keep by these estimates.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.errors import InputError
from opensetda.openness.mixtures import ScoreHistogram, fit_mixture
from opensetda.openness.share_estimators import (
    CONFIDENCE,
    ESTIMATORS,
    LARGEST_SHARE,
    Evidence,
    ShareEstimate,
    Vector,
)
from opensetda.rows import FloatArray, IntArray

AUTO = "auto"
NO_EVIDENCE = 0.03
"""A closed-set target gives shares up to this, too: below, nothing is rejected."""
DISAGREEMENT = 0.3
"""Warn if the estimators are further apart than this."""
WIDE = 0.4
"""Warn if the interval is wider than this."""

FEWEST_TARGETS = 20
"""With fewer targets the interval is [0, 1], and a warning says so."""

# Rows of each domain that the estimators of features use.
FEATURE_ROWS = 2000
# Weight of the new estimate in the running average. An unknown that is taken for known pulls a
# class mean towards itself and scores higher for it: mistakes lower the estimate, so a falling
# one gets less weight than a rising one.
_RISING, _FALLING = 0.5, 0.2


@dataclass(frozen=True)
class OpennessReport:
    """The share of unknowns that was used, and its estimates."""

    share: float
    low: float
    high: float
    told: bool
    """Whether the share was given (oracle); the estimate is then only reported."""
    found_unknowns: bool
    """Whether there is evidence of unknowns at all."""
    estimates: dict[str, ShareEstimate]
    """Each estimator's own, at the end."""
    by_step: tuple[float, ...]
    """The share that was used at each step."""
    warnings: tuple[str, ...]
    own_boundary: bool = False
    """Whether the share is what the method's own boundary rejects."""

    @property
    def origin(self) -> str:
        """Where the share comes from, in words."""
        each = ", ".join(f"{name} {estimate}" for name, estimate in self.estimates.items())
        if self.told:
            main = next(iter(self.estimates.values()))
            looks = f"look like {main}" if self.found_unknowns else "show no evidence of unknowns"
            return f"as given; the data {looks}: {each}"
        if self.own_boundary:
            return f"what the method's own boundary rejects; estimates: {each}"
        if not self.found_unknowns:
            return f"no evidence of unknowns, so nothing is rejected: {each}"
        return f"estimated: {each}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        first = {"share": self.share, "low": self.low, "high": self.high, "confidence": CONFIDENCE}
        lists = {"by_step": list(self.by_step), "warnings": list(self.warnings)}
        return first | asdict(self) | lists | {"origin": self.origin}


class OpennessTracker:
    """The share of unknowns from step to step: given, or estimated again as the domains align."""

    def __init__(self, openness: float | str) -> None:
        self.told = check_openness(openness)
        # At each step so far: the share to use, and the estimate from its scores alone.
        self.shares: list[float] = []
        self.estimates: list[float] = []
        self.kept = 0
        self._features: dict[str, Any] = {}
        self._settled: OpennessReport | None = None
        self._followed: float | None = None

    def settle(self, report: OpennessReport) -> None:
        """Use a share that was estimated on other scores; those of the steps are not used."""
        self._settled = report

    def follow(self, share: float) -> None:
        """Use the share that a method's own boundary rejects; the estimates are only reported."""
        self._followed = share

    def use_features(self, source: FloatArray, labels: IntArray, target: FloatArray) -> None:
        """Keep the first aligned rows, a random sample in canonical order, for some estimators."""
        rows = {"source": source, "source_labels": labels, "target": target}
        # Copies: a view would keep all rows in memory.
        self._features = {name: values[:FEATURE_ROWS].copy() for name, values in rows.items()}

    def update(self, known: Vector, held_out: Vector, nearest: IntArray) -> float:
        """Return the share for this step: the given one, or a running average of estimates."""
        estimate = 0.0
        if len(known):
            histogram = ScoreHistogram.of(known, held_out, nearest)
            estimate = float(fit_mixture(histogram, anchored=histogram.has_held_out).share[0])
        self.estimates.append(min(estimate, LARGEST_SHARE))
        if self.told is not None:
            share = self.told
        elif self._settled is not None:
            share = self._settled.share
        elif self.shares:
            new, last = self.estimates[-1], self.shares[-1]
            share = last + (_RISING if new > last else _FALLING) * (new - last)
        else:
            share = self.estimates[-1]
        self.shares.append(share)
        return share

    def keep(self, step: int) -> None:
        """Report on this step (from 1) instead of the last."""
        self.kept = step

    def report(self, known: Vector, held_out: Vector, nearest: IntArray) -> OpennessReport:
        """Run every estimator on the scores of the kept step."""
        if self._settled is not None:
            return replace(self._settled, by_step=tuple(self.shares))
        follows = self._followed is not None
        kept = self.shares[self.kept - 1] if self._followed is None else self._followed
        evidence = Evidence(known, held_out, nearest, kept, **self._features)
        rng = np.random.default_rng(0)
        answers = {name: estimator(evidence, rng) for name, estimator in ESTIMATORS.items()}
        estimates = {name: answer for name, answer in answers.items() if answer is not None}
        main = next(iter(estimates.values()))
        # The steps differ as well: the interval includes the share in use and those of later steps.
        recent = [*self.shares[len(self.shares) // 2 :], kept] if self.told is None else []
        low, high = min([main.low, *recent]), max([main.high, *recent])
        if len(known) < FEWEST_TARGETS:
            low, high = 0.0, 1.0
        found = (kept if self.told is None else main.share) >= NO_EVIDENCE
        share = kept
        if self.told is None and not follows and not found:
            share = low = 0.0
        steps, is_given = tuple(self.shares), self.told is not None
        report = OpennessReport(share, low, high, is_given, found, estimates, steps, (), follows)
        return replace(report, warnings=tuple(_warnings(report)))


def _warnings(report: OpennessReport) -> list[str]:
    """Return what the user should check."""
    share, low, high, estimates = report.share, report.low, report.high, report.estimates
    name, main = next(iter(estimates.items()))
    others = {other: e for other, e in estimates.items() if other != name}
    warnings = []
    if report.told:
        if abs(share - main.share) > DISAGREEMENT:
            warnings.append(
                f"openness {share:.2f} was given, but the data look like {main}; "
                "check the share, or leave it to be estimated"
            )
        return warnings
    if not report.own_boundary and "held-out classes" not in estimates:
        warnings.append(
            "no known class can be hidden to see how unknowns score: the share "
            f"of unknowns ({share:.2f}) is little more than a guess; set the openness by hand"
        )
    if not report.found_unknowns and not share:
        warnings.append("no evidence of unknowns: nothing is rejected")
    apart = [e for e in others.values() if abs(e.share - share) > DISAGREEMENT]
    if others and len(apart) == len(others):
        theirs = ", ".join(f"{other} {e}" for other, e in others.items())
        warnings.append(
            f"the estimators disagree about the share of unknowns: {share:.2f} was used, "
            f"but {theirs}; look at samples near the threshold, or set the openness by hand"
        )
    if high - low > WIDE:
        warnings.append(
            f"the share of unknowns is uncertain ({low:.2f} to {high:.2f}): "
            "the shift is strong, or the target small"
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
