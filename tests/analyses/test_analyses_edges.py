"""Edge maps: their nodes, their order, and the means over pairs."""

from __future__ import annotations

import numpy as np
import pytest
from analyses_helpers import fits

from opensetda.analyses.edges import analyse, draw_nodes, edge_maps, pair_means, true_edges
from opensetda.errors import InputError

CLASSES = np.array([0, 0, 1, 2, 2])


def test_the_label_map_says_nothing_of_two_unknowns():
    nan = np.nan
    expected = [
        [1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 0, nan, nan],
        [0, 0, 0, nan, nan],
    ]
    np.testing.assert_array_equal(true_edges(CLASSES, 2), expected)


def test_means_over_pairs_by_hand():
    values = np.arange(25.0).reshape(5, 5)
    means = pair_means(values, CLASSES, 2)
    assert means["same"] == np.mean([1, 5])  # the diagonal does not count
    assert means["other"] == np.mean([2, 7, 10, 11])
    assert means["unknown_known"] == np.mean([3, 4, 8, 9, 13, 14, 15, 16, 17, 20, 21, 22])
    # 1 is above none of the other sixteen; 5 is above 2, 3 and 4.
    assert means["auroc"] == pytest.approx(3 / (2 * 16))


def test_nodes_are_drawn_alike_and_ordered_by_class():
    (fitted,) = fits("class-means")
    nodes = draw_nodes(fitted, 4)
    n_source = len(fitted.source_labels)
    classes, targets = (
        np.concatenate([fitted.source_labels, fitted.truth])[nodes],
        nodes >= n_source,
    )
    assert np.bincount(classes).tolist() == [8, 8, 8, 8]  # two unknowns to three known
    assert (np.diff(classes) >= 0).all()
    known = classes < 3
    np.testing.assert_array_equal(targets[known], np.tile(np.repeat([False, True], 4), 3))


def test_maps_are_those_of_the_network_and_are_drawn():
    (fitted,) = fits("pgl", steps=1, epochs=1, edge_width=8, node_width=8)
    affinity, edges = edge_maps(fitted.classifier, fitted.rows[:9], np.zeros(9, dtype=bool))
    np.testing.assert_allclose(affinity, affinity.T, atol=1e-6)
    assert ((affinity > 0) & (affinity < 1)).all()
    # E = D^-1/2 (A + I) D^-1/2.
    loops = affinity + np.eye(9)
    root = 1 / np.sqrt(loops.sum(axis=1))
    np.testing.assert_allclose(edges, root[:, None] * loops * root, rtol=1e-6)
    result = analyse(fitted)
    assert [row["quantity"] for row in result.rows] == ["Affinity A", "Edge E"]
    assert len(result.figure.axes) == 6  # each with its scale


def test_without_a_graph_there_is_nothing_to_draw():
    with pytest.raises(InputError, match="only pgl has a graph"):
        analyse(*fits("class-means"))
