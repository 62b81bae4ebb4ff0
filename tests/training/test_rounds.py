"""Rounds of labels and training: what the backbone is trained on, and what comes of it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from opensetda import ClassMeans, InputError, MovingMeans, SmoothedMeans
from opensetda.context import FitContext, Record
from opensetda.methods import rankers
from opensetda.rows import Domains, Rows
from opensetda.share.report import ShareSource
from opensetda.training import rounds
from opensetda.training.rounds import Labelled, class_mean_loss, draw_batch, fit_in_rounds
from opensetda.training.settings import FineTuneSettings
from training_helpers import N_SOURCE, N_TARGET, C, TinyImages

DOMAIN = np.repeat([1, -1], [N_SOURCE, N_TARGET])
QUICK = {"iterations": 4, "rate": 1e-2, "rounds": 2, "per_class": 4}


class Memory:
    """Keeps the record of a training, as a file would."""

    record = None

    def write(self, record):
        arrays = {name: values.copy() for name, values in record.arrays.items()}
        self.record = Record(json.loads(json.dumps(record.values)), arrays)

    def read(self):
        return self.record


def domains_of(images):
    """Both domains as features of the images, in the order of the images."""
    X = images.features()
    return Domains.of(
        source=Rows(X, np.arange(N_SOURCE)),
        y=images.labels[:N_SOURCE],
        target=Rows(X, np.arange(N_SOURCE, N_SOURCE + N_TARGET)),
        classes=np.arange(C),
    )


def tune(images, method=None, seed=0, **context):
    method = method or MovingMeans(openness=0.25)
    services = FitContext(images=images, **context)
    return fit_in_rounds(method, domains_of(images), services, seed)


def names_of(rounds):
    """The labels of the last round in words, or numbers of classes."""
    names = np.array([*rounds.classifier.classes_.tolist(), "unknown"], dtype=object)
    return names[rounds.step_labels[-1]]


def test_the_backbone_is_trained_and_the_method_fitted_to_its_features():
    images = TinyImages(**QUICK)
    before = images.features()
    method = MovingMeans(openness=0.25)
    tuned = tune(images, method)
    classifier = tuned.classifier
    after = images.features()
    assert np.abs(after - before).max() > 1e-2
    np.testing.assert_array_equal(classifier.predict(after[N_SOURCE:]), classifier.transduction_)
    assert [entry["step"] for entry in tuned.history] == [1, 2, 3]
    assert [entry["loss"] is None for entry in tuned.history] == [True, False, False]
    # Of 40 targets, a fifth, two fifths and three fifths.
    labelled = [entry["n_known"] + entry["n_unknown"] for entry in tuned.history]
    assert labelled == [8, 16, 24]
    assert tuned.step_labels.shape == (3, N_TARGET)
    np.testing.assert_array_equal(names_of(tuned), classifier.transduction_)
    # What was given stays as it was.
    assert not hasattr(method, "classes_")
    assert classifier.get_params() == method.get_params()


def test_without_rounds_the_mean_of_the_views_is_labelled():
    images = TinyImages(averaged=2, rounds=0)
    before = images.features()
    tuned = tune(images)
    np.testing.assert_array_equal(images.features(), before)
    assert [entry["loss"] for entry in tuned.history] == [None]


@pytest.mark.parametrize("is_safer", [False, True])
def test_labels_of_the_view_on_which_methods_agree_are_learned(is_safer, monkeypatch):
    found = iter([0.5, 0.4] if is_safer else [0.4, 0.5])
    true = rankers.agreement
    monkeypatch.setattr(rankers, "agreement", lambda *given: (true(*given), next(found))[1])
    images = TinyImages(averaged=2, **QUICK)
    tune(images)
    assert images.averaged == (1 if is_safer else 2)


@pytest.mark.parametrize("clear", [-1.0, 1.0])
def test_training_is_undone_unless_a_second_method_clearly_agrees(clear, monkeypatch):
    monkeypatch.setattr(rounds, "CLEAR", clear)
    images, is_undone = TinyImages(averaged=2, **QUICK), clear > 0
    before, weights = images.features(), images.backbone[0].weight.detach().clone()
    tuned = tune(images, MovingMeans())
    classifier = tuned.classifier
    assert torch.equal(images.backbone[0].weight, weights) == is_undone
    assert tuned.was_undone == is_undone
    np.testing.assert_array_equal(names_of(tuned), classifier.transduction_)
    if is_undone:
        # As if it had never been asked for.
        assert images.averaged == 1
        labels = np.where(DOMAIN > 0, images.labels, 0)
        frozen = MovingMeans().fit(before, labels, DOMAIN)
        assert classifier.get_params() == frozen.get_params()
        np.testing.assert_array_equal(classifier.transduction_proba_, frozen.transduction_proba_)


def test_training_that_changes_nothing_is_undone(monkeypatch):
    monkeypatch.setattr(rounds, "_train", lambda *given: 0.0)
    assert tune(TinyImages(**QUICK), MovingMeans(openness=0.25, scaling="ranks")).was_undone


def test_agreement_is_the_share_of_labels_that_a_simpler_method_gives_too():
    images = TinyImages()
    labels = np.where(DOMAIN > 0, images.labels, 0)
    given = images.features(), labels, DOMAIN
    domains = domains_of(images)
    found = rankers.agreement(MovingMeans(openness=0.25), domains, FitContext())
    other = SmoothedMeans(0.25, scaling="ranks").fit(*given).transduction_
    assert found == np.mean(MovingMeans(0.25).fit(*given).transduction_ == other)
    assert rankers.agreement(SmoothedMeans(openness=0.25), domains, FitContext()) == 1


def test_the_share_of_unknowns_is_that_of_the_frozen_features():
    images = TinyImages(**QUICK)
    labels = np.where(DOMAIN > 0, images.labels, 0)
    frozen = MovingMeans().fit(images.features(), labels, DOMAIN)
    tuned = tune(images, MovingMeans()).classifier
    assert tuned.openness == "auto"
    assert tuned.openness_ == frozen.openness_
    assert tuned.openness_report_ == frozen.openness_report_
    given = tune(TinyImages(**QUICK), MovingMeans(openness=0.4)).classifier
    assert given.openness_report_.source is ShareSource.GIVEN


def test_the_same_seed_gives_the_same_bits_and_another_others():
    one, other, third = (
        (tune(images, seed=seed).classifier, images.features())
        for images, seed in ((TinyImages(**QUICK), seed) for seed in (0, 0, 1))
    )
    np.testing.assert_array_equal(one[1], other[1])
    np.testing.assert_array_equal(one[0].transduction_proba_, other[0].transduction_proba_)
    assert np.abs(one[1] - third[1]).max() > 0


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_broken_off_after_any_step_it_ends_in_the_same_bits(stop):
    class StopError(Exception):
        pass

    def listen(event):
        if event.step > stop or (stop == 3 and memory.record is not None and event.entry):
            raise StopError

    whole_images, memory = TinyImages(**QUICK), Memory()
    whole = tune(whole_images)
    if stop < 3:
        with pytest.raises(StopError):
            tune(TinyImages(**QUICK), checkpoints=memory, progress=listen)
        assert len(memory.record.values["history"]) == stop
    else:
        tune(TinyImages(**QUICK), checkpoints=memory)
    images = TinyImages(**QUICK)
    resumed = tune(images, checkpoints=memory)
    np.testing.assert_array_equal(images.features(), whole_images.features())
    np.testing.assert_array_equal(
        resumed.classifier.transduction_proba_, whole.classifier.transduction_proba_
    )
    np.testing.assert_array_equal(resumed.step_labels, whole.step_labels)
    assert [e["loss"] for e in resumed.history] == [e["loss"] for e in whole.history]


@pytest.mark.parametrize("method", [MovingMeans, ClassMeans])
def test_no_order_reaches_the_backbone(method):
    """Nor does a label of a target: `Domains` has none."""

    def fit(order):
        images = TinyImages(averaged=2, **QUICK)
        X = images.features()[order]
        images.images = images.images[order]
        domains = Domains.of(
            source=Rows(X, np.flatnonzero(order < N_SOURCE)),
            y=images.labels[order[order < N_SOURCE]],
            target=Rows(X, np.flatnonzero(order >= N_SOURCE)),
            classes=np.arange(C),
        )
        tuned = fit_in_rounds(method(), domains, FitContext(images=images), 0)
        return tuned.classifier, order[order >= N_SOURCE], images.backbone[0].weight.detach()

    truth = TinyImages().labels
    by_class = np.concatenate([np.arange(N_SOURCE), N_SOURCE + np.argsort(truth[N_SOURCE:])])
    one, rows, weights = fit(by_class)
    shuffled = np.random.default_rng(0).permutation(N_SOURCE + N_TARGET)
    other, their_rows, their_weights = fit(shuffled)
    places, back = np.argsort(rows), np.argsort(their_rows)
    np.testing.assert_array_equal(one.transduction_proba_[places], other.transduction_proba_[back])
    assert torch.equal(weights, their_weights)
    assert other.openness_ == one.openness_


def test_a_batch_has_as_many_of_each_class_and_no_image_twice():
    source, target = np.repeat([0, 1, 2], [20, 20, 2]), np.full(50, -1)
    target[:12], target[12:20] = np.arange(12) % 3, 3
    settings, seen = FineTuneSettings(per_class=6), []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        index, is_target, labels = draw_batch(Labelled(source, target, 3), 0.5, settings, rng)
        assert len(set(zip(index.tolist(), is_target.tolist(), strict=True))) == len(index)
        np.testing.assert_array_equal(labels[~is_target], source[index[~is_target]])
        np.testing.assert_array_equal(labels[is_target], target[index[is_target]])
        assert (labels >= 0).all()
        assert (np.bincount(labels, minlength=4)[:3] >= 6).all()
        seen.append(np.bincount(labels[is_target], minlength=4))
    assert (np.sum(seen, axis=0) > 0).all()
    # Before any target has a label.
    none = Labelled(source, np.full(50, -1), 3)
    assert not draw_batch(none, 0.0, settings, rng).is_target.any()


def test_the_loss_draws_to_the_own_mean_and_pushes_unknowns_from_all():
    means, labels = torch.eye(C, 4), torch.tensor([0, C])
    x = torch.tensor([[0.6, 0.8, 0.0, 0.0], [0.6, 0.0, 0.0, 0.8]], requires_grad=True)
    class_mean_loss(x, labels, means).backward()
    assert x.grad[0, 0] < 0 < x.grad[0, 1]
    torch.testing.assert_close(x.grad[1], torch.tensor([6.0, 0.0, 0.0, 0.0]))
    alone = class_mean_loss(x[:1], labels[:1], means)
    expected = torch.nn.functional.cross_entropy(10 * x[:1] @ means.T, labels[:1])
    torch.testing.assert_close(alone, expected)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"crops": "1"}, "setting finetune.crops does not exist; did you mean 'crop'"),
        ({"crop": "0"}, "setting finetune.crop=0: Input should be greater than 0"),
    ],
)
def test_wrong_settings_are_refused(changes, words):
    with pytest.raises(InputError, match=words):
        FineTuneSettings.of(changes)
    assert FineTuneSettings.of({"flip": "false", "rounds": "2"}) == FineTuneSettings(
        flip=False, rounds=2
    )
