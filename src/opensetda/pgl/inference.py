"""Scores of all targets (transduction) and of samples that come later (induction)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from opensetda.base import Scores
from opensetda.openness.held_out import cosine_without_nearest, softmax_without_nearest
from opensetda.pgl.classifier import COSINE_SCALE, class_means, mixed_means
from opensetda.pgl.episodes import queries_in_graph
from opensetda.pgl.network import PGLNetwork
from opensetda.pgl.settings import PGLSettings
from opensetda.rows import FloatArray, IntArray
from opensetda.system.team import ALONE, Team

# With fewer slots a class, a slot holds the mean of so many samples.
FEWEST_SAMPLES, MEANT_SAMPLES = 4, 32


@dataclass(frozen=True)
class LabelledSamples:
    """Both domains, aligned, with the labels they have at some step.

    Attributes
    ----------
    source : tensor of shape (n_s, d)
    source_labels : tensor of shape (n_s,)
    target : tensor of shape (n_t, d)
    pseudo_labels : tensor of shape (n_t,)
        Class, C for unknown, -1 for none.
    progress : float
        m * alpha, the share of targets that have a pseudo-label.
    """

    source: Tensor
    source_labels: Tensor
    target: Tensor
    pseudo_labels: Tensor
    progress: float


class StepScores(NamedTuple):
    """What ranking the targets at a step takes: see `Scores`, and the class each would get."""

    known: npt.NDArray[np.float64]
    held_out: npt.NDArray[np.float64]
    nearest: IntArray


def transduce(
    network: PGLNetwork,
    samples: LabelledSamples,
    settings: PGLSettings,
    rng: np.random.Generator,
    draws: int,
    team: Team = ALONE,
) -> Scores:
    """Score every target, in shuffled graphs, averaged over `draws` of support and company.

    A graph holds at most `graph_targets` targets and a draw of labelled source samples,
    so time grows linearly with the number of targets. Graphs are dealt out to the processes of
    the team; all of them draw the same, and get the scores of all targets.
    """
    graphs = _TargetGraphs(network, samples, settings)

    def nothing() -> Scores:
        n = len(samples.target)
        return Scores(np.zeros((n, network.n_classes)), np.zeros(n), np.zeros(n))

    sums = nothing()
    draws = 1 if graphs.same_every_time else draws
    for _ in range(draws):
        # Of several processes draw by draw: a sum in another order has other bits.
        drawn = sums if team.size == 1 else nothing()
        for company, scores in graphs.scores(rng, team):
            for total, values in zip(drawn, scores, strict=True):
                total[company] += values
        if team.size > 1:
            for total, own in zip(sums, drawn, strict=True):
                total += team.sum(own)
    for total in sums:
        # In place: with many classes there is no room for two.
        total /= draws
    return sums


def transduce_once(
    network: PGLNetwork,
    samples: LabelledSamples,
    settings: PGLSettings,
    rng: np.random.Generator,
    team: Team = ALONE,
) -> StepScores:
    """Score every target once, and keep what ranking them takes: see `transduce`."""
    n_targets = len(samples.target)
    sums = StepScores(np.zeros(n_targets), np.zeros(n_targets), np.zeros(n_targets, dtype=np.intp))
    for company, scores in _TargetGraphs(network, samples, settings).scores(rng, team):
        sums.known[company] += scores.known
        sums.held_out[company] += scores.held_out
        sums.nearest[company] += scores.nearest
    return StepScores(team.sum(sums.known), team.sum(sums.held_out), team.sum(sums.nearest))


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
    def scores(self, rng: np.random.Generator, team: Team) -> Iterator[tuple[IntArray, Scores]]:
        """Draw graphs, and yield the targets of those of this process with their scores."""
        self.network.eval()
        samples = self.samples
        shuffled = torch.from_numpy(rng.permutation(len(samples.target)))
        for number, company in enumerate(shuffled.tensor_split(self.n_graphs)):
            support, classes = draw_support(
                samples.source, self.support_pool, self.slots, rng, self.means
            )
            if number % team.size != team.rank:
                continue
            x = torch.cat([support, samples.target[company]])
            labels = torch.cat([classes, samples.pseudo_labels[company]])
            n_source = len(support)
            scores = score_graph(self.network, x, labels, n_source, samples.progress, self.settings)
            yield company.numpy(), scores


def score_graph(
    network: PGLNetwork,
    x: Tensor,
    labels: Tensor,
    n_source: int,
    progress: float,
    settings: PGLSettings,
) -> Scores:
    """Score the targets of one graph, whose first `n_source` nodes are of the source.

    Shapes: x (N, d), labels (N,) -> scores of N - n_source targets.
    """
    output = network(x, labels)
    if settings.graph.form == "paper":
        return scores_of_logits(output.class_logits[-1][n_source:])
    v = output.nodes[-1]
    is_target = torch.arange(len(x), device=x.device) >= n_source
    means = support_means(v, labels, is_target, network.n_classes, progress, settings)
    cosine = v[n_source:] @ means.t()
    logits = COSINE_SCALE * cosine
    if settings.ranking.confidence == "softmax":
        return scores_of_logits(logits)
    nearest = cosine.argmax(dim=1).cpu().numpy()
    held_out = cosine_without_nearest(
        v[n_source:].cpu().numpy(),
        nearest,
        *mean_parts(v, labels, is_target, network.n_classes, progress, settings),
        centred=settings.alignment.centring != "none",
    )
    return Scores(_double(logits), _double(cosine.amax(dim=1)), held_out)


def scores_of_logits(logits: Tensor) -> Scores:
    """Scores whose known score is the largest softmax, as in the paper: (Q, C) -> `Scores`."""
    values = _double(logits)
    return Scores(
        values, _double(logits.softmax(dim=1).amax(dim=1)), softmax_without_nearest(values)
    )


def mean_parts(
    v: Tensor,
    labels: Tensor,
    is_target: Tensor,
    n_classes: int,
    progress: float,
    settings: PGLSettings,
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return what `support_means` mixes, for `cosine_without_nearest`.

    Sums and counts of the source nodes, unit means of the targets, and the mix of each class.
    """
    nowhere = torch.full_like(labels, -1)
    source_sums, source_counts = class_means(v, torch.where(is_target, nowhere, labels), n_classes)
    target_sums, target_counts = class_means(v, torch.where(is_target, labels, nowhere), n_classes)
    mix = torch.full((n_classes,), mix_of(progress, settings), device=v.device)
    mix[target_counts == 0] = 0.0
    return (
        source_sums.cpu().numpy(),
        source_counts.cpu().numpy().astype(np.float64),
        torch.nn.functional.normalize(target_sums, dim=1).cpu().numpy(),
        mix.cpu().numpy(),
    )


