"""The terms of the error bound against what one computes by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analyses_helpers import QUICK, SmallTasks, a_request
from opensetda.analyses.bound import (
    BoundTerms,
    analyse,
    bound_terms,
    joint_risks,
    measure_steps,
    proxy_a_distance,
    unknown_risk_of,
)
from opensetda.analyses.observed import ObservedTraining

UNLABELLED = -1


def some_terms(**changes):
    values = {
        "share": 0.5,
        "labelled": 0.4,
        "target_risk": 0.3,
        "source_risk": 0.1,
        "a_distance": 1.0,
        "a_distance_of_accepted": 1.2,
        "unknown_risk": 0.2,
        "pseudo_unknown_risk": 0.05,
        "joint_source_risk": 0.01,
        "joint_target_risk": 0.02,
    }
    return BoundTerms(**{**values, **changes})


def test_both_theorems_by_hand():
    terms = some_terms()
    assert terms.target_error == pytest.approx(0.3 / 0.5)
    assert terms.discrepancy == pytest.approx(0.5)
    assert terms.open_set_risk == pytest.approx(0.5 / 0.5 * 0.2)
    assert terms.progressive_open_set_risk == pytest.approx(0.4 * 0.5 / 0.5 * 0.05)
    assert terms.shared_error == pytest.approx(0.03)
    assert terms.bound == pytest.approx(0.1 + 0.5 + 0.03 + 0.2)
    assert terms.progressive_bound == pytest.approx(0.6 * 0.6 + 0.02 + 0.6 * 0.01 + 0.02)


def test_the_share_weighs_the_unknowns():
    # Three quarters unknown: odds of three to one.
    assert some_terms(share=0.75).open_set_risk == pytest.approx(3 * 0.2)
    assert some_terms(share=0.75).target_error == pytest.approx(0.3 / 0.25)


def test_when_all_are_labelled_source_and_discrepancy_leave_the_bound():
    terms = some_terms(labelled=1.0, pseudo_unknown_risk=0.2)
    assert terms.progressive_open_set_risk == terms.open_set_risk
    assert terms.progressive_bound == pytest.approx(0.02 + terms.open_set_risk)


def test_before_anybody_is_labelled_there_is_no_progressive_risk():
    terms = some_terms(labelled=0.0, pseudo_unknown_risk=math.nan)
    assert terms.progressive_open_set_risk == 0.0
    assert terms.progressive_bound == pytest.approx(0.6 + 0.03)


def test_without_unknowns_there_is_no_open_set_risk():
    terms = some_terms(share=0.0, unknown_risk=math.nan, pseudo_unknown_risk=math.nan)
    assert terms.open_set_risk == terms.progressive_open_set_risk == 0.0
    assert terms.target_error == 0.3


def test_the_risks_of_six_targets_by_hand():
    rng = np.random.default_rng(0)
    centres = 30 * np.eye(2, 4)
    source_labels = np.repeat([0, 1], 20)
    source = centres[source_labels] + rng.normal(size=(40, 4))
    truth = np.array([0] * 10 + [1] * 10 + [2] * 20)
    target = np.concatenate([centres[truth[:20]], np.full((20, 4), 9.0)])
    target = target + rng.normal(size=target.shape)
    labels = truth.copy()
    labels[0] = 1  # a known one gets the other class
    labels[1] = 2  # a known one is rejected
    labels[20:25] = 0  # five of twenty unknowns are accepted
    pseudo = np.full(40, UNLABELLED)
    pseudo[[10, 20, 26, 27]] = labels[[10, 20, 26, 27]]  # of three unknowns one is taken for 0
    wrong_source = source_labels.copy()
    wrong_source[:4] = 1
    terms = bound_terms(source, source_labels, wrong_source, target, truth, labels, pseudo, 2)
    assert terms.share == 0.5
    assert terms.labelled == 4 / 40
    assert terms.target_risk == 7 / 40
    assert terms.source_risk == 4 / 40
    assert terms.unknown_risk == 5 / 20
    assert terms.pseudo_unknown_risk == pytest.approx(1 / 3)
    assert terms.progressive_open_set_risk == pytest.approx(0.1 / 3)
    # Classes far apart: one classifier serves both domains.
    assert terms.shared_error == 0.0
    # R_t / (1 - pi) is the error of the known and the open-set risk.
    assert terms.target_error == pytest.approx(2 / 20 + terms.open_set_risk)


def test_the_pseudo_labels_risk_counts_labelled_unknowns_only():
    truth = np.array([0, 2, 2, 2, 2])
    pseudo = np.array([2, 2, 1, UNLABELLED, UNLABELLED])
    assert unknown_risk_of(pseudo, truth, 2) == 0.5
    assert math.isnan(unknown_risk_of(np.full(5, UNLABELLED), truth, 2))


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


@pytest.fixture(scope="module")
def training():
    return ObservedTraining(SmallTasks().load("0"), 0.4, changes={**dict(QUICK), "steps": 4})


def test_over_the_steps_of_a_training(training):
    measured = measure_steps(training)
    n_targets = len(training.target_truth)
    labelled = [round(m / 4 * n_targets) / n_targets for m in range(1, 5)]
    assert [terms.labelled for terms in measured] == labelled
    last = measured[-1]
    assert last.progressive_open_set_risk == pytest.approx(last.open_set_risk)
    wrong = training.step(4).labels != training.target_truth
    assert last.target_error == pytest.approx(wrong.mean() / (1 - last.share))
    assert last.share == pytest.approx(0.4, abs=0.02)


def test_the_analysis_has_a_row_a_step_and_task(tmp_path):
    result = analyse(a_request(tmp_path))
    assert [(row["task"], row["step"]) for row in result.table.rows] == [
        *(("0", 1), ("0", 2)),
        *(("1", 1), ("1", 2)),
    ]
    last = result.table.rows[1]
    assert last["progressive_open_set_risk"].mean == pytest.approx(last["open_set_risk"].mean)
