"""Edge update and node update (Eq. 9 and 10): the layers of the graph.

`PaperLayer` is the paper's, `AnchoredLayer` ours. The paper's edge network is at the end.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from opensetda.nn.parts import zero_linear
from opensetda.pgl.settings import GraphSettings

# Pairs whose activations exist at one time, where pairs are independent of each other.
CHUNK_PAIRS = 16_384
# Numbers in a chunk of rows: small enough for the processor's cache, large enough for BLAS.
CHUNK_NUMBERS = 2_097_152
# Slope of LeakyReLU below zero, torch's default.
LEAK = 0.01


def normalised_edges(affinity: Tensor) -> Tensor:
    r"""Normalise affinities symmetrically (second line of Eq. 9).

    .. math:: \mathcal{E} = D^{-1/2} (A + I) D^{-1/2}, \quad D_{ii} = \sum_j (A + I)_{ij}

    Shapes: A (N, N) -> E (N, N).
    """
    with_loops = affinity + torch.eye(len(affinity), dtype=affinity.dtype, device=affinity.device)
    root = with_loops.sum(dim=1).rsqrt()
    return root[:, None] * with_loops * root[None, :]


def strongest_neighbours(logits: Tensor, count: int | None) -> Tensor:
    """Mark j in N(i) where either counts the other among its `count` strongest: -> (N, N)."""
    n = len(logits)
    others = ~torch.eye(n, dtype=torch.bool, device=logits.device)
    if count is None or count >= n - 1:
        return others
    chosen = torch.zeros_like(others)
    ranked = logits.detach().masked_fill(~others, -torch.inf)
    chosen.scatter_(1, ranked.topk(count, dim=1).indices, True)
    return chosen | chosen.t()


class GraphLayer(nn.Module):
    """One edge update and one node update; the subclasses say how.

    Shapes: v (N, D) -> v' (N, width_out), edge logits (N, N), edges (N, N).
    """

    neighbours: int | None
    width_out: int
    includes_itself: bool
    """Whether the message to a node contains the node itself."""

    def edge_logits(self, v: Tensor) -> Tensor:
        """Score all pairs: (N, D) -> (N, N)."""
        return self.edge_logits_between(v, v)

    def edge_logits_between(self, queries: Tensor, support: Tensor) -> Tensor:
        """Score queries against support nodes: (Q, D), (S, D) -> (Q, S)."""
        raise NotImplementedError

    def update_nodes(self, v: Tensor, message: Tensor) -> Tensor:
        """Compute new embeddings from the old ones and the messages: (N, D), (N, D) -> (N, h)."""
        raise NotImplementedError

    def affinity(self, logits: Tensor, strongest: Tensor) -> Tensor:
        """Turn logits into A, zero outside the neighbourhoods."""
        return torch.sigmoid(logits) * strongest

    def self_affinity(self, v: Tensor) -> Tensor:
        """A_ii of nodes: (N, D) -> (N,)."""
        return v.new_zeros(len(v))

    def forward(self, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Update edges, then nodes; returns nodes, edge logits and normalised edges."""
        logits = self.edge_logits(v)
        near = strongest_neighbours(logits, self.neighbours)
        edges = normalised_edges(self.affinity(logits, near))
        message = (edges if self.includes_itself else edges * near) @ v
        return self.update_nodes(v, message), logits, edges


