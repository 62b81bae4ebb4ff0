"""Steps: what moves, what falls, what starts anew, which pseudo-labels, and checkpoints."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from pgl_helpers import SMALL, Store, run, training

from opensetda import InputError
from opensetda.context import FitContext, Record
from opensetda.methods.pseudo_labels import UNLABELLED, rank_pseudo_labels
from opensetda.pgl.presets import AUTHORS
from opensetda.pgl.training import SHORTEST_EPOCH


def test_every_group_of_weights_moves_at_every_step(task):
    store = Store()
    trained = run(task, context=FitContext(checkpoints=store))
    final = {f"network.{k}": v.numpy() for k, v in trained.network.state_dict().items()}
    steps = [record.arrays for record in store.kept] + [final]
    names = dict(trained.network.named_parameters())
    assert {name.split(".")[0] for name in names} == {
        "backbone",
        "layers",
        "classifier",
        "discriminator",
    }
    for before, after in pairwise(steps):
        for name in names:
            assert (before[f"network.{name}"] != after[f"network.{name}"]).any(), name


def test_every_loss_falls(task):
    # The backbone fights the discriminator: as in the paper, it learns more slowly.
    changes = {"steps": 20, "stop_step": 4, "backbone_rate": 1e-5, "fresh_start": False}
    history = run(task, **changes).history
    for name in ("node", "edge", "adversary"):
        losses = [entry["loss"][name] for entry in history]
        assert losses[-1] < 0.9 * losses[0], (name, losses)


def test_rates_fall_within_a_step_and_start_anew_at_the_next(task, monkeypatch):
    rates = []
    step = torch.optim.Adam.step

    def noted(optimiser, *arguments):
        rates.append([group["lr"] for group in optimiser.param_groups])
        return step(optimiser, *arguments)

    monkeypatch.setattr(torch.optim.Adam, "step", noted)
    run(task, backbone_rate=1e-4)
    per_epoch = len(rates) // (3 * SMALL["epochs"])
    # Each sample of the smaller domain once would be 6 graphs.
    assert per_epoch == SHORTEST_EPOCH
    first, second = [[1e-4, 1e-3]] * per_epoch, [[0.5e-4, 0.5e-3]] * per_epoch
    np.testing.assert_allclose(rates, (first + second) * 3)


def test_the_decay_of_the_papers_presets_fires(task, monkeypatch):
    rates = []
    step = torch.optim.Adam.step

    def noted(optimiser, *arguments):
        rates.append(optimiser.param_groups[1]["lr"])
        return step(optimiser, *arguments)

    monkeypatch.setattr(torch.optim.Adam, "step", noted)
    authors = {**AUTHORS, "decay_every": 4, "stop_step": 3, "steps": 20}
    run(task, **authors)
    epochs = rates[::SHORTEST_EPOCH]
    whole, half = 1e-3, 0.5e-3
    # 4, 6 and 8 epochs; halved after 4, 4 and 5 of them.
    expected = [whole] * 4 + [whole] * 4 + [half] * 2 + [whole] * 5 + [half] * 3
    np.testing.assert_allclose(epochs, expected)
    assert len(rates) == SHORTEST_EPOCH * (4 + 6 + 8)


def test_every_step_has_a_new_optimiser(task, monkeypatch):
    made = []
    start = torch.optim.Adam.__init__

    def noted(optimiser, *arguments, **named):
        made.append(optimiser)
        start(optimiser, *arguments, **named)

    monkeypatch.setattr(torch.optim.Adam, "__init__", noted)
    run(task)
    assert len(made) == 3
    assert all(optimiser.defaults["weight_decay"] == 5e-5 for optimiser in made)


@pytest.mark.parametrize("fresh_start", [False, True])
def test_weights_go_on_unless_every_step_starts_anew(task, fresh_start):
    trained = training(task, fresh_start=fresh_start, graph_rate=0.0, backbone_rate=0.0)
    with torch.random.fork_rng(devices=[]):
        trained._run_step(1)
        first = trained.network.classifier.weight.clone()
        trained._run_step(2)
    assert torch.equal(first, trained.network.classifier.weight) != fresh_start


def test_pseudo_labels_follow_equation_6_step_by_step(task):
    store = Store()
    trained = run(task, context=FitContext(checkpoints=store), steps=10, stop_step=4)
    n = len(task.target)
    for step, entry in enumerate(trained.history, start=1):
        assert entry["n_unknown"] == round(task.openness * step / 10 * n)
        assert entry["n_known"] + entry["n_unknown"] == round(step / 10 * n)
    for step, record in enumerate(store.kept, start=1):
        assert (record.arrays["pseudo_labels"] == UNLABELLED).sum() == n - round(step / 10 * n)
    for labels in trained.step_labels:
        assert (labels == 4).sum() == round(task.openness * n)


def test_the_papers_rule_rejects_as_many_as_have_a_pseudo_label(task):
    n = len(task.target)
    for rule in ("stop-step", "all"):
        trained = run(task, steps=10, stop_step=4, reject=rule)
        for step, labels in enumerate(trained.step_labels, start=1):
            progress = step / 10 if rule == "stop-step" else 1.0
            assert (labels == 4).sum() == round(task.openness * progress * n)
            assert (labels != UNLABELLED).all()


@pytest.mark.parametrize("ranking", ["features", "embedding"])
def test_a_ranker_may_give_the_pseudo_labels(task, ranking):
    store = Store()
    steps = SMALL["steps"]
    context = FitContext(checkpoints=store)
    taught = run(task, ranking=ranking, stop_step=None, context=context)
    # It does the first step alone.
    assert [entry["step"] for entry in taught.history] == [*range(1, steps + 1)]
    assert [entry["loss"] is None for entry in taught.history] == [True] + [False] * (steps - 1)
    names = np.unique(task.labels)
    for step, record in enumerate(store.kept, start=2):
        own = record.arrays["pseudo_labels"]
        assert (own != UNLABELLED).mean() == pytest.approx(step / steps, abs=0.05)
        known = (own != UNLABELLED) & (own < taught.n_classes)
        assert (names[own[known]] == task.truth[known]).mean() > 0.8
    # By the features the result is what the network says, by the embedding what the ranker does.
    assert (taught.graph.ranker is None) == (ranking == "features")
    with torch.no_grad():
        logits, known = taught.graph(torch.from_numpy(task.target).to(dtype_of(taught.graph)))
    labels = rank_pseudo_labels(known.numpy(), logits.argmax(1).numpy(), task.openness, 1.0, 4)
    np.testing.assert_array_equal(labels, taught.step_labels[-1])


def dtype_of(module):
    return next(module.parameters()).dtype


@pytest.mark.parametrize("ranking", ["features", "embedding"])
def test_a_taught_training_has_at_least_one_step(task, ranking):
    assert [entry["step"] for entry in run(task, ranking=ranking, steps=1).history] == [1, 2]


def test_the_surest_target_never_becomes_unknown(task, monkeypatch):
    # The authors' code takes the surest target of all for unknown, at every step.
    trained, scores = training(task), []
    label = trained._score_targets

    def noted(step):
        entry = label(step)
        with torch.no_grad():
            scores.append(trained.graph(trained.inputs.target)[1].numpy())
        surest = scores[-1].argmax()
        assert trained.pseudo_labels[surest] not in (4, UNLABELLED)
        assert trained.pseudo_labels[scores[-1].argmin()] == 4
        return entry

    monkeypatch.setattr(trained, "_score_targets", noted)
    trained.run()
    assert len(scores) == 3


def test_the_support_of_a_step_holds_targets_with_its_probability(task, monkeypatch):
    from opensetda.pgl import training as module

    made = []
    sampler = module.EpisodeSampler

    def noted(**arguments):
        made.append(arguments["replacement"])
        return sampler(**arguments)

    monkeypatch.setattr(module, "EpisodeSampler", noted)
    run(task, steps=20, stop_step=4)
    run(task, steps=20, stop_step=4, mix_up=False)
    np.testing.assert_allclose(made, [0, 0.05, 0.1, 0.15, 0, 0, 0, 0])


def test_the_same_seed_gives_the_same_bits_and_another_does_not(task):
    state = torch.get_rng_state()
    one, same, other = run(task), run(task), run(task, seed=1)
    assert torch.equal(state, torch.get_rng_state())
    assert same_weights(one, same)
    assert not same_weights(one, other)


def same_weights(one, other):
    weights, others = one.graph.state_dict(), other.graph.state_dict()
    return all(torch.equal(weights[name], others[name]) for name in weights)


@pytest.mark.parametrize("fresh_start", [False, True])
@pytest.mark.parametrize("ranking", ["softmax", "features", "embedding"])
def test_a_training_resumed_from_any_step_gives_the_same_bits(task, fresh_start, ranking):
    store = Store()
    settings = {"stop_step": 4, "fresh_start": fresh_start, "ranking": ranking}
    whole = run(task, context=FitContext(checkpoints=store), **settings)
    # The end of the last step is the result.
    trained = [entry for entry in whole.history if entry["loss"] is not None]
    assert len(store.kept) == len(trained) - 1 >= 2
    for record in store.kept:
        resumed = run(task, context=FitContext(checkpoints=Store(record)), **settings)
        assert same_weights(whole, resumed)
        np.testing.assert_array_equal(whole.step_labels, resumed.step_labels)
        times = {"seconds": 0}
        assert [{**e, **times} for e in whole.history] == [{**e, **times} for e in resumed.history]


@pytest.mark.parametrize("changes", [{"seed": 1}, {"edge_weight": 0.1}])
def test_a_checkpoint_of_another_training_is_refused(task, changes):
    store = Store()
    run(task, context=FitContext(checkpoints=store))
    with pytest.raises(InputError, match="other data or settings"):
        run(task, context=FitContext(checkpoints=Store(store.latest)), **changes)


def test_a_damaged_checkpoint_is_refused_in_one_line(task):
    store = Store()
    run(task, context=FitContext(checkpoints=store))
    broken = {k: v for k, v in store.latest.arrays.items() if "classifier" not in k}
    context = FitContext(checkpoints=Store(Record(store.latest.values, broken)))
    with pytest.raises(InputError, match=r"damaged \(.*\); start anew") as caught:
        run(task, context=context)
    assert "\n" not in str(caught.value)


def test_progress_is_reported_at_every_iteration_and_step(task):
    events = []
    trained = run(task, context=FitContext(progress=events.append))
    entries = [event.entry for event in events if event.entry is not None]
    assert entries == trained.history
    assert [entry["step"] for entry in entries] == [1, 2, 3]
    places = [(event.step, event.iteration) for event in events]
    assert places == sorted(places)
    assert all(event.loss is not None for event in events if event.entry is None)
