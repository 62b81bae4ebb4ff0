"""Edges and node updates against their formulas, written out."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from opensetda.pgl.graph import (
    AnchoredLayer,
    PaperLayer,
    normalised_edges,
    strongest_neighbours,
)
from opensetda.pgl.induction import attach_queries, degrees
from opensetda.pgl.network import PGLNetwork
from opensetda.pgl.settings import GraphSettings

D = 6


def unit_nodes(n=7, seed=0):
    return F.normalize(torch.randn(n, D, generator=torch.Generator().manual_seed(seed)), dim=1)


def paper_layer(neighbours=None, **changes):
    torch.manual_seed(0)
    settings = GraphSettings(
        form="paper",
        projection=None,
        edge_width=4,
        node_width=5,
        normalisation="batch",
        neighbours=neighbours,
        dropout=0.2,
        **changes,
    )
    layer = PaperLayer(D, settings)
    with torch.no_grad():
        for seed in range(3):  # running statistics of its own
            layer(unit_nodes(seed=seed))
    return layer.eval()


def anchored_layer(neighbours=3, trained=False, message=0.5):
    torch.manual_seed(0)
    settings = GraphSettings(node_width=5, neighbours=neighbours, message=message)
    layer = AnchoredLayer(D, settings)
    if trained:
        for parameter in layer.parameters():
            parameter.data.add_(0.2 * torch.randn_like(parameter))
    return layer.eval()


def test_edges_are_normalised_by_the_roots_of_the_degrees():
    affinity = torch.rand(5, 5, generator=torch.Generator().manual_seed(0))
    affinity = (affinity + affinity.t()) / 2
    with_loops = affinity + torch.eye(5)
    root = torch.diag(with_loops.sum(dim=1) ** -0.5)
    torch.testing.assert_close(normalised_edges(affinity), root @ with_loops @ root)
    torch.testing.assert_close(normalised_edges(torch.zeros(5, 5)), torch.eye(5))


def test_strongest_neighbours():
    logits = torch.tensor(
        [
            [99.0, 5.0, 1.0, 0.0],
            [5.0, 99.0, 4.0, 0.0],
            [1.0, 4.0, 99.0, 2.0],
            [0.0, 0.0, 2.0, 99.0],
        ]
    )
    near = strongest_neighbours(logits, 1)
    # 0-1 by both, 1-2 because 2 wants 1, 2-3 because 3 wants 2.
    expected = torch.zeros(4, 4, dtype=torch.bool)
    for i, j in [(0, 1), (1, 2), (2, 3)]:
        expected[i, j] = expected[j, i] = True
    assert torch.equal(near, expected)


@pytest.mark.parametrize("count", [None, 3, 50])
def test_all_others_are_neighbours_where_there_is_no_limit(count):
    near = strongest_neighbours(torch.randn(4, 4), count)
    assert torch.equal(near, ~torch.eye(4, dtype=torch.bool))


def test_the_untrained_anchored_layer_is_plain_averaging():
    layer, v = anchored_layer(), unit_nodes()
    after, logits, edges = layer(v)
    cosine = v @ v.t()
    torch.testing.assert_close(logits, 10 * (cosine - 0.3))
    near = strongest_neighbours(cosine, 3)
    affinity = torch.sigmoid(10 * (cosine - 0.3)) * near
    torch.testing.assert_close(edges, normalised_edges(affinity))
    degree = affinity.sum(1) + 1
    average = F.normalize((affinity / (degree[:, None] * degree[None]).sqrt()) @ v, dim=1)
    torch.testing.assert_close(after, F.normalize(0.5 * v + 0.5 * average, dim=1))


def test_trained_edges_are_cosines_under_the_learned_map():
    layer, v = anchored_layer(trained=True), unit_nodes()
    mapped = F.normalize(v + v @ layer.metric.weight.t() + layer.metric.bias, dim=1)
    expected = layer.sharpness * (mapped @ mapped.t() - layer.threshold)
    torch.testing.assert_close(layer.edge_logits(v), expected)
    torch.testing.assert_close(layer.edge_logits_between(v[:2], v), expected[:2])


def test_without_a_message_the_untrained_anchored_layer_is_the_identity():
    v = unit_nodes()
    torch.testing.assert_close(anchored_layer(message=0.0)(v)[0], v)


def test_training_moves_edges_and_nodes():
    v = unit_nodes()
    plain, trained = anchored_layer()(v), anchored_layer(trained=True)(v)
    for before, after in zip(plain, trained, strict=True):
        assert (before - after).abs().max() > 1e-3


def test_the_paper_layer_is_equations_7_and_8():
    layer, v = paper_layer(), unit_nodes()
    after, logits, edges = layer(v)
    affinity = torch.sigmoid(layer.pairs(v))
    with_loops = affinity + torch.eye(len(v))
    root = torch.diag(with_loops.sum(dim=1) ** -0.5)
    expected_edges = root @ with_loops @ root
    torch.testing.assert_close(logits, layer.pairs(v))
    torch.testing.assert_close(edges, expected_edges)
    message = torch.stack(
        [sum(expected_edges[i, j] * v[j] for j in range(len(v))) for i in range(len(v))]
    )
    torch.testing.assert_close(after, layer.node(torch.cat([v, message], dim=1)))
    assert after.shape == (len(v), 5)


def test_the_paper_layer_drops_out_in_training_only():
    layer, v = paper_layer(), unit_nodes()
    assert torch.equal(layer(v)[0], layer(v)[0])
    layer.train()
    assert not torch.equal(layer(v)[0], layer(v)[0])


@pytest.mark.parametrize("form", ["paper", "anchored"])
def test_permuting_the_nodes_permutes_the_answer(form):
    layer = paper_layer() if form == "paper" else anchored_layer(trained=True)
    v, order = unit_nodes(), torch.tensor([3, 1, 6, 0, 2, 5, 4])
    torch.testing.assert_close(layer(v[order])[0], layer(v)[0][order], atol=1e-5, rtol=1e-5)


def attach(layer, queries, support, itself=None):
    if itself is None:
        itself = torch.zeros(len(queries), len(support), dtype=torch.bool)
    return attach_queries(layer, queries, support, degrees(layer, support), itself)


def test_degrees_are_the_row_sums_of_a_plus_i():
    layer, v = paper_layer(), unit_nodes()
    torch.testing.assert_close(degrees(layer, v), torch.sigmoid(layer.pairs(v)).sum(1) + 1)


def test_a_query_of_the_paper_layer_is_updated_by_the_formula():
    layer, support, queries = paper_layer(), unit_nodes(), unit_nodes(3, seed=5)
    degree = torch.sigmoid(layer.pairs(support)).sum(1) + 1
    expected = []
    for query in queries:
        affinity = torch.sigmoid(layer.pairs.between(query[None], support))[0]
        own = torch.sigmoid(layer.pairs.between(query[None], query[None]))[0, 0]
        own_degree = affinity.sum() + own + 1
        message = ((affinity / (own_degree * degree).sqrt())[:, None] * support).sum(0)
        message = message + (own + 1) / own_degree * query
        expected.append(layer.node(torch.cat([query, message])[None])[0])
    torch.testing.assert_close(attach(layer, queries, support), torch.stack(expected))


def test_a_query_of_the_anchored_layer_is_updated_by_its_nearest_support():
    layer, support, queries = anchored_layer(neighbours=2), unit_nodes(), unit_nodes(3, seed=5)
    degree = degrees(layer, support)
    expected = []
    for query in queries:
        cosine = support @ query
        near = cosine.topk(2).indices
        affinity = torch.sigmoid(10 * (cosine[near] - 0.3))
        message = ((affinity / degree[near].sqrt())[:, None] * support[near]).sum(0)
        expected.append(F.normalize(0.5 * query + 0.5 * F.normalize(message, dim=0), dim=0))
    torch.testing.assert_close(attach(layer, queries, support), torch.stack(expected))


@pytest.mark.parametrize("neighbours", [None, 3])
@pytest.mark.parametrize("form", ["paper", "anchored"])
def test_queries_do_not_meet_each_other(form, neighbours):
    layer = paper_layer(neighbours) if form == "paper" else anchored_layer(neighbours, True)
    support, queries = unit_nodes(), unit_nodes(4, seed=5)
    together = attach(layer, queries, support)
    alone = torch.cat([attach(layer, query[None], support) for query in queries])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("form", ["paper", "anchored"])
def test_a_query_that_is_in_the_support_is_not_its_own_neighbour(form):
    layer = paper_layer() if form == "paper" else anchored_layer(trained=True)
    support = unit_nodes()
    itself = torch.zeros(1, len(support), dtype=torch.bool)
    itself[0, 2] = True
    others = torch.arange(len(support)) != 2
    degree = degrees(layer, support)
    known = attach_queries(layer, support[2:3], support, degree, itself)
    without = attach_queries(
        layer, support[2:3], support[others], degree[others], itself[:, others]
    )
    torch.testing.assert_close(known, without)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("form", ["paper", "anchored"])
def test_a_network_of_several_layers(form, layers):
    torch.manual_seed(0)
    settings = GraphSettings(form=form, layers=layers, node_width=5, edge_width=4)
    network = PGLNetwork(D, 3, settings)
    labels = torch.tensor([0, 1, 2, 0, -1, -1, 3])
    output = network(unit_nodes(), labels)
    assert len(output.nodes) == len(output.edges) == len(output.edge_logits) == layers
    assert [logits.shape for logits in output.class_logits] == [(7, 3)] * layers
    torch.testing.assert_close(output.backbone, unit_nodes())  # the adapter starts as identity
    torch.stack([logits.sum() for logits in output.class_logits]).sum().backward()


def test_a_network_without_a_graph_classifies_the_embedding():
    network = PGLNetwork(D, 3, GraphSettings(enabled=False))
    labels = torch.tensor([0, 1, 2, 0, -1, -1, 3])
    output = network(unit_nodes(), labels)
    assert output.edges == []
    torch.testing.assert_close(output.nodes[0], output.backbone)


def test_the_settings_choose_the_form():
    for form, layer in (("paper", PaperLayer), ("anchored", AnchoredLayer)):
        network = PGLNetwork(D, 3, GraphSettings(form=form, edge_width=4))
        assert isinstance(network.layers[0], layer)