class PaperLayer(GraphLayer):
    r"""The layer of the paper (Eq. 9 and Eq. 10).

    .. math::
        A_{ij} &= \sigma(G_E(|v_i - v_j|)), \quad
        \mathcal{E} = D^{-1/2} (A + I) D^{-1/2} \\
        \hat v_i &= \sum_j \mathcal{E}_{ij} v_j, \quad
        v_i' = G_N([v_i; \hat v_i])

    G_N: two linear maps with normalisation, LeakyReLU and dropout.

    Shapes: v (N, D) -> v' (N, h), edge logits (N, N), edges (N, N).
    """

    includes_itself = True

    def __init__(self, width: int, settings: GraphSettings) -> None:
        super().__init__()
        pair_width = settings.projection or width
        self.projection = nn.Linear(width, pair_width) if settings.projection else nn.Identity()
        self.pairs = PairNetwork(pair_width, settings.edge_width, settings.normalisation)
        hidden, out = 2 * settings.node_width, settings.node_width
        norm = nn.BatchNorm1d if settings.normalisation == "batch" else nn.LayerNorm
        self.node = nn.Sequential(
            nn.Linear(2 * width, hidden, bias=False),
            norm(hidden),
            nn.LeakyReLU(),
            nn.Dropout(settings.dropout),
            nn.Linear(hidden, out, bias=False),
            norm(out),
            nn.LeakyReLU(),
            nn.Dropout(settings.dropout),
        )
        self.neighbours, self.width_out = settings.neighbours, out

    def edge_logits(self, v: Tensor) -> Tensor:
        """Score all pairs by G_E (Eq. 9): (N, D) -> (N, N)."""
        logits: Tensor = self.pairs(self.projection(v))
        return logits

    def edge_logits_between(self, queries: Tensor, support: Tensor) -> Tensor:
        """Score queries against support nodes by G_E."""
        return self.pairs.between(self.projection(queries), self.projection(support))

    def affinity(self, logits: Tensor, strongest: Tensor) -> Tensor:
        """Turn logits into A; without neighbourhoods the diagonal stays as well."""
        if self.neighbours is None:
            return torch.sigmoid(logits)
        return super().affinity(logits, strongest)

    def self_affinity(self, v: Tensor) -> Tensor:
        """A_ii of nodes, which is the same for all of them."""
        if self.neighbours is not None:
            return super().self_affinity(v)
        itself = self.edge_logits_between(v[:1], v[:1]).squeeze()
        return torch.sigmoid(itself).expand(len(v))

    def update_nodes(self, v: Tensor, message: Tensor) -> Tensor:
        """Update the nodes by G_N (Eq. 10): (N, D), (N, D) -> (N, h)."""
        updated: Tensor = self.node(torch.cat([v, message], dim=1))
        return updated


class AnchoredLayer(GraphLayer):
    r"""Our layer, which starts from cosine similarity.

    .. math::
        A_{ij} &= \sigma(k (\cos(P v_i, P v_j) - t)) \\
        \hat v_i &= \operatorname{unit}\Big(\sum_{j \in N(i)} \mathcal{E}_{ij} v_j\Big) \\
        v_i' &= \operatorname{unit}((1 - \lambda) v_i + \lambda \hat v_i + G_N([v_i; \hat v_i]))

    P starts as the identity and the last map of G_N at zero: the untrained layer averages
    each node with its nearest neighbours, and training adds to that. The learned cosine is one
    matrix product for all pairs, where the paper has a network on |v_i - v_j|.

    Shapes: v (N, D), unit rows -> v' (N, D), edge logits (N, N), edges (N, N).
    """

    includes_itself = False

    def __init__(self, width: int, settings: GraphSettings) -> None:
        super().__init__()
        self.metric = zero_linear(width, width)
        self.sharpness = nn.Parameter(torch.tensor(10.0))
        self.threshold = nn.Parameter(torch.tensor(0.3))
        self.node = nn.Sequential(
            nn.Linear(2 * width, settings.node_width),
            nn.LeakyReLU(),
            nn.Dropout(settings.dropout),
            zero_linear(settings.node_width, width),
        )
        self.neighbours, self.message = settings.neighbours, settings.message
        self.width_out = width

    def edge_logits_between(self, queries: Tensor, support: Tensor) -> Tensor:
        """Score queries against support nodes by the learned cosine."""
        cosine = self._project(queries) @ self._project(support).t()
        return self.sharpness * (cosine - self.threshold)

    def _project(self, v: Tensor) -> Tensor:
        return F.normalize(v + self.metric(v), dim=1)

    def update_nodes(self, v: Tensor, message: Tensor) -> Tensor:
        """Move nodes towards their neighbours: (N, D), (N, D) -> (N, D)."""
        message = F.normalize(message, dim=1)
        learned = self.node(torch.cat([v, message], dim=1))
        return F.normalize((1 - self.message) * v + self.message * message + learned, dim=1)


