"""SF-PGL (Luo et al., TPAMI 2023): from saved weights and a new target alone, without the source.

The saved graph labels the first targets. Support nodes are pseudo-labelled targets, as many of
each class, and a target that was selected once keeps its label.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opensetda.errors import InputError
from opensetda.methods.base import OpenSetClassifier
from opensetda.methods.inputs import FixedRows
from opensetda.methods.marks import MarkedScorer
from opensetda.methods.pseudo_labels import UNLABELLED
from opensetda.pgl.losses import edge_loss
from opensetda.pgl.network import GraphOutput, PGLNetwork
from opensetda.pgl.presets import SHAPE
from opensetda.pgl.settings import PGLSettings
from opensetda.pgl.taught import TaughtGraph
from opensetda.pgl.training import ProgressiveTraining
from opensetda.rows import Domains, IntArray, Rows
from opensetda.share.decision import Vector


class Selection(NamedTuple):
    """Pseudo-labels of the targets (n_t,), and the least confidence that each class took (C,)."""

    labels: IntArray
    thresholds: Vector


def select_more(
    before: Selection, known: Vector, nearest: IntArray, openness: float, progress: float
) -> Selection:
    """Select further targets: as many of each class, the surest; and the least sure as unknown.

    At `progress` p, round(p n_t) targets are to have a label, the share `openness` of them unknown.
    A class that is predicted too seldom has fewer. Targets that were selected `before` keep theirs.
    """
    labels = before.labels.copy()
    thresholds = before.thresholds.copy()
    n_targets = len(known)
    n_classes = len(thresholds)
    n_unknown = round(openness * progress * n_targets)
    per_class = max(1, round((progress * n_targets - n_unknown) / n_classes))
    ascending = np.argsort(known, kind="stable")
    free = ascending[labels[ascending] == UNLABELLED]
    n_more = max(0, n_unknown - int((labels == n_classes).sum()))
    labels[free[:n_more]] = n_classes
    # Not those that will be unknown in the end, but one target at least.
    surest = ascending[min(round(openness * n_targets), n_targets - 1) :][::-1]
    for label in range(n_classes):
        wanted = max(0, per_class - int((labels == label).sum()))
        is_free = (labels[surest] == UNLABELLED) & (nearest[surest] == label)
        chosen = surest[is_free][:wanted]
        labels[chosen] = label
        if len(chosen):
            thresholds[label] = known[chosen].min()
    return Selection(labels, thresholds)


def class_weights(thresholds: Tensor) -> Tensor:
    r"""Return :math:`\operatorname{softmax}_c(1 - \tau_c)`, more for doubtful classes: (C,)."""
    return torch.softmax(1 - thresholds, dim=0)


def entropy_loss(logits: Tensor) -> Tensor:
    """Return the mean entropy of the predicted classes: (N, C) -> scalar."""
    log_p = F.log_softmax(logits, dim=1)
    return -(log_p.exp() * log_p).sum(dim=1).mean()


@dataclass(kw_only=True)
class SourceFreeTraining(ProgressiveTraining):
    """A training that starts from the graph of an `earlier` one, on targets alone.

    As with a teacher, step 1 trains nothing: it labels targets by the earlier graph. The weights
    go on from step to step, unless `fresh_start` takes the earlier ones again. That a checkpoint is
    one of the same earlier run is for the caller to check.
    """

    earlier: TaughtGraph
    thresholds: nn.Parameter = field(init=False)

    def __post_init__(self) -> None:
        """Start from the earlier weights, with the labels of the earlier graph."""
        self.earlier = deepcopy(self.earlier).float()
        ones = torch.ones(self.n_classes, dtype=torch.float64)
        self.thresholds = nn.Parameter(ones, requires_grad=False)
        super().__post_init__()
        self.earlier.to(self.device)
        self.first_step = 2
        self.last_step = max(self.last_step, self.first_step)

    def _new_network(self) -> PGLNetwork:
        return deepcopy(self.earlier.network).train().requires_grad_()

    @torch.no_grad()
    def _rank_untrained(self) -> tuple[Vector, IntArray]:
        self.graph = TaughtGraph(self.earlier.support, self.inputs.alignment, self.earlier.weight)
        scored = self._score(0, self.n_targets).double().cpu().numpy()
        return scored[:, 0], scored[:, 1].astype(np.intp)

    def _choose(self, step: int, known: Vector, nearest: IntArray) -> IntArray:
        before = Selection(self.pseudo_labels, self.thresholds.numpy())
        progress = self.settings.progress(step)
        found = select_more(before, known, nearest, self.share, progress)
        self.thresholds.copy_(torch.from_numpy(found.thresholds))
        return found.labels

    def _losses(
        self, output: GraphOutput, labels: Tensor, is_target: Tensor, is_unknown: Tensor
    ) -> dict[str, Tensor]:
        """Compute the losses of nodes, edges and unlabelled nodes."""
        settings = self.settings
        known = labels >= 0
        open_ones = ~known & ~is_unknown
        truth = labels[known]
        weight = class_weights(self.thresholds).to(output.features)
        nodes = [F.cross_entropy(logits[known], truth, weight) for logits in output.logits]
        losses = {"node": settings.node_weight * torch.stack(nodes).sum()}
        if settings.edge_weight and output.edges:
            layers = [edge_loss(edges[known][:, known], truth) for edges in output.edges]
            losses["edge"] = settings.edge_weight * torch.stack(layers).sum()
        if settings.entropy_weight and open_ones.any():
            doubts = [entropy_loss(logits[open_ones]) for logits in output.logits]
            losses["entropy"] = settings.entropy_weight * torch.stack(doubts).sum()
        return losses

    def _trained(self) -> nn.ModuleDict:
        trained = super()._trained()
        trained["thresholds"] = nn.ParameterList([self.thresholds])
        return trained


def earlier_graph(
    earlier: OpenSetClassifier | None, domains: Domains, settings: PGLSettings
) -> TaughtGraph:
    """Return the graph to start from, or raise an `InputError` if it does not fit."""
    if earlier is None:
        raise InputError("source_free: starts from a run of pgl; use 'osda adapt RUN NEW_TARGET'")
    graph = earlier.scorer_
    if isinstance(graph, MarkedScorer):
        graph = graph.inner
    if not isinstance(graph, TaughtGraph):
        raise InputError("source_free: starts from the weights of pgl; the run has another method")
    own: PGLSettings = vars(earlier)["settings_"]
    for name in SHAPE:
        given = getattr(settings, name)
        saved = getattr(own, name)
        if given != saved:
            raise InputError(f"{name}={given}: the run has {saved}, and source_free keeps it")
    n_learned = graph.network.classifier.out_features
    if len(domains.classes) != n_learned or not np.array_equal(domains.classes, earlier.classes_):
        problem = f"{len(domains.classes)} classes, but the run learned {n_learned}"
        raise InputError(f"{problem}; leave out source_free, which learns no new class")
    return graph


def source_free_inputs(domains: Domains, graph: TaughtGraph) -> FixedRows:
    """Return the targets, turned onto the axes of the earlier graph and centred on their mean."""
    alignment = deepcopy(graph.alignment)
    if alignment is not None:
        alignment.refit_target(domains.target)
    none = Rows(domains.source.X, domains.source.index[:0], scale=domains.source.scale)
    targets = Domains(none, domains.y[:0], domains.target, domains.classes)
    return FixedRows(targets, alignment)
