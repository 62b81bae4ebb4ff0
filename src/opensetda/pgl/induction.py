"""Later samples (induction): each is attached to a stored support graph, and to nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numpy.random import Generator
from torch import Tensor

from opensetda.base import Scores
from opensetda.errors import InputError
from opensetda.pgl.episodes import size_of_graph
from opensetda.pgl.graph import GraphLayer, strongest_neighbours
from opensetda.pgl.inference import (
    ClassMeans,
    draw_per_class,
    draw_support,
    members_of_classes,
    mix_of,
    scores_of_logits,
)
from opensetda.pgl.network import COSINE_SCALE, PGLNetwork
from opensetda.pgl.pseudo_labels import UNLABELLED
from opensetda.pgl.settings import PGLSettings
from opensetda.pgl.trainer import LabelledSamples

# Rows nearer to each other than this are the same row.
SAME = 1e-6


def same_rows(x: Tensor, others: Tensor, squares: Tensor) -> Tensor:
    """Mark which rows are among others: (Q, d), (S, d), squared lengths (S,) -> bool (Q, S).

    Matrix products find the candidates, exact differences decide: all differences would be slow.
    """
    own = (x**2).sum(dim=1)
    apart = own[:, None] + squares[None, :] - 2 * x @ others.t()
    # Far more than the rounding error of products in double precision.
    near = apart <= SAME**2 + 1e-9 * (own[:, None] + squares[None, :])
    rows, places = near.nonzero(as_tuple=True)
    near[rows, places] = (x[rows] - others[places]).norm(dim=1) < SAME
    return near


class SupportGraph:
    """Labelled nodes of both domains, embedded by the final network, for later samples.

    A query has edges to the support nodes only, is updated by their messages, and
    changes none of them: its answer does not depend on other queries.

    The support has aligned features x (S, d), `labels` (S,), C for unknown, and `is_target` (S,);
    `progress` is the share of the targets that had a pseudo-label.
    """

    def __init__(
        self,
        network: PGLNetwork,
        x: Tensor,
        labels: Tensor,
        is_target: Tensor,
        progress: float,
        settings: PGLSettings,
    ) -> None:
        self.network = network.double().eval()
        self.x, self.labels, self.is_target = x.double(), labels, is_target
        self.x_squares = (self.x**2).sum(dim=1)
        self.progress, self.settings = progress, settings
        with torch.no_grad():
            self._build()

    @classmethod
    def draw(
        cls, network: PGLNetwork, samples: LabelledSamples, settings: PGLSettings, rng: Generator
    ) -> SupportGraph:
        """Keep at most `support_nodes` of source, pseudo-known and pseudo-unknown nodes each."""
        n_classes = network.n_classes
        in_training = math.prod(size_of_graph(n_classes, settings.episodes))
        budget = settings.ranking.support_nodes or in_training
        slots, means = max(1, budget // n_classes), settings.ranking.support_nodes is not None
        of_source = members_of_classes(samples.source_labels, n_classes)
        source, source_labels = draw_support(samples.source, of_source, slots, rng, means)
        # The last pool: pseudo-unknown targets.
        *of_target, unknowns = members_of_classes(samples.pseudo_labels, n_classes + 1)
        known, known_labels = draw_support(samples.target, of_target, slots, rng, means)
        unknown = draw_per_class([unknowns], budget, rng)
        rows = torch.cat([source, known, samples.target[unknown]]).cpu()
        labels = torch.cat([source_labels, known_labels, samples.pseudo_labels[unknown]]).cpu()
        is_target = torch.arange(len(rows)) >= len(source)
        # Later samples are scored on the CPU, in double precision, wherever it was trained.
        return cls(network.cpu(), rows, labels, is_target, samples.progress, settings)

    def _build(self) -> None:
        """Pass the support through the layers once, and keep what queries need."""
        v = self.network.backbone(self.x)
        self.layers: list[tuple[Tensor, Tensor]] = []
        for layer in self.network.graph_layers:
            self.layers.append((v, degrees(layer, v)))
            v = layer(v)[0]
        self.means: Tensor | None = None
        if self.settings.graph.form == "anchored":
            mix, n_classes = mix_of(self.progress, self.settings), self.network.n_classes
            self.means = ClassMeans.of(v, self.labels, self.is_target, n_classes, mix).mixed()

    @torch.no_grad()
    def score(self, x: npt.NDArray[np.float64]) -> Scores:
        """Score queries, each on its own: (Q, d) -> `Scores`."""
        v = self._embed(torch.from_numpy(x))
        if self.means is None:
            return scores_of_logits(self.network.classifier(v, torch.full((len(v),), UNLABELLED)))
        cosine = v @ self.means.t()
        if self.settings.ranking.confidence == "softmax":
            return scores_of_logits(COSINE_SCALE * cosine)
        # Held-out scores are needed in `fit` only.
        nowhere = np.full(len(x), np.nan)
        return Scores((COSINE_SCALE * cosine).numpy(), cosine.amax(dim=1).numpy(), nowhere)

    def _embed(self, x: Tensor) -> Tensor:
        """Update queries by the messages of the support, layer by layer."""
        v: Tensor = self.network.backbone(x)
        # A target of `fit` may be given again: like any node, it is not its own neighbour.
        itself = same_rows(x, self.x, self.x_squares)
        for layer, (support, degree) in zip(self.network.graph_layers, self.layers, strict=True):
            v = attach_queries(layer, v, support, degree, itself)
        return v

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return weights and support as arrays, by name."""
        weights = {f"network.{k}": v.numpy() for k, v in self.network.state_dict().items()}
        support = {"x": self.x, "labels": self.labels, "is_target": self.is_target}
        return weights | {f"support.{k}": v.numpy() for k, v in support.items()}

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[str, npt.NDArray[Any]],
        n_classes: int,
        progress: float,
        settings: PGLSettings,
    ) -> SupportGraph:
        """Build the graph again from what `arrays` returned."""
        tensors = {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}
        x, labels, is_target = (tensors[f"support.{k}"] for k in ("x", "labels", "is_target"))
        prefix = "network."
        weights = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        adapts = "backbone.change.weight" in weights
        network = PGLNetwork(x.shape[1], n_classes, settings.graph, adapts).double()
        try:
            network.load_state_dict(weights)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise InputError(f"saved model: {reason}; fit again") from None
        return cls(network, x, labels, is_target, progress, settings)


def degrees(layer: GraphLayer, v: Tensor) -> Tensor:
    """Row sums of A + I, which later queries need: (N, D) -> (N,)."""
    logits = layer.edge_logits(v)
    near = strongest_neighbours(logits, layer.neighbours)
    return layer.affinity(logits, near).sum(dim=1) + 1


def attach_queries(
    layer: GraphLayer, queries: Tensor, support: Tensor, degree: Tensor, itself: Tensor
) -> Tensor:
    """Update queries by messages from the support alone: (Q, D), (S, D), (S,), (Q, S) -> (Q, h).

    `itself` marks where a support node is the query itself.
    """
    logits = layer.edge_logits_between(queries, support).masked_fill(itself, -torch.inf)
    count = min(layer.neighbours or len(support), len(support))
    near = torch.zeros_like(itself).scatter_(1, logits.topk(count, dim=1).indices, True)
    affinity = layer.affinity(logits, near)
    loop = layer.self_affinity(queries) + 1
    own_degree = affinity.sum(dim=1) + loop
    edges = affinity / (own_degree[:, None] * degree[None, :]).sqrt()
    message = edges @ support
    if layer.includes_itself:
        message = message + (loop / own_degree)[:, None] * queries
    return layer.update_nodes(queries, message)
