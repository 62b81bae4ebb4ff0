"""Scores of all targets (transduction) and of samples that come later (induction)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from opensetda.base import Scores
from opensetda.held_out import cosine_without_nearest, softmax_without_nearest
from opensetda.pgl.classifier import COSINE_SCALE, class_means, mixed_means
from opensetda.pgl.episodes import queries_in_graph
from opensetda.pgl.network import PGLNetwork
from opensetda.pgl.settings import PGLSettings
from opensetda.rows import FloatArray, IntArray


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


@torch.no_grad()
def transduce(
    network: PGLNetwork,
    samples: LabelledSamples,
    settings: PGLSettings,
    rng: np.random.Generator,
    draws: int,
) -> Scores:
    """Score every target, in shuffled graphs, averaged over `draws` of support and company.

    A graph holds at most `graph_targets` targets and a draw of labelled source samples,
    so time grows linearly with the number of targets.
    """
    network.eval()
    n_targets, ranking = len(samples.target), settings.ranking
    as_in_training = queries_in_graph(network.n_classes, settings.episodes)
    n_graphs = max(1, -(-n_targets // (ranking.graph_targets or as_in_training)))
    sums = Scores(
        np.zeros((n_targets, network.n_classes)), np.zeros(n_targets), np.zeros(n_targets)
    )
    support_pool = members_of_classes(samples.source_labels, network.n_classes)
    slots = max(1, (ranking.support_nodes or as_in_training) // network.n_classes)
    same_every_time = n_graphs == 1 and all(len(pool) <= slots for pool in support_pool)
    draws = 1 if same_every_time else draws
    for _ in range(draws):
        shuffled = torch.from_numpy(rng.permutation(n_targets))
        for company in shuffled.tensor_split(n_graphs):
            support = draw_per_class(support_pool, slots, rng)
            x = torch.cat([samples.source[support], samples.target[company]])
            labels = torch.cat([samples.source_labels[support], samples.pseudo_labels[company]])
            scores = score_graph(network, x, labels, len(support), samples.progress, settings)
            for total, values in zip(sums, scores, strict=True):
                total[company.numpy()] += values
    return Scores(*(total / draws for total in sums))


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


def draw_per_class(pools: list[IntArray], slots: int, rng: np.random.Generator) -> Tensor:
    """Draw at most `slots` members of each pool, nobody twice."""
    drawn = [p if len(p) <= slots else rng.choice(p, slots, replace=False) for p in pools]
    return torch.from_numpy(np.concatenate(drawn))
