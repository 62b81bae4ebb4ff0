"""Edge update and node update: one layer of the graph."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opensetda.nn.adapter import zero_linear
from opensetda.pgl.pairs import PairNetwork
from opensetda.pgl.settings import GraphSettings


def normalised_edges(affinity: Tensor) -> Tensor:
    r"""Normalise affinities symmetrically (Eq. 7).

    .. math:: \mathcal{E} = D^{-1/2} (A + I) D^{-1/2}, \quad D_{ii} = \sum_j (A + I)_{ij}

    Shapes: A (N, N) -> E (N, N).
    """
    with_loops = affinity + torch.eye(len(affinity), dtype=affinity.dtype, device=affinity.device)
    root = with_loops.sum(dim=1).rsqrt()
    return root[:, None] * with_loops * root[None, :]


def strongest_neighbours(logits: Tensor, count: int | None) -> Tensor:
    """Mark j in N(i) where either counts the other among its `count` strongest edges.

    Shapes: logits (N, N) -> bool (N, N), symmetric, nobody its own neighbour.
    """
    n = len(logits)
    others = ~torch.eye(n, dtype=torch.bool, device=logits.device)
    if count is None or count >= n - 1:
        return others
    chosen = torch.zeros_like(others)
    ranked = logits.detach().masked_fill(~others, -torch.inf)
    chosen.scatter_(1, ranked.topk(count, dim=1).indices, True)
    return chosen | chosen.t()


class PaperLayer(nn.Module):
    r"""The layer as the paper has it (Eq. 7 and 8).

    .. math::
        A_{ij} &= \sigma(G_E(|v_i - v_j|)), \quad
        \mathcal{E} = D^{-1/2} (A + I) D^{-1/2} \\
        \hat v_i &= \sum_j \mathcal{E}_{ij} v_j, \quad
        v_i' = G_N([v_i; \hat v_i])

    G_N: two linear maps with normalisation, LeakyReLU and dropout.

    Shapes: v (N, D) -> v' (N, h), edge logits (N, N), edges (N, N).
    """

    def __init__(self, width: int, settings: GraphSettings) -> None:
        super().__init__()
        pair_width = settings.projection or width
        self.projection = (
            nn.Identity() if settings.projection is None else nn.Linear(width, pair_width)
        )
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
        self.neighbours = settings.neighbours
        self.width_out = out

    def edge_logits(self, v: Tensor) -> Tensor:
        """Score all pairs: (N, D) -> (N, N)."""
        logits: Tensor = self.pairs(self.projection(v))
        return logits

    def edge_logits_between(self, queries: Tensor, support: Tensor) -> Tensor:
        """Score queries against support nodes: (Q, D), (S, D) -> (Q, S)."""
        return self.pairs.between(self.projection(queries), self.projection(support))

    def affinity(self, logits: Tensor, strongest: Tensor) -> Tensor:
        """Turn logits into A, zero outside the neighbourhoods where there are such."""
        affinity = torch.sigmoid(logits)
        return affinity if self.neighbours is None else affinity * strongest

    message_includes_itself = True

    def self_affinity(self, v: Tensor) -> Tensor:
        """A_ii of nodes: (N, D) -> (N,)."""
        if self.neighbours is not None:
            return v.new_zeros(len(v))
        itself = self.edge_logits_between(v[:1], v[:1]).squeeze()
        return torch.sigmoid(itself).expand(len(v))

    def update_nodes(self, v: Tensor, message: Tensor) -> Tensor:
        """Eq. 8: (N, D), (N, D) -> (N, h)."""
        updated: Tensor = self.node(torch.cat([v, message], dim=1))
        return updated

    def forward(self, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Update edges, then nodes; returns nodes, edge logits and normalised edges."""
        logits = self.edge_logits(v)
        near = strongest_neighbours(logits, self.neighbours)
        edges = normalised_edges(self.affinity(logits, near))
        return self.update_nodes(v, edges @ v), logits, edges


