"""The fitted method: samples are scored one by one, as further nodes of stored graphs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from opensetda.pgl.network import PGLNetwork

# Samples that are embedded at a time: pairs of them and support nodes take memory.
EMBEDDED_ROWS = 64


class SupportGraph(nn.Module):
    r"""Attach each sample to K graphs of S labelled nodes, drawn as those of training are.

    .. math:: p(c|x) = \frac1K \sum_k \operatorname{softmax}_c F(G(x; \mathcal{G}_k))

    A sample has edges to the nodes of a graph and changes none of them: its answer depends on no
    other sample, and a target of `fit` gets the same one later.

    Shapes: x (Q, D) -> log p (Q, C), largest p (Q,).
    """

    def __init__(self, network: PGLNetwork, draws: int, n_nodes: int) -> None:
        super().__init__()
        self.network = network
        self.draws = draws
        for number, layer in enumerate(network.graph_layers):
            self.register_buffer(f"nodes_{number}", torch.zeros(draws, n_nodes, layer.width))
            self.register_buffer(f"degrees_{number}", torch.ones(draws, n_nodes))

    @classmethod
    @torch.no_grad()
    def of(cls, network: PGLNetwork, x: Tensor) -> SupportGraph:
        """Keep what samples need of these graphs: (K, S, D)."""
        draws, n_nodes = x.shape[:2]
        graphs = cls(network, draws, n_nodes).to(x.device).eval()
        for draw, rows in enumerate(x):
            v = network.features(rows)
            for number, layer in enumerate(network.graph_layers):
                nodes, degrees = graphs._stored(number)
                nodes[draw] = v
                degrees[draw] = layer.affinity(v).sum(dim=1)
                v = layer(v)[0]
        return graphs

    def _stored(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return nodes v^(l) (K, S, D) and row sums of A + I (K, S) of the graphs at a layer."""
        return self.get_buffer(f"nodes_{layer}"), self.get_buffer(f"degrees_{layer}")

    def embed(self, x: Tensor, of_source: bool = False) -> Tensor:
        """Return `nodes` of samples of either domain: (Q, D) -> (Q, h)."""
        return torch.cat([self.nodes(rows) for rows in torch.split(x, EMBEDDED_ROWS)])

    def nodes(self, x: Tensor) -> Tensor:
        """Return node embeddings v^(L), the mean over the graphs: (Q, D) -> (Q, h)."""
        return torch.stack([self._attach(x, draw) for draw in range(self.draws)]).mean(dim=0)

    def _attach(self, x: Tensor, draw: int) -> Tensor:
        v = self.network.features(x)
        for number, layer in enumerate(self.network.graph_layers):
            nodes, degrees = self._stored(number)
            v = layer.attach(v, nodes[draw], degrees[draw])
        return v

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the class scores and the known score of each sample."""
        drawn = [self.network.classifier(self._attach(x, draw)) for draw in range(self.draws)]
        p = torch.stack(drawn).softmax(dim=2).mean(dim=0)
        return p.clamp(min=torch.finfo(p.dtype).tiny).log(), p.amax(dim=1)
