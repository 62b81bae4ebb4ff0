"""A method with a boundary of its own: used where nothing is told, and never otherwise."""

from __future__ import annotations

import numpy as np
import pytest

from opensetda.base import OpenSetClassifier, Scores


class FirstFeature(OpenSetClassifier):
    """Known is who has a large first feature; the second one names the class."""

    def __init__(self, openness="auto", cut=0.0, scaling="none", unknown_label="unknown"):
        self.openness = openness
        self.cut = cut
        self.scaling = scaling
        self.unknown_label = unknown_label

    def _fit_domains(self, source, y, target, openness, context):
        return self._score_rows(np.concatenate([chunk for _, chunk in target.chunks()]))

    def _score_rows(self, X):
        X = X.astype(np.float64)
        classes = np.column_stack([-X[:, 1], X[:, 1]])
        return Scores(classes, X[:, 0], np.full(len(X), np.nan))

    def _own_cut(self, scores):
        return self.cut

    def _fitted_state(self):
        return {}, {}

    def _restore_fitted_state(self, values, arrays):
        pass


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    known = np.linspace(-1, 3, 81)
    return np.column_stack([rng.permutation(known), rng.choice([-1.0, 1.0], 81)])


def fit(rows, **parameters):
    X = np.concatenate([[[2, -1], [2, 1]], rows])
    domain = np.repeat([0, -1], [2, len(rows)])
    return FirstFeature(**parameters).fit(X, np.array(["a", "b"])[np.r_[0, 1, [0] * 81]], domain)


def test_nothing_told_the_own_boundary_decides(rows):
    fitted = fit(rows, cut=0.025)
    below = rows[:, 0] < 0.025
    np.testing.assert_array_equal(fitted.transduction_ == "unknown", below)
    assert fitted.openness_ == pytest.approx(below.mean())
    assert not fitted.openness_report_.told
    assert fitted.rejection_threshold_ == 0.025
    np.testing.assert_array_equal(fitted.predict(rows), fitted.transduction_)


def test_a_share_that_is_told_overrules_it(rows):
    fitted = fit(rows, cut=0.0, openness=0.5)
    assert (fitted.transduction_ == "unknown").sum() == 40
    assert fitted.openness_ == 0.5
    assert fitted.openness_report_.told


def test_a_boundary_below_all_rejects_nothing(rows):
    fitted = fit(rows, cut=-5.0)
    assert "unknown" not in fitted.transduction_
    assert fitted.openness_ == 0
    assert (fitted.decision_function(rows) > 0).all()


def test_a_few_rejected_ones_stay_rejected(rows):
    """An estimate below 3 % counts as none; a boundary is used as it is."""
    fitted = fit(rows, cut=-0.99)
    assert (fitted.transduction_ == "unknown").sum() == 1
    assert fitted.openness_ == pytest.approx(1 / 81)
    assert fitted.openness_report_.own_boundary
