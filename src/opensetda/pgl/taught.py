"""What is ours, not the paper's: another method ranks the targets, by rows and node embeddings.

In the paper the largest softmax of the network ranks the targets (`ranking="softmax"`). It is
trained on the source first, and what it believes then, it learns. Here a `Ranker` that is passed
in labels them instead: with `ranking="features"` by the features of the backbone, and the last
labels are those of the softmax; with `ranking="embedding"` by node embeddings beside the features,
the last labels, too. Episodes, graph, losses and mix-up stay those of the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opensetda.context import TrainableImages
from opensetda.features.alignment import Alignment, unit
from opensetda.methods.inputs import TrainingInputs, in_memory, training_inputs
from opensetda.methods.saving import part
from opensetda.pgl.network import PGLNetwork
from opensetda.pgl.scoring import EMBEDDED_ROWS, SupportGraph
from opensetda.pgl.settings import PGLSettings
from opensetda.rows import Domains, FloatArray, IntArray, Rows
from opensetda.share.decision import Vector


class Ranker(Protocol):
    """What scores rows by the labelled ones of the source; every method of ours is one."""

    def learn_scorer(self, domains: Domains, share: float) -> nn.Module:
        """Return a module from rows (n, D) to class scores (n, C) and known scores (n,)."""


class TaughtGraph(nn.Module):
    r"""A graph whose samples are aligned first, and may be scored by a ranker in the end.

    The ranker sees the features of a sample beside its mean node embedding:

    .. math:: z(x) = \big[\operatorname{unit}(x);\;
        w \operatorname{unit}(\textstyle\sum_k G(\operatorname{align}(x); \mathcal{G}_k)) \big]

    with the `weight` w. Without a ranker the softmax scores, without an alignment rows are taken as
    they are.

    Shapes: x (n, D) -> class scores (n, C), known scores (n,).
    """

    def __init__(
        self,
        support: SupportGraph,
        alignment: Alignment | None,
        weight: float,
        ranker: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.weight = weight
        self.support = support
        self.alignment = alignment
        self.ranker = ranker

    @classmethod
    def of_state(
        cls,
        arrays: Mapping[str, Tensor],
        n_classes: int,
        settings: PGLSettings,
        ranker: Callable[[dict[str, Tensor]], nn.Module],
    ) -> TaughtGraph:
        """Return the module of a saved scorer; `ranker` makes that of the ranker's arrays."""
        of_network = part(arrays, "support.network.")
        width = of_network["discriminator.layers.0.weight"].shape[1]
        adapts = "backbone.change.weight" in of_network
        network = PGLNetwork(width, n_classes, settings, adapts)
        nodes = arrays.get("support.nodes_0")
        draws, n_nodes = (settings.draws, 1) if nodes is None else nodes.shape[:2]
        is_aligned = "alignment.source_mean" in arrays
        of_ranker = part(arrays, "ranker.")
        return cls(
            SupportGraph(network, draws, n_nodes),
            alignment=Alignment.of_state(arrays) if is_aligned else None,
            weight=settings.embedding_weight,
            ranker=ranker(of_ranker) if of_ranker else None,
        )

    @property
    def network(self) -> PGLNetwork:
        """The trained network."""
        return self.support.network

    def align(self, x: Tensor, of_source: bool = False) -> Tensor:
        """Return rows as the network sees them: (n, D) -> (n, d)."""
        return x if self.alignment is None else self.alignment(x, of_source)

    def embed(self, x: Tensor, of_source: bool = False) -> Tensor:
        """Return rows of either domain as the ranker sees them: (n, D) -> (n, D + h)."""
        parts = torch.split(x, EMBEDDED_ROWS)
        return torch.cat([self._beside(part, self.align(part, of_source)) for part in parts])

    def _beside(self, x: Tensor, aligned: Tensor) -> Tensor:
        return torch.cat([unit(x), self.weight * unit(self.support.nodes(aligned))], dim=1)

    def forward(self, x: Tensor, of_source: bool = False) -> tuple[Tensor, Tensor]:
        """Score rows of the target, or of the source, each on its own."""
        aligned = self.align(x, of_source)
        scores: tuple[Tensor, Tensor]
        if self.ranker is None:
            scores = self.support(aligned)
        else:
            scores = self.ranker(self._beside(x, aligned))
        return scores


def taught_inputs(
    domains: Domains, settings: PGLSettings, images: TrainableImages | None
) -> TrainingInputs:
    """Return what is trained on: rows, aligned if the settings say so, or images."""
    alignment = None
    if settings.components is not None:
        alignment = Alignment.fit(
            domains.source, domains.target, settings.components, settings.whitening
        )
    if images is not None and settings.one_view:
        images.averaged = 1
    learns_statistics = settings.batch_statistics == "trained"
    return training_inputs(domains, alignment, images, learns_statistics)


@dataclass
class Teacher:
    """Ranks the targets of a training, by what the backbone and the network know so far.

    `share` is that of the unknowns; `y` has the classes of the sources.
    """

    ranker: Ranker
    share: float
    y: IntArray
    n_classes: int

    def rank(
        self, inputs: TrainingInputs, graph: TaughtGraph | None = None
    ) -> tuple[Vector, IntArray]:
        """Return known scores and nearest classes of the targets, by the features: (n_t,) each.

        With a graph it is by node embeddings beside them, and the graph gets the ranker.
        """
        source = in_memory(inputs.domains.source)
        target = in_memory(inputs.domains.target)
        if graph is not None:
            source = embedded(graph, source, of_source=True)
            target = embedded(graph, target)
        rows = np.concatenate([source, target])
        domains = Domains(
            source=Rows(rows, np.arange(len(source))),
            y=self.y,
            target=Rows(rows, np.arange(len(source), len(rows))),
            classes=np.arange(self.n_classes),
        )
        scorer = self.ranker.learn_scorer(domains, self.share)
        if graph is not None:
            graph.ranker = scorer
        scores = [scorer(part) for part in torch.split(torch.from_numpy(target).double(), 64)]
        nearest = torch.cat([logits.argmax(dim=1) for logits, _ in scores])
        return torch.cat([known for _, known in scores]).numpy(), nearest.numpy()


def embedded(graph: TaughtGraph, rows: FloatArray, of_source: bool = False) -> FloatArray:
    """Return rows of a domain as a ranker sees them, in double precision as later samples are."""
    return graph.embed(torch.from_numpy(rows).double(), of_source).numpy().astype(np.float32)


def unknown_loss(logits: Tensor) -> Tensor:
    r"""Make unknowns equally likely in all classes, so that they rank lowest.

    .. math:: \mathcal{L}_u = -\mathbb{E}\,\tfrac1C \sum_c \log p_c

    Shapes: logits (N, C) -> scalar.
    """
    return -F.log_softmax(logits, dim=1).mean()
