"""Which step is kept: on estimates made by hand, and in a training that is made to run away."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from opensetda import PGLClassifier
from opensetda.nn.inputs import FixedRows
from opensetda.openness.tracker import OpennessTracker, StableStepRule
from opensetda.pgl import training
from opensetda.pgl.settings import PRESETS, PGLSettings
from opensetda.pgl.training import train
from opensetda.rows import Rows

STABLE = [0.3, 0.34, 0.28, 0.31, 0.3]
RUNAWAY = [0.3, 0.32, 0.3, 0.31, 0.29, 0.7, 0.9]


def rule_after(estimates, band=0.1, early=False):
    rule = StableStepRule(band, early)
    for estimate in estimates:
        rule.add(estimate)
    return rule


# The rule ---------------------------------------------------------------------------------


def test_steps_that_agree_keep_the_last():
    kept = rule_after(STABLE).kept()
    assert (kept.step, kept.steps) == (5, 5)
    assert kept.reason.startswith("the last step")


def test_a_runaway_goes_back_to_the_last_stable_step():
    kept = rule_after(RUNAWAY).kept()
    assert (kept.step, kept.steps) == (5, 7)
    assert "0.90 at the end" in kept.reason
    assert "0.31" in kept.reason  # the median


@pytest.mark.parametrize(
    ("estimates", "step"),
    [
        ([0.4], 1),
        ([0.1, 0.9], 2),  # the median lies between: both are as near
        ([0.3, 0.3, 0.0], 2),
        ([0.9, 0.5, 0.3, 0.3, 0.3], 5),  # early steps may be off
        ([0.3, 0.3, 0.6, 0.3, 0.3], 5),  # and so may one between
        ([0.3, 0.3, 0.3, 0.6, 0.35, 0.7], 5),  # the latest, not the nearest
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], 5),  # a drift: as far as the band from 0.4
    ],
    ids=str,
)
def test_which_step_is_kept(estimates, step):
    assert rule_after(estimates, band=0.1000001).kept().step == step


def test_the_band_decides():
    steps = [rule_after(RUNAWAY, band).kept().step for band in (0.0, 0.1, 0.4, 0.6)]
    assert steps == [4, 5, 6, 7]


def test_a_band_of_one_keeps_the_last_step_always():
    for estimates in (RUNAWAY, [0.0, 0.0, 1.0], [1.0, 0.0]):
        rule = rule_after(estimates, band=1.0, early=True)
        assert rule.kept().step == len(estimates)
        assert not rule.should_stop


def test_two_steps_outside_of_the_band_end_the_training():
    rule = StableStepRule(0.1, early=True)
    stops = []
    for estimate in RUNAWAY:
        rule.add(estimate)
        stops.append(rule.should_stop)
    assert stops == [False] * 6 + [True]
    assert not rule_after(RUNAWAY).should_stop  # nobody asked for it
    assert not rule_after([*RUNAWAY[:-1], 0.3], early=True).should_stop
    assert not rule_after([0.1, 0.9], early=True).should_stop


def test_it_is_json():
    kept = rule_after(RUNAWAY).kept()
    assert json.loads(json.dumps(kept.to_dict())) == {
        "step": 5,
        "steps": 7,
        "reason": kept.reason,
    }


def test_the_paper_and_fine_tuning_keep_the_last_step():
    for name in PRESETS:
        keeps_last = PGLSettings.preset(name).stopping.band == 1
        assert keeps_last == (name != "default")


# Back to it in a training -----------------------------------------------------------------


class MadeUp(OpennessTracker):
    """A tracker whose estimates were decided before, and which remembers the scores it saw."""

    def __init__(self, estimates, openness=1 / 3):
        super().__init__(openness)
        self.made_up, self.seen = estimates, []

    def update(self, *scores):
        share = super().update(*scores)
        self.seen.append(scores)
        self.estimates[-1] = self.made_up[len(self.seen) - 1]
        return share


def weights(network):
    return torch.cat([p.detach().reshape(-1).clone() for p in network.parameters()])


@pytest.fixture
def run(task, quick, monkeypatch):
    """Train with made-up estimates; returns the result, the tracker and the weights by step.

    One graph holds everybody, so that scores depend on no draw.
    """
    source = Rows(task.X, np.flatnonzero(task.domain > 0))
    target = Rows(task.X, np.flatnonzero(task.domain < 0))
    inputs = FixedRows(source, target, PGLSettings().alignment)
    labels = np.unique(task.labels, return_inverse=True)[1]
    large = {"ranking.graph_targets": 500, "ranking.support_nodes": 500, "steps": 4}
    fast = {"optimiser.graph_rate": 1e-2, "optimiser.backbone_rate": 1e-2}
    train_step = training.Trainer.train_step

    def run(estimates, **changes):
        trained = []

        def and_remember(trainer, *arguments):
            losses = train_step(trainer, *arguments)
            trained.append(weights(trainer.network))
            return losses

        monkeypatch.setattr(training.Trainer, "train_step", and_remember)
        settings = PGLSettings().with_changes({**quick, **large, **fast, **changes})
        tracker = MadeUp(estimates)
        return train(inputs, labels, 4, tracker, settings, seed=0), tracker, trained

    return run


RUNS_AWAY = [0.3, 0.3, 0.3, 0.9]


@pytest.mark.parametrize("warm", [True, False])
def test_the_network_of_the_kept_step_comes_back(run, warm):
    result, tracker, trained = run(RUNS_AWAY, **{"optimiser.warm_start": warm})
    assert (result.kept.step, result.kept.steps, tracker.kept) == (3, 4, 3)
    assert torch.equal(weights(result.network), trained[2])
    assert not torch.equal(trained[2], trained[3])


def test_the_scores_are_those_of_the_kept_step(run):
    """But for rounding: the order of the nodes in the graph is another."""
    result, tracker, _ = run(RUNS_AWAY)
    now_and_then = zip(
        (result.scores.known, result.scores.held_out),
        tracker.seen[2][:2],
        tracker.seen[3][:2],
        strict=True,
    )
    for now, then, last in now_and_then:
        np.testing.assert_allclose(now, then, atol=1e-5)
        assert np.abs(now - last).max() > 1e-3


def test_the_labels_are_those_that_the_kept_step_was_trained_on(run):
    result = run(RUNS_AWAY)[0]
    assert result.samples.progress == 2 / 4
    second = result.history[1]
    labels = result.samples.pseudo_labels.numpy()
    assert (labels == 4).sum() == second["n_unknown"]
    assert ((labels >= 0) & (labels < 4)).sum() == second["n_known"]
    assert len(result.history) == len(result.step_labels) == 4  # what came later stays on record


def test_a_training_that_ended_there_gives_the_same(run, monkeypatch):
    """Only the steps that come after are missing: each knows how many there were to be."""
    back, _, _ = run(RUNS_AWAY)
    with monkeypatch.context() as patch:
        patch.setattr(StableStepRule, "should_stop", property(lambda rule: len(rule.estimates) > 2))
        ended, _, trained = run(RUNS_AWAY)
    assert len(trained) == ended.kept.steps == ended.kept.step == 3
    assert torch.equal(weights(back.network), weights(ended.network))
    assert torch.equal(back.samples.pseudo_labels, ended.samples.pseudo_labels)
    np.testing.assert_allclose(back.scores.known, ended.scores.known, atol=1e-5)
    np.testing.assert_allclose(back.scores.classes, ended.scores.classes, atol=1e-4)


def test_an_early_stop_saves_the_steps_after_it(run):
    estimates = [0.3, 0.3, 0.3, 0.9, 0.9, 0.9, 0.9]
    early = run(estimates, steps=7, **{"stopping.early": True})[0]
    assert [entry["step"] for entry in early.history] == [1, 2, 3, 4, 5]
    assert (early.kept.step, early.kept.steps) == (3, 5)


def test_a_band_of_one_goes_back_to_nothing(run):
    result, _, trained = run(RUNS_AWAY, **{"stopping.band": 1})
    assert result.kept.step == 4
    assert torch.equal(weights(result.network), trained[3])


def test_the_classifier_answers_by_the_kept_step(task, quick, monkeypatch):
    """Threshold, labels and report are of that step; the others stay on record."""

    def fitted(estimates):
        with monkeypatch.context() as patch:
            patch.setattr("opensetda.base.OpennessTracker", lambda *_: MadeUp(estimates, "auto"))
            classifier = PGLClassifier(settings={**quick, "steps": 4}, random_state=0)
            return classifier.fit(task.X, task.y, task.domain)

    classifier, last = fitted(RUNS_AWAY), fitted([0.3] * 4)
    assert (classifier.kept_step_.step, last.kept_step_.step) == (3, 4)
    assert classifier.openness_report_.by_step == tuple(RUNS_AWAY)
    assert classifier.openness_ == last.openness_
    assert len(classifier.history_) == len(classifier.step_labels_) == 4
    names = np.array([*classifier.classes_, "unknown"])
    kept = names[classifier.step_labels_[2]]
    np.testing.assert_array_equal(kept, classifier.transduction_)
    assert (classifier.predict_proba(task.X) != last.predict_proba(task.X)).any()
    assert classifier._support.progress == 2 / 4
