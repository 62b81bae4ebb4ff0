"""The share of unknowns without labels: each estimator, the tracker, and what it reports."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import fit_task
from feature_shifts import feature_task
from opensetda import InputError, ProgressiveClassMeans, SourceOnly
from opensetda.openness import tracker
from opensetda.openness.share_estimators import (
    ESTIMATORS,
    LARGEST_SHARE,
    Evidence,
    ShareEstimate,
    best_bin,
    free_mixture,
    held_out_classes,
)
from opensetda.openness.tracker import OpennessTracker, check_openness

pytestmark = pytest.mark.usefixtures("all_resamples")

RNG = np.random.default_rng


def made_scores(share, n=1500, seed=0, spread=0.1):
    """Known and held-out scores and nearest classes; unknowns score as held-out knowns do."""
    rng = RNG(seed)
    unknown = np.arange(n) < round(share * n)
    known = np.where(unknown, 0.25, 0.7) + spread * rng.normal(size=n)
    held_out = np.where(unknown, -0.1, 0.25) + spread * rng.normal(size=n)
    order = rng.permutation(n)
    return known[order], held_out[order], rng.integers(0, 5, n)


# On tasks whose share is known, through a classifier's scores ------------------------------


OPENNESS = [0.0, 0.25, 0.5, 0.7]


@pytest.fixture(scope="module", params=["none", "class-translation"])
def shift(request):
    return request.param


@pytest.fixture(scope="module")
def source_only(shift):
    return [
        fit_task(SourceOnly(), feature_task(10, 10, 256, shift, share, seed=0))
        for share in OPENNESS
    ]


@pytest.fixture(scope="module")
def class_means(shift):
    """Told the share: the estimators' answers do not depend on one another's mistakes then."""
    return [
        fit_task(ProgressiveClassMeans(share), feature_task(10, 10, 256, shift, share, seed=0))
        for share in OPENNESS
    ]


def found(classifiers, name):
    estimates = [classifier.openness_report_.estimates[name] for classifier in classifiers]
    for estimate in estimates:
        assert 0 <= estimate.low <= estimate.share <= estimate.high <= 1
    return np.array([estimate.share for estimate in estimates])


def test_held_out_classes_are_within_fifteen_hundredths(source_only):
    np.testing.assert_allclose(found(source_only, "held-out classes"), OPENNESS, atol=0.15)


def test_the_estimate_is_what_is_used(source_only):
    shares = [classifier.openness_ for classifier in source_only]
    np.testing.assert_allclose(shares, OPENNESS, atol=0.15)
    for classifier in source_only:
        report = classifier.openness_report_
        assert report.low <= report.share <= report.high
        assert report.by_step[-1] == pytest.approx(report.share, abs=0.05)
        rejected = (classifier.transduction_ == "unknown").mean()
        assert rejected == pytest.approx(report.share, abs=0.002)


def test_the_free_mixture_is_right_from_half_on_and_never_says_none(class_means):
    shares = found(class_means, "free mixture")
    np.testing.assert_allclose(shares[2:], OPENNESS[2:], atol=0.15)
    assert shares[0] > 0.1  # which is why it is not the one that counts


def test_the_best_bin_is_within_a_third_and_says_too_little_rather(class_means):
    """Unknowns near a known class look like the source."""
    shares = found(class_means, "best bin")
    np.testing.assert_allclose(shares, OPENNESS, atol=0.35)
    assert (shares <= np.array(OPENNESS) + 0.1).all()
    assert shares[0] < 0.05
    assert shares[3] > shares[1] + 0.1


def test_source_only_has_no_features_to_look_at(source_only):
    assert list(source_only[0].openness_report_.estimates) == ["held-out classes", "free mixture"]


# Best bin, by hand -------------------------------------------------------------------------


def clusters(sizes, seed):
    """Points around the corners (0, 0), (4, 0), (0, 4) ... of a 6-dimensional space."""
    rng = RNG(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return 4 * np.eye(len(sizes), 6)[labels] + 0.5 * rng.normal(size=(len(labels), 6)), labels


def without_shift(target_sizes, share=0.3):
    """Classes 0 and 1 are known, class 2 is not."""
    source, labels = clusters([300, 300], seed=0)
    target, nearest = clusters(target_sizes, seed=1)
    known = np.where(nearest < 2, 0.9, 0.1) + 0.01 * RNG(2).random(len(target))
    held_out = np.full(len(target), np.nan)
    return Evidence(known, held_out, np.minimum(nearest, 1), share, source, labels, target)


@pytest.mark.parametrize("sizes", [(300, 300, 0), (200, 200, 100), (150, 150, 300), (360, 40, 200)])
def test_best_bin_without_a_shift(sizes):
    """Also where the classes of the target are not as frequent as those of the source."""
    share = sizes[2] / sum(sizes)
    estimate = best_bin(without_shift(sizes, share), RNG(0))
    assert estimate.share == pytest.approx(share, abs=0.1)
    assert estimate.low <= share <= estimate.high


def test_best_bin_moves_the_classes_first():
    """A shift of everybody would otherwise tell source from target, and nobody were known."""
    plain = without_shift((200, 200, 100), 0.2)
    moved = Evidence(**{**vars(plain), "target": plain.target + 3.0})
    one, other = (best_bin(evidence, RNG(0)) for evidence in (plain, moved))
    assert other.share == pytest.approx(one.share, abs=0.02)


def test_best_bin_without_features_or_with_too_few_has_no_answer():
    evidence = without_shift((200, 200, 100))
    assert best_bin(Evidence(*made_scores(0.3)), RNG(0)) is None
    for changes in (
        {"source_labels": np.zeros_like(evidence.source_labels)},
        {"target": evidence.target[:9]},
        {"source": evidence.source[296:304], "source_labels": evidence.source_labels[296:304]},
    ):
        assert best_bin(Evidence(**{**vars(evidence), **changes}), RNG(0)) is None


# Estimators of scores ----------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.2, 0.5])
@pytest.mark.parametrize("estimator", [held_out_classes, free_mixture])
def test_estimates_of_made_scores(estimator, share):
    estimate = estimator(Evidence(*made_scores(share)), RNG(0))
    assert estimate.share == pytest.approx(share, abs=0.04)
    assert estimate.low <= share <= estimate.high
    assert estimate.high - estimate.low < 0.8
    assert str(estimate).startswith(f"{estimate.share:.2f} (")


def test_without_held_out_scores_the_next_estimator_counts():
    known, held_out, nearest = made_scores(0.4)
    nothing = np.full_like(held_out, np.nan)
    assert held_out_classes(Evidence(known, nothing, nearest), RNG(0)) is None
    tracker = OpennessTracker("auto")
    assert tracker.update(known, nothing, nearest) == pytest.approx(0.4, abs=0.03)
    report = tracker.report(known, nothing, nearest)
    assert list(report.estimates) == ["free mixture"]
    assert report.share == pytest.approx(0.4, abs=0.03)


@settings(max_examples=10)
@given(st.integers(0, 10_000), st.integers(1, 60))
@pytest.mark.filterwarnings("error")
def test_any_scores_get_a_share_and_an_interval_around_it(seed, n):
    rng = RNG(seed)
    scores = rng.normal(size=n), rng.normal(size=n), rng.integers(0, 4, n)
    for estimator in (held_out_classes, free_mixture):
        estimate = estimator(Evidence(*scores), rng)
        assert 0 <= estimate.low <= estimate.share <= estimate.high <= 1


# From step to step -------------------------------------------------------------------------


def test_the_share_follows_the_estimates_step_by_step():
    tracker = OpennessTracker("auto")
    assert tracker.update(*made_scores(0.2)) == pytest.approx(0.2, abs=0.03)
    second = tracker.update(*made_scores(0.6))
    assert 0.25 < second < 0.59  # on the way
    third = tracker.update(*made_scores(0.6))
    assert second < third < 0.6
    assert tracker.shares == [tracker.shares[0], second, third]
    np.testing.assert_allclose(tracker.estimates, [0.2, 0.6, 0.6], atol=0.03)


def test_a_share_that_is_told_is_used_and_the_estimates_stand_beside_it():
    tracker = OpennessTracker(0.45)
    assert [tracker.update(*made_scores(share)) for share in (0.2, 0.6)] == [0.45, 0.45]
    np.testing.assert_allclose(tracker.estimates, [0.2, 0.6], atol=0.03)
    report = tracker.report(*made_scores(0.6))
    assert (report.share, report.told, report.by_step) == (0.45, True, (0.45, 0.45))
    assert report.estimates["held-out classes"].share == pytest.approx(0.6, abs=0.03)


def test_the_step_that_is_kept_is_reported():
    tracker = OpennessTracker("auto")
    shares = [tracker.update(*made_scores(share)) for share in (0.3, 0.3, 0.6)]
    tracker.keep(2)
    report = tracker.report(*made_scores(0.3))
    assert report.share == shares[1]
    assert report.by_step == tuple(shares)
    # That the last steps thought otherwise is part of the doubt.
    assert report.low <= report.share < shares[2] <= report.high


def test_not_everybody_is_unknown():
    """Nor is a share of 1 ever used: there would be nobody to learn from."""
    tracker = OpennessTracker("auto")
    scores = made_scores(0.0)
    low = np.full_like(scores[1], -5.0), np.full_like(scores[1], np.nan), scores[2]
    assert tracker.update(*low) <= LARGEST_SHARE < 1


def test_no_target_no_share():
    nothing = np.empty(0)
    assert OpennessTracker("auto").update(nothing, nothing, np.empty(0, int)) == 0


# In words ----------------------------------------------------------------------------------


def report_on(openness, *shares, spread=0.1):
    tracker = OpennessTracker(openness)
    for share in shares:
        tracker.update(*made_scores(share, spread=spread))
    return tracker.report(*made_scores(shares[-1], spread=spread))


def test_a_clear_case_needs_no_words():
    for told in ("auto", 0.4):
        report = report_on(told, 0.4, spread=0.03)
        assert report.warnings == ()
        assert report.found_unknowns


@pytest.mark.parametrize(("told", "true"), [(0.9, 0.4), (0.0, 0.5)])
def test_a_share_that_the_data_contradict(told, true):
    report = report_on(told, true)
    assert report.share == told
    (warning,) = report.warnings
    assert warning.startswith(f"openness {told:.2f} was given, but the data look like {true:.1f}")


def test_no_evidence_of_unknowns():
    report = report_on("auto", 0.0)
    assert (report.share, report.low, report.found_unknowns) == (0.0, 0.0, False)
    assert report.warnings[0] == "no evidence of unknowns: nothing is rejected"
    # Who told a share rejects as many, but may read what the data say.
    told = report_on(0.2, 0.0)
    assert (told.share, told.found_unknowns) == (0.2, False)


def test_estimators_that_disagree(monkeypatch):
    """Both others, far from the share in use, are named with their intervals."""
    other = ShareEstimate(0.8, 0.7, 0.9)
    others = {"free mixture": lambda *_: other, "best bin": lambda *_: other}
    monkeypatch.setattr(tracker, "ESTIMATORS", {**tracker.ESTIMATORS, **others})
    report = report_on("auto", 0.1)
    (warning,) = [text for text in report.warnings if "disagree" in text]
    assert f"{report.share:.2f} was used, but free mixture 0.80 (0.70 to 0.90)" in warning
    assert "set the openness by hand" in warning
    monkeypatch.setitem(tracker.ESTIMATORS, "best bin", lambda *_: ShareEstimate(0.1, 0, 0.2))
    assert not any("disagree" in text for text in report_on("auto", 0.1).warnings)


def test_an_interval_that_is_wide():
    report = report_on("auto", 0.1, 0.1, 0.7, 0.7)
    assert report.high - report.low > 0.3
    assert any("is uncertain" in text and f"{report.high:.2f}" in text for text in report.warnings)


@pytest.mark.parametrize("openness", ["auto", 0.9])
def test_a_report_is_json(openness):
    report = report_on(openness, 0.4, 0.4)
    plain = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert plain["share"] == report.share
    assert plain["told"] is report.told
    assert plain["by_step"] == list(report.by_step)
    assert plain["warnings"] == list(report.warnings)
    assert set(plain["estimates"]) == set(report.estimates) <= set(ESTIMATORS)
    for name, estimate in plain["estimates"].items():
        assert estimate == report.estimates[name].to_dict()


def test_a_report_is_the_same_every_time():
    assert report_on("auto", 0.3) == report_on("auto", 0.3)


# What may be told --------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0, 0.0, 0.25, np.float32(0.5), np.int64(0), 0.999])
def test_shares(share):
    told = check_openness(share)
    assert type(told) is float
    assert told == share


def test_auto():
    assert check_openness("auto") is None


@pytest.mark.parametrize(
    "share", [1, 1.5, -0.1, np.nan, np.inf, True, None, "Auto", "0.5", [0.5], np.array([0.5])]
)
def test_no_shares(share):
    with pytest.raises(InputError, match=r"a number in \[0, 1\), or 'auto'"):
        check_openness(share)
