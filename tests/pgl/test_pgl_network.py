"""Edge and node updates: the fast form of the edge network, the equations, and attached queries."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from opensetda.pgl.network import EdgeNetwork, GraphLayer, PGLNetwork
from opensetda.pgl.pair_norm import PairNorm
from opensetda.pgl.settings import PGLSettings

SMALL = PGLSettings(edge_width=5, node_width=6, dropout=0.0)


class PlainEdges(nn.Module):
    """The edge network as the paper has it: 1x1 convolutions over all N x N ordered pairs."""

    def __init__(self, edge: EdgeNetwork) -> None:
        super().__init__()
        linear, norms = parts(edge)
        self.linear = copy.deepcopy(nn.ModuleList(linear))
        self.norms = nn.ModuleList([plain_norm(norm) for norm in norms])

    def forward(self, v):
        n = len(v)
        h = (v[:, None] - v[None]).abs().reshape(n * n, -1)
        for linear, norm in zip(self.linear, self.norms, strict=False):
            h = nn.functional.leaky_relu(norm(linear(h)))
        return self.linear[2](h).view(n, n)


def parts(edge):
    """The linear maps and the normalisations of an edge network."""
    linear = [module for module in edge.layers if isinstance(module, nn.Linear)]
    return linear, [module for module in edge.layers if isinstance(module, PairNorm)]


def plain_norm(norm: PairNorm) -> nn.BatchNorm1d:
    plain = nn.BatchNorm1d(len(norm.scale), eps=norm.eps, momentum=norm.momentum).double()
    plain.load_state_dict(
        {
            "weight": norm.scale.detach().clone(),
            "bias": norm.shift.detach().clone(),
            "running_mean": norm.running_mean.clone(),
            "running_var": norm.running_var.clone(),
            "num_batches_tracked": torch.tensor(0),
        }
    )
    return plain


def edge_network(width=4, seed=0):
    torch.manual_seed(seed)
    edge = EdgeNetwork(width, 5).double()
    for norm in parts(edge)[1]:
        nn.init.normal_(norm.scale)
        nn.init.normal_(norm.shift)
    return edge


def nodes(n, width=4, seed=1):
    return torch.randn(n, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("n", [2, 3, 7, 12])
@pytest.mark.parametrize("training", [True, False])
def test_unordered_pairs_equal_the_plain_form(n, training):
    edge = edge_network().train(training)
    plain = PlainEdges(edge).train(training)
    ours, theirs = nodes(n).requires_grad_(), nodes(n).requires_grad_()
    weights = nodes(n, n, seed=2)
    weights = weights + weights.t()
    out, expected = edge(ours), plain(theirs)
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-7, atol=1e-9)
    maps, norms = parts(edge)
    for linear, reference in zip(maps, plain.linear, strict=True):
        torch.testing.assert_close(linear.weight.grad, reference.weight.grad, rtol=1e-7, atol=1e-9)
    for norm, reference in zip(norms, plain.norms, strict=True):
        torch.testing.assert_close(norm.scale.grad, reference.weight.grad, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(norm.shift.grad, reference.bias.grad, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(norm.running_mean, reference.running_mean)
        torch.testing.assert_close(norm.running_var, reference.running_var)


def test_single_precision_is_as_near():
    edge = edge_network()
    plain = PlainEdges(edge).float()
    difference = (edge.float()(nodes(20).float()) - plain(nodes(20).float())).abs().max()
    assert difference < 1e-5


def test_pairs_of_queries_and_support_are_those_of_one_graph():
    edge = edge_network().eval()
    v = nodes(9)
    torch.testing.assert_close(edge.between(v[:3], v[3:]), edge(v)[:3, 3:])


def layer(width=4, seed=0):
    torch.manual_seed(seed)
    made = GraphLayer(width, SMALL).double().eval()
    for module in made.modules():
        if isinstance(module, PairNorm | nn.BatchNorm1d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return made


def test_equations_9_and_10_by_hand():
    made, v = layer(), nodes(6)
    updated, edges = made(v)
    logits = made.edge(v).detach().numpy()
    affinity = 1 / (1 + np.exp(-logits)) + np.eye(6)
    degree = np.diag(affinity.sum(axis=1) ** -0.5)
    expected = degree @ affinity @ degree
    np.testing.assert_allclose(edges.detach().numpy(), expected)
    message = torch.from_numpy(expected) @ v
    torch.testing.assert_close(updated, made.node(torch.cat([v, message], dim=1)))


def test_a_query_is_one_more_node_of_a_graph_that_stays_as_it_is():
    made, support, query = layer(), nodes(5), nodes(1, seed=3)
    degree = made.affinity(support).sum(dim=1)
    attached = made.attach(query, support, degree)
    affinity = made.affinity(torch.cat([support, query]))[-1]
    edges = affinity / (affinity.sum() * torch.cat([degree, affinity.sum()[None]])).sqrt()
    message = edges @ torch.cat([support, query])
    torch.testing.assert_close(attached, made.node(torch.cat([query, message[None]], dim=1)))


def test_queries_do_not_see_each_other():
    made, support, queries = layer(), nodes(5), nodes(4, seed=3)
    degree = made.affinity(support).sum(dim=1)
    alone = torch.cat([made.attach(query[None], support, degree) for query in queries])
    torch.testing.assert_close(made.attach(queries, support, degree), alone)


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_losses_have_the_logits_of_every_layer(layers):
    settings = PGLSettings(layers=layers, edge_width=5, node_width=6)
    network = PGLNetwork(4, 3, settings, adapts=True)
    output = network(torch.randn(8, 4))
    assert [logits.shape for logits in output.logits] == [(8, 3)] * max(layers, 1)
    assert [edges.shape for edges in output.edges] == [(8, 8)] * layers
    assert network.classifier.in_features == (6 if layers else 4)


def test_the_map_in_the_backbones_place_starts_as_the_identity():
    x = torch.randn(8, 4)
    network = PGLNetwork(4, 3, SMALL, adapts=True)
    assert torch.equal(network(x).features, x)
    # An image backbone is trained instead.
    assert not list(PGLNetwork(4, 3, SMALL, adapts=False).backbone.parameters())