class AnchoredLayer(nn.Module):
    r"""A layer that starts from what cosine similarity knows.

    .. math::
        A_{ij} &= \sigma(k (\cos(P v_i, P v_j) - t)) \\
        \hat v_i &= \operatorname{unit}\Big(\sum_{j \in N(i)} \mathcal{E}_{ij} v_j\Big) \\
        v_i' &= \operatorname{unit}((1 - \lambda) v_i + \lambda \hat v_i + G_N([v_i; \hat v_i]))

    P starts as the identity and the last map of G_N at zero: the untrained layer averages
    each node with its nearest neighbours, and training adds to that. The learned cosine
    stands where the paper has a network on |v_i - v_j|: as symmetric, and one product of
    matrices for all pairs.

    Shapes: v (N, D), unit rows -> v' (N, D), edge logits (N, N), edges (N, N).
    """

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
        self.neighbours = settings.neighbours
        self.message = settings.message
        self.width_out = width

    def edge_logits(self, v: Tensor) -> Tensor:
        """Score all pairs: (N, D) -> (N, N)."""
        return self.edge_logits_between(v, v)

    def edge_logits_between(self, queries: Tensor, support: Tensor) -> Tensor:
        """Score queries against support nodes: (Q, D), (S, D) -> (Q, S)."""
        cosine = self._project(queries) @ self._project(support).t()
        return self.sharpness * (cosine - self.threshold)

    def _project(self, v: Tensor) -> Tensor:
        """Apply P and scale to unit length: (N, D) -> (N, D)."""
        return F.normalize(v + self.metric(v), dim=1)

    def affinity(self, logits: Tensor, strongest: Tensor) -> Tensor:
        """Turn logits into A, zero outside the neighbourhoods."""
        return torch.sigmoid(logits) * strongest

    message_includes_itself = False

    def self_affinity(self, v: Tensor) -> Tensor:
        """A_ii of nodes, which are no neighbours of their own: (N, D) -> (N,)."""
        return v.new_zeros(len(v))

    def update_nodes(self, v: Tensor, message: Tensor) -> Tensor:
        """Move nodes towards their neighbours: (N, D), (N, D) -> (N, D)."""
        message = F.normalize(message, dim=1)
        learned = self.node(torch.cat([v, message], dim=1))
        return F.normalize((1 - self.message) * v + self.message * message + learned, dim=1)

    def forward(self, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Update edges, then nodes; returns nodes, edge logits and normalised edges."""
        logits = self.edge_logits(v)
        near = strongest_neighbours(logits, self.neighbours)
        edges = normalised_edges(self.affinity(logits, near))
        return self.update_nodes(v, (edges * near) @ v), logits, edges


GraphLayer = PaperLayer | AnchoredLayer


def make_layer(width: int, settings: GraphSettings) -> GraphLayer:
    """Build the layer that the settings name."""
    form = AnchoredLayer if settings.form == "anchored" else PaperLayer
    return form(width, settings)


def degrees(layer: GraphLayer, v: Tensor) -> Tensor:
    """Row sums of A + I, which later queries need: (N, D) -> (N,)."""
    logits = layer.edge_logits(v)
    near = strongest_neighbours(logits, layer.neighbours)
    return layer.affinity(logits, near).sum(dim=1) + 1


def attach_queries(
    layer: GraphLayer, queries: Tensor, support: Tensor, degree: Tensor, itself: Tensor
) -> Tensor:
    """Update queries by messages from the support alone.

    The layer's own arithmetic for a node that has edges to the support and to itself,
    while the support does not know of it.

    Shapes: queries (Q, D), support (S, D), degree (S,), itself bool (Q, S), where a
    support node is the query itself -> (Q, h).
    """
    logits = layer.edge_logits_between(queries, support).masked_fill(itself, -torch.inf)
    count = min(layer.neighbours or len(support), len(support))
    near = torch.zeros_like(itself).scatter_(1, logits.topk(count, dim=1).indices, True)
    affinity = layer.affinity(logits, near)
    loop = layer.self_affinity(queries) + 1
    own_degree = affinity.sum(dim=1) + loop
    edges = affinity / (own_degree[:, None] * degree[None, :]).sqrt()
    message = edges @ support
    if layer.message_includes_itself:
        message = message + (loop / own_degree)[:, None] * queries
    return layer.update_nodes(queries, message)
