"""Episodes of labelled and unlabelled samples, merged into one graph (section 4.1 and Eq. 13)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from opensetda.methods.pseudo_labels import UNLABELLED
from opensetda.rows import IntArray


class Episodes(NamedTuple):
    """The N nodes of one graph: C B support nodes with a class, then as many queries."""

    rows: IntArray
    """(N,): row number within the node's own domain."""
    is_target: npt.NDArray[np.bool_]
    """(N,): all queries, and support nodes that replace a source sample."""
    labels: IntArray
    """(N,): class of a support node, perhaps of a query; otherwise `UNLABELLED`."""
    is_unknown: npt.NDArray[np.bool_]
    """(N,): queries whose pseudo-label is unknown."""


class EpisodeSampler:
    r"""Draw B episodes and merge them into one graph.

    An episode has one support slot for each of the C classes, and C queries from the target. A
    slot holds a source sample or, with probability `replacement` :math:`= m \alpha`, a target
    with that pseudo-label (Eq. 13):

    .. math::
        \tau_s &= \{(x_i, y_i)\}^{C (1 - m \alpha)} \sim P^s(x|y), \quad
        \tilde\tau_t = \{(x_k, \tilde y_k)\}^{C m \alpha} \sim Q^t(x|\tilde y) \\
        \tau_t &= \{x_j\}^C \sim Q^t_X

    A class or target with fewer samples than slots is drawn with replacement. Where a class has no
    source sample, all its slots hold targets; if it has none either, it has no slots. There are as
    many queries as slots, and none without targets. With `query_labels` those with a
    pseudo-label of a class have it.
    """

    def __init__(
        self,
        source_labels: IntArray,
        pseudo_labels: IntArray,
        n_classes: int,
        episodes: int,
        replacement: float,
        query_labels: bool = False,
    ) -> None:
        self.episodes = episodes
        self.replacement = replacement
        self.is_unknown = pseudo_labels == n_classes
        is_hidden = self.is_unknown | (not query_labels)
        self.query_labels = np.where(is_hidden, UNLABELLED, pseudo_labels)
        self.source_of = [np.flatnonzero(source_labels == c) for c in range(n_classes)]
        self.target_of = [np.flatnonzero(pseudo_labels == c) for c in range(n_classes)]
        labelled = np.concatenate([source_labels, pseudo_labels])
        self.has_members = np.isin(np.arange(n_classes), labelled)

    def draw(self, rng: Generator) -> Episodes:
        """Draw the nodes of one graph: the support, then the queries."""
        support = self.draw_support(rng)
        queries = _draw(np.arange(len(self.is_unknown)), len(support.rows), rng)
        labels = self.query_labels[queries]
        is_unknown = self.is_unknown[queries]
        nodes = queries, np.ones(len(queries), dtype=bool), labels, is_unknown
        return Episodes(*(np.concatenate(both) for both in zip(support, nodes, strict=True)))

    def draw_support(self, rng: Generator) -> Episodes:
        """Draw the support of one graph, class by class."""
        replaced = rng.random((len(self.source_of), self.episodes)) < self.replacement
        rows = np.empty(replaced.shape, dtype=np.intp)
        pools = zip(self.source_of, self.target_of, strict=True)
        for slots, by_target, (sources, targets) in zip(rows, replaced, pools, strict=True):
            by_target |= len(sources) == 0
            by_target &= len(targets) > 0
            if not len(sources) + len(targets):
                continue
            slots[by_target] = _draw(targets, int(by_target.sum()), rng)
            slots[~by_target] = _draw(sources, int((~by_target).sum()), rng)
        labels = np.repeat(np.arange(len(rows)), self.episodes)
        filled = np.repeat(self.has_members, self.episodes)
        return Episodes(
            rows=rows.ravel()[filled],
            is_target=replaced.ravel()[filled],
            labels=labels[filled],
            is_unknown=np.zeros(int(filled.sum()), dtype=bool),
        )


def _draw(pool: IntArray, count: int, rng: Generator) -> IntArray:
    """Draw `count` members, each once if there are enough of them; none of an empty pool."""
    return rng.choice(pool, count, replace=len(pool) < count) if len(pool) else pool
