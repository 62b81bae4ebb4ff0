"""Embeddings of some samples after each step, for a map of a training.

Computing them changes nothing: no random number of the training is drawn, no weight is moved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from sklearn.decomposition import PCA
from torch import Tensor

from opensetda.pgl.episodes import size_of_graph
from opensetda.pgl.inference import graphs_for
from opensetda.pgl.network import PGLNetwork
from opensetda.pgl.settings import PGLSettings
from opensetda.pgl.trainer import LabelledSamples
from opensetda.rows import FloatArray, IntArray, Rows

# Largest numbers of samples in a map.
MOST_SOURCES, MOST_TARGETS = 1000, 5000
# Principal components of an embedding that t-SNE uses.
COMPONENTS = 32
# Nodes of the edge map, over all classes and both domains.
MOST_NODES = 200

Embeddings = npt.NDArray[np.float16]


@dataclass(frozen=True)
class TrainingView:
    """A sample of both domains, as the network embeds it after each step.

    `source` and `target` are row numbers, in the order that `fit` was given.
    """

    source: IntArray
    target: IntArray
    steps: tuple[Embeddings, ...]
    """Embeddings after each step, sources first, as principal components of that step."""
    nodes: IntArray
    """Members of the sample whose pairs are in `affinity`."""
    affinity: npt.NDArray[np.uint8]
    """(N, N): affinity of each pair at the kept step, times 255."""

    def of_callers_rows(self, source: Rows, target: Rows) -> TrainingView:
        """Return the view with row numbers as the caller counts them, from 0 in each domain."""
        places = [np.argsort(np.argsort(rows.index)) for rows in (source, target)]
        return replace(self, source=places[0][self.source], target=places[1][self.target])


class Viewer:
    """Embeds the first rows of both domains, a random sample in canonical order, at each step."""

    def __init__(self, settings: PGLSettings, n_source: int, n_target: int) -> None:
        self.settings = settings
        self.source = np.arange(min(n_source, MOST_SOURCES))
        self.target = np.arange(min(n_target, MOST_TARGETS))

    @torch.no_grad()
    def look(self, network: PGLNetwork, samples: LabelledSamples) -> Embeddings:
        """Embed the sample: (k_s + k_t, components)."""
        network.eval()
        n_source = len(self.source)
        rows = np.empty((n_source + len(self.target), 0), dtype=np.float32)
        chosen = self.source, self.target
        for source, target, x, labels in graphs_of_both(network, samples, self.settings, *chosen):
            nodes = network(x, labels).nodes[-1].float().cpu().numpy()
            if not rows.shape[1]:
                rows = np.empty((len(rows), nodes.shape[1]), dtype=np.float32)
            # The sample is the first rows, so a row's number is its position.
            rows[np.concatenate([source, n_source + target])] = nodes
        return principal_components(rows)

    @torch.no_grad()
    def look_at_pairs(
        self, network: PGLNetwork, samples: LabelledSamples, labels: IntArray
    ) -> tuple[IntArray, npt.NDArray[np.uint8]]:
        """Return equally many members of each label, C for unknown, and their affinities."""
        network.eval()
        n_source = len(self.source)
        of_source = samples.source_labels.cpu().numpy()[self.source]
        of_all = np.concatenate([of_source, labels[self.target]])
        each = max(1, MOST_NODES // (2 * (network.n_classes + 1)))
        picked = []
        for label in range(network.n_classes + 1):
            members = np.flatnonzero(of_all == label)
            # No source is unknown: twice as many targets.
            wanted = 2 * each if label == network.n_classes else each
            picked += [members[members < n_source][:each], members[members >= n_source][:wanted]]
        nodes = np.concatenate(picked)
        is_target = nodes >= n_source
        source = torch.from_numpy(nodes[~is_target])
        target = torch.from_numpy(nodes[is_target] - n_source)
        x = torch.cat([samples.source[source], samples.target[target]])
        given = torch.cat([samples.source_labels[source], samples.pseudo_labels[target]])
        logits = network(x, given).edge_logits
        if not logits:  # The ablation without a graph.
            return nodes[:0], np.zeros((0, 0), dtype=np.uint8)
        affinity = torch.sigmoid(logits[-1]).float().cpu().numpy()
        # Back to the order of the classes: in the graph the sources come first.
        order = np.argsort(np.argsort(is_target, kind="stable"))
        return nodes, np.round(255 * affinity[np.ix_(order, order)]).astype(np.uint8)


def principal_components(rows: FloatArray) -> Embeddings:
    """Return the first principal components: (n, d) -> (n, at most `COMPONENTS`)."""
    keep = min(COMPONENTS, *rows.shape)
    if (rows == rows[0]).all():
        # scikit-learn would divide by their variance.
        return np.zeros((len(rows), keep), dtype=np.float16)
    reduced = PCA(keep, svd_solver="covariance_eigh").fit_transform(rows)
    return np.asarray(reduced, dtype=np.float16)


def graphs_of_both(
    network: PGLNetwork,
    samples: LabelledSamples,
    settings: PGLSettings,
    source: IntArray,
    target: IntArray,
    seed: int = 0,
) -> Iterator[tuple[IntArray, IntArray, Tensor, Tensor]]:
    """Distribute samples of both domains over graphs, each sample once.

    Graphs are no larger than those that label the targets; every graph has all classes of the
    source. Yields the rows of source and target, and the nodes with their labels, sources first.
    """
    rng, ranking = np.random.default_rng(seed), settings.ranking
    as_in_training = math.prod(size_of_graph(network.n_classes, settings.episodes))
    for_targets = graphs_for(len(target), ranking.graph_targets or as_in_training)
    n_graphs = max(for_targets, graphs_for(len(source), ranking.support_nodes or as_in_training))
    shuffled = source[rng.permutation(len(source))]
    classes = samples.source_labels.cpu().numpy()[shuffled]
    by_class = shuffled[np.argsort(classes, kind="stable")]
    targets = target[rng.permutation(len(target))]
    for graph in range(n_graphs):
        own, others = by_class[graph::n_graphs], targets[graph::n_graphs]
        x = torch.cat([samples.source[own], samples.target[others]])
        labels = torch.cat([samples.source_labels[own], samples.pseudo_labels[others]])
        yield own, others, x, labels
