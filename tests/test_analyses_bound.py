"""The terms of the error bound against what one computes by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analyses_helpers import a_request
from opensetda.analyses.bound import (
    BoundTerms,
    analyse,
    joint_risks,
    measure_steps,
    proxy_a_distance,
)


def some_terms(**changes):
    values = {"share": 0.5, "labelled": 0.4, "target_risk": 0.3, "source_risk": 0.1}
    values |= {"discrepancy": 0.5, "unknown_risk": 0.2}
    values |= {"joint_source_risk": 0.01, "joint_target_risk": 0.02}
    return BoundTerms(**{**values, **changes})


def test_both_theorems_by_hand():
    terms = some_terms()
    assert terms.target_error == pytest.approx(0.3 / 0.5)
    assert terms.open_set_risk == pytest.approx(0.5 / 0.5 * 0.2)
    assert terms.progressive_risk == pytest.approx(0.4 * 0.5 / 0.5 * 0.2)
    assert terms.shared_error == pytest.approx(0.03)
    assert terms.bound == pytest.approx(0.1 + 0.5 + 0.03 + 0.2)
    assert terms.progressive_bound == pytest.approx(0.6 * 0.6 + 0.02 + 0.6 * 0.01 + 0.08)


def test_the_share_weighs_the_unknowns():
    # Three quarters unknown: odds of three to one.
    assert some_terms(share=0.75).open_set_risk == pytest.approx(3 * 0.2)
    assert some_terms(share=0.75).target_error == pytest.approx(0.3 / 0.25)


def test_when_all_are_labelled_source_and_discrepancy_leave_the_bound():
    terms = some_terms(labelled=1.0)
    assert terms.progressive_risk == terms.open_set_risk
    assert terms.progressive_bound == pytest.approx(0.02 + terms.open_set_risk)


def test_without_unknowns_there_is_no_open_set_risk():
    terms = some_terms(share=0.0, unknown_risk=math.nan)
    assert terms.open_set_risk == terms.progressive_risk == 0.0
    assert terms.target_error == 0.3


def test_domains_that_are_alike_have_no_distance_and_those_apart_have_all_of_it():
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(400, 3)), rng.normal(size=(400, 3))
    assert proxy_a_distance(one, other) < 0.25
    assert proxy_a_distance(one, other + 50) == 2.0


def test_a_larger_domain_is_not_a_more_different_one():
    rng = np.random.default_rng(1)
    few, many = rng.normal(size=(60, 3)), rng.normal(size=(1200, 3))
    # A classifier that always says the larger domain would have a distance of 1.8.
    assert proxy_a_distance(few, many) < 0.4


def test_half_of_a_domain_moved_away_is_half_of_the_distance():
    rng = np.random.default_rng(2)
    one, other = rng.normal(size=(2, 600, 2))
    other[:300] += 100
    # Its moved half is told for certain, the other by a coin: a quarter of it is wrong at
    # the best, if all in doubt are given to the first domain, half of it otherwise.
    assert proxy_a_distance(one, other) == pytest.approx(1.0, abs=0.1)


def test_a_domain_of_nobody_has_no_distance():
    assert math.isnan(proxy_a_distance(np.zeros((4, 2)), np.zeros((0, 2))))
    assert all(
        math.isnan(risk)
        for risk in joint_risks(
            np.zeros((4, 2)), np.zeros(4, dtype=int), np.zeros((0, 2)), np.zeros(0, dtype=int)
        )
    )


def test_a_shift_of_conditionals_is_in_the_shared_error():
    rng = np.random.default_rng(3)
    labels = np.repeat([0, 1], 100)
    rows = np.array([[4.0], [-4.0]])[labels] + rng.normal(size=(200, 1))
    assert sum(joint_risks(rows, labels, rows, labels)) < 0.01
    # The classes have changed sides: no classifier can serve both domains.
    assert sum(joint_risks(rows, labels, rows, 1 - labels)) > 0.8


def test_over_the_steps_of_a_method():
    fitted = a_request("moving-means", steps=4).fit()
    measured, n_targets = measure_steps(fitted), len(fitted.truth)
    assert [terms.labelled for terms in measured] == pytest.approx([0.25, 0.5, 0.75, 1], abs=0.02)
    last, wrong = measured[-1], fitted.step_labels[-1] != fitted.truth
    assert last.share == pytest.approx(0.4, abs=0.02)
    assert last.target_error == pytest.approx(wrong.mean() / (1 - last.share))
    assert last.progressive_risk == pytest.approx(last.open_set_risk)
    unknown = fitted.truth == 3
    assert unknown.sum() + (~unknown).sum() == n_targets
    assert last.unknown_risk == (fitted.step_labels[-1][unknown] != 3).mean()
    assert 0 <= last.source_risk < 0.2


def test_the_analysis_has_a_row_for_each_step():
    result = analyse(a_request("moving-means", steps=2))
    assert [row["step"] for row in result.rows] == [1, 2]
    assert len(result.figure.axes) == 2
    assert result.table().headings[:2] == ("step", "pseudo-labelled")
