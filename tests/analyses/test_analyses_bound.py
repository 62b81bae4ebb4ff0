"""The terms of the error bound against what one computes by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from analyses_helpers import fits

from opensetda.analyses.bound import (
    analyse,
    bound_terms,
    joint_risks,
    measure_steps,
    proxy_a_distance,
)


def some_terms(share=0.5, labelled=0.4, unknown_risk=0.2):
    return bound_terms(share, labelled, (0.3, 0.1, unknown_risk), 0.5, (0.01, 0.02))


def test_both_theorems_by_hand():
    terms = some_terms()
    assert terms["target_error"] == pytest.approx(0.3 / 0.5)
    assert terms["open_set_risk"] == pytest.approx(0.5 / 0.5 * 0.2)
    assert terms["progressive_risk"] == pytest.approx(0.4 * 0.5 / 0.5 * 0.2)
    assert terms["shared_error"] == pytest.approx(0.03)
    assert terms["bound"] == pytest.approx(0.1 + 0.5 + 0.03 + 0.2)
    assert terms["progressive_bound"] == pytest.approx(0.6 * 0.6 + 0.02 + 0.6 * 0.01 + 0.08)
    # Three quarters unknown: odds of three to one.
    assert some_terms(share=0.75)["open_set_risk"] == pytest.approx(3 * 0.2)
    # When all are labelled, source and discrepancy leave the bound.
    assert some_terms(labelled=1.0)["progressive_bound"] == pytest.approx(0.02 + 0.2)
    without = some_terms(share=0.0, unknown_risk=math.nan)
    assert (without["open_set_risk"], without["target_error"]) == (0.0, 0.3)


def test_domains_that_are_alike_have_no_distance_and_those_apart_have_all_of_it():
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(2, 400, 3))
    assert proxy_a_distance(one, other) < 0.25
    assert proxy_a_distance(one, other + 50) == 2.0
    # A classifier that always says the larger domain would have a distance of 1.8.
    assert proxy_a_distance(one[:60], rng.normal(size=(1200, 3))) < 0.4
    assert math.isnan(proxy_a_distance(one, other[:0]))
    # The moved half is told for certain, the other by a coin.
    other[:200] += 100
    assert proxy_a_distance(one, other) == pytest.approx(1.0, abs=0.15)


def test_a_shift_of_conditionals_is_in_the_shared_error():
    rng = np.random.default_rng(3)
    labels = np.repeat([0, 1], 100)
    rows = np.array([[4.0], [-4.0]])[labels] + rng.normal(size=(200, 1))
    assert sum(joint_risks(rows, labels, rows, labels)) < 0.01
    # The classes have changed sides: no classifier can serve both domains.
    assert sum(joint_risks(rows, labels, rows, 1 - labels)) > 0.8


def test_over_the_steps_of_a_method():
    (fitted,) = fits("moving-means", steps=4)
    measured = measure_steps(fitted)
    labelled = [terms["labelled"] for terms in measured]
    assert labelled == pytest.approx([0.25, 0.5, 0.75, 1], abs=0.02)
    last, unknown = fitted.step_labels[-1], fitted.truth == 3
    error = (last != fitted.truth).mean() / (1 - unknown.mean())
    assert measured[-1]["target_error"] == pytest.approx(error)
    odds = unknown.mean() / (1 - unknown.mean())
    assert measured[-1]["open_set_risk"] == pytest.approx(odds * (last[unknown] != 3).mean())
    assert 0 <= measured[-1]["source_risk"] < 0.2
    result = analyse(fitted)
    assert list(result.rows) == measured
    assert len(result.figure.axes) == 2
    assert result.table().headings[:2] == ("step", "pseudo-labelled")
