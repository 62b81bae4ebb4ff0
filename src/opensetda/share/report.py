"""How many targets are unknown: given, audited by a person, or estimated once, without labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from opensetda.errors import InputError
from opensetda.rows import FloatArray, IntArray
from opensetda.share.audit import AUDIT_ERROR, AUDIT_SIZE, CheckedTargets
from opensetda.share.evidence import (
    CONFIDENCE,
    FEWEST_TARGETS,
    LARGEST_SHARE,
    Evidence,
    ShareEstimate,
    estimate_share,
    gather_evidence,
)

AUTO = "auto"
NO_UNKNOWNS = 0.05  # a target without unknowns gives shares up to this: below, nothing is rejected
ESTIMATE, HIDDEN, AUDIT = "estimate", "hidden classes alone", "audit"  # names of the estimates

# Warn if:
DISAGREEMENT = 0.3  # a given share is this far from the estimate, and outside its interval
WIDE = 0.3  # the interval is wider, as most estimates are, and audits of up to 20 targets
HARDLY_KNOWN = 0.95  # this share of the targets scores below nine tenths of the source rows
NOT_SEPARATED = 0.05  # the share that is rejected differs by more from the one to use
# Deviation, as a share of all targets, of the rank of a target by one method: of two methods with
# the same share, some targets are unknown to one only.
RANKING_SPREAD = 0.13
DEVIATIONS = 1.645  # from the middle of a normal distribution to the ends of a 90 % interval
# The end of a warning.
_HOW = "give the share if you know better (--openness, or openness= in Python)"


@dataclass(frozen=True)
class OpennessReport:
    """The share of unknowns that was used, and what the data say about it."""

    share: float
    low: float
    high: float
    told: bool
    """Whether the share was given (oracle); the estimate is then only reported."""
    found_unknowns: bool
    estimates: dict[str, ShareEstimate]
    """The estimate, and what hidden classes alone would say."""
    evidence: Evidence
    warnings: tuple[str, ...]
    own_boundary: bool = False
    """Whether the share is what the method's own boundary rejects."""
    audit: str = ""
    """What an audit found, in words, if the share is that of an audit."""

    @property
    def vouched(self) -> bool:
        """Whether a person vouches for the share: it was given, or audited."""
        return self.told or bool(self.audit)

    @property
    def spread(self) -> float:
        """Deviation of the share by which targets are unknown, see `votes_of`."""
        half = 0.0 if self.told else (self.high - self.low) / 2
        return float(np.hypot(RANKING_SPREAD, half / DEVIATIONS))

    def share_of(self, known: FloatArray) -> float:
        """Return the share by which the targets with these known scores are unknown.

        Fewer than `FEWEST_TARGETS` different scores say little about a share: what a method's own
        boundary rejects of them is one observation of each, and the estimate one more.
        """
        different = len(np.unique(known))
        if self.vouched or different >= FEWEST_TARGETS:
            return self.share
        estimate = max(self.estimates[ESTIMATE].share, NO_UNKNOWNS)
        if not self.own_boundary:
            return estimate
        return (different * self.share + estimate) / (different + 1)

    @property
    def origin(self) -> str:
        """Where the share comes from, in words."""
        why = (
            f"hidden classes alone say {self.evidence.hidden:.2f}, and "
            f"{self.evidence.below:.0%} of the targets score below nine tenths of the source"
        )
        if not self.vouched and not self.own_boundary:
            none = f"no unknowns were found, so nothing is rejected ({why})"
            return f"estimated: {why}" if self.found_unknowns else none
        whence = "as given" if self.told else "what the method's own boundary rejects"
        whence = f"audited: {self.audit}" if self.audit else whence
        looks = (
            f"look like {self.estimates[ESTIMATE]}" if self.found_unknowns else "show no unknowns"
        )
        return f"{whence}; the data {looks} ({why})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        plain = {"warnings": list(self.warnings), "evidence": self.evidence._asdict()}
        return {**asdict(self), **plain, "confidence": CONFIDENCE, "origin": self.origin}

    def finished(self, rejected: float, own_boundary: bool, n_targets: int) -> OpennessReport:
        """Return the report with warnings, once `rejected` of all, or by `own_boundary`, are."""
        share = rejected if own_boundary else self.share
        report = replace(self, share=share, own_boundary=own_boundary)
        # First what concerns every label.
        warnings = [*_warnings(report), *self.warnings]
        if n_targets < FEWEST_TARGETS and (report.vouched or own_boundary):
            warnings.append(f"fewer than {FEWEST_TARGETS} targets: their labels are uncertain")
        elif abs(rejected - share) > max(NOT_SEPARATED, 1 / n_targets):
            warnings.append(
                f"the share of unknowns is {share:.2f}, but {rejected:.0%} of the targets are "
                "rejected: many score the same; check that they are not copies of each other"
            )
        return replace(report, warnings=tuple(warnings))