def _double(values: Tensor) -> npt.NDArray[np.float64]:
    return np.asarray(values.double().cpu().numpy())


def support_means(
    v: Tensor,
    labels: Tensor,
    is_target: Tensor,
    n_classes: int,
    progress: float,
    settings: PGLSettings,
) -> Tensor:
    """Class means of the labelled nodes, as far on their way to the target as the mix-up is."""
    return mixed_means(v, labels, is_target, n_classes, mix_of(progress, settings))


def mix_of(progress: float, settings: PGLSettings) -> float:
    """How far a class mean goes from the source to the target."""
    return settings.episodes.mix_up_limit * progress if settings.episodes.mix_up else 0.0


def members_of_classes(labels: Tensor, n_classes: int) -> list[IntArray]:
    """List the rows of each known class."""
    values = labels.cpu().numpy()
    return [np.flatnonzero(values == label) for label in range(n_classes)]


def draw_support(
    rows: Tensor, pools: list[IntArray], slots: int, rng: np.random.Generator, means: bool
) -> tuple[Tensor, Tensor]:
    """Draw `slots` nodes of each class at the most: rows (n, d) -> nodes (S, d), classes (S,).

    A node is a sample. Of many classes each has few slots, and one sample says little about
    its class: with `means` a slot then holds the mean of many, as long as they are on average.
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
    return torch.nn.functional.normalize(sums, dim=1) * lengths[:, None], classes


def draw_per_class(pools: list[IntArray], slots: int, rng: np.random.Generator) -> Tensor:
    """Draw at most `slots` members of each pool, nobody twice."""
    return torch.from_numpy(np.concatenate([_some(pool, slots, rng) for pool in pools]))


def _some(pool: IntArray, most: int, rng: np.random.Generator) -> IntArray:
    return pool if len(pool) <= most else rng.choice(pool, most, replace=False)
