"""Probabilities of unknown: the slope that made them, and how often they are right."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from conftest import fit_task
from feature_shifts import feature_task
from opensetda import MovingMeans, SourceOnly
from opensetda.metrics.open_set import expected_calibration_error
from opensetda.share.decision import Rejection, fit_slope, unknown_votes

# The slope ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("slope", "threshold"), [(2.0, -0.3), (40.0, 0.55)])
def test_the_slope_that_made_the_labels_is_found(slope, threshold):
    rng = np.random.default_rng(0)
    known = threshold + rng.uniform(-0.5, 0.5, 20_000)
    probability = expit(slope * (threshold - known))
    labels = (rng.random(len(known)) < probability).astype(float)
    assert fit_slope(known, probability, threshold) == pytest.approx(slope, rel=0.01)
    assert fit_slope(known, labels, threshold) == pytest.approx(slope, rel=0.1)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=12), st.floats(-1, 1), st.booleans())
def test_any_slope_is_a_positive_number(known, threshold, constant):
    scores = np.array(known)
    posterior = np.zeros(len(known)) if constant else (scores < threshold).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        slope = fit_slope(scores, posterior, threshold)
    assert np.isfinite(slope)
    assert slope > 0


# Votes --------------------------------------------------------------------------------------


def test_votes_by_hand():
    """At the share the vote is even, one deviation below it is 84 to 16 for unknown."""
    known = np.arange(100.0)
    votes = unknown_votes(known, share=0.405, spread=0.1)
    np.testing.assert_allclose(votes[[40, 30, 50]], [0.5, 0.841, 0.159], atol=1e-3)
    assert (np.diff(votes) <= 0).all()
    assert not unknown_votes(known, share=0.0, spread=0.1).any()


def test_an_uncertain_share_makes_uncertain_labels():
    known = np.linspace(0, 1, 50)
    sure, unsure = (np.abs(unknown_votes(known, 0.4, spread) - 0.5) for spread in (0.1, 0.3))
    assert (unsure <= sure + 1e-12).all()
    assert unsure.mean() < sure.mean() - 0.1


def test_equal_scores_get_equal_votes_and_a_single_target_that_of_the_share():
    votes = unknown_votes(np.array([0.2, 0.1, 0.2, 0.3]), share=0.5, spread=0.1)
    assert votes[0] == votes[2]
    assert votes[1] > votes[0] > votes[3]
    assert unknown_votes(np.array([3.0]), 0.3, 0.1)[0] == pytest.approx(0.3, abs=0.01)


def test_a_label_is_never_less_probable_than_another_column():
    """Where many classes share what is left, unknown gives way to the nearest."""
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(200, 12)))
    known = torch.linspace(-1, 1, 200, dtype=torch.float64)
    for threshold in (0.0, -np.inf, np.inf):
        probabilities, labels = Rejection(threshold, slope=0.5, base=0.4)(logits, known)
        np.testing.assert_allclose(probabilities.sum(dim=1), 1)
        np.testing.assert_array_equal(probabilities.argmax(dim=1), labels)
        np.testing.assert_array_equal(labels == 12, known < threshold)


# In a classifier ------------------------------------------------------------------------------

METHODS = {"moving-means": MovingMeans, "source-only": SourceOnly}


@pytest.fixture(scope="module")
def generated():
    return feature_task(8, 8, 256, "all", 0.4, seed=2, per_class=60)


@pytest.fixture(scope="module", params=sorted(METHODS))
def fitted(request, generated):
    """A classifier that saw half of the targets; the other half comes later."""
    return fit_task(METHODS[request.param](), generated, every_other=True)


def unknown_error(proba, truth, known):
    return expected_calibration_error(proba[:, -1], ~np.isin(truth, known), bins=10)


def test_later_samples_are_as_often_unknown_as_it_says(fitted, generated):
    proba = fitted.predict_proba(generated.target_features[1::2])
    truth = generated.target_truth[1::2]
    error = unknown_error(proba, truth, fitted.classes_)
    assert error < 0.19