class _AbsoluteDifferenceMap(torch.autograd.Function):
    """|v_i - v_j| W^T for listed pairs; the backward pass computes the wide differences again.

    Shapes: v (N, D), first and second (P,), weight (H, D) -> (P, H).
    """

    @staticmethod
    def forward(ctx: Any, v: Tensor, first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(v, first, second, weight)
        out = v.new_empty(len(first), len(weight))
        for part in _row_chunks(len(first), v.shape[1]):
            difference = v[first[part]].sub_(v[second[part]]).abs_()
            torch.mm(difference, weight.t(), out=out[part])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, None, None, Tensor | None]:
        (grad,) = grads
        v, first, second, weight = ctx.saved_tensors
        grad_v = torch.zeros_like(v) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight)
        for part in _row_chunks(len(first), v.shape[1]):
            difference = v[first[part]].sub_(v[second[part]])
            if grad_v is not None:
                pull = (grad[part] @ weight).mul_(difference.sign())
                grad_v.index_add_(0, first[part], pull)
                grad_v.index_add_(0, second[part], pull, alpha=-1)
            grad_weight.addmm_(grad[part].t(), difference.abs_())
        return grad_v, None, None, grad_weight


class _NormalisedLeaky(torch.autograd.Function):
    """Weighted batch normalisation and LeakyReLU that keep nothing but their input.

    With weights w of sum one, mean m, deviation s, x = (h - m) / s and gradient g behind the
    LeakyReLU, the gradient of row r is scale / s (g_r - w_r (sum g + x_r sum g x)).

    Shapes: h (R, H), w (R,), scale and shift (H,) -> (R, H), mean (H,), variance (H,).
    """

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, w: Tensor, scale: Tensor, shift: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean = w @ h
        variance = torch.zeros_like(mean)
        for part in _row_chunks(*h.shape):
            variance += w[part] @ (h[part] - mean).square_()
        factor = (variance + eps).rsqrt()
        out = torch.empty_like(h)
        for part in _row_chunks(*h.shape):
            torch.sub(h[part], mean, out=out[part])
            F.leaky_relu_(out[part].mul_(factor * scale).add_(shift), LEAK)
        ctx.save_for_backward(h, w, scale, shift, mean, factor)
        ctx.mark_non_differentiable(mean, variance)
        return out, mean, variance

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, Tensor, Tensor, None]:
        h, w, scale, shift, mean, factor = ctx.saved_tensors
        inner = torch.empty_like(h)
        grad_scale, grad_shift = torch.zeros_like(scale), torch.zeros_like(shift)
        for part in _row_chunks(*h.shape):
            x = (h[part] - mean).mul_(factor)
            before = x * scale + shift
            inner[part] = torch.ops.aten.leaky_relu_backward(grads[0][part], before, LEAK, False)
            grad_shift += inner[part].sum(0)
            grad_scale += x.mul_(inner[part]).sum(0)
        for part in _row_chunks(*h.shape):
            x = (h[part] - mean).mul_(factor)
            spread = x.mul_(grad_scale).add_(grad_shift).mul_(w[part, None])
            inner[part].sub_(spread).mul_(factor * scale)
        return inner, None, grad_scale, grad_shift, None


def _row_chunks(n_rows: int, width: int) -> list[slice]:
    size = max(1, CHUNK_NUMBERS // width)
    return [slice(start, start + size) for start in range(0, n_rows, size)]


class PairNorm(nn.Module):
    """BatchNorm over all N x N ordered pairs, from each unordered pair once, and LeakyReLU.

    The last row stands for the N equal pairs (i, i), every other row for (i, j) and (j, i):
    weighted by N and 2, mean and variance are those of the N x N pairs.

    Shapes: (P + 1, H) -> (P + 1, H), P = N (N - 1) / 2.
    """

    def __init__(self, width: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))
        self.running_mean: Tensor
        self.running_var: Tensor
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))
        self.momentum, self.eps = momentum, eps

    def forward(self, h: Tensor, n_nodes: int) -> Tensor:
        """Normalise and rectify the P + 1 rows of a graph of `n_nodes` nodes."""
        if not self.training:
            factor = self.scale * (self.running_var + self.eps).rsqrt()
            return F.leaky_relu_(h * factor + (self.shift - self.running_mean * factor), LEAK)
        n_ordered = n_nodes * n_nodes
        w = h.new_full((len(h),), 2 / n_ordered)
        w[-1] = n_nodes / n_ordered
        normalised: Any = _NormalisedLeaky.apply
        out: Tensor
        out, mean, variance = normalised(h, w, self.scale, self.shift, self.eps)
        with torch.no_grad():
            unbiased = variance * (n_ordered / max(n_ordered - 1, 1))
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(unbiased, self.momentum)
        return out


