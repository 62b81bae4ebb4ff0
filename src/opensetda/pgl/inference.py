"""Scores of all targets (transduction), and what they share with those of later samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from opensetda.base import Scores
from opensetda.openness.held_out import cosine_without_nearest, softmax_without_nearest
from opensetda.pgl.episodes import queries_in_graph
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
    rng: np.random.Generator,
    draws: int,
) -> Scores:
    """Score every target in shuffled graphs, averaged over `draws` of support and graphs.

    A graph holds at most `graph_targets` targets and a draw of labelled source samples,
    so time grows linearly with the number of targets.
    """
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
    network: PGLNetwork,
    samples: LabelledSamples,
    settings: PGLSettings,
    rng: np.random.Generator,
) -> StepScores:
    """Score every target once, and keep only what the ranking needs: see `transduce`."""
    n = len(samples.target)
    all_scores = StepScores(np.zeros(n), np.zeros(n), np.zeros(n, dtype=np.intp))
    for members, scores in _TargetGraphs(network, samples, settings).scores(rng):
        all_scores.known[members] = scores.known
        all_scores.held_out[members] = scores.held_out
        all_scores.nearest[members] = scores.nearest
    return all_scores


class _TargetGraphs:
    """All targets in graphs with labelled source samples, each target in one of them."""

    def __init__(
        self, network: PGLNetwork, samples: LabelledSamples, settings: PGLSettings
    ) -> None:
        self.network, self.samples, self.settings = network, samples, settings
        ranking, n_classes = settings.ranking, network.n_classes
        as_in_training = queries_in_graph(n_classes, settings.episodes)
        at_most = ranking.graph_targets or as_in_training
        self.n_graphs = max(1, -(-len(samples.target) // at_most))
        self.support_pool = members_of_classes(samples.source_labels, n_classes)
        self.slots = max(1, (ranking.support_nodes or as_in_training) // n_classes)
        # As in training, there are samples only.
        self.means = ranking.support_nodes is not None

    @property
    def same_every_time(self) -> bool:
        """Whether there is nothing to draw."""
        return self.n_graphs == 1 and all(len(pool) <= self.slots for pool in self.support_pool)

    @torch.no_grad()
    def scores(self, rng: np.random.Generator) -> Iterator[tuple[IntArray, Scores]]:
        """Draw graphs; yield the targets of each with their scores."""
        self.network.eval()
        samples = self.samples
        shuffled = torch.from_numpy(rng.permutation(len(samples.target)))
        for members in shuffled.tensor_split(self.n_graphs):
            support, classes = draw_support(
                samples.source, self.support_pool, self.slots, rng, self.means
            )
            x = torch.cat([support, samples.target[members]])
            labels = torch.cat([classes, samples.pseudo_labels[members]])
            n_source = len(support)
            scores = score_graph(self.network, x, labels, n_source, samples.progress, self.settings)
            yield members.numpy(), scores


def score_graph(
    network: PGLNetwork,
    x: Tensor,
    labels: Tensor,
    n_source: int,
    progress: float,
    settings: PGLSettings,
) -> Scores:
    """Score the targets of one graph, whose first `n_source` nodes are from the source.

    Shapes: x (N, d), labels (N,) -> scores of N - n_source targets.
    """
    output = network(x, labels)
    if settings.graph.form == "paper":
        return scores_of_logits(output.class_logits[-1][n_source:])
    v = output.nodes[-1]
    is_target = torch.arange(len(x), device=x.device) >= n_source
    means = ClassMeans.of(v, labels, is_target, network.n_classes, mix_of(progress, settings))
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


def scores_of_logits(logits: Tensor) -> Scores:
    """Scores whose known score is the largest softmax, as in the paper: (Q, C) -> `Scores`."""
    values = _double(logits)
    return Scores(
        values, _double(logits.softmax(dim=1).amax(dim=1)), softmax_without_nearest(values)
    )


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
        """Sum up the labelled nodes; a class that one domain lacks is taken from the other.

        Shapes: v (N, D), labels (N,), is_target (N,) -> C classes.
        """
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


def support_means(
    v: Tensor,
    labels: Tensor,
    is_target: Tensor,
    n_classes: int,
    progress: float,
    settings: PGLSettings,
) -> Tensor:
    """Return the mixed class means of the labelled nodes, as far as the mix-up is: (C, D)."""
    return ClassMeans.of(v, labels, is_target, n_classes, mix_of(progress, settings)).mixed()


def mix_of(progress: float, settings: PGLSettings) -> float:
    """Return how far a class mean moves from the source to the target."""
    return settings.episodes.mix_up_limit * progress if settings.episodes.mix_up else 0.0


def members_of_classes(labels: Tensor, n_classes: int) -> list[IntArray]:
    """List the rows of each known class."""
    values = labels.cpu().numpy()
    return [np.flatnonzero(values == label) for label in range(n_classes)]


def draw_support(
    rows: Tensor, pools: list[IntArray], slots: int, rng: np.random.Generator, means: bool
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


def draw_per_class(pools: list[IntArray], slots: int, rng: np.random.Generator) -> Tensor:
    """Draw at most `slots` members of each pool, without replacement."""
    return torch.from_numpy(np.concatenate([_some(pool, slots, rng) for pool in pools]))


def _some(pool: IntArray, most: int, rng: np.random.Generator) -> IntArray:
    return pool if len(pool) <= most else rng.choice(pool, most, replace=False)
