"""Edge maps: their nodes, their order, and the means over pairs."""

from __future__ import annotations

import numpy as np
import pytest

from analyses_helpers import QUICK, SmallTasks, a_request
from opensetda.analyses.edges import (
    GraphNodes,
    analyse,
    draw_nodes,
    edge_maps,
    pair_means,
    share_above,
    true_edges,
)
from opensetda.analyses.observed import ObservedTraining
from opensetda.errors import InputError

NODES = GraphNodes(
    np.arange(5), np.array([False, True, False, True, True]), np.array([0, 0, 1, 2, 2])
)


def test_the_label_map_says_nothing_of_two_unknowns():
    nan = np.nan
    expected = [
        [1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 0, nan, nan],
        [0, 0, 0, nan, nan],
    ]
    np.testing.assert_array_equal(true_edges(NODES, 2), expected)


def test_means_over_pairs_by_hand():
    values = np.arange(25.0).reshape(5, 5)
    means = pair_means(values, NODES, 2)
    assert means.same == np.mean([1, 5])  # the diagonal does not count
    assert means.different == np.mean([2, 7, 10, 11])
    assert means.unknown_known == np.mean([3, 4, 8, 9, 13, 14, 15, 16, 17, 20, 21, 22])
    # 1 is above none of the other sixteen; 5 is above 2, 3 and 4.
    assert means.auroc == pytest.approx(3 / (2 * 16))


def test_ties_count_half():
    assert share_above(np.array([1.0, 2.0]), np.array([1.0, 0.0])) == (0.5 + 1 + 1 + 1) / 4


@pytest.fixture(scope="module")
def training():
    return ObservedTraining(SmallTasks().load("0"), 0.4, changes=dict(QUICK))


def test_nodes_are_drawn_alike_and_ordered_by_class(training):
    nodes = draw_nodes(training, 4, seed=0)
    assert nodes.sizes(3) == [8, 8, 8, 8]  # two unknowns to three known targets
    assert (np.diff(nodes.classes) >= 0).all()
    known = nodes.classes < 3
    np.testing.assert_array_equal(nodes.is_target[known], np.tile(np.repeat([False, True], 4), 3))
    targets = nodes.is_target
    np.testing.assert_array_equal(
        training.target_truth[nodes.index[targets]], nodes.classes[targets]
    )
    np.testing.assert_array_equal(
        training.source_labels[nodes.index[~targets]], nodes.classes[~targets]
    )
    names = training.target_names[nodes.index[nodes.classes == 3]].tolist()
    assert names == sorted(names)


def test_maps_are_those_of_the_network(training):
    nodes = draw_nodes(training, 4, seed=0)
    affinity, edges = edge_maps(training.step(1), nodes)
    np.testing.assert_allclose(affinity, affinity.T, atol=1e-6)
    assert ((affinity > 0) & (affinity < 1)).all()
    # E = D^-1/2 (A' + I) D^-1/2: the root of the degrees is its eigenvector of value 1.
    degrees = 1 / np.diag(edges)
    np.testing.assert_allclose(edges @ np.sqrt(degrees), np.sqrt(degrees), rtol=1e-4)
    means = pair_means(affinity, nodes, 3)
    assert means.same > means.different
    assert means.auroc > 0.6


def test_the_analysis_compares_the_first_step_with_the_kept_one(tmp_path):
    result = analyse(a_request(tmp_path, tasks=SmallTasks(("0",))))
    rows = result.table.rows
    assert [(row["step"], row["quantity"]) for row in rows][:2] == [(1, "A"), (1, "E")]
    assert {row["quantity"] for row in rows} == {"A", "E"}
    assert len(result.figure.axes) == 2 * (1 + len(rows))  # each with its scale, and the truth


def test_without_a_graph_there_is_nothing_to_draw(tmp_path):
    changes = (*QUICK, ("graph.enabled", False))
    with pytest.raises(InputError, match=r"graph\.enabled=False: without a graph"):
        analyse(a_request(tmp_path, tasks=SmallTasks(("0",)), changes=changes))