class PairLayerNorm(nn.Module):
    """Layer normalisation and LeakyReLU, each pair on its own: (R, H) -> (R, H)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, h: Tensor, n_nodes: int) -> Tensor:
        """Normalise and rectify; the size of the graph is not used."""
        return F.leaky_relu_(self.norm(h), LEAK)


class PairNetwork(nn.Module):
    r"""A symmetric function of two nodes (G_E of Eq. 9).

    .. math:: g_{ij} = W_3\,\phi(W_2\,\phi(W_1 |v_i - v_j|))

    with normalisation and LeakyReLU in :math:`\phi`. As :math:`|v_i - v_j| = |v_j - v_i|`,
    each unordered pair is computed once. Pairs are computed in chunks whose activations the
    backward pass computes again: memory grows with N^2, not with N^2 times the width. Only
    training with batch normalisation needs the statistics of all pairs, and takes them at once.

    Shapes: v (N, D) -> g (N, N), symmetric.
    """

    def __init__(self, width_in: int, width: int, normalisation: str) -> None:
        super().__init__()
        self.first = nn.Linear(width_in, 2 * width, bias=False)
        self.second = nn.Linear(2 * width, width, bias=False)
        self.last = nn.Linear(width, 1)
        self.batch = normalisation == "batch"
        norm = PairNorm if self.batch else PairLayerNorm
        self.first_norm = norm(2 * width)
        self.second_norm = norm(width)

    def forward(self, v: Tensor) -> Tensor:
        """Score all pairs of nodes: (N, D) -> (N, N)."""
        n = len(v)
        first, second = torch.triu_indices(n, n, offset=1, device=v.device)
        # One more row, for the diagonal: a node and itself differ by nothing.
        zero = first.new_zeros(1)
        first, second = torch.cat([first, zero]), torch.cat([second, zero])
        if self.batch and self.training:
            scores = self._score(v, first, second, n)
        else:
            chunks = zip(*(torch.split(p, CHUNK_PAIRS) for p in (first, second)), strict=True)
            scores = torch.cat([self._score_chunk(v, *chunk, n) for chunk in chunks])
        grid = scores[-1].expand(n, n).clone()
        grid[first[:-1], second[:-1]] = grid[second[:-1], first[:-1]] = scores[:-1]
        return grid

    def between(self, queries: Tensor, support: Tensor) -> Tensor:
        """Score pairs of a query and a support node: (Q, D), (S, D) -> (Q, S)."""
        n_queries, n_support = len(queries), len(support)
        v = torch.cat([queries, support])
        columns = torch.arange(n_support, device=v.device) + n_queries
        parts = []
        chunk = max(1, CHUNK_PAIRS // n_support)
        for rows in torch.split(torch.arange(n_queries, device=v.device), chunk):
            first = rows.repeat_interleave(n_support)
            parts.append(self._score(v, first, columns.repeat(len(rows)), 0))
        return torch.cat(parts).view(n_queries, n_support)

    def _score_chunk(self, *chunk: Any) -> Tensor:
        if torch.is_grad_enabled() and chunk[-1] ** 2 > 2 * CHUNK_PAIRS:
            scores: Tensor = checkpoint(self._score, *chunk, use_reentrant=False)
            return scores
        return self._score(*chunk)

    def _score(self, v: Tensor, first: Tensor, second: Tensor, n: int) -> Tensor:
        mapped: Any = _AbsoluteDifferenceMap.apply
        h = self.first_norm(mapped(v, first, second, self.first.weight), n)
        h = self.second_norm(self.second(h), n)
        out: Tensor = self.last(h).squeeze(-1)
        return out
