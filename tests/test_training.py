"""Progressive training: schedule, warm start, history, and the same bits for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from opensetda.context import FitContext
from opensetda.nn.inputs import FixedRows
from opensetda.nn.parts import make_optimiser
from opensetda.nn.settings import OptimiserSettings
from opensetda.openness.tracker import OpennessTracker
from opensetda.pgl import trainer
from opensetda.pgl.network import PGLNetwork
from opensetda.pgl.settings import GraphSettings, PGLSettings
from opensetda.pgl.trainer import set_rates
from opensetda.pgl.training import train
from opensetda.progress import ProgressEvent
from opensetda.rows import Rows

C = 4


@pytest.fixture(scope="module")
def domains(task):
    """Source, class indices, target."""
    source = Rows(task.X, np.flatnonzero(task.domain > 0))
    target = Rows(task.X, np.flatnonzero(task.domain < 0))
    return source, np.unique(task.labels, return_inverse=True)[1], target


@pytest.fixture
def run(domains, quick):
    def run(seed=0, openness=1 / 3, progress=None, no_targets=False, **changes):
        settings = PGLSettings().with_changes({**quick, **changes})
        source, labels, target = domains
        if no_targets:
            target = Rows(target.X, target.index[:0])
        inputs = FixedRows(source, target, settings.alignment)
        context = FitContext(progress=progress)
        return train(inputs, labels, C, OpennessTracker(openness), settings, seed, context)

    return run


def weights(result):
    return torch.cat([p.detach().reshape(-1) for p in result.network.parameters()])


def test_the_backbone_has_a_learning_rate_of_its_own():
    network = PGLNetwork(6, C, GraphSettings())
    optimiser = make_optimiser(network, OptimiserSettings(graph_rate=0.5, backbone_rate=0.25))
    groups = {group["name"]: group for group in optimiser.param_groups}
    assert (groups["backbone"]["lr"], groups["graph"]["lr"]) == (0.25, 0.5)
    backbone = {id(p) for p in network.backbone.parameters()}
    assert {id(p) for p in groups["backbone"]["params"]} == backbone
    # Everything is trained, the discriminator too, and nothing twice.
    everybody = [id(p) for group in groups.values() for p in group["params"]]
    assert sorted(everybody) == sorted(id(p) for p in network.parameters())
    assert all(group["weight_decay"] == 5e-5 for group in groups.values())


def test_one_pass_over_all_weights_is_the_same_adam():
    networks = []
    for fused in (False, True):
        torch.manual_seed(0)
        network = PGLNetwork(6, 3, GraphSettings(form="paper", edge_width=4, node_width=4))
        optimiser = make_optimiser(network, OptimiserSettings(weight_decay=0.1), fused=fused)
        random = torch.Generator().manual_seed(1)
        for _ in range(5):
            for parameter in network.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=random)
            optimiser.step()
        networks.append(network)
    for plain, in_one in zip(*(n.parameters() for n in networks), strict=True):
        assert torch.allclose(plain, in_one, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(("epoch", "factor"), [(0, 1), (3, 1), (4, 0.5), (7, 0.5), (8, 0.25)])
def test_rates_decay_every_few_epochs(epoch, factor):
    settings = OptimiserSettings(decay=0.5, decay_every=4, graph_rate=1.0, backbone_rate=0.1)
    optimiser = make_optimiser(PGLNetwork(6, C, GraphSettings()), settings)
    set_rates(optimiser, settings, epoch)
    rates = {group["name"]: group["lr"] for group in optimiser.param_groups}
    assert rates == pytest.approx({"graph": factor, "backbone": 0.1 * factor})


# Two iterations per epoch, three steps.
@pytest.mark.parametrize(
    ("warm", "epochs"), [(True, [0, 0, 1, 1, 2, 2, 3, 3]), (False, [0, 0, 1, 1, 0, 0, 0, 0])]
)
def test_the_schedule_sees_every_epoch(run, monkeypatch, warm, epochs):
    seen = []
    monkeypatch.setattr(trainer, "set_rates", lambda *arguments: seen.append(arguments[2]))
    schedule = {"optimiser.first_step_epochs": 2, "optimiser.epochs_per_step": 1}
    run(**schedule, **{"optimiser.warm_start": warm})
    assert seen == epochs


@pytest.mark.parametrize(("warm", "networks"), [(True, 1), (False, 3)])
def test_warm_start_keeps_the_network_and_fresh_start_makes_one_a_step(
    run, monkeypatch, warm, networks
):
    made = []

    class Counted(PGLNetwork):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(trainer, "PGLNetwork", Counted)
    result = run(**{"optimiser.warm_start": warm})
    assert len(made) == networks
    assert result.network is made[-1]


def test_training_changes_the_weights(run):
    trained = weights(run(**{"optimiser.graph_rate": 1e-2, "optimiser.backbone_rate": 1e-2}))
    still = weights(run(**{"optimiser.graph_rate": 0, "optimiser.backbone_rate": 0}))
    assert (trained - still).abs().max() > 1e-3


def test_history_has_one_entry_a_step(run):
    history = run().history
    assert [entry["step"] for entry in history] == [1, 2, 3]
    for entry in history:
        assert set(entry) == {
            "step",
            "steps",
            "progress",
            "n_known",
            "n_unknown",
            "openness",
            "openness_estimate",
            "loss",
            "mean_score",
            "threshold",
            "changed",
            "seconds",
        }
        assert entry["steps"] == 3
        assert entry["openness"] == 1 / 3  # as it was told
        assert 0 <= entry["openness_estimate"] < 1
        assert set(entry["loss"]) == {"node", "edge", "adversary"}
        assert all(np.isfinite(list(entry["loss"].values())))
    assert history[0]["changed"] is None
    assert all(0 <= entry["changed"] <= 1 for entry in history[1:])


def test_quotas_grow_with_the_steps(run, domains):
    n_targets = len(domains[2])
    for step, entry in enumerate(run(steps=4).history, start=1):
        assert entry["progress"] == step / 4
        assert entry["n_unknown"] == round(n_targets / 3 * step / 4)
        assert entry["n_unknown"] + entry["n_known"] == round(n_targets * step / 4)


def test_every_step_labels_every_target(run, domains):
    result = run()
    assert len(result.step_labels) == 3
    for labels in result.step_labels:
        assert labels.shape == (len(domains[2]),)
        assert ((labels >= 0) & (labels <= C)).all()
        assert (labels == C).sum() == round(len(labels) / 3)


def test_the_last_network_saw_the_labels_of_the_step_before(run):
    result = run()
    assert result.samples.progress == pytest.approx(2 / 3)
    known = result.samples.pseudo_labels.numpy()
    entry = result.history[1]
    assert (known == C).sum() == entry["n_unknown"]
    assert ((known >= 0) & (known < C)).sum() == entry["n_known"]


def test_a_first_step_without_epochs_has_no_loss(run):
    history = run(**{"optimiser.first_step_epochs": 0}).history
    assert history[0]["loss"] is None
    assert history[1]["loss"] is not None


def test_progress_events(run):
    events: list[ProgressEvent] = []
    run(progress=events.append)
    # Two training iterations a step, then labelling, which counts as one more.
    steps = [(step, iteration) for step in (1, 2, 3) for iteration in (1, 2, 3)]
    assert [(event.step, event.iteration) for event in events] == steps
    assert {(event.steps, event.iterations) for event in events} == {(3, 3)}
    assert all(np.isfinite(event.loss) for event in events)
    assert [event.message for event in events[:3]] == ["", "labelling", ""]
    fractions = [event.fraction for event in events]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1


def test_a_step_without_training_is_reported_too(run):
    events: list[ProgressEvent] = []
    run(progress=events.append, **{"optimiser.first_step_epochs": 0})
    assert (events[0].step, events[0].iteration, events[0].iterations) == (1, 1, 1)
    assert events[0].loss is None


def test_an_epoch_shows_every_target_once(run, domains):
    events: list[ProgressEvent] = []
    run(
        progress=events.append,
        steps=1,
        **{"optimiser.iterations_per_epoch": None, "episodes.episodes": 2},
    )
    assert len(events) == -(-len(domains[2]) // (2 * C)) + 1  # and the labelling


def test_the_same_seed_gives_the_same_bits(run):
    one, other = run(seed=5), run(seed=5)
    assert torch.equal(weights(one), weights(other))
    np.testing.assert_array_equal(one.scores.known, other.scores.known)
    np.testing.assert_array_equal(one.scores.classes, other.scores.classes)


def test_another_seed_gives_other_bits(run):
    one, other = run(seed=5), run(seed=6)
    assert not torch.equal(weights(one), weights(other))
    assert (one.scores.known != other.scores.known).any()


def test_the_callers_random_numbers_are_left_alone(run):
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    run()
    assert torch.equal(torch.rand(4), expected)


def test_no_targets_train_on_the_source_alone(run):
    result = run(no_targets=True)
    assert [(entry["n_known"], entry["mean_score"]) for entry in result.history] == [(0, None)]
    assert result.scores.classes.shape == (0, C)
    assert result.scores.known.shape == (0,)


def test_all_losses_off_is_no_training(run):
    off = {"losses.node": 0, "losses.edge": 0, "losses.adversary": 0}
    result = run(**off)
    assert all(entry["loss"] is None for entry in result.history)
    assert len(result.scores.known) == len(result.step_labels[0])


def test_most_targets_are_labelled_rightly(run, task):
    labels = run().step_labels[-1]
    names = np.array([*np.unique(task.labels), "unknown"])
    assert (names[labels] == task.truth).mean() > 0.9


def test_passes_label_anew_and_fewer_targets_teach(run):
    result = run(steps=2, **{"ranking.passes": 5, "ranking.labelled": 0.5})
    assert result.samples.progress == 0.8
    counts = [entry["n_known"] + entry["n_unknown"] for entry in result.history]
    n_targets = len(result.step_labels[0])
    assert counts == pytest.approx([n_targets / 4, n_targets / 2], abs=2)
    labelled = (result.samples.pseudo_labels >= 0).float().mean()
    assert float(labelled) == pytest.approx(0.8, abs=0.05)


def test_rows_have_no_backbone_that_class_means_could_teach(run):
    off = dict.fromkeys(("losses.node", "losses.edge", "losses.adversary"), 0)
    assert run(**off, **{"losses.means": 1.0}).history[-1]["loss"] is None
