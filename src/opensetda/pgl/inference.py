"""Scores of all targets (transduction) and of samples that come later (induction)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from opensetda.base import Scores
from opensetda.pgl.classifier import COSINE_SCALE, mixed_means
from opensetda.pgl.episodes import queries_in_graph
from opensetda.pgl.network import PGLNetwork
from opensetda.pgl.settings import PGLSettings, RankingSettings
from opensetda.rows import IntArray


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
    logits = torch.zeros(n_targets, network.n_classes, device=samples.target.device)
    known = torch.zeros(n_targets, device=samples.target.device)
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
            graph_logits, graph_known = score_graph(
                network, x, labels, len(support), samples.progress, settings
            )
            logits[company] += graph_logits
            known[company] += graph_known
    return Scores((logits / draws).double().cpu().numpy(), (known / draws).double().cpu().numpy())


def score_graph(
    network: PGLNetwork,
    x: Tensor,
    labels: Tensor,
    n_source: int,
    progress: float,
    settings: PGLSettings,
) -> tuple[Tensor, Tensor]:
    """Score the targets of one graph, whose first `n_source` nodes are of the source.

    Shapes: x (N, d), labels (N,) -> class logits (N - n_source, C), known (N - n_source,).
    """
    output = network(x, labels)
    if settings.graph.form == "paper":
        logits = output.class_logits[-1][n_source:]
        return logits, logits.softmax(dim=1).amax(dim=1)
    v = output.nodes[-1]
    is_target = torch.arange(len(x), device=x.device) >= n_source
    means = support_means(v, labels, is_target, network.n_classes, progress, settings)
    cosine = v[n_source:] @ means.t()
    return COSINE_SCALE * cosine, known_score(cosine, settings.ranking)


def known_score(cosine: Tensor, settings: RankingSettings) -> Tensor:
    """Score how likely nodes are of a known class: what is ranked.

    The cosine to the nearest class mean, or the largest softmax, as in the paper.

    Shapes: cosine (Q, C) -> (Q,).
    """
    if settings.confidence == "softmax":
        return (COSINE_SCALE * cosine).softmax(dim=1).amax(dim=1)
    return cosine.amax(dim=1)


def support_means(
    v: Tensor,
    labels: Tensor,
    is_target: Tensor,
    n_classes: int,
    progress: float,
    settings: PGLSettings,
) -> Tensor:
    """Class means of the labelled nodes, as far on their way to the target as the mix-up is."""
    episodes = settings.episodes
    mix = episodes.mix_up_limit * progress if episodes.mix_up else 0.0
    return mixed_means(v, labels, is_target, n_classes, mix)


def members_of_classes(labels: Tensor, n_classes: int) -> list[IntArray]:
    """List the rows of each known class."""
    values = labels.cpu().numpy()
    return [np.flatnonzero(values == label) for label in range(n_classes)]


def draw_per_class(pools: list[IntArray], slots: int, rng: np.random.Generator) -> Tensor:
    """Draw at most `slots` members of each pool, nobody twice."""
    drawn = [p if len(p) <= slots else rng.choice(p, slots, replace=False) for p in pools]
    return torch.from_numpy(np.concatenate(drawn))
