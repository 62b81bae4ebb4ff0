"""The default, the paper's presets, and what each leaves out in turn."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_helpers import SMALL_PAPER, alone_and_in_company
from opensetda import PGLClassifier
from opensetda.pgl.episodes import EpisodeSampler
from opensetda.pgl.settings import ABLATIONS, PRESETS, PGLSettings


def test_the_default_itself_is_good(task):
    classifier = PGLClassifier(openness=task.openness, random_state=0)
    classifier.fit(task.X, task.y, task.domain)
    assert (classifier.transduction_ == task.truth).mean() > 0.9
    assert (classifier.predict(task.target) == classifier.transduction_).mean() > 0.9


@pytest.mark.parametrize("preset", sorted(set(PRESETS) - {"default", "finetune"}))
def test_the_papers_presets_run(make, task, preset):
    classifier = make("pgl", preset=preset, settings=SMALL_PAPER)
    classifier.fit(task.X, task.y, task.domain)
    assert len(classifier.transduction_) == len(task.target)
    assert set(classifier.history_[-1]["loss"]) == {"node", "edge", "adversary"}
    assert all(np.isfinite(entry["mean_score"]) for entry in classifier.history_)
    assert set(classifier.predict(task.X)) <= {*classifier.classes_, "unknown"}
    together, alone, _ = alone_and_in_company(classifier, task.X[::10])
    np.testing.assert_allclose(together, alone, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("preset", "name"),
    [("default", "no-graph"), *(("paper-office-home", name) for name in sorted(ABLATIONS))],
)
def test_every_ablation_runs(make, task, quick, preset, name):
    settings = {**(quick if preset == "default" else SMALL_PAPER), **ABLATIONS[name]}
    classifier = make("pgl", preset=preset, settings=settings).fit(task.X, task.y, task.domain)
    assert np.isfinite(classifier.predict_proba(task.X)).all()
    losses = {key for entry in classifier.history_ for key in entry["loss"] or ()}
    gone = {"no-edge-loss": "edge", "no-graph": "edge", "no-adversary": "adversary"}
    assert gone.get(name) not in losses
    assert len(classifier._support.network.layers) == (name != "no-graph")
    assert (len(classifier.history_) == 1) == (name == "no-progressive-steps")


@pytest.mark.parametrize(
    "changes",
    [
        {"graph.layers": 2},
        {"graph.neighbours": None},
        {"alignment.components": None},
        {"ranking.confidence": "softmax"},
        {"episodes.labelled_queries": False},
        {"optimiser.warm_start": False},
        {"ranking.support_nodes": 8},
    ],
    ids=str,
)
def test_other_settings_run(make, task, quick, changes):
    classifier = make("pgl", settings={**quick, **changes}).fit(task.X, task.y, task.domain)
    assert (classifier.transduction_ == task.truth).mean() > 0.7
    assert (classifier.predict(task.target) == classifier.transduction_).mean() > 0.7


def test_the_papers_adversary_sees_no_pseudo_unknown(task):
    settings = PGLSettings.preset("paper-office-home").episodes
    labels = np.r_[np.zeros(5), np.ones(5)].astype(np.intp)
    pseudo = np.r_[np.full(20, 2), np.full(20, -1)].astype(np.intp)
    batch = EpisodeSampler(labels, pseudo, 2, 0.5, settings).draw(np.random.default_rng(0))
    assert (batch.labels < 2).all()
    expected = batch.is_target & (batch.index < 20)
    np.testing.assert_array_equal(batch.pseudo_unknown, expected)
