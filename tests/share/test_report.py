"""The share of unknowns without labels: what is reported, and how far off it is."""

from __future__ import annotations

import numpy as np
import pytest

from feature_shifts import FEATURE_SHIFTS, feature_task
from opensetda import InputError
from opensetda.features.alignment import aligned_samples
from opensetda.share.evidence import LARGEST_SHARE, Evidence, ShareEstimate
from opensetda.share.report import (
    ESTIMATE,
    HARDLY_KNOWN,
    HIDDEN,
    NO_UNKNOWNS,
    RANKING_SPREAD,
    WIDE,
    OpennessReport,
    ShareSource,
    check_openness,
    study_openness,
)
from opensetda.usecases.fit_rows import read_rows_of

EVIDENCE = Evidence(hidden=0.52, hidden_moved=0.48, margin=-0.5, below=0.375, n_classes=10)


def report_of(openness, found, half=0.14, rejected=None, own_boundary=False, n=100, **evidence):
    """The finished report of a run whose estimate is `found`, within `half`."""
    estimate = ShareEstimate(found, max(found - half, 0.0), min(found + half, 1.0))
    seen = EVIDENCE._replace(**evidence)
    if openness != "auto":
        report = OpennessReport(openness, openness, openness, ShareSource.GIVEN)
    else:
        report = OpennessReport(
            share=found if found >= NO_UNKNOWNS else 0.0,
            low=estimate.low,
            high=estimate.high,
            source=ShareSource.ESTIMATED,
            estimates={ESTIMATE: estimate, HIDDEN: ShareEstimate(*[seen.hidden] * 3)},
            evidence=seen,
        )
    return report.finished(report.share if rejected is None else rejected, own_boundary, n)


# On tasks whose share is known --------------------------------------------------------------

OPENNESS = [0.0, 0.25, 0.5, 0.75]
# Measured, rounded up. Noise in all directions lowers the score of every target.
MEAN_ERROR = dict.fromkeys(FEATURE_SHIFTS, 0.1) | {"noise": 0.22}


def estimate_of(shift, openness, seed=0):
    task = feature_task(10, 10, 128, shift, openness, seed=seed)
    domains = read_rows_of(task.source_features, task.source_labels, task.target_features)
    report = study_openness("auto", None, aligned_samples(domains), len(domains.target))
    return report.estimates[ESTIMATE]


@pytest.mark.parametrize("shift", FEATURE_SHIFTS)
def test_shares_of_generated_shifts(shift):
    estimates = [estimate_of(shift, openness) for openness in OPENNESS]
    errors = np.array([found.share for found in estimates]) - OPENNESS
    assert np.abs(errors).mean() <= MEAN_ERROR[shift], errors
    holds = [
        found.low <= share <= found.high for found, share in zip(estimates, OPENNESS, strict=True)
    ]
    assert sum(holds) >= len(holds) - (2 if shift == "noise" else 1)
    shares = [found.share for found in estimates]
    assert shares == sorted(shares)


@pytest.mark.parametrize(("share", "used"), [(NO_UNKNOWNS / 2, 0.0), (NO_UNKNOWNS, NO_UNKNOWNS)])
def test_a_tiny_share_is_none(monkeypatch, share, used):
    found = ShareEstimate(share, 0.0, 0.2)
    monkeypatch.setattr("opensetda.share.report.estimate_share", lambda *_: found)
    rows, y = np.eye(6), np.arange(6) % 3
    report = study_openness("auto", None, (rows, y, rows), 6)
    assert (report.share, report.found_unknowns) == (used, used > 0)


# In words -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("openness", "found", "followed", "words"),
    [
        ("auto", 0.5, None, "estimated from the data alone"),
        ("auto", 0.0, None, "no unknowns were found, so nothing is rejected"),
        (0.4, 0.5, None, "as given"),
        (
            *("auto", 0.5, 0.4),
            "what the method's own boundary rejects; the data look like 50% (36% to 64%)",
        ),
    ],
)
def test_where_a_share_comes_from(openness, found, followed, words):
    own = followed is not None
    assert report_of(openness, found, rejected=followed, own_boundary=own).origin == words


def test_of_a_given_share_nothing_is_estimated(monkeypatch):
    monkeypatch.setattr("opensetda.share.report.gather_evidence", None)
    rows = np.eye(6)
    report = study_openness(0.9, None, (rows, np.arange(6) % 3, rows), 6)
    assert (report.share, report.low, report.high) == (0.9, 0.9, 0.9)
    assert report.estimates == {}
    assert report.is_vouched


def test_an_own_boundary_far_from_the_estimate():
    (warning,) = report_of("auto", 0.4, rejected=0.9, own_boundary=True).warnings
    assert warning.startswith("the method's own boundary rejects 90% of the targets, but the data")
    assert report_of("auto", 0.4, rejected=0.6, own_boundary=True).warnings == ()


def test_an_interval_that_is_wide():
    assert report_of("auto", 0.5, half=WIDE / 2 - 0.01).warnings == ()
    report = report_of("auto", 0.5, half=WIDE / 2 + 0.01, n_classes=3)
    (warning,) = report.warnings
    assert warning.startswith("the share of unknowns is uncertain (34% to 66%): mark 30 targets")
    assert "--openness" in warning
    assert "osda review" in warning
    assert report.spread == RANKING_SPREAD == report_of(0.5, 0.5, half=0.2).spread
    # Of few targets the share is hardly known.
    assert report_of("auto", 0.5, half=0.5).spread == pytest.approx(0.5 / 1.645)


@pytest.mark.parametrize(("share", "below"), [(0.5, HARDLY_KNOWN), (LARGEST_SHARE, 0.0)])
def test_hardly_anything_known(share, below):
    (warning,) = report_of("auto", share, below=below).warnings
    assert warning.startswith("hardly any target looks like a known class")
    assert "--openness" in warning


def test_equal_targets_that_are_not_separated():
    assert report_of("auto", 0.4, rejected=0.41).warnings == ()
    (warning,) = report_of("auto", 0.4, rejected=0.0).warnings
    assert warning.startswith("the share of unknowns is 40%, but 0% of the targets are rejected")


# What may be given --------------------------------------------------------------------------


@pytest.mark.parametrize("share", [1, np.nan, True, "Auto"])
def test_no_shares(share):
    with pytest.raises(InputError, match=r"a number in \[0, 1\), or 'auto'"):
        check_openness(share)
