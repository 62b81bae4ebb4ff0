"""Episodes of source and target samples, merged into one graph (Eq. 13)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opensetda.pgl.pseudo_labels import UNLABELLED
from opensetda.pgl.settings import EpisodeSettings
from opensetda.rows import IntArray


@dataclass(frozen=True)
class EpisodeBatch:
    """The N nodes of one training graph, `n_support` support nodes first."""

    index: IntArray
    """Row number within the node's own domain."""
    is_target: npt.NDArray[np.bool_]
    labels: IntArray
    """Class, C for pseudo-unknown, `UNLABELLED` for a query without a label."""
    pseudo_unknown: npt.NDArray[np.bool_]
    """Targets whose pseudo-label is unknown, even where `labels` leaves it out."""
    n_support: int


def size_of_graph(n_classes: int, settings: EpisodeSettings) -> tuple[int, int]:
    """Return the numbers of classes and episodes in a graph: C and B, or fewer with many classes.

    Their product is the number of queries, and of support slots.
    """
    classes = min(n_classes, settings.classes or n_classes)
    if settings.node_limit is None:
        return classes, settings.episodes
    # At least two episodes: a node is classified by the others of its class.
    return classes, min(settings.episodes, max(2, settings.node_limit // (2 * classes)))


class EpisodeSampler:
    r"""Draw B episodes and merge them into one graph of 2 C B nodes.

    An episode has one support slot for each of the C classes and C queries drawn from
    the target. A slot holds a source sample or, with probability :math:`m \alpha` (times
    `mix_up_limit`), a target with that pseudo-label (Eq. 13).

    No sample occurs twice in a graph: a slot whose class has no sample left in either
    domain stays empty, so a class with one sample takes one slot.

    With many classes, each graph draws some of them: C becomes C'. Targets with a pseudo-label
    of another class are not queries of that graph, as their class has no support in it.

    `pseudo_labels` has C for unknown; `progress` is m * alpha, the share of targets with one.
    """

    def __init__(
        self,
        source_labels: IntArray,
        pseudo_labels: IntArray,
        n_classes: int,
        progress: float,
        settings: EpisodeSettings,
    ) -> None:
        self.n_classes, self.settings = n_classes, settings
        self.pseudo_labels, self.n_targets = pseudo_labels, len(pseudo_labels)
        self.n_drawn, self.episodes = size_of_graph(n_classes, settings)
        self.replacement = settings.mix_up_limit * progress if settings.mix_up else 0.0
        self.source_of = [np.flatnonzero(source_labels == c) for c in range(n_classes)]
        self.target_of = [np.flatnonzero(pseudo_labels == c) for c in range(n_classes)]
        self.without_class = np.flatnonzero((pseudo_labels < 0) | (pseudo_labels >= n_classes))

    def draw(self, rng: np.random.Generator) -> EpisodeBatch:
        """Draw the nodes of one graph."""
        index, is_target, labels = [], [], []
        classes = np.arange(self.n_classes)
        if self.n_drawn < self.n_classes:
            classes = np.sort(rng.choice(self.n_classes, self.n_drawn, replace=False))
        for label in classes.tolist():
            targets, sources = self._support_of(label, rng)
            index += [*targets, *sources]
            is_target += [True] * len(targets) + [False] * len(sources)
            labels += [label] * (len(targets) + len(sources))
        n_support = len(index)
        taken = np.array(index, dtype=np.intp)[np.array(is_target, dtype=bool)]
        queries = self._queries(taken, classes, rng)
        query_labels = self.pseudo_labels[queries]
        unknown = query_labels == self.n_classes
        if not self.settings.labelled_queries:
            query_labels = np.full(len(queries), UNLABELLED)
        return EpisodeBatch(
            index=np.concatenate([index, queries]).astype(np.intp),
            is_target=np.concatenate([is_target, np.ones(len(queries))]).astype(bool),
            labels=np.concatenate([labels, query_labels]).astype(np.intp),
            pseudo_unknown=np.concatenate([np.zeros(n_support, dtype=bool), unknown]),
            n_support=n_support,
        )

    def _support_of(self, label: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Draw the B slots of one class, without replacement: targets, then sources."""
        slots = self.episodes
        pool_t, pool_s = self.target_of[label], self.source_of[label]
        n_t = min(int(rng.binomial(slots, self.replacement)), len(pool_t))
        n_s = min(slots - n_t, len(pool_s))
        if self.replacement > 0:
            # If the source has too few samples, targets of the class fill the empty slots.
            n_t = min(slots - n_s, len(pool_t))
        return (rng.choice(pool_t, n_t, replace=False), rng.choice(pool_s, n_s, replace=False))

    def _queries(self, taken: IntArray, classes: IntArray, rng: np.random.Generator) -> IntArray:
        wanted, n_pool = self.n_drawn * self.episodes, self.n_targets
        pool: IntArray | int = self.n_targets
        if self.n_drawn < self.n_classes:
            theirs = [self.target_of[label] for label in classes.tolist()]
            pool = np.concatenate([self.without_class, *theirs])
            n_pool = len(pool)
        # Drawing a few more and dropping those taken is faster than listing all that are free.
        drawn = rng.choice(pool, min(wanted + len(taken), n_pool), replace=False, shuffle=True)
        queries = drawn[~np.isin(drawn, taken)][: min(wanted, n_pool - len(taken))]
        return np.asarray(queries, dtype=np.intp)
