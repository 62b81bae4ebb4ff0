"""MovingMeans: the closed form, what each parameter does, and that predict follows fit."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from conftest import fit_task
from feature_shifts import feature_task
from opensetda import ClassMeans, MovingMeans, SmoothedMeans
from opensetda.methods.means import estimator
from opensetda.metrics import evaluate

METHODS = [MovingMeans, SmoothedMeans, ClassMeans]


@pytest.fixture(scope="module")
def hard():
    """Ten known classes under a shift of each, half of the targets unknown."""
    return feature_task(10, 10, 64, "class-translation", 0.5, seed=0, per_class=30)


def hos(classifier, task):
    classes = classifier.classes_.tolist()
    return evaluate(task.target_truth, classifier.transduction_, classes).hos


def test_class_means_by_hand(task):
    """Nothing but centring, cosines and one step, in numpy."""
    fitted = ClassMeans(1 / 3, steps=1).fit(task.X, task.y, task.domain)

    def unit(x):
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    source, target = (unit(unit(x) - unit(x).mean(axis=0)) for x in (task.source, task.target))
    means = unit(np.stack([source[task.labels == c].sum(axis=0) for c in fitted.classes_]))
    np.testing.assert_allclose(fitted.transduction_scores_, (target @ means.T).max(1), atol=1e-5)


def test_each_part_is_worth_something(hard):
    """On a shift of its own for each class, the parts add up."""
    source_only = hos(fit_task(ClassMeans(0.5, move=0.0), hard), hard)
    class_means = hos(fit_task(ClassMeans(0.5), hard), hard)
    moving = hos(fit_task(MovingMeans(0.5, scaling="none"), hard), hard)
    assert source_only < moving
    assert class_means < moving


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 3},
        {"components": 8},
        {"components": None},
        {"whitening": 0.0},
        {"neighbours": 3},
        {"message": 0.0},
        {"ridge": None},
        {"move": 0.0},
        {"class_balance": 0.0},
        {"evidence": 0.0},
        {"scaling": "none"},
    ],
)
def test_each_parameter_changes_the_scores(hard, change):
    whole, changed = fit_task(MovingMeans(0.5), hard), fit_task(MovingMeans(0.5, **change), hard)
    assert (whole.transduction_scores_ != changed.transduction_scores_).any()


IN_ANOTHER_PROCESS = """
import hashlib, sys
import numpy as np
from opensetda import MovingMeans
with np.load(sys.argv[1]) as file:
    X, y, domain = file["X"], file["y"], file["domain"]
order = np.random.default_rng(3).permutation(len(X))
fitted = MovingMeans(0.5).fit(X[order], y[order], domain[order])
mine = np.argsort(order[domain[order] < 0])
print(hashlib.sha256(fitted.transduction_proba_[mine].tobytes()).hexdigest())
"""


def test_another_process_order_and_hash_seed_give_the_same_bits(hard, tmp_path):
    fitted = fit_task(MovingMeans(0.5), hard)
    rows = np.concatenate([hard.source_features, hard.target_features])
    labels = np.concatenate([hard.source_labels, np.full(len(hard.target_features), "")])
    domain = np.repeat([1, -1], [len(hard.source_features), len(hard.target_features)])
    np.savez(tmp_path / "rows.npz", X=rows, y=labels, domain=domain)
    done = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS, str(tmp_path / "rows.npz")],
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        check=True,
    )
    own = hashlib.sha256(fitted.transduction_proba_.tobytes()).hexdigest()
    assert done.stdout.strip() == own


@pytest.mark.parametrize("method", METHODS)
def test_targets_beyond_the_graph_are_attached_to_it(hard, method, monkeypatch):
    whole = fit_task(method(0.5), hard)
    monkeypatch.setattr(estimator, "GRAPH_ROWS", 200)
    sampled = fit_task(method(0.5), hard)
    assert len(sampled.transduction_) == len(hard.target_features) > 200
    assert sampled.step_labels_ is None
    np.testing.assert_array_equal(sampled.predict(hard.target_features), sampled.transduction_)
    assert hos(sampled, hard) > hos(whole, hard) - 0.15


def test_no_seed_and_no_state_of_any_generator(hard):
    assert "random_state" not in MovingMeans().get_params()
    assert not MovingMeans.is_random
    np.random.seed(1)  # noqa: NPY002 - the global state must not matter
    torch.manual_seed(1)
    first = fit_task(MovingMeans(), hard)
    np.random.seed(2)  # noqa: NPY002
    torch.manual_seed(2)
    second = fit_task(MovingMeans(), hard)
    np.testing.assert_array_equal(first.transduction_proba_, second.transduction_proba_)


def test_steps_label_more_and_more_targets(hard):
    fitted = fit_task(MovingMeans(0.5, steps=4), hard)
    n = len(hard.target_features)
    labelled = [entry["n_known"] + entry["n_unknown"] for entry in fitted.history_]
    np.testing.assert_allclose(labelled, [n / 4, n / 2, 3 * n / 4, n], atol=1)
    assert fitted.history_[0]["changed"] is None
    assert fitted.step_labels_.shape == (4, n)
    names = np.array([*fitted.classes_, "unknown"])
    np.testing.assert_array_equal(names[fitted.step_labels_[-1]], fitted.transduction_)


def test_pseudo_unknowns_lower_the_score_of_their_like(hard):
    """The term for unknowns: rows near pseudo-unknowns score lower with it."""
    without = fit_task(MovingMeans(0.5, evidence=0.0), hard).transduction_scores_
    scored = fit_task(MovingMeans(0.5, evidence=1.0), hard)
    unknown = scored.transduction_ == "unknown"
    change = scored.transduction_scores_ - without
    assert change[unknown].mean() < 0 < change[~unknown].mean()
