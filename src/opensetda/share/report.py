"""How many targets are unknown: given, audited by a person, or estimated once, without labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
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
# Names of the estimates.
ESTIMATE = "estimate"
HIDDEN = "hidden classes alone"
AUDIT = "audit"

# Warn if:
DISAGREEMENT = 0.3  # the share of a method's own boundary is so far from the estimate
WIDE = 0.3  # the interval is wider, as most estimates are, and audits of up to 20 targets
HARDLY_KNOWN = 0.95  # this share of the targets scores below nine tenths of the source rows
NOT_SEPARATED = 0.05  # the share that is rejected differs by more from the one to use
# Deviation, as a share of all targets, of the rank of a target by one method: of two methods with
# the same share, some targets are unknown to one only.
RANKING_SPREAD = 0.2
DEVIATIONS = 1.645  # from the middle of a normal distribution to the ends of a 90 % interval
# The end of a warning.
_HOW = "give the share if you know it (--openness)"


class ShareSource(StrEnum):
    """Where the share of unknowns comes from."""

    GIVEN = "given"
    AUDITED = "audited"
    ESTIMATED = "estimated"
    OWN_BOUNDARY = "own boundary"
    """What the method's own boundary rejects."""


@dataclass(frozen=True)
class OpennessReport:
    """The share of unknowns that was used, and what the data say about it."""

    share: float
    low: float
    high: float
    source: ShareSource
    estimates: dict[str, ShareEstimate] = field(default_factory=dict)
    """The estimate, and what hidden classes alone would say; none of a given share."""
    evidence: Evidence | None = None
    doubts: tuple[str, ...] = ()
    """Warnings about the rows themselves."""
    warnings: tuple[str, ...] = ()
    audit: str = ""
    """What an audit found, in words, if the share is that of an audit."""

    @property
    def is_vouched(self) -> bool:
        """Whether a person vouches for the share: it was given, or audited."""
        return self.source in (ShareSource.GIVEN, ShareSource.AUDITED)

    @property
    def found_unknowns(self) -> bool:
        """Whether the data show unknowns; of a given share, whether it is above zero."""
        found = self.estimates.get(ESTIMATE)
        return self.share > 0 if found is None else found.share >= NO_UNKNOWNS

    @property
    def spread(self) -> float:
        """Deviation of the share by which targets are unknown, see `unknown_votes`."""
        half = (self.high - self.low) / 2
        return max(RANKING_SPREAD, half / DEVIATIONS)

    def share_of(self, known: FloatArray) -> float:
        """Return the share by which the targets with these known scores are unknown.

        Fewer than `FEWEST_TARGETS` different scores say little about a share: what a method's own
        boundary rejects of them is one observation of each, and the estimate one more.
        """
        different = len(np.unique(known))
        if self.is_vouched or different >= FEWEST_TARGETS:
            return self.share
        estimate = max(self.estimates[ESTIMATE].share, NO_UNKNOWNS)
        if self.source is ShareSource.ESTIMATED:
            return estimate
        return (different * self.share + estimate) / (different + 1)

    @property
    def origin(self) -> str:
        """Where the share comes from, in words."""
        if self.evidence is None:
            return "as given"
        if self.source is ShareSource.AUDITED:
            return f"audited: {self.audit}"
        if not self.found_unknowns:
            return "no unknowns were found, so nothing is rejected"
        if self.source is ShareSource.ESTIMATED:
            return "estimated from the data alone"
        whence = "what the method's own boundary rejects"
        return f"{whence}; the data look like {self.estimates[ESTIMATE]}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        values = asdict(self)
        values["source"] = self.source.value
        values["evidence"] = None if self.evidence is None else self.evidence._asdict()
        values["warnings"] = list(self.warnings)
        values["doubts"] = list(self.doubts)
        values["found_unknowns"] = self.found_unknowns
        values["confidence"] = CONFIDENCE
        values["origin"] = self.origin
        return values

    def by_marks(self, found: ShareEstimate, sentence: str, n_targets: int) -> OpennessReport:
        """Return the report with the share that marked targets say."""
        report = replace(
            self,
            share=found.share,
            low=found.low,
            high=found.high,
            source=ShareSource.AUDITED,
            audit=sentence,
            estimates={**self.estimates, AUDIT: found},
        )
        # What else was found to be wrong, with classes for example, is still said, and first.
        about_share = _warnings(self)
        others = [line for line in self.warnings if line not in (*about_share, *self.doubts)]
        finished = report.finished(found.share, False, n_targets)
        new = [line for line in finished.warnings if line not in others]
        return replace(finished, warnings=(*others, *new))

    def finished(
        self, rejected: float, own_boundary: bool, n_targets: int, wanted: float | None = None
    ) -> OpennessReport:
        """Return the report with warnings, once `rejected` of all, or by `own_boundary`, are.

        A method may have `wanted` to reject another share than that of the unknowns.
        """
        report = self
        if own_boundary:
            report = replace(self, share=rejected, source=ShareSource.OWN_BOUNDARY)
        # First what concerns every label.
        warnings = [*_warnings(report), *self.doubts]
        meant = report.share if wanted is None or own_boundary else wanted
        if n_targets < FEWEST_TARGETS and report.source is not ShareSource.ESTIMATED:
            warnings.append(f"fewer than {FEWEST_TARGETS} targets: their labels are uncertain")
        elif abs(rejected - meant) > max(NOT_SEPARATED, 1 / n_targets):
            warnings.append(
                f"the share of unknowns is {report.share:.0%}, but {rejected:.0%} of the targets "
                "are rejected: many score the same; check that they are not copies of each other"
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

    A given `openness` overrules an audit among the `checked` targets, and this the estimate; of a
    given one nothing is estimated. `aligned` are aligned rows of both domains, or samples of them,
    and the classes of those of the source: (n_s, d), (n_s,), (n_t, d). `doubts` are warnings about
    the rows themselves.
    """
    given = check_openness(openness)
    if given is not None:
        return OpennessReport(given, given, given, ShareSource.GIVEN, doubts=tuple(doubts))
    evidence = gather_evidence(*aligned)
    found = estimate_share(evidence, n_targets)
    if checked is not None:
        found = checked.bound(found, n_targets)
    estimates = {ESTIMATE: found, HIDDEN: ShareEstimate(*[evidence.hidden] * 3)}
    used = found
    source = ShareSource.ESTIMATED
    audit = ""
    if checked is not None and checked.audit is not None:
        used = checked.bound(checked.audit.share(found), n_targets)
        source = ShareSource.AUDITED
        audit = checked.audit.sentence
        estimates[AUDIT] = used
    is_none = source is ShareSource.ESTIMATED and used.share < NO_UNKNOWNS
    return OpennessReport(
        share=0.0 if is_none else used.share,
        low=used.low,
        high=used.high,
        source=source,
        estimates=estimates,
        evidence=evidence,
        doubts=tuple(doubts),
        audit=audit,
    )


def _warnings(report: OpennessReport) -> list[str]:
    """Return what the user should check about the share."""
    if report.evidence is None:
        return []
    found = report.estimates[ESTIMATE]
    is_audited = report.source is ShareSource.AUDITED
    if report.source is ShareSource.OWN_BOUNDARY:
        share = report.share
        if abs(share - found.share) <= DISAGREEMENT or found.low <= share <= found.high:
            return []
        what = f"the method's own boundary rejects {share:.0%} of the targets"
        return [f"{what}, but the data look like {found}; {_HOW}"]
    warnings = []
    if not is_audited:
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
    if report.high - report.low == 1 and not is_audited:
        warnings.append(f"fewer than {FEWEST_TARGETS} targets say little about a share; {_HOW}")
    elif report.high - report.low > WIDE:
        whose = "audited " if is_audited else ""
        marks = "more" if is_audited else str(AUDIT_SIZE)
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
