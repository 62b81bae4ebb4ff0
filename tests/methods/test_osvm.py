"""OSVM: tails, the probability of inclusion, and machines without pickle."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import weibull_min
from sklearn.svm import SVC
from test_osnn import blobs, scored

from opensetda.methods.rejectors import osvm
from opensetda.methods.rejectors.osvm import InclusionRejector, fit_weibull


def fitted(rows, y):
    rejector = InclusionRejector()
    rejector.fit(torch.from_numpy(rows), y, int(y.max()) + 1)
    return rejector


# The tails --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_one_class_is_fitted_as_scipy_does(seed):
    tail = weibull_min.rvs(3.0, loc=-1.0, scale=2.0, size=40, random_state=seed)
    shape, _, scale = weibull_min.fit(tail, floc=-1.0)
    scales, found = fit_weibull([tail], -1.0)
    assert found == pytest.approx(shape, rel=1e-3)
    assert scales[0] == pytest.approx(scale, rel=1e-3)


# The machines -----------------------------------------------------------------------------


def test_the_machines_are_support_vector_machines():
    rows, y, _ = blobs(4)
    rejector = fitted(rows, y)
    targets, _, _ = blobs(4, seed=1, spread=2.0)
    scores = scored(rejector, targets)
    squared = ((rows[:, None] - rows) ** 2).sum(axis=2)
    assert rejector.gamma == pytest.approx(1 / squared.mean(), rel=1e-5)
    location = float(rejector.location)
    decisions, tails = [], []
    for label in range(4):
        machine = SVC(C=1.0, gamma=float(rejector.gamma)).fit(rows, y == label)
        decisions.append(machine.decision_function(targets))
        tails.append(np.sort(machine.decision_function(rows[y == label]))[:7])
    # Both machines are trained to a tolerance of 0.001.
    standardised = (np.array(decisions).T - location) / rejector.scales.numpy()
    np.testing.assert_allclose(scores.known, standardised.max(axis=1), atol=2e-3)
    np.testing.assert_array_equal(scores.nearest, standardised.argmax(axis=1))
    # The lower half of 15 scores a class, and the location one margin below them all.
    assert location == pytest.approx(min(tail[0] for tail in tails) - 1, abs=2e-3)
    assert rejector.shape == pytest.approx(fit_weibull(tails, location)[1], rel=0.02)


def test_unknown_is_whose_probability_of_inclusion_is_below_delta():
    rows, y, centres = blobs(spread=0.7)
    rejector = fitted(rows, y)
    far = np.random.default_rng(5).normal(size=(100, 10)) * 6
    X = np.concatenate([centres, (centres[:-1] + centres[1:]) / 2, far])
    scores = scored(rejector, X)
    inclusion = weibull_min.cdf(scores.known, rejector.shape)
    cut = rejector.own_cut(scores)
    np.testing.assert_array_equal(scores.known < cut, inclusion < rejector.threshold)
    assert (scores.known[:6] >= cut).all()
    assert (scores.known[6:11] < cut).all()
    assert (scores.known[11:] < cut).mean() > 0.9


def test_a_large_source_is_thinned_out(monkeypatch):
    rows, y, _ = blobs(per_class=60)
    monkeypatch.setattr(osvm, "TRAINING_ROWS", 120)
    rejector = fitted(rows, y)
    assert len(rejector.rows) <= 120
    assert (scored(rejector, rows).nearest == y).mean() > 0.95
