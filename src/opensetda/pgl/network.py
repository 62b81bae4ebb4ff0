"""The whole network: adapter, graph layers, classifier, discriminator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn

from opensetda.nn.adapter import Adapter
from opensetda.nn.adversary import Discriminator
from opensetda.pgl.classifier import ClassMeanClassifier, LinearClassifier
from opensetda.pgl.graph import GraphLayer, make_layer
from opensetda.pgl.settings import GraphSettings


@dataclass(frozen=True)
class GraphOutput:
    """What one graph of N nodes gives; lists have an entry a layer."""

    backbone: Tensor
    """v^(0), the features before the graph: (N, D)."""
    nodes: list[Tensor]
    """v^(l), node embeddings: (N, h)."""
    edge_logits: list[Tensor]
    """Logits of A^(l): (N, N)."""
    edges: list[Tensor]
    """E^(l), normalised: (N, N)."""
    class_logits: list[Tensor]
    """F(v^(l)): (N, C)."""


class PGLNetwork(nn.Module):
    """G_B (the adapter), L graph layers G_E and G_N, the classifier F, the discriminator D.

    Parameters
    ----------
    width : int
        D, the features of a row.
    n_classes : int
        C.
    adapts : bool
        Whether the adapter learns; not where an image backbone does.

    Shapes: x (N, D) and labels (N,) -> `GraphOutput`.
    """

    def __init__(
        self, width: int, n_classes: int, settings: GraphSettings, adapts: bool = True
    ) -> None:
        super().__init__()
        anchored = settings.form == "anchored"
        self.backbone = Adapter(width, unit=anchored, learns=adapts)
        layers: list[GraphLayer] = []
        width_out = width
        if settings.enabled:
            for _ in range(settings.layers):
                layers.append(make_layer(width_out, settings))
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
        class_logits = [self.classifier(embedding, labels) for embedding in nodes or [v]]
        return GraphOutput(backbone, nodes or [v], edge_logits, edges, class_logits)
