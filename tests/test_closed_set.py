"""A target without unknowns: next to nothing is rejected, and the report says so."""

from __future__ import annotations

import pytest

from conftest import fit_task
from feature_shifts import feature_task
from opensetda import PGLClassifier, ProgressiveClassMeans, SourceOnly
from opensetda.data.benchmarks.digits import digit_task
from opensetda.data.benchmarks.protocols import with_openness

AT_MOST = 0.05


def rejected(classifier):
    return float((classifier.transduction_ == "unknown").mean())


def says_so(classifier, later):
    """Nothing found is nothing rejected, now or later, and the first warning says it."""
    report = classifier.openness_report_
    assert not report.found_unknowns
    assert report.warnings[0] == "no evidence of unknowns: nothing is rejected"
    assert (report.share, classifier.openness_, rejected(classifier)) == (0, 0, 0)
    assert "unknown" not in classifier.predict(later)


@pytest.mark.parametrize("shift", ["class-translation", "all"])
def test_pgl_on_features(shift):
    task = feature_task(6, 2, 256, shift, 0, seed=0, per_class=30)
    classifier = fit_task(PGLClassifier(settings={"steps": 4}, random_state=0), task)
    says_so(classifier, task.target_features)


# Where more than 5 % are rejected: the measured share, rounded up. A strong shift makes targets
# look like unknowns, see docs/experiments.md.
CLASS_MEANS_REJECT = {"class-translation": 0.11}
SOURCE_ONLY_REJECTS = {"translation": 0.12, "all": 0.10}
CLASS_MEANS_REJECT_DIGITS = {"none": 0.07, "inverted": 0.98, "noise": AT_MOST}


@pytest.mark.parametrize("shift", ["translation", "class-translation", "all"])
@pytest.mark.parametrize(
    ("method", "too_many"),
    [(ProgressiveClassMeans, CLASS_MEANS_REJECT), (SourceOnly, SOURCE_ONLY_REJECTS)],
)
def test_rivals_on_features(method, too_many, shift):
    task = feature_task(10, 10, 256, shift, 0, seed=0)
    classifier = fit_task(method(), task)
    if shift in too_many:
        assert rejected(classifier) <= too_many[shift]
    else:
        says_so(classifier, task.target_features)


@pytest.mark.parametrize("shift", CLASS_MEANS_REJECT_DIGITS)
def test_class_means_reject_few_digits(shift):
    classifier = fit_task(ProgressiveClassMeans(), with_openness(digit_task(shift), 0, 0))
    assert rejected(classifier) <= CLASS_MEANS_REJECT_DIGITS[shift]


def test_pgl_rejects_few_digits():
    task = with_openness(digit_task("none"), 0, 0)
    assert rejected(fit_task(PGLClassifier(random_state=0), task)) <= 0.09


def test_two_classes_are_a_guess():
    """Of two classes none can be hidden: the estimate may be far off, and the run says so."""
    task = feature_task(2, 6, 64, "none", 0.5, seed=0, per_class=100)
    classifier = fit_task(SourceOnly(), task)
    assert classifier.openness_ == pytest.approx(0.5, abs=0.25)
    assert "little more than a guess" in classifier.openness_report_.warnings[0]
