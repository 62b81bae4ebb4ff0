"""Scores of all targets (transduction) and of samples that come later (induction)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from opensetda.base import Scores
from opensetda.pgl.classifier import COSINE_SCALE, mixed_means
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
    n_graphs = max(1, -(-n_targets // ranking.graph_targets))
    logits = torch.zeros(n_targets, network.n_classes, device=samples.target.device)
    known = torch.zeros(n_targets, device=samples.target.device)
    support_pool = members_of_classes(samples.source_labels, network.n_classes)
    slots = max(1, ranking.support_nodes // network.n_classes)
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
    similarity = None
    if (last := network.anchored_layer) is not None:
        similarity = last.similarity(last.edge_logits(v)).fill_diagonal_(-torch.inf)[n_source:]
    return COSINE_SCALE * cosine, known_score(cosine, similarity, labels, progress, settings)


def known_score(
    cosine: Tensor,
    similarity: Tensor | None,
    labels: Tensor,
    progress: float,
    settings: PGLSettings,
) -> Tensor:
    """Score how likely nodes are of a known class: what is ranked.

    The cosine to the nearest class mean plus, where there are edges, `affinity_margin`;
    or the largest softmax, as in the paper.

    Shapes: cosine (Q, C), similarity (Q, N), labels (N,) -> (Q,).
    """
    if settings.ranking.confidence == "softmax":
        return (COSINE_SCALE * cosine).softmax(dim=1).amax(dim=1)
    known, nearest = cosine.max(dim=1)
    if similarity is None:
        return known
    margin = affinity_margin(similarity, nearest, labels, cosine.shape[1], settings.ranking)
    return known + progress * margin


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


def affinity_margin(
    similarity: Tensor,
    nearest: Tensor,
    labels: Tensor,
    n_classes: int,
    settings: RankingSettings,
) -> Tensor:
    r"""How much nearer a node is to its class's support than to the unknown support.

    .. math::
        \eta\,\Big(\operatorname{top}_k\text{-mean}_{y_j = c(i)} e_{ij}
            - \operatorname{top}_k\text{-mean}_{y_j = C + 1} e_{ij}\Big)

    over edges e to labelled nodes of the graph, source and pseudo-labelled; zero
    without nodes of one kind. `known_score` lets it grow with the steps, as the
    pseudo-labels it rests on do.

    Shapes: similarity (Q, N), nearest (Q,), labels (N,) -> (Q,).
    """
    count = settings.affinity_neighbours
    to_class = _top_mean(similarity, labels[None, :] == nearest[:, None], count)
    to_unknown = _top_mean(similarity, (labels == n_classes)[None, :], count)
    margin = settings.affinity * (to_class - to_unknown)
    return torch.where(margin.isfinite(), margin, 0.0)


def _top_mean(similarity: Tensor, counted: Tensor, count: int) -> Tensor:
    """Mean of the largest `count` counted entries of each row, NaN where there are none."""
    masked = similarity.masked_fill(~counted, -torch.inf)
    top = masked.topk(min(count, masked.shape[1]), dim=1).values
    there = top.isfinite()
    return top.masked_fill(~there, 0.0).sum(dim=1) / there.sum(dim=1)


def members_of_classes(labels: Tensor, n_classes: int) -> list[IntArray]:
    """List the rows of each known class."""
    values = labels.cpu().numpy()
    return [np.flatnonzero(values == label) for label in range(n_classes)]


def draw_per_class(pools: list[IntArray], slots: int, rng: np.random.Generator) -> Tensor:
    """Draw at most `slots` members of each pool, nobody twice."""
    drawn = [p if len(p) <= slots else rng.choice(p, slots, replace=False) for p in pools]
    return torch.from_numpy(np.concatenate(drawn))
