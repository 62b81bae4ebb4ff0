"""A method with a boundary of its own: used where nothing is told, and never otherwise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from opensetda.base import OpenSetClassifier


class FirstFeatureScorer(nn.Module):
    def forward(self, x):
        return torch.stack([-x[:, 1], x[:, 1]], dim=1), x[:, 0]


@dataclass(eq=False, repr=False, kw_only=True)
class FirstFeature(OpenSetClassifier):
    """Known is who has a large first feature; the second one names the class."""

    cut: float = 0.0

    def _fit_domains(self, source, y, target, share, context):
        self.scorer_ = self._make_scorer({})

    def _make_scorer(self, arrays):
        return FirstFeatureScorer()

    def _own_cut(self, scores):
        return self.cut


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


def test_a_few_rejected_ones_stay_rejected(rows):
    """An estimate below 3 % counts as none; a boundary is used as it is."""
    fitted = fit(rows, cut=-0.99)
    assert (fitted.transduction_ == "unknown").sum() == 1
    assert fitted.openness_ == pytest.approx(1 / 81)
    assert fitted.openness_report_.own_boundary
