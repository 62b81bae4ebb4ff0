"""The network: adapter, graph layers, the shared classifier F, discriminator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opensetda.nn.parts import Adapter, Discriminator
from opensetda.pgl.graph import AnchoredLayer, GraphLayer, PaperLayer
from opensetda.pgl.settings import GraphSettings

# A cosine lies in [-1, 1]: without a scale its softmax is flat.
COSINE_SCALE = 16.0


@dataclass(frozen=True)
class GraphOutput:
    """The output for one graph of N nodes; lists have one entry per layer."""

    backbone: Tensor  # v^(0), the features before the graph: (N, D)
    nodes: list[Tensor]  # v^(l), node embeddings: (N, h)
    edge_logits: list[Tensor]  # Logits of A^(l): (N, N)
    edges: list[Tensor]  # E^(l), normalised: (N, N)
    class_logits: list[Tensor]  # F(v^(l)): (N, C)


class PGLNetwork(nn.Module):
    """G_B (the adapter), L graph layers G_E and G_N, the classifier F, the discriminator D.

    The adapter learns (`adapts`) unless an image backbone is trained.

    Shapes: x (N, D) and labels (N,) -> `GraphOutput`.
    """

    def __init__(
        self, width: int, n_classes: int, settings: GraphSettings, adapts: bool = True
    ) -> None:
        super().__init__()
        anchored = settings.form == "anchored"
        self.backbone = Adapter(width, unit=anchored, learns=adapts)
        form = AnchoredLayer if anchored else PaperLayer
        layers: list[GraphLayer] = []
        width_out = width
        for _ in range(settings.layers if settings.enabled else 0):
            layers.append(form(width_out, settings))
            width_out = layers[-1].width_out
        self.layers = nn.ModuleList(layers)
        self.classifier: ClassMeanClassifier | LinearClassifier = (
            ClassMeanClassifier(n_classes) if anchored else LinearClassifier(width_out, n_classes)
        )
        self.discriminator = Discriminator(width)
        self.n_classes = n_classes

    @property
    def graph_layers(self) -> list[GraphLayer]:
        """The graph layers, typed."""
        return cast("list[GraphLayer]", list(self.layers))

    def forward(self, x: Tensor, labels: Tensor) -> GraphOutput:
        """Pass one graph through; `labels` has -1 for unlabelled and C for unknown nodes."""
        v = backbone = self.backbone(x)
        nodes, edge_logits, edges = [], [], []
        for layer in self.graph_layers:
            v, logits, normalised = layer(v)
            nodes.append(v)
            edge_logits.append(logits)
            edges.append(normalised)
        nodes = nodes or [v]
        class_logits = [self.classifier(embedding, labels) for embedding in nodes]
        return GraphOutput(backbone, nodes, edge_logits, edges, class_logits)


class LinearClassifier(nn.Module):
    """The paper's F: a linear map of the node embedding, v (N, h) -> logits (N, C)."""

    def __init__(self, width: int, n_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, n_classes)

    def forward(self, v: Tensor, labels: Tensor) -> Tensor:
        """Classify all nodes; `labels` is not used."""
        logits: Tensor = self.linear(v)
        return logits


class ClassMeanClassifier(nn.Module):
    """Our F: scaled cosines to the class means of the labelled nodes in the graph.

    A labelled node is left out of the mean of its own class: otherwise it would
    be near that mean whatever the network does.

    Shapes: v (N, D), labels (N,) -> logits (N, C).
    """

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.n_classes = n_classes

    def forward(self, v: Tensor, labels: Tensor) -> Tensor:
        """Classify all nodes by the labelled ones."""
        sums, counts = class_sums(v, labels, self.n_classes)
        logits = v @ F.normalize(sums, dim=1).t()
        rows = torch.nonzero((labels >= 0) & (labels < self.n_classes)).squeeze(1)
        own = labels[rows]
        others = F.normalize(sums[own] - v[rows], dim=1)
        without_itself = (v[rows] * others).sum(1)
        alone = counts[own] < 2
        logits = logits.index_put((rows[~alone], own[~alone]), without_itself[~alone])
        return COSINE_SCALE * logits


def class_sums(v: Tensor, labels: Tensor, n_classes: int) -> tuple[Tensor, Tensor]:
    """Sum and count the nodes of each known class: (N, D), (N,) -> (C, D), (C,)."""
    known = (labels >= 0) & (labels < n_classes)
    sums = v.new_zeros(n_classes, v.shape[1]).index_add(0, labels[known], v[known])
    return sums, torch.bincount(labels[known], minlength=n_classes)
