"""The network: G_B (a linear map for feature rows), G_E and G_N of each layer, F and D."""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opensetda.methods.network_parts import Adapter, Discriminator
from opensetda.pgl.pair_norm import PairNorm
from opensetda.pgl.settings import PGLSettings


class EdgeNetwork(nn.Module):
    r"""G_E of Eq. 9, a function of the element-wise distance of two nodes.

    .. math:: g_{ij} = w^\top \phi(W_2\, \phi(W_1 |v_i - v_j|))

    with batch normalisation and LeakyReLU in :math:`\phi`. As it is symmetric, each unordered
    pair is computed once, in half of the time and memory.

    Shapes: v (N, D) -> g (N, N), symmetric.
    """

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width_in, 2 * width, bias=False),
            PairNorm(2 * width),
            nn.LeakyReLU(inplace=True),
            nn.Linear(2 * width, width, bias=False),
            PairNorm(width),
            nn.LeakyReLU(inplace=True),
            nn.Linear(width, 1),
        )

    def forward(self, v: Tensor) -> Tensor:
        """Score all pairs of nodes."""
        n = len(v)
        # One more pair, (0, 0), for the diagonal: a node and itself differ by nothing.
        i, j = F.pad(torch.triu_indices(n, n, offset=1, device=v.device), (0, 1))
        apart = v.index_select(0, i) - v.index_select(0, j)
        # The absolute value; for its gradient it keeps one byte per number.
        scores = self.score(apart * apart.detach().sign().to(torch.int8))
        grid = scores[-1].expand(n, n).clone()
        grid[i[:-1], j[:-1]] = grid[j[:-1], i[:-1]] = scores[:-1]
        return grid

    def between(self, queries: Tensor, support: Tensor) -> Tensor:
        """Score queries against support nodes, not in training: (Q, D), (S, D) -> (Q, S)."""
        return self.score((queries[:, None] - support[None]).abs())

    def score(self, distance: Tensor) -> Tensor:
        """Score element-wise distances: (..., D) -> (...)."""
        return cast(Tensor, self.layers(distance).squeeze(-1))


class GraphLayer(nn.Module):
    r"""One edge update (Eq. 9) and one node update (Eq. 10).

    .. math::
        A_{ij} &= \sigma(G_E(|v_i - v_j|)), \quad \mathcal{E} = D^{-1/2} (A + I) D^{-1/2} \\
        \hat v_i &= \sum_j \mathcal{E}_{ij} v_j, \quad v_i' = G_N([v_i; \hat v_i])

    D are the row sums of A + I. Eq. 10 prints :math:`v_i` in the sum, which is a misprint.

    Shapes: v (N, D) -> v' (N, h), edges E (N, N).
    """

    def __init__(self, width: int, settings: PGLSettings) -> None:
        super().__init__()
        self.width = width
        out = settings.node_width
        self.edge = EdgeNetwork(width, settings.edge_width)
        self.node = nn.Sequential(
            nn.Linear(2 * width, 2 * out, bias=False),
            nn.BatchNorm1d(2 * out),
            nn.LeakyReLU(),
            nn.Dropout(settings.dropout),
            nn.Linear(2 * out, out, bias=False),
            nn.BatchNorm1d(out),
            nn.LeakyReLU(),
            nn.Dropout(settings.dropout),
        )

    def affinity(self, v: Tensor) -> Tensor:
        """Return A + I: (N, D) -> (N, N)."""
        return torch.sigmoid(self.edge(v)) + torch.eye(len(v), dtype=v.dtype, device=v.device)

    def forward(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Update the edges, then the nodes."""
        affinity = self.affinity(v)
        root = affinity.sum(dim=1).rsqrt()
        edges = root[:, None] * affinity * root
        return self.node(torch.cat([v, edges @ v], dim=1)), edges

    def attach(self, queries: Tensor, support: Tensor, degree: Tensor) -> Tensor:
        """Update queries, each as one more node of a graph of support nodes that stays as it is.

        A query has edges to the support and to itself; `degree` are the support's row sums of
        A + I.

        Shapes: (Q, D), (S, D), (S,) -> (Q, h).
        """
        affinity = torch.sigmoid(self.edge.between(queries, support))
        loop = 1 + torch.sigmoid(self.edge.score(torch.zeros_like(queries[:1])))
        own = affinity.sum(dim=1, keepdim=True) + loop
        message = (affinity * (own * degree).rsqrt()) @ support + loop / own * queries
        return cast(Tensor, self.node(torch.cat([queries, message], dim=1)))


class GraphOutput(NamedTuple):
    """The output for one graph of N nodes; lists have one entry per layer."""

    features: Tensor
    """v^(0) = G_B(x): (N, D)."""
    logits: list[Tensor]
    """F(v^(l)): (N, C)."""
    edges: list[Tensor]
    """E^(l), normalised: (N, N)."""


class PGLNetwork(nn.Module):
    """Backbone G_B, L graph layers, the shared classifier F and the domain discriminator D.

    On feature rows the backbone is a linear map that starts as the identity. If an image
    backbone is trained (`adapts` is False), rows are its features. Either is multiplied by the
    setting `scale`.

    Shapes: x (N, D) -> `GraphOutput`.
    """

    def __init__(self, width: int, n_classes: int, settings: PGLSettings, adapts: bool) -> None:
        super().__init__()
        self.scale = settings.scale
        self.backbone = Adapter(width, unit=False, learns=adapts)
        widths = [width] + [settings.node_width] * settings.layers
        self.layers = nn.ModuleList([GraphLayer(each, settings) for each in widths[:-1]])
        self.classifier = nn.Linear(widths[-1], n_classes)
        self.discriminator = Discriminator(width)

    @property
    def graph_layers(self) -> list[GraphLayer]:
        """The graph layers, typed."""
        return cast("list[GraphLayer]", list(self.layers))

    def features(self, x: Tensor) -> Tensor:
        """Return v^(0) of rows: (N, D) -> (N, D)."""
        return cast(Tensor, self.backbone(self.scale * x))

    def forward(self, x: Tensor) -> GraphOutput:
        """Pass one graph through."""
        v = features = self.features(x)
        nodes: list[Tensor] = []
        edges: list[Tensor] = []
        for layer in self.graph_layers:
            v, normalised = layer(v)
            nodes.append(v)
            edges.append(normalised)
        return GraphOutput(features, [self.classifier(v) for v in nodes or [features]], edges)
