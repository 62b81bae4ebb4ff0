"""A target without unknowns: little or nothing is rejected, and the interval starts at 0."""

from __future__ import annotations

import pytest

from conftest import fit_task
from feature_shifts import feature_task
from opensetda import ClassMeans, SourceOnly


def rejected(classifier):
    return float((classifier.transduction_ == "unknown").mean())


def check(classifier, at_most, later):
    """At most so many are rejected; nothing found is nothing rejected, and a warning says so."""
    report, part = classifier.openness_report_, rejected(classifier)
    assert part <= at_most
    assert report.low == 0
    if not report.found_unknowns:
        assert report.warnings[0].startswith("no unknowns were found, and nothing is rejected")
        assert (report.share, classifier.openness_, part) == (0, 0, 0)
        assert "unknown" not in classifier.predict(later)


# The largest share that is rejected, as measured, rounded up. Few known classes and shifts that
# make targets look like unknowns raise it.
FEATURES_REJECTED = {"translation": 0.03, "class-translation": 0.0, "all": 0.09}


@pytest.mark.parametrize("shift", FEATURES_REJECTED)
def test_ten_known_classes(shift):
    task = feature_task(10, 10, 256, shift, 0, seed=0)
    for method in (ClassMeans(), SourceOnly()):
        check(fit_task(method, task), FEATURES_REJECTED[shift], task.target_features)


def test_two_classes_are_a_guess():
    """Of two classes none can be hidden: the estimate may be far off, and the run says so."""
    task = feature_task(2, 6, 64, "none", 0.5, seed=0, per_class=100)
    classifier = fit_task(SourceOnly(), task)
    assert classifier.openness_ == pytest.approx(0.5, abs=0.25)
    assert "2 known classes show too little" in classifier.openness_report_.warnings[0]
