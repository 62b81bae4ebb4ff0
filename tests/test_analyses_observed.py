"""Looking at the steps of a training shows what the training did, and changes nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from analyses_helpers import QUICK, SmallTasks
from conftest import fit_task
from opensetda import PGLClassifier
from opensetda.analyses.observed import ObservedTraining, true_classes
from opensetda.errors import InputError

CHANGES = {**dict(QUICK), "steps": 4}
PAPER = {
    "steps": 2,
    "graph.edge_width": 8,
    "graph.node_width": 8,
    "optimiser.first_step_epochs": 1,
    "optimiser.epochs_per_step": 1,
    "optimiser.iterations_per_epoch": 2,
    "losses.edge": 1.0,
}


@pytest.fixture(scope="module")
def small():
    return SmallTasks().load("0")


@pytest.fixture(scope="module")
def training(small):
    return ObservedTraining(small, "auto", changes=CHANGES, seed=3)


def test_the_training_is_the_one_that_nobody_looks_at(small, training):
    alone = fit_task(PGLClassifier(settings=CHANGES, random_state=3), small)
    np.testing.assert_array_equal(
        training.classifier.transduction_proba_, alone.transduction_proba_
    )


def test_the_steps_are_those_of_the_training(training):
    classifier = training.classifier
    assert training.n_steps == 4
    for step in training.steps():
        history = classifier.history_[step.number - 1]
        known = (step.pseudo_labels >= 0) & (step.pseudo_labels < training.n_classes)
        assert known.sum() == history["n_known"]
        assert (step.pseudo_labels == training.n_classes).sum() == history["n_unknown"]
        if step.number != training.kept_step:  # which was labelled once more
            labels = classifier.step_labels_[step.number - 1]
            np.testing.assert_array_equal(step.labels, labels[training.target_order])
    # What a step is trained on is what the one before it found.
    np.testing.assert_array_equal(
        training.step(3).samples.pseudo_labels.numpy(), training.step(2).pseudo_labels
    )
    assert (training.step(1).samples.pseudo_labels == -1).all()


def test_networks_of_the_steps_differ_and_the_kept_one_is_the_classifiers(training):
    first, last = training.step(1).network, training.step(4).network
    assert not all(
        (a == b).all() for a, b in zip(first.parameters(), last.parameters(), strict=True)
    )
    kept = dict(training.step(training.kept_step).network.named_parameters())
    for name, array in training.classifier.get_state()[1].items():
        if name.startswith("network."):
            value = kept[name.removeprefix("network.")].detach().double().numpy()
            np.testing.assert_array_equal(array, value)


def test_every_sample_is_embedded_once_and_classes_are_found(training):
    embedded = training.embed(training.step(2))
    assert embedded.source.shape == (len(training.source_labels), embedded.target.shape[1])
    assert len(embedded.target) == len(training.target_truth)
    for rows in (embedded.source, embedded.target):
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    assert (embedded.source_classes == training.source_labels).mean() > 0.9


def test_many_graphs_embed_everybody_as_well(small):
    changes = {**CHANGES, "ranking.graph_targets": 7, "ranking.support_nodes": 6}
    training = ObservedTraining(small, 0.4, changes=changes)
    embedded = training.embed(training.step(1))
    np.testing.assert_allclose(np.linalg.norm(embedded.source, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(embedded.target, axis=1), 1, atol=1e-5)


def test_the_truth_reaches_nothing_but_the_evaluator(small, training):
    rng = np.random.default_rng(0)
    lies = replace(small, target_truth=rng.permutation(small.target_truth))
    other = ObservedTraining(lies, "auto", changes=CHANGES, seed=3)
    for number in (1, 4):
        mine, theirs = training.embed(training.step(number)), other.embed(other.step(number))
        np.testing.assert_array_equal(mine.target, theirs.target)
        np.testing.assert_array_equal(mine.source_classes, theirs.source_classes)


def test_rows_are_where_the_task_has_them(small, training):
    embedded = training.embed(training.step(4))
    order = np.random.default_rng(1).permutation(len(small.target_truth))
    shuffled = replace(
        small,
        target_features=small.target_features[order],
        target_truth=small.target_truth[order],
    )
    other = ObservedTraining(shuffled, "auto", changes=CHANGES, seed=3)
    np.testing.assert_array_equal(other.target_truth, training.target_truth)
    np.testing.assert_array_equal(order[other.target_order], training.target_order)
    np.testing.assert_array_equal(other.embed(other.step(4)).target, embedded.target)


def test_the_papers_preset_has_steps_to_look_at(small):
    training = ObservedTraining(small, 0.4, "paper-office-home", PAPER)
    assert training.kept_step == training.n_steps == 2
    embedded = training.embed(training.step(2))
    assert embedded.target.shape[1] == 8
    assert not np.array_equal(embedded.target, training.embed(training.step(1)).target)


def test_a_step_that_there_is_not(training):
    with pytest.raises(InputError, match="step 5: there are the steps 1 to 4"):
        training.step(5)


def test_true_classes_are_places_among_the_known_and_one_more():
    truth = np.array(["b", "zebra", "a", "ab", "c"])
    np.testing.assert_array_equal(true_classes(truth, np.array(["a", "b", "c"])), [1, 3, 0, 3, 2])
