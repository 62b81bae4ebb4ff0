"""Small and odd targets: a sensible answer, or a warning that says what to check."""

from __future__ import annotations

import json

import numpy as np
import pytest

from opensetda import MovingMeans
from opensetda.share.evidence import LARGEST_SHARE
from opensetda.share.report import ESTIMATE

WIDTH = 24
FAR = 3.0


def rows_of(counts, centres, shift, rng):
    """Draw `counts` rows around each centre."""
    classes = np.repeat(np.arange(len(counts)), counts)
    return centres[classes] + shift + rng.normal(size=(len(classes), WIDTH)), classes


def made(source_counts, target_counts, seed=0, shift=1.0):
    """Source rows and classes, target rows, and which targets are unknown.

    The known classes come first in `target_counts`, then the unknown ones.
    """
    rng = np.random.default_rng(seed)
    centres = FAR * rng.normal(size=(len(target_counts), WIDTH))
    source, y = rows_of(source_counts, centres[: len(source_counts)], 0.0, rng)
    move = shift * rng.normal(size=WIDTH)
    target, classes = rows_of(target_counts, centres, move, rng)
    return source, y, target, classes


def fit(source, y, target, openness="auto"):
    X = np.concatenate([source, target]).astype(np.float32)
    labels = np.concatenate([y, np.full(len(target), -1)])
    domain = np.repeat([1, -1], [len(source), len(target)])
    classifier = MovingMeans(openness, steps=4)
    classifier.fit(X, np.array([*"abcdefghij"])[labels], domain)
    check(classifier, len(target))
    return classifier


def check(classifier, n_targets):
    """What holds for every target."""
    report = classifier.openness_report_
    assert len(classifier.transduction_) == n_targets
    assert set(classifier.transduction_) <= {*classifier.classes_, "unknown"}
    assert np.isfinite(classifier.transduction_proba_).all()
    np.testing.assert_allclose(classifier.transduction_proba_.sum(axis=1), 1)
    json.dumps(report.to_dict(), allow_nan=False)
    found = report.estimates.get(ESTIMATE, report)  # A given share is not estimated.
    assert 0 <= found.low <= found.share <= found.high <= 1
    assert 0 <= report.share == classifier.openness_ <= LARGEST_SHARE
    # What is said is what is done, or a warning says that it is not.
    difference = abs(rejected(classifier) - report.share)
    if difference > max(0.05, 1 / n_targets):
        assert any("score the same" in warning for warning in report.warnings)


def rejected(classifier):
    return float((classifier.transduction_ == "unknown").mean())


def warns(classifier):
    return bool(classifier.openness_report_.warnings)


def sensible(classifier, unknown):
    """Whether the share that is rejected is near the truth, or within what was said of it."""
    report, truth = classifier.openness_report_, float(np.mean(unknown))
    return abs(rejected(classifier) - truth) <= 0.15 or report.low <= truth <= report.high


@pytest.mark.parametrize("n_known", [2, 3])
@pytest.mark.parametrize("n_targets", [5, 20, 100])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_few_classes_and_few_targets(n_known, n_targets, share):
    n_unknown = round(share * n_targets)
    counts = np.bincount(np.arange(n_targets - n_unknown) % n_known, minlength=n_known)
    source, y, target, classes = made([30] * n_known, [*counts, n_unknown])
    classifier = fit(source, y, target)
    assert warns(classifier) or sensible(classifier, classes >= n_known)
    if n_targets < 20:
        assert "fewer than 20 targets" in " ".join(classifier.openness_report_.warnings)


def test_two_known_classes_are_said_to_be_uncertain():
    """None of two classes can be hidden: what is left would be its own centre."""
    source, y, target, _ = made([40, 40], [30, 30, 40])
    warnings = " ".join(fit(source, y, target).openness_report_.warnings)
    assert "the share of unknowns is uncertain" in warnings
    assert "--openness" in warnings


@pytest.mark.parametrize("n_known", [3, 10])
def test_no_unknowns(n_known):
    source, y, target, _ = made([20] * n_known, [20] * n_known)
    classifier = fit(source, y, target)
    assert warns(classifier)
    if n_known == 10:
        assert rejected(classifier) == 0


@pytest.mark.parametrize("n_known", [3, 10])
def test_all_unknown(n_known):
    source, y, target, _ = made([20] * n_known, [0] * n_known + [30] * 5)
    warnings = fit(source, y, target).openness_report_.warnings
    assert warnings[0].startswith("hardly any target looks like a known class")


@pytest.mark.parametrize("where", ["source", "target", "both"])
def test_one_class_has_a_hundred_times_the_rows_of_the_others(where):
    many, few = [400, 4, 4, 4], [40, 40, 40, 40]
    source_counts, target_counts = (
        few if where == "target" else many,
        few if where == "source" else many,
    )
    source, y, target, classes = made(source_counts, [*target_counts, 100])
    classifier = fit(source, y, target)
    assert warns(classifier) or sensible(classifier, classes >= 4)
    # The small classes are not lost.
    answered, truth = classifier.transduction_, np.array(["a", "b", "c", "d", "unknown"])[classes]
    for name in "abcd":
        assert (answered[truth == name] == name).any() or warns(classifier)


@pytest.mark.parametrize("n_known", [3, 9])
@pytest.mark.parametrize("known", [True, False])
def test_a_target_of_one_class(known, n_known):
    """Less their own mean its rows point anywhere; nothing is left to see which class it is."""
    counts = [60 if place == (0 if known else n_known) else 0 for place in range(n_known + 1)]
    source, y, target, _ = made([30] * n_known, counts)
    warnings = fit(source, y, target).openness_report_.warnings
    assert warnings[0].startswith("hardly any target looks like a known class")


@pytest.mark.parametrize("openness", ["auto", 0.4])
@pytest.mark.parametrize("n_known", [2, 3, 10])
def test_equal_targets_are_not_separated_and_the_report_says_so(n_known, openness):
    source, y, target, _ = made([10] * n_known, [1] + [0] * (n_known - 1))
    classifier = fit(source, y, np.repeat(target, 30, axis=0), openness)
    assert len(set(classifier.transduction_)) == 1
    share, part = classifier.openness_, rejected(classifier)
    assert part in (0, 1)
    if 0.05 < share < 0.95:
        assert f"{share:.0%}, but {part:.0%}" in " ".join(classifier.openness_report_.warnings)
