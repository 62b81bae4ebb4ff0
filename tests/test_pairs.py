"""The pair network against a plain reference on all N x N ordered pairs."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from opensetda.pgl import graph
from opensetda.pgl.graph import PairNetwork, _AbsoluteDifferenceMap, _NormalisedLeaky
from reference import ReferencePairs

N, D, WIDTH = 9, 12, 5


def network(normalisation, seed=0):
    torch.manual_seed(seed)
    net = PairNetwork(D, WIDTH, normalisation)
    for parameter in net.parameters():
        if parameter.dim() == 1:  # scales and shifts other than 1 and 0
            parameter.data.add_(0.3 * torch.randn_like(parameter))
    return net


def nodes(n=N, seed=1):
    return torch.randn(n, D, generator=torch.Generator().manual_seed(seed))


def gradients(module, v):
    """Gradients of a weighted sum of the scores: of the nodes, then of the weights."""
    v = v.clone().requires_grad_()
    grid = module(v)
    weights = torch.randn(grid.shape, generator=torch.Generator().manual_seed(2))
    (grid * weights).sum().backward()
    return [v.grad, *(p.grad.reshape(-1) for p in module.parameters())]


def naive(net, v):
    """The layer-norm network on every ordered pair, from its formula."""
    h = (v[:, None] - v[None]).abs() @ net.first.weight.t()
    h = F.leaky_relu(net.first_norm.norm(h), 0.01)
    h = F.leaky_relu(net.second_norm.norm(h @ net.second.weight.t()), 0.01)
    return (h @ net.last.weight.t()).squeeze(-1) + net.last.bias


def in_module_order(net, reference):
    """The reference's weights in the order of the network's own."""
    first, first_norm, _, second, second_norm, _, last = reference.layers
    theirs = [first.weight, second.weight, last.weight, last.bias]
    theirs += [first_norm.weight, first_norm.bias, second_norm.weight, second_norm.bias]
    assert [p.numel() for p in net.parameters()] == [p.numel() for p in theirs]
    return theirs


@pytest.mark.parametrize("n", [2, N, 40])
def test_batch_norm_equals_the_reference(n):
    net = network("batch")
    reference = ReferencePairs(net)
    v = nodes(n)
    torch.testing.assert_close(net(v), reference(v), atol=1e-4, rtol=1e-4)
    for ours, theirs in [
        (net.first_norm, reference.layers[1]),
        (net.second_norm, reference.layers[4]),
    ]:
        torch.testing.assert_close(ours.running_mean, theirs.running_mean, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(ours.running_var, theirs.running_var, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("n", [2, N, 40])
def test_batch_norm_gradients_equal_the_references(n):
    net = network("batch")
    reference = ReferencePairs(net)
    ours = gradients(net, nodes(n))
    gradients_of_nodes, *_ = gradients(reference, nodes(n))
    theirs = [p.grad.reshape(-1) for p in in_module_order(net, reference)]
    # A gradient is a sum over n^2 pairs: 1e-4 of its size.
    for mine, other in zip(ours, [gradients_of_nodes, *theirs], strict=True):
        scale = max(1.0, float(other.abs().max()))
        torch.testing.assert_close(mine / scale, other / scale, atol=1e-4, rtol=0)


def test_one_node_alone_is_no_error():
    assert network("batch")(nodes(1)).isfinite().all()


def test_eval_mode_uses_running_statistics_as_the_reference_does():
    net = network("batch")
    reference = ReferencePairs(net)
    for seed in range(3):
        net(nodes(seed=seed))
        reference(nodes(seed=seed))
    net.eval()
    reference.eval()
    v = nodes(seed=7)
    before = net.first_norm.running_mean.clone()
    torch.testing.assert_close(net(v), reference(v), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(net.first_norm.running_mean, before, atol=0, rtol=0)
    train_mode = copy.deepcopy(net).train()
    assert (train_mode(v) - net(v)).abs().max() > 1e-3


@pytest.mark.parametrize("n", [1, 2, N])
def test_layer_norm_equals_the_formula(n):
    net = network("layer")
    torch.testing.assert_close(net(nodes(n)), naive(net, nodes(n)), atol=1e-5, rtol=1e-5)


def test_layer_norm_gradients_equal_those_of_the_formula():
    net = network("layer")
    ours = gradients(net, nodes())
    net.zero_grad()
    v = nodes().requires_grad_()
    grid = naive(net, v)
    weights = torch.randn(grid.shape, generator=torch.Generator().manual_seed(2))
    (grid * weights).sum().backward()
    theirs = [v.grad, *(p.grad.reshape(-1) for p in net.parameters())]
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("normalisation", ["layer", "batch"])
def test_scores_are_symmetric_and_the_diagonal_is_one_number(normalisation):
    grid = network(normalisation)(nodes())
    assert torch.equal(grid, grid.t())
    assert len(grid.diagonal().unique()) == 1
    assert grid.std() > 0


@pytest.mark.parametrize("normalisation", ["layer", "batch"])
def test_chunks_do_not_change_the_answer(normalisation, monkeypatch):
    whole = network(normalisation)
    small = copy.deepcopy(whole)
    expected, expected_gradients = whole(nodes()), gradients(whole, nodes())
    monkeypatch.setattr(graph, "CHUNK_PAIRS", 7)
    monkeypatch.setattr(graph, "CHUNK_NUMBERS", 30)
    assert len(graph._row_chunks(37, D)) == 19
    torch.testing.assert_close(small(nodes()), expected, atol=1e-5, rtol=1e-5)
    for mine, other in zip(gradients(small, nodes()), expected_gradients, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("normalisation", ["layer", "batch"])
@pytest.mark.parametrize("chunk", [7, 16_384])
def test_between_equals_the_entries_of_the_grid(normalisation, chunk, monkeypatch):
    net = network(normalisation)
    net(nodes())
    net.eval()
    monkeypatch.setattr(graph, "CHUNK_PAIRS", chunk)
    v = nodes()
    grid = net(v)
    torch.testing.assert_close(net.between(v[:4], v[4:]), grid[:4, 4:], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(net.between(v[:4], v), grid[:4], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("normalisation", ["layer", "batch"])
def test_every_unordered_pair_is_computed_once(normalisation, monkeypatch):
    monkeypatch.setattr(graph, "CHUNK_PAIRS", 10)
    net = network(normalisation)
    rows = []
    net.second.register_forward_hook(lambda module, inputs, output: rows.append(len(inputs[0])))
    with torch.no_grad():
        net(nodes())
    assert sum(rows) == N * (N - 1) // 2 + 1  # and one row for the whole diagonal


@pytest.mark.parametrize("normalisation", ["layer", "batch"])
def test_the_differences_are_not_kept_for_the_backward_pass(normalisation):
    net, kept = network(normalisation), []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tuple(tensor.shape)) or tensor, lambda tensor: tensor
    ):
        net(nodes())
    assert kept
    assert (N * (N - 1) // 2 + 1, D) not in kept


def test_chunks_of_independent_pairs_are_recomputed_instead_of_kept(monkeypatch):
    monkeypatch.setattr(graph, "CHUNK_PAIRS", 10)
    net, kept = network("layer"), []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tuple(tensor.shape)) or tensor, lambda tensor: tensor
    ):
        net(nodes().requires_grad_())
    assert not [shape for shape in kept if len(shape) == 2 and shape[1] in (WIDTH, 2 * WIDTH)]


def test_gradcheck_of_the_difference_map():
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(4, 3, dtype=torch.double, generator=generator, requires_grad=True)
    weight = torch.randn(2, 3, dtype=torch.double, generator=generator, requires_grad=True)
    first, second = torch.tensor([0, 0, 1, 3, 2]), torch.tensor([1, 2, 2, 0, 2])
    assert torch.autograd.gradcheck(
        lambda v, w: _AbsoluteDifferenceMap.apply(v, first, second, w), (v, weight)
    )
    # Nodes that need no gradient get none; the weights still do.
    out = _AbsoluteDifferenceMap.apply(v.detach(), first, second, weight)
    out.sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize("chunk", [4, 2_097_152])
def test_gradcheck_of_the_weighted_normalisation(chunk, monkeypatch):
    monkeypatch.setattr(graph, "CHUNK_NUMBERS", chunk)
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(6, 3, dtype=torch.double, generator=generator, requires_grad=True)
    scale = torch.randn(3, dtype=torch.double, generator=generator, requires_grad=True)
    shift = torch.randn(3, dtype=torch.double, generator=generator, requires_grad=True)
    w = torch.tensor([2, 2, 2, 2, 2, 4], dtype=torch.double) / 14
    assert torch.autograd.gradcheck(
        lambda h, a, b: _NormalisedLeaky.apply(h, w, a, b, 1e-5)[0], (h, scale, shift)
    )
