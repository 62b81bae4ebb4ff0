"""The share of unknowns that an audited sample of the targets speaks for."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from opensetda import MovingMeans
from opensetda.context import FitContext
from opensetda.share.audit import Audit, CheckedTargets, audited_share, scored_share
from opensetda.share.evidence import ShareEstimate
from opensetda.share.report import ShareSource, study_openness
from opensetda.usecases.fit_rows import read_rows_of


@pytest.mark.parametrize(("k", "n", "low", "high"), [(0, 30, 0, 0.1), (30, 30, 0.9, 1)])
def test_a_sample_of_one_kind_has_an_open_end(k: int, n: int, low: float, high: float) -> None:
    """No unknown among thirty does not exclude some."""
    found = audited_share(k, n)
    assert found.low >= low
    assert found.high <= high
    assert found.high - found.low > 0.03
    assert (found.low == 0) == (k == 0)
    assert (found.high == 1) == (k == n)


def test_nine_of_ten_intervals_contain_the_share() -> None:
    """The average over shares is the promised confidence; single shares differ a little."""
    ends = [audited_share(k, 30) for k in range(31)]
    shares = np.linspace(0.01, 0.99, 99)
    covered = [
        sum(binom.pmf(k, 30, p) for k, found in enumerate(ends) if found.low <= p <= found.high)
        for p in shares
    ]
    assert np.mean(covered) == pytest.approx(0.9, abs=0.02)
    assert min(covered) > 0.8


def scored_targets(n: int = 2000, share: float = 0.4) -> tuple[np.ndarray, np.ndarray]:
    """Known scores, and which targets are unknown: these score lower on average."""
    rng = np.random.default_rng(0)
    unknown = np.arange(n) < share * n
    return rng.normal(np.where(unknown, -1.0, 1.0), 1.0), unknown


def test_scores_bring_the_share_nearer_to_the_truth() -> None:
    """A sample with too many low scores has too many unknowns, which the scores reveal."""
    known, unknown = scored_targets()
    plain, scored, held = [], [], []
    for seed in range(100):
        rows = np.random.default_rng(seed).choice(len(known), 30, replace=False)
        found = scored_share(known, rows, unknown[rows])
        plain.append(abs(unknown[rows].mean() - 0.4))
        scored.append(abs(found.share - 0.4))
        held.append(found.low <= 0.4 <= found.high)
    assert np.mean(scored) < 0.8 * np.mean(plain)
    assert np.mean(held) >= 0.85


def audit(unknown: int, unsettled: int = 0, n: int = 30) -> Audit:
    places = np.arange(n)
    return Audit(places, places < unknown, (places >= unknown) & (places < unknown + unsettled))


def test_unsettled_targets_leave_the_share_to_the_estimate_within_bounds() -> None:
    """They were unknown before classes were named, and may be of one of these."""
    guess = ShareEstimate(0.5, 0.2, 0.8)
    assert audit(9).share(guess).share == pytest.approx(0.3)
    assert audit(9, 3).share(guess).share == pytest.approx(0.4)
    assert audit(9, 12).share(guess).share == pytest.approx(0.5)
    wide = audit(9, 12).share(guess)
    assert (wide.low, wide.high) == (audited_share(9, 30).low, audited_share(21, 30).high)
    assert audit(30).share(guess).share == 0.97


def test_what_was_checked_bounds_an_estimate() -> None:
    """Of 100 targets 40 are known, so at most 60 % are unknown."""
    bound = CheckedTargets(40, 5).bound(ShareEstimate(0.9, 0.7, 1.0), 100)
    assert bound == ShareEstimate(0.6, 0.6, 0.6)
    assert CheckedTargets(40, 5).bound(ShareEstimate(0.01, 0.0, 0.3), 100).share == 0.05


def fitted(n_unknown: int, openness: float | str = "auto") -> MovingMeans:
    """Fit blobs of four known classes and one unknown one, with an audit of 30 targets."""
    rng = np.random.default_rng(0)
    which = np.arange(200) % 5
    X = 4 * np.eye(5, 12)[which] + rng.normal(size=(200, 12))
    source = X[which < 4][:100] + rng.normal(0, 0.1, (100, 12))
    labels = np.array(["a", "b", "c", "d"])[which[which < 4][:100]]
    checked = CheckedTargets(30 - n_unknown, n_unknown, audit(n_unknown))
    fit = MovingMeans(openness=openness, steps=3)
    return fit.fit_domains(read_rows_of(source, labels, X), FitContext(checked=checked))


def test_an_audited_share_is_the_one_that_is_used() -> None:
    """Whatever the data look like, and the estimate stands beside it."""
    for n_unknown in (3, 25):
        fit = fitted(n_unknown)
        assert fit.openness_ == pytest.approx(n_unknown / 30)
        assert (fit.transduction_ == "unknown").mean() == pytest.approx(n_unknown / 30, abs=0.01)
        assert fit.openness_report_.audit


def test_a_given_share_overrules_the_audit_and_a_small_one_warns() -> None:
    """What the user says on the command line comes last."""
    given = fitted(9, openness=0.5).openness_report_
    assert (given.share, given.source, given.audit) == (0.5, ShareSource.GIVEN, "")
    rows = np.random.default_rng(0).normal(size=(40, 12)).astype(np.float32)
    checked = CheckedTargets(4, 1, audit(1, n=5))
    found = study_openness("auto", checked, (rows, np.arange(40) % 4, rows), 200)
    warnings = found.finished(found.share, False, 200).warnings
    assert "the audited share of unknowns is uncertain" in warnings[0]
