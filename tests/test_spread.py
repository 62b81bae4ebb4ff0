"""The metric from the spread within classes, and the adapter that takes it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from opensetda.nn.inputs import FixedRows
from opensetda.openness.tracker import OpennessTracker
from opensetda.pgl.network import PGLNetwork
from opensetda.pgl.settings import PRESETS, PGLSettings
from opensetda.pgl.spread import scatter_within_classes, whitening_within_classes
from opensetda.pgl.trainer import LabelledSamples, Trainer
from opensetda.pgl.training import train
from opensetda.rows import Rows

C = 3
RIDGE = {"graph.scatter_ridge": 0.3}


def drawn(spread, n=300, seed=0):
    """Rows of C classes with this standard deviation along each axis."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % C
    rows = 5 * np.eye(C, len(spread))[labels] + rng.normal(size=(n, len(spread))) * spread
    return torch.from_numpy(rows.astype(np.float32)), torch.from_numpy(labels)


def test_the_scatter_is_that_around_the_class_means():
    rows, labels = drawn([1.0, 2.0, 0.5, 0.1])
    around = [rows[labels == c] - rows[labels == c].mean(dim=0) for c in range(C)]
    expected = np.cov(torch.cat(around).numpy().T, bias=True)
    found = scatter_within_classes(rows, labels, C)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


def test_unknown_unlabelled_and_single_rows_are_left_out():
    rows, labels = drawn([1.0, 2.0, 0.5, 0.1])
    far = 100 * torch.ones(3, 4)
    others = torch.tensor([C, -1, C])
    with_others = scatter_within_classes(torch.cat([rows, far]), torch.cat([labels, others]), C)
    assert torch.equal(with_others, scatter_within_classes(rows, labels, C))
    alone = scatter_within_classes(
        torch.cat([rows, far[:1]]), torch.cat([labels, torch.tensor([C])]), C + 1
    )
    assert torch.equal(alone, scatter_within_classes(rows, labels, C))


def test_after_the_map_the_classes_spread_alike():
    domains = [drawn([1.0, 3.0, 0.3, 0.1], seed=seed) for seed in (0, 1)]
    whitening = whitening_within_classes(domains, C, 1e-6).float()
    mapped = [(rows @ whitening.t(), labels) for rows, labels in domains]
    mean = sum(scatter_within_classes(*domain, C) for domain in mapped) / 2
    np.testing.assert_allclose((mean / mean[0, 0]).numpy(), np.eye(4), atol=1e-3)


def test_a_large_ridge_changes_nothing():
    whitening = whitening_within_classes([drawn([1.0, 3.0, 0.3, 0.1])], C, 1e9)
    np.testing.assert_allclose(whitening.numpy(), np.eye(4), atol=1e-6)


@pytest.mark.parametrize("labels", [torch.full((4,), -1), torch.tensor([0, 1, 2, 3])])
def test_without_spread_there_is_no_map(labels):
    assert whitening_within_classes([(torch.eye(4), labels)], 4, 0.3) is None


def test_equal_rows_have_no_spread():
    rows, labels = torch.ones(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    assert whitening_within_classes([(rows, labels)], C, 0.3) is None


def test_the_map_rejects_what_plain_cosine_does_not():
    """An unknown class lies where no class spreads; one wide direction hides it."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 60)
    centres = np.eye(3, 6) * 2

    def rows_of(means):
        noise = rng.normal(size=(len(means), 6)) * [0.2, 0.2, 0.2, 0.2, 0.2, 4.0]
        return torch.from_numpy((means + noise).astype(np.float32))

    source = rows_of(centres[labels])
    unknown = rows_of(np.repeat([[0, 0, 0, 2.0, 0, 0]], 60, axis=0))

    def misranked(change):
        unit = torch.nn.functional.normalize
        means = unit(
            torch.stack([(source @ change)[labels == c].mean(dim=0) for c in range(3)]), dim=1
        )
        known, other = (unit(x @ change, dim=1) @ means.t() for x in (source, unknown))
        wrong = known.amax(dim=1)[:, None] <= other.amax(dim=1)[None, :]
        return float(wrong.float().mean())

    whitening = whitening_within_classes([(source, torch.from_numpy(labels))], 3, 0.01).float()
    assert misranked(whitening) < misranked(torch.eye(6)) / 2


@pytest.fixture
def network_of(task, quick):
    def network_of(**changes):
        silent = {"losses.node": 0, "losses.edge": 0, "losses.adversary": 0}
        settings = PGLSettings().with_changes({**quick, **silent, **changes})
        source = Rows(task.X, np.flatnonzero(task.domain > 0))
        target = Rows(task.X, np.flatnonzero(task.domain < 0))
        labels = np.unique(task.labels, return_inverse=True)[1]
        inputs = FixedRows(source, target, settings.alignment)
        n_classes = int(labels.max()) + 1
        return train(inputs, labels, n_classes, OpennessTracker(1 / 3), settings, seed=0).network

    return network_of


def test_the_adapter_takes_the_map_from_the_second_step_on(network_of):
    change = network_of(**RIDGE, steps=3).backbone.change.weight
    assert float(change.detach().abs().max()) > 0.01
    assert torch.allclose(change, change.t(), atol=1e-6)
    assert not network_of(**RIDGE, steps=1).backbone.change.weight.any()


def test_without_a_ridge_the_adapter_is_left_to_the_losses(network_of):
    without = {"graph.scatter_ridge": None}
    assert not network_of(**without, steps=3).backbone.change.weight.any()


def test_the_paper_has_no_such_map():
    papers = [name for name in PRESETS if name.startswith("paper")]
    assert all(PGLSettings.preset(name).graph.scatter_ridge is None for name in papers)
    assert PGLSettings().graph.scatter_ridge == RIDGE["graph.scatter_ridge"]


def test_the_papers_graph_has_no_such_map(network_of):
    paper = {"graph.form": "paper", "graph.edge_width": 8, "ranking.confidence": "softmax"}
    assert not network_of(**RIDGE, **paper, steps=2).backbone.change.weight.any()


def test_an_adapter_that_does_not_learn_has_no_such_map():
    samples = LabelledSamples(*drawn([1.0, 2.0, 0.5]), *drawn([1.0, 2.0, 0.5]), progress=0.5)
    trainer = Trainer.__new__(Trainer)
    trainer.settings, trainer.n_classes = PGLSettings().with_changes(RIDGE), C
    trainer.network = PGLNetwork(3, C, trainer.settings.graph, adapts=False)
    trainer.whiten(samples)
    assert trainer.network.backbone.change is None