def study_openness(
    openness: float | str,
    checked: CheckedTargets | None,
    aligned: tuple[FloatArray, IntArray, FloatArray],
    n_targets: int,
    doubts: Sequence[str] = (),
) -> OpennessReport:
    """Find the share of unknowns before a method runs.

    A given `openness` overrules an audit among the `checked` targets, and this the estimate.
    `aligned` are aligned rows of both domains, or samples of them, and the classes of those of
    the source: (n_s, d), (n_s,), (n_t, d). `doubts` are warnings about the rows themselves.
    """
    told = check_openness(openness)
    evidence = gather_evidence(*aligned)
    used = found = estimate_share(evidence, n_targets)
    estimates = {HIDDEN: ShareEstimate(*[evidence.hidden] * 3)}
    audit = ""
    if checked is not None and told is None:
        used = found = checked.bound(found, n_targets)
        if checked.audit is not None:
            used = checked.bound(checked.audit.share(found), n_targets)
            estimates[AUDIT], audit = used, checked.audit.sentence
    share = used.share if audit or used.share >= NO_UNKNOWNS else 0.0
    return OpennessReport(
        share=share if told is None else told,
        low=used.low,
        high=used.high,
        told=told is not None,
        found_unknowns=found.share >= NO_UNKNOWNS,
        estimates={ESTIMATE: found, **estimates},
        evidence=evidence,
        warnings=tuple(doubts),
        audit=audit,
    )


def _warnings(report: OpennessReport) -> list[str]:
    """Return what the user should check about the share."""
    share, found = report.share, report.estimates[ESTIMATE]
    if not report.audit and (report.told or report.own_boundary):
        if abs(share - found.share) <= DISAGREEMENT or found.low <= share <= found.high:
            return []
        what, advice = f"openness {share:.2f} was given", "check it, or have it estimated"
        if not report.told:
            what, advice = f"the method's own boundary rejects {share:.0%} of the targets", _HOW
        return [f"{what}, but the data look like {found}; {advice}"]
    warnings = []
    if not report.audit:
        if report.evidence.below >= HARDLY_KNOWN or found.share >= LARGEST_SHARE:
            warnings.append(
                "hardly any target looks like a known class: all may be unknown, or the domains "
                "differ too much for an estimate; check that the rows of both mean the same, and "
                f"{_HOW}"
            )
        if not report.found_unknowns:
            warnings.append(
                f"no unknowns were found, and nothing is rejected; up to {found.high:.0%} of the "
                f"targets may still be unknown: {_HOW}"
            )
    if report.high - report.low == 1 and not report.audit:
        warnings.append(f"fewer than {FEWEST_TARGETS} targets say little about a share; {_HOW}")
    elif report.high - report.low > WIDE:
        whose, marks = ("audited ", "more") if report.audit else ("", str(AUDIT_SIZE))
        ends = f"{report.low:.0%} to {report.high:.0%}"
        warnings.append(
            f"the {whose}share of unknowns is uncertain ({ends}): mark {marks} targets with 'osda "
            f"review RUN', which takes two minutes and leaves an error of about {AUDIT_ERROR:.0%}, "
            f"or {_HOW}"
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
