"""Several graphs an update: who works on which of them changes no bit."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from conftest import make_task
from estimator_helpers import SMALL_PAPER
from opensetda import InputError, PGLClassifier
from opensetda.pgl.rounds import GraphAverage, Streams
from opensetda.runs.unfinished import FolderCheckpoints
from opensetda.system.team import ALONE, this_team
from team_helpers import Served, in_threads
from test_checkpoints import CrashError, Dying
from test_inputs import N_SOURCE, N_TARGET, TinyImages

ROWS = {
    "steps": 3,
    "optimiser.iterations_per_epoch": 3,
    "optimiser.first_step_epochs": 1,
    "losses.node": 1.0,
    "losses.adversary": 0.1,
    "graph.dropout": 0.3,
    "ranking.draws": 2,
    "ranking.graph_targets": 20,
}
IMAGES = {
    "steps": 2,
    "alignment.components": 6,
    "episodes.episodes": 3,
    "optimiser.first_step_epochs": 1,
    "optimiser.iterations_per_epoch": 5,
    "optimiser.backbone_rate": 1e-2,
    "finetune.accumulate": 2,
    "finetune.batch_norm": "train",
    "graph.dropout": 0.2,
}
CASES = {
    "rows": ("default", ROWS),
    "fresh": ("default", {**ROWS, "optimiser.warm_start": False}),
    "paper": ("paper-office-home", {**SMALL_PAPER, "graph.dropout": 0.2}),
    "images": ("default", IMAGES),
}


def fit(case, team=ALONE, graphs=None, checkpoints=None):
    """Fit, and return all that was learned on the way, by name."""
    preset, settings = CASES[case]
    settings = settings if graphs is None else {**settings, "optimiser.graphs": graphs}
    classifier = PGLClassifier(
        openness=1 / 3,
        preset=preset,
        settings=settings,
        random_state=0,
        checkpoints=checkpoints,
        team=team,
    )
    images = TinyImages(norm=True) if case == "images" else None
    if images is None:
        task = make_task(per_class=8)
        X, y, domain = task.X, task.y, task.domain
    else:
        X, domain = images.features(), np.repeat([1, -1], [N_SOURCE, N_TARGET])
        y = np.where(domain > 0, images.labels, 0)
        classifier.set_params(images=images)
    moves = []
    step = torch.optim.Adam.step

    def watch(self, *arguments, **options):
        parameters = [p for group in self.param_groups for p in group["params"]]
        flat = [torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in parameters]
        moves.append(torch.cat(flat).numpy().copy())
        return step(self, *arguments, **options)

    torch.optim.Adam.step = watch
    try:
        classifier.fit(X, y, domain)
    finally:
        torch.optim.Adam.step = step
    backbone = {} if images is None else images.backbone.state_dict()
    return {
        **{f"gradient.{number}": move for number, move in enumerate(moves)},
        **{
            f"model.{name}": np.array(values)
            for name, values in classifier._fitted_state()[1].items()
        },
        **{f"backbone.{name}": values.numpy() for name, values in backbone.items()},
        "labels": classifier.step_labels_,
        "scores": classifier.transduction_scores_,
        "proba": classifier.transduction_proba_,
        "loss": np.array([list((e["loss"] or {}).values()) for e in classifier.history_], object),
        "later": classifier.predict_proba(X[-5:]),
    }


def fit_all():
    return {case: fit(case, this_team()) for case in CASES}


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    return Served(tmp_path_factory.mktemp("rounds"), fit_all).answers()


@pytest.mark.parametrize("case", CASES)
def test_two_processes_move_the_weights_as_one_does(two_processes, case):
    alone = fit(case, graphs=2)
    moves = [name for name in alone if name.startswith("gradient")]
    assert len(moves) >= 4
    assert max(np.abs(alone[name]).max() for name in moves) > 1e-4
    for told in two_processes:
        assert told[case].keys() == alone.keys()
        for name, values in alone.items():
            np.testing.assert_array_equal(told[case][name], values, err_msg=f"{case}: {name}")


def test_two_graphs_an_update_are_not_the_same_graph_twice():
    one, two = fit("rows"), fit("rows", graphs=2)
    assert np.abs(one["proba"] - two["proba"]).max() > 1e-6
    moves = [sum(name.startswith("gradient") for name in told) for told in (one, two)]
    assert moves == [9, 6]  # three graphs a step; of two at a time there are four


@pytest.mark.parametrize("case", ["rows", "images"])
def test_one_graph_an_update_is_what_it_was(case):
    one, other = fit(case), fit(case, graphs=1)
    for name, values in one.items():
        np.testing.assert_array_equal(other[name], values, err_msg=name)


@pytest.mark.parametrize(("case", "lives"), [("rows", 2), ("rows", 5), ("images", 1)])
def test_several_graphs_go_on_from_a_checkpoint_to_the_same_bits(tmp_path, case, lives):
    undisturbed = fit(case, graphs=2)
    with pytest.raises(CrashError):
        fit(case, graphs=2, checkpoints=Dying(tmp_path, lives, before=False))
    resumed = fit(case, graphs=2, checkpoints=FolderCheckpoints(tmp_path, every=0))
    for name, values in undisturbed.items():
        if not name.startswith("gradient"):
            np.testing.assert_array_equal(resumed[name], values, err_msg=name)


# the average ---------------------------------------------------------------------------------


def network():
    made = nn.Sequential(
        *(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)),
        nn.Linear(2, 2),  # which never has a gradient
    )
    # A generator of its own: threads share torch's.
    generator = torch.Generator().manual_seed(3)
    for parameter in made.parameters():
        nn.init.normal_(parameter, generator=generator)
    return made


def loss_of(made, x):
    return made[:4](x).pow(2).sum()


def average(team, graphs, rounds, data):
    made = network()
    together = GraphAverage(list(made.parameters()), [made], graphs, team)
    outcome = []
    for update in range(2):
        for number in range(rounds):
            for graph in range(team.rank, graphs, team.size):
                together.begin(graph)
                loss = loss_of(made, data[update, number, graph])
                loss.backward()
                together.take(graph, [loss.item(), float(number)])
        losses, flag = together.finish(flag=team.rank == 0 and update == 1)
        gradients = [None if p.grad is None else p.grad.clone() for p in made.parameters()]
        buffers = [made[1].running_mean.clone(), made[1].running_var.clone()]
        outcome.append((losses, flag, gradients, buffers))
        for parameter in made.parameters():
            parameter.grad = None
    return outcome


def graphs_data(rounds, graphs):
    return torch.randn(2, rounds, graphs, 6, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize(("graphs", "size"), [(2, 2), (4, 2), (6, 3)])
def test_an_average_over_processes_has_the_bits_of_one(graphs, size, rounds):
    data = graphs_data(rounds, graphs)
    alone = average(ALONE, graphs, rounds, data)
    for told in in_threads(size, lambda team: average(team, graphs, rounds, data)):
        for (losses, flag, *tensors), (*expected, gradients, buffers) in zip(
            told, alone, strict=True
        ):
            assert [losses, flag] == expected
            for one, other in zip(tensors[0], gradients, strict=True):
                assert (one is None and other is None) or torch.equal(one, other)
            for one, other in zip(tensors[1], buffers, strict=True):
                assert torch.equal(one, other)


@pytest.mark.parametrize("rounds", [1, 2])
def test_the_average_is_one(rounds):
    graphs = 3
    data = graphs_data(rounds, graphs)
    (losses, flag, gradients, buffers), (_, second_flag, *_) = average(ALONE, graphs, rounds, data)
    sums = [torch.zeros_like(p) for p in network().parameters()]
    means = [torch.zeros(5), torch.zeros(5)]
    expected = []
    for graph in range(graphs):
        made = network()
        for number in range(rounds):
            loss = loss_of(made, data[0, number, graph])
            loss.backward()
            expected.append([loss.item(), float(number)])
        for total, parameter in zip(sums, made.parameters(), strict=True):
            total += 0 if parameter.grad is None else parameter.grad
        means = [
            mean + part / graphs
            for mean, part in zip(means, [made[1].running_mean, made[1].running_var], strict=True)
        ]
    # The last layer takes no part: nothing pulls at it.
    assert [gradient is None for gradient in gradients] == [not total.any() for total in sums]
    gradients = [torch.zeros(()) if g is None else g for g in gradients]
    for one, other in zip([*gradients, *buffers], [*sums, *means], strict=True):
        one = one.expand_as(other)
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
    # Round by round.
    assert losses == sorted(expected, key=lambda entry: entry[1])
    assert [flag, second_flag] == [False, True]


def test_a_single_graph_leaves_its_gradients_where_they_are():
    made = network()
    together = GraphAverage(list(made.parameters()), [made], 1, ALONE)
    together.begin(0)
    loss_of(made, graphs_data(1, 1)[0, 0, 0]).backward()
    before, buffers = made[0].weight.grad, copy.deepcopy(made[1].state_dict())
    together.take(0, [0.1])
    assert together.finish(True) == ([[0.1]], True)
    assert made[0].weight.grad is before
    assert made[4].weight.grad is None
    assert torch.equal(made[1].running_mean, buffers["running_mean"])


# streams -------------------------------------------------------------------------------------


def draw(team, graphs, updates=3):
    streams = Streams(np.random.default_rng(5), graphs, team)
    drawn = {}
    for _ in range(updates):
        for graph, stream in streams.own():
            # Not torch's: threads have one generator of it.
            drawn.setdefault(graph, []).append(stream.rng.random())
    streams.share()
    return drawn, [state["numpy"] for state in streams.states()]


@pytest.mark.parametrize(("graphs", "size"), [(2, 2), (6, 2), (6, 3)])
def test_streams_are_the_same_for_any_number_of_processes(graphs, size):
    (alone, states), *_ = in_threads(1, lambda team: draw(team, graphs))
    together = in_threads(size, lambda team: draw(team, graphs))
    dealt = {graph: values for drawn, _ in together for graph, values in drawn.items()}
    assert dealt == alone
    assert sum(len(drawn) for drawn, _ in together) == graphs
    assert all(theirs == states for _, theirs in together)


def test_the_first_stream_does_not_notice_the_others():
    first = np.random.default_rng(5).random(3).tolist()
    assert draw(ALONE, 1)[0][0] == first
    assert draw(ALONE, 4)[0][0] == first


def test_torch_draws_of_a_graph_are_its_own():
    torch.manual_seed(0)
    streams = Streams(np.random.default_rng(5), 3, ALONE)
    torch.manual_seed(0)
    expected = torch.rand(4)
    torch.manual_seed(0)
    others = []
    for stream in streams.all[1:]:
        with stream.drawing():
            others.append(torch.rand(4))
    with streams.all[0].drawing():
        first = torch.rand(4)
    assert torch.equal(first, expected)
    assert not torch.equal(others[0], others[1])
    kept = streams.states()
    nexts = []
    for _ in range(2):
        streams.load_states(kept)
        drawn = []
        for stream in streams.all:
            with stream.drawing() as rng:
                drawn.append((torch.rand(2).tolist(), rng.random()))
        nexts.append(drawn)
    assert nexts[0] == nexts[1]


def test_graphs_that_cannot_be_dealt_out_are_named(tmp_path):
    def begin(team):
        with pytest.raises(InputError) as caught:
            Streams(np.random.default_rng(0), 3, team)
        return str(caught.value)

    for line in in_threads(2, begin):
        assert line.startswith("setting optimiser.graphs=3: cannot be dealt out to 2 processes")
        assert "\n" not in line
