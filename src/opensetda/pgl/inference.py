"""Scores of all targets (transduction), and what they share with those of later samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from numpy.random import Generator
from torch import Tensor

from opensetda.base import Scores
from opensetda.openness.held_out import cosine_without_nearest, softmax_without_nearest
from opensetda.pgl.episodes import size_of_graph
from opensetda.pgl.network import COSINE_SCALE, PGLNetwork, class_sums
from opensetda.pgl.settings import PGLSettings
from opensetda.pgl.trainer import LabelledSamples
from opensetda.rows import IntArray

# With fewer support slots per class than FEWEST_SAMPLES, a slot holds the mean of MEANT_SAMPLES.
FEWEST_SAMPLES, MEANT_SAMPLES = 4, 32


class StepScores(NamedTuple):
    """Scores that rank the targets at a step: see `Scores`, and the nearest class."""

    known: npt.NDArray[np.float64]
    held_out: npt.NDArray[np.float64]
    nearest: IntArray


def transduce(
    network: PGLNetwork,
    samples: LabelledSamples,
    settings: PGLSettings,
    rng: Generator,
    draws: int,
) -> Scores:
    """Score every target in shuffled graphs, averaged over `draws` of support and graphs."""
    graphs, n = _TargetGraphs(network, samples, settings), len(samples.target)
    sums = Scores(np.zeros((n, network.n_classes)), np.zeros(n), np.zeros(n))
    draws = 1 if graphs.same_every_time else draws
    for _ in range(draws):
        for members, scores in graphs.scores(rng):
            for total, values in zip(sums, scores, strict=True):
                total[members] += values
    for total in sums:
        # In place: with many classes there is no room for two.
        total /= draws
    return sums


def transduce_once(
    network: PGLNetwork, samples: LabelledSamples, settings: PGLSettings, rng: np.random.Generator
) -> StepScores:
    """Score every target once, and keep only what the ranking needs: see `transduce`."""
    n = len(samples.target)
    all_scores = StepScores(np.zeros(n), np.zeros(n), np.zeros(n, dtype=np.intp))
    for members, scores in _TargetGraphs(network, samples, settings).scores(rng):
        values = scores.known, scores.held_out, scores.nearest
        for every, own in zip(all_scores, values, strict=True):
            every[members] = own
    return all_scores


class _TargetGraphs:
    """All targets, each in one graph of at most `graph_targets`, with labelled source samples."""

    def __init__(
        self, network: PGLNetwork, samples: LabelledSamples, settings: PGLSettings
    ) -> None:
        self.network, self.samples, self.settings = network, samples, settings
        ranking, n_classes = settings.ranking, network.n_classes
        as_in_training = math.prod(size_of_graph(n_classes, settings.episodes))
        self.n_graphs = graphs_for(len(samples.target), ranking.graph_targets or as_in_training)
        self.support_pool = members_of_classes(samples.source_labels, n_classes)
        self.slots = max(1, (ranking.support_nodes or as_in_training) // n_classes)
        # As in training, there are samples only.
        self.means = ranking.support_nodes is not None

        few = all(len(pool) <= self.slots for pool in self.support_pool)
        self.same_every_time = few and self.n_graphs == 1

    @torch.no_grad()
    def scores(self, rng: Generator) -> Iterator[tuple[IntArray, Scores]]:
        """Draw graphs; yield the targets of each with their scores."""
        self.network.eval()
        samples, support_pool = self.samples, (self.support_pool, self.slots)
        shuffled = torch.from_numpy(rng.permutation(len(samples.target)))
        for members in shuffled.tensor_split(self.n_graphs):
            support, classes = draw_support(samples.source, *support_pool, rng, self.means)
            x = torch.cat([support, samples.target[members]])
            labels = torch.cat([classes, samples.pseudo_labels[members]])
            yield members.numpy(), self._score(x, labels, len(support))

    def _score(self, x: Tensor, labels: Tensor, n_source: int) -> Scores:
        """Score the targets of one graph, whose first `n_source` nodes are from the source."""
        settings, output = self.settings, self.network(x, labels)
        if settings.graph.form == "paper":
            return scores_of_logits(output.class_logits[-1][n_source:])
        v = output.nodes[-1]
        is_target = torch.arange(len(x), device=x.device) >= n_source
        mix = mix_of(self.samples.progress, settings)
        means = ClassMeans.of(v, labels, is_target, self.network.n_classes, mix)
        cosine = v[n_source:] @ means.mixed().t()
        logits = COSINE_SCALE * cosine
        if settings.ranking.confidence == "softmax":
            return scores_of_logits(logits)
        held_out = cosine_without_nearest(
            v[n_source:].cpu().numpy(),
            cosine.argmax(dim=1).cpu().numpy(),
            means.source_sums.cpu().numpy(),
            means.source_counts.cpu().numpy().astype(np.float64),
            F.normalize(means.target_sums, dim=1).cpu().numpy(),
            means.mix.squeeze(1).cpu().numpy(),
            centred=settings.alignment.centring != "none",
        )
        return Scores(_double(logits), _double(cosine.amax(dim=1)), held_out)


def graphs_for(n_nodes: int, at_most: int) -> int:
    """Return the number of graphs that hold all nodes, with `at_most` in each."""
    return max(1, -(-n_nodes // at_most))


def scores_of_logits(logits: Tensor) -> Scores:
    """Scores whose known score is the largest softmax, as in the paper: (Q, C) -> `Scores`."""
    values, known = _double(logits), _double(logits.softmax(dim=1).amax(dim=1))
    return Scores(values, known, softmax_without_nearest(values))


def _double(values: Tensor) -> npt.NDArray[np.float64]:
    return np.asarray(values.double().cpu().numpy())


@dataclass(frozen=True)
class ClassMeans:
    """Class sums of both domains, and how far each class mean moves from source to target."""

    source_sums: Tensor
    source_counts: Tensor
    target_sums: Tensor
    mix: Tensor
    """(C, 1); 0 is the source's mean, 1 the target's."""

    @classmethod
    def of(
        cls, v: Tensor, labels: Tensor, is_target: Tensor, n_classes: int, mix: float
    ) -> ClassMeans:
        """Sum up the labelled nodes; a class that one domain lacks is taken from the other."""
        nowhere = torch.full_like(labels, -1)
        sums_s, n_s = class_sums(v, torch.where(is_target, nowhere, labels), n_classes)
        sums_t, n_t = class_sums(v, torch.where(is_target, labels, nowhere), n_classes)
        weight = torch.full_like(sums_s[:, :1], mix)
        weight[n_t == 0] = 0.0
        weight[n_s == 0] = 1.0
        return cls(sums_s, n_s, sums_t, weight)

    def mixed(self) -> Tensor:
        r"""Class means between the source and the target.

        .. math::
            \mu_c = \operatorname{unit}((1 - w) \operatorname{unit}(\mu_c^s)
                    + w \operatorname{unit}(\mu_c^t))

        the expectation, over draws, of the mean of a support whose slots hold pseudo-labelled
        targets with probability w. Returns (C, D), unit rows.
        """
        source, target = F.normalize(self.source_sums, dim=1), F.normalize(self.target_sums, dim=1)
        return F.normalize((1 - self.mix) * source + self.mix * target, dim=1)


def mix_of(progress: float, settings: PGLSettings) -> float:
    """Return how far a class mean moves from the source to the target."""
    return settings.episodes.mix_up_limit * progress if settings.episodes.mix_up else 0.0


def members_of_classes(labels: Tensor, n_classes: int) -> list[IntArray]:
    """List the rows of each known class."""
    values = labels.cpu().numpy()
    return [np.flatnonzero(values == label) for label in range(n_classes)]


def draw_support(
    rows: Tensor, pools: list[IntArray], slots: int, rng: Generator, means: bool
) -> tuple[Tensor, Tensor]:
    """Draw at most `slots` nodes of each class: rows (n, d) -> nodes (S, d), classes (S,).

    A node is a sample. With many classes each has few slots, and one sample says little about
    its class: with `means` a slot then holds the mean of many, scaled to their mean length.
    """
    counts = torch.tensor([min(len(pool), slots) for pool in pools], device=rows.device)
    classes = torch.repeat_interleave(torch.arange(len(pools), device=rows.device), counts)
    if slots >= FEWEST_SAMPLES or not means or not len(classes):
        return rows[draw_per_class(pools, slots, rng)], classes
    drawn = [
        part
        for pool in pools
        if len(pool)
        for part in np.array_split(_some(pool, slots * MEANT_SAMPLES, rng), min(slots, len(pool)))
    ]
    sizes = torch.tensor([len(part) for part in drawn], device=rows.device)
    node = torch.repeat_interleave(torch.arange(len(drawn), device=rows.device), sizes)
    members = rows[torch.from_numpy(np.concatenate(drawn))]
    sums = rows.new_zeros(len(drawn), rows.shape[1]).index_add(0, node, members)
    lengths = rows.new_zeros(len(drawn)).index_add(0, node, members.norm(dim=1)) / sizes
    return F.normalize(sums, dim=1) * lengths[:, None], classes


def draw_per_class(pools: list[IntArray], slots: int, rng: Generator) -> Tensor:
    """Draw at most `slots` members of each pool, without replacement."""
    return torch.from_numpy(np.concatenate([_some(pool, slots, rng) for pool in pools]))


def _some(pool: IntArray, most: int, rng: Generator) -> IntArray:
    return pool if len(pool) <= most else rng.choice(pool, most, replace=False)
