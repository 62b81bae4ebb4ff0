"""Rejectors: what they have in common, and with the methods they are combined with."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax

from opensetda import InputError, SourceOnly
from opensetda.methods.rejectors import REJECTORS
from opensetda.methods.rejectors.base import best_threshold, hidings, squared_distances
from opensetda.methods.rivals.ati import ATI

# ATI with osvm, its default, is among all methods of tests/contract.
COMBINATIONS = [*((SourceOnly, name) for name in REJECTORS), (ATI, "quantile")]


@pytest.fixture(
    params=COMBINATIONS, ids=[f"{method.__name__}+{name}" for method, name in COMBINATIONS]
)
def combination(request):
    return request.param


@pytest.fixture(scope="module")
def fitted_combinations(task):
    """Every combination, fitted without being told a share."""
    return {
        (method, name): method(rejector=name).fit(task.X, task.y, task.domain)
        for method, name in COMBINATIONS
    }


@pytest.fixture
def fitted_one(fitted_combinations, combination):
    return fitted_combinations[combination]


def test_a_rejector_that_does_not_exist(task):
    with pytest.raises(InputError, match=r"among {'quantile', 'osnn', .* Got 'osmv'"):
        SourceOnly(rejector="osmv").fit(task.X, task.y, task.domain)


# With a method ----------------------------------------------------------------------------


def test_a_share_that_is_told_is_rejected(combination, task):
    method, name = combination
    classifier = method(openness=0.25, rejector=name).fit(task.X, task.y, task.domain)
    assert (classifier.transduction_ == "unknown").sum() == 18
    assert classifier.openness_ == 0.25


def test_not_told_the_rejectors_boundary_is_used(fitted_one, combination, task):
    scores, unknown = fitted_one.transduction_scores_, fitted_one.transduction_ == "unknown"
    threshold = fitted_one.decision_.threshold
    cut = fitted_one.scorer_.rejector.own_cut(fitted_one.open_set_scores(task.target))
    if combination[1] == "quantile":
        assert cut is None
    else:
        assert threshold == pytest.approx(cut)
    np.testing.assert_array_equal(scores < threshold, unknown)
    assert fitted_one.openness_ == pytest.approx(unknown.mean(), abs=0.01)


@pytest.mark.parametrize("case", ["two-classes", "one-sample-a-class", "same-rows"])
@pytest.mark.parametrize("rejector", ["quantile", "osnn", "osvm"])
def test_corners(rejector, task, case):
    """Finite probabilities that add up, and a state that predicts the same."""
    X, y, domain = task.X.astype(np.float64), task.y.copy(), task.domain
    if case == "two-classes":
        keep = ~np.isin(y, ["cat", "dog"])
        X, y, domain = X[keep], y[keep], domain[keep]
    elif case == "one-sample-a-class":
        _, first = np.unique(y, return_index=True)
        keep = np.isin(np.arange(len(y)), first) | (domain < 0) | (y == "ant")
        X, y, domain = X[keep], y[keep], domain[keep]
    else:
        X[:] = X[np.unique(y, return_inverse=True)[1]]
    classifier = SourceOnly(rejector=rejector).fit(X, y, domain)
    assert np.isfinite(classifier.transduction_proba_).all()
    np.testing.assert_allclose(classifier.predict_proba(X).sum(axis=1), 1)
    restored = SourceOnly.from_state(*classifier.get_state())
    np.testing.assert_array_equal(restored.predict(X), classifier.predict(X))


def test_quantile_is_the_largest_softmax():
    logits = np.random.default_rng(0).normal(size=(50, 5)) * 3
    classes, known = REJECTORS["quantile"]()(torch.zeros(50, 2), torch.from_numpy(logits))
    np.testing.assert_allclose(known, softmax(logits, axis=1).max(axis=1), rtol=1e-14)
    np.testing.assert_array_equal(classes, logits)


# A threshold from hidden classes ----------------------------------------------------------


@pytest.mark.parametrize("n_classes", [3, 5, 10, 65])
def test_every_class_is_hidden_and_seen(n_classes):
    rounds = np.array(hidings(n_classes))
    assert ((~rounds).sum(axis=1) >= 2).all()
    assert (rounds.sum(axis=1) == min(n_classes // 2, n_classes - 2)).all()
    assert (rounds.sum(axis=0) >= 1).all()
    assert ((~rounds).sum(axis=0) >= 1).all()
    assert len(rounds) <= 10


def test_the_threshold_by_hand():
    known = np.array([0.1, 0.2, 0.5, 0.55, 0.6, 0.9, 1.0])
    hidden = np.array([True, True, False, False, True, False, False])
    # At 0.35: all knowns kept, two of three rejected. At 0.75: half of them kept, all rejected.
    assert best_threshold([(known, hidden, ~hidden)], 9.0) == pytest.approx(0.35)
    # The knowns at 0.5 and 0.55 get a wrong class anyway: nothing is lost by rejecting them.
    correct = ~hidden & (known > 0.55)
    assert best_threshold([(known, hidden, correct)], 9.0) == pytest.approx(0.75)


@pytest.mark.parametrize("seed", range(3))
def test_the_threshold_is_the_best_of_all(seed):
    rng = np.random.default_rng(seed)
    rounds = [
        (rng.normal(size=n).round(1), rng.random(n) < 0.4, rng.random(n) < 0.8) for n in (20, 35)
    ]

    def normalised_accuracy(threshold):
        values = []
        for known, hidden, correct in rounds:
            accepted = known >= threshold
            values.append((accepted & correct)[~hidden].mean() / 2 + (~accepted)[hidden].mean() / 2)
        return np.mean(values)

    chosen = best_threshold(rounds, 0.0)
    inner = [t for t in np.arange(-3, 3, 0.05) if len({True, False} & set(rounds[0][0] >= t)) > 1]
    assert normalised_accuracy(chosen) >= max(map(normalised_accuracy, inner)) - 1e-12


# Distances --------------------------------------------------------------------------------


def test_distances_are_those_of_the_definition_and_zero_between_twins():
    rng = np.random.default_rng(0)
    rows, others = rng.normal(size=(7, 300)), rng.normal(size=(9, 300))
    others[3] = rows[2]
    squared = squared_distances(torch.from_numpy(rows), torch.from_numpy(others)).numpy()
    np.testing.assert_allclose(squared, ((rows[:, None] - others) ** 2).sum(axis=2), atol=1e-10)
    assert squared[2, 3] == 0
