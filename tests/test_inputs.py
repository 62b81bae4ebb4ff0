"""What the trainer learns from: fixed rows, and images whose backbone is trained."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from opensetda import InputError, PGLClassifier
from opensetda.context import FitContext
from opensetda.nn.inputs import FixedRows, TunedImages
from opensetda.nn.parts import make_accelerator
from opensetda.nn.settings import AlignmentSettings, FineTuneSettings
from opensetda.openness.tracker import OpennessTracker
from opensetda.pgl.settings import PGLSettings
from opensetda.pgl.trainer import LabelledSamples, Position, Trainer
from opensetda.pgl.training import train
from opensetda.rows import Rows
from opensetda.runs.unfinished import FolderCheckpoints
from opensetda.system.team import this_team
from team_helpers import Served, in_threads

C, SIDE, WIDTH = 3, 4, 12
N_SOURCE, N_TARGET = 30, 40


class TinyImages:
    """Coloured noise around a picture of each class, and a backbone of two layers."""

    def __init__(self, norm: bool = False, averaged: int = 1):
        rng = np.random.default_rng(0)
        self.labels = np.concatenate(
            [np.arange(N_SOURCE) % C, np.arange(N_TARGET) % (C + 1)]  # the last is unknown
        )
        pictures = rng.normal(size=(C + 1, 3, SIDE, SIDE))
        noise = 0.3 * rng.normal(size=(len(self.labels), 3, SIDE, SIDE))
        self.images = torch.from_numpy(pictures[self.labels] + noise).float()
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)] if norm else [nn.Conv2d(3, 6, 3)]
        self.backbone = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(24, WIDTH))
        self.backbone.eval()
        self.averaged = averaged

    def features(self):
        with torch.no_grad():
            return self.backbone(self.images).numpy()

    def trainable_parameters(self):
        return list(self.backbone.parameters())

    def view(self, rows, number):
        return self.images[rows].flip(3) if number else self.images[rows]

    def augmented(self, rows, rng, settings):
        noise = torch.from_numpy(rng.normal(size=(len(rows), 1, 1, 1)))
        return self.images[rows] + 0.01 * noise.float()


def tuned(images, alignment=None, **settings):
    X = images.features()
    source, target = Rows(X, np.arange(N_SOURCE)), Rows(X, np.arange(N_SOURCE, len(X)))
    return TunedImages(
        images,
        source,
        target,
        alignment or AlignmentSettings(components=6),
        FineTuneSettings(**settings),
    )


def run(images, checkpoints=None, inputs=None, **changes):
    settings = PGLSettings().with_changes(
        {
            "steps": 3,
            "alignment.components": 6,
            "optimiser.first_step_epochs": 1,
            "optimiser.iterations_per_epoch": 3,
            "losses.edge": 1.0,
            "optimiser.backbone_rate": 1e-2,
            "losses.node": 1,
            "episodes.episodes": 3,
            "graph.dropout": 0.2,
            **changes,
        }
    )
    if inputs is None:
        inputs = tuned(images, settings.alignment)
        inputs.settings = settings.finetune
    return inputs, train(
        inputs,
        images.labels[:N_SOURCE],
        C,
        OpennessTracker(1 / 3),
        settings,
        seed=0,
        context=FitContext(checkpoints=checkpoints),
    )


@pytest.mark.parametrize(
    "alignment",
    [
        AlignmentSettings(components=6),
        AlignmentSettings(components=None),
        AlignmentSettings(components=6, centring="source", whitening=0),
        AlignmentSettings(normalise=False, centring="none", components=None),
    ],
)
def test_tensors_are_aligned_as_rows_are(alignment):
    images = TinyImages()
    inputs = tuned(images, alignment)
    index = torch.tensor([0, 5, 0, 7])
    is_target = torch.tensor([False, False, True, True])
    inputs.images.augmented = lambda rows, rng, settings: images.images[rows]
    x = inputs.of_graph(index, is_target, np.random.default_rng(0))
    expected = torch.cat([inputs.source[[0, 5]], inputs.target[[0, 7]]])
    torch.testing.assert_close(x, expected, rtol=1e-4, atol=1e-5)
    assert x.requires_grad


def test_frozen_features_and_images_start_alike():
    images = TinyImages()
    X = images.features()
    rows = FixedRows(
        Rows(X, np.arange(N_SOURCE)),
        Rows(X, np.arange(N_SOURCE, len(X))),
        AlignmentSettings(components=6),
    )
    inputs = tuned(images)
    torch.testing.assert_close(inputs.source, rows.source)
    torch.testing.assert_close(inputs.target, rows.target)
    np.testing.assert_array_equal(inputs.raw_targets(7), rows.raw_targets(7))


def test_training_reaches_the_backbone_and_the_rows_follow_it():
    images = TinyImages()
    before = images.features()
    inputs, result = run(images)
    after = images.features()
    assert np.abs(after - before).max() > 1e-2
    np.testing.assert_allclose(inputs.raw_targets(N_TARGET), after[N_SOURCE:], rtol=1e-5)
    assert result.network.backbone.change is not None  # set by the spread within classes
    assert result.history[0]["loss"]["edge"] > result.history[-1]["loss"]["edge"]


def test_features_are_the_mean_over_the_fixed_views():
    images = TinyImages(averaged=2)
    inputs = tuned(images)
    with torch.no_grad():
        mirrored = images.backbone(images.images.flip(3)).numpy()
    expected = (images.features() + mirrored)[N_SOURCE:] / 2
    np.testing.assert_allclose(inputs.raw_targets(N_TARGET), expected, rtol=1e-5, atol=1e-6)


def test_the_principal_map_stays_and_the_means_move():
    images = TinyImages()
    inputs = tuned(images)
    projection, mean = inputs.alignment.projection.copy(), inputs.alignment.target_mean.copy()
    with torch.no_grad():
        images.backbone[-1].bias += 1
    inputs.refresh()
    np.testing.assert_array_equal(inputs.alignment.projection, projection)
    assert np.abs(inputs.alignment.target_mean - mean).max() > 1e-3


def test_a_part_at_a_time_gives_the_same_gradient():
    gradients = []
    for chunk in (None, 4):
        images = TinyImages(norm=True)
        inputs = tuned(images, chunk=chunk)
        x = inputs.of_graph(
            torch.arange(10), torch.zeros(10, dtype=torch.bool), np.random.default_rng(0)
        )
        x.pow(3).sum().backward()
        gradients.append(images.backbone[0].weight.grad.clone())
    torch.testing.assert_close(gradients[0], gradients[1])
    assert gradients[0].abs().max() > 0


@pytest.mark.parametrize(("mode", "moves"), [("frozen", False), ("train", True)])
def test_statistics_of_batch_normalisation(mode, moves):
    images = TinyImages(norm=True)
    before = images.backbone[1].running_mean.clone()
    run(images, **{"finetune.batch_norm": mode})
    assert (not torch.equal(images.backbone[1].running_mean, before)) == moves


def test_a_part_at_a_time_has_no_statistics_of_the_whole():
    with pytest.raises(ValueError, match="batch_norm=frozen"):
        PGLSettings().with_changes({"finetune.chunk": 4, "finetune.batch_norm": "train"})


def test_accumulated_gradients_are_those_of_the_mean_loss():
    """Two graphs a step move the weights once: half as often, and as far as one large graph."""
    updates = []
    images = TinyImages()
    settings = PGLSettings().with_changes(
        {
            "finetune.accumulate": 2,
            "optimiser.first_step_epochs": 1,
            "optimiser.iterations_per_epoch": 5,
            "losses.edge": 1.0,
            "alignment.components": 6,
        }
    )
    inputs = tuned(images)
    trainer = Trainer(inputs, C, settings, np.random.default_rng(0))
    step = trainer.optimiser.step
    trainer.optimiser.step = lambda: (updates.append(1), step())
    samples = LabelledSamples(
        inputs.source,
        torch.from_numpy(images.labels[:N_SOURCE]),
        inputs.target,
        torch.full((N_TARGET,), -1),
        0.0,
    )
    saved = []
    trainer.train_step(
        samples, 1, Position(), save=lambda position: saved.append(position.iteration)
    )
    assert len(updates) == 3  # after two, four and the last of five
    assert saved == [2, 4, 5]


def test_a_fresh_start_forgets_what_the_backbone_learned():
    images = TinyImages()
    inputs = tuned(images)
    before = images.features()
    with torch.no_grad():
        images.backbone[-1].weight.zero_()
    inputs.start_anew()
    np.testing.assert_array_equal(images.features(), before)


def test_layers_that_do_not_learn_stand_still():
    images = TinyImages()
    last = list(images.backbone[-1].parameters())
    images.trainable_parameters = lambda: last
    first = images.backbone[0].weight.detach().clone()
    run(images)
    assert torch.equal(images.backbone[0].weight, first)
    assert not images.backbone[0].weight.requires_grad


def test_mixed_precision_trains():
    images = TinyImages()
    _, result = run(images, **{"finetune.precision": "bf16"})
    assert all(np.isfinite(list(entry["loss"].values())).all() for entry in result.history)
    assert make_accelerator("no").mixed_precision == "no"


def test_half_precision_wants_a_gpu():
    with pytest.raises(InputError, match="fp16: needs a GPU"):
        run(TinyImages(), **{"finetune.precision": "fp16"})


def test_the_share_of_unknowns_is_that_of_the_frozen_features():
    images = TinyImages()
    X, domain = images.features(), np.repeat([1, -1], [N_SOURCE, N_TARGET])
    y = np.where(domain > 0, images.labels, 0)
    frozen = PGLClassifier(random_state=0).fit(X, y, domain)
    changes = {
        "steps": 2,
        "optimiser.iterations_per_epoch": 2,
        "losses.edge": 1.0,
        "optimiser.backbone_rate": 1e-2,
        "optimiser.first_step_epochs": 1,
    }
    tuned = PGLClassifier(random_state=0, settings=changes)
    tuned.fit(X, y, domain, context=FitContext(images=images))
    assert tuned.openness_ == frozen.openness_
    assert tuned.openness_report_.estimates == frozen.openness_report_.estimates
    assert [entry["openness"] for entry in tuned.history_] == [frozen.openness_] * 2
    told = PGLClassifier(random_state=0, openness=0.4, settings=changes)
    assert told.fit(X, y, domain, context=FitContext(images=TinyImages())).openness_ == 0.4


@pytest.mark.parametrize(
    ("preset", "changes", "averaged"),
    [
        ("default", {"losses.edge": 1.0, "optimiser.first_step_epochs": 1, "steps": 2}, 1),
        ("finetune", {"alignment.components": 6}, 2),
    ],
)
def test_no_label_and_no_order_of_the_target_reaches_a_learning_backbone(preset, changes, averaged):
    schedule = {"optimiser.iterations_per_epoch": 2, "optimiser.backbone_rate": 1e-2}
    settings = {**schedule, **changes}

    def fit(order, target_labels):
        images = TinyImages(averaged=averaged)
        X = images.features()[order]
        y = np.where(order < N_SOURCE, images.labels[order], target_labels[order])
        images.images = images.images[order]
        domain = np.where(order < N_SOURCE, 1, -1)
        classifier = PGLClassifier(preset=preset, random_state=0, settings=settings)
        classifier.fit(X, y, domain, context=FitContext(images=images))
        return classifier, order[order >= N_SOURCE], images.backbone[0].weight.detach()

    n = N_SOURCE + N_TARGET
    rng = np.random.default_rng(0)
    truth = TinyImages().labels
    sorted_by_class = np.concatenate([np.arange(N_SOURCE), N_SOURCE + np.argsort(truth[N_SOURCE:])])
    one, rows, weights = fit(sorted_by_class, truth)
    other, their_rows, their_weights = fit(rng.permutation(n), rng.integers(0, 9, n))
    places, back = np.argsort(rows), np.argsort(their_rows)
    np.testing.assert_array_equal(rows[places], their_rows[back])
    np.testing.assert_array_equal(one.transduction_proba_[places], other.transduction_proba_[back])
    assert torch.equal(weights, their_weights)
    assert other.openness_ == one.openness_
    assert other.kept_step_ == one.kept_step_


# several processes ---------------------------------------------------------------------------


def fit_in_team(folder):
    """Fit rows and images, images once more from a checkpoint; return what was learned."""
    team = this_team()
    images = TinyImages(norm=True)
    X, domain = images.features(), np.repeat([1, -1], [N_SOURCE, N_TARGET])
    y = np.where(domain > 0, images.labels, 0)
    settings = {
        "steps": 3,
        "optimiser.iterations_per_epoch": 2,
        "losses.edge": 1.0,
        "optimiser.first_step_epochs": 1,
        "optimiser.backbone_rate": 1e-2,
        "graph.dropout": 0.2,
        # The first step is kept: all have to go back to it.
        "stopping.band": 0,
        "finetune.batch_norm": "train",
    }
    learned = {}
    for case in ("rows", "images", "resumed"):
        context = FitContext(
            images=None if case == "rows" else TinyImages(norm=True),
            checkpoints=None if case == "rows" else FolderCheckpoints(folder, every=0),
            team=team,
        )
        classifier = PGLClassifier(random_state=0, settings=settings)
        classifier.fit(X, y, domain, context=context)
        learned[f"{case}.proba"] = classifier.transduction_proba_
        learned[f"{case}.later"] = classifier.predict_proba(X[-5:])
        learned |= {f"{case}.{k}": np.array(v) for k, v in classifier.get_state()[1].items()}
        if context.images is not None:
            weights = context.images.backbone.state_dict()
            learned |= {f"{case}.backbone.{k}": v.numpy() for k, v in weights.items()}
    return learned


def test_two_processes_learn_what_one_does(tmp_path):
    alone = fit_in_team(tmp_path / "alone")
    for told in Served(tmp_path, fit_in_team, tmp_path / "team").answers():
        assert told.keys() == alone.keys()
        for name, values in alone.items():
            np.testing.assert_array_equal(told[name], values, err_msg=name)


def backbone_gradients(team, images):
    """One graph of 12 images, backward, and the gradients of the whole team."""
    inputs = tuned(images[team.rank])
    inputs.team = team
    index, is_target = torch.arange(12), torch.arange(12) % 2 == 0
    weights = torch.linspace(-1, 1, 12 * 6).view(12, 6)
    (inputs.of_graph(index, is_target, np.random.default_rng(0)) * weights).sum().backward()
    inputs.share_gradients()
    return [parameter.grad for parameter in inputs.parameters()]


def test_processes_share_the_images_of_a_graph():
    # Made here: threads that seed torch at the same time would draw other weights.
    images = [TinyImages(norm=True) for _ in range(4)]
    [alone] = in_threads(1, lambda team: backbone_gradients(team, images[3:]))
    assert all(float(gradient.abs().sum()) > 0 for gradient in alone)
    first, *others = in_threads(3, lambda team: backbone_gradients(team, images))
    for mine, whole in zip(first, alone, strict=True):
        torch.testing.assert_close(mine, whole)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
