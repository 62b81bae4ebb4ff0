"""Episodes: what a graph contains, and how targets replace sources (Eq. 13)."""

from __future__ import annotations

import numpy as np
import pytest

from opensetda.methods.pseudo_labels import UNLABELLED
from opensetda.pgl.episodes import EpisodeSampler

C, B = 4, 3
SOURCE = np.repeat(np.arange(C), 5)
# Ten targets of each class, five unknown, five without a label.
PSEUDO = np.concatenate([np.repeat(np.arange(C), 10), np.full(5, C), np.full(5, UNLABELLED)])


def draw(replacement=0.0, source=SOURCE, pseudo=PSEUDO, seed=0, episodes=B):
    sampler = EpisodeSampler(source, pseudo, C, episodes, replacement)
    return sampler.draw(np.random.default_rng(seed))


@pytest.mark.parametrize("replacement", [0.0, 0.3, 1.0])
def test_a_graph_has_b_slots_of_each_class_and_as_many_queries(replacement):
    graph = draw(replacement)
    assert all(len(part) == 2 * C * B for part in graph)
    support, queries = slice(C * B), slice(C * B, None)
    assert graph.labels[support].tolist() == np.repeat(np.arange(C), B).tolist()
    assert (graph.labels[queries] == UNLABELLED).all()
    assert graph.is_target[queries].all()
    # A slot holds a sample of its class, from whichever domain.
    labels = np.where(graph.is_target, PSEUDO[graph.rows], SOURCE[graph.rows % len(SOURCE)])
    assert (labels[support] == graph.labels[support]).all()


def test_queries_may_have_their_pseudo_labels():
    graph = EpisodeSampler(SOURCE, PSEUDO, C, B, 0.0, True).draw(np.random.default_rng(0))
    expected = PSEUDO[graph.rows[C * B :]]
    assert (expected == C).any()
    expected[expected == C] = UNLABELLED  # Unknown is no class.
    assert graph.labels[C * B :].tolist() == expected.tolist()
    assert (graph.is_unknown[C * B :] == (PSEUDO[graph.rows[C * B :]] == C)).all()


@pytest.mark.parametrize(("replacement", "expected"), [(0.0, 0.0), (1.0, 1.0), (0.3, 0.3)])
def test_sources_are_replaced_with_the_given_probability(replacement, expected):
    replaced = [draw(replacement, seed=seed).is_target[: C * B].mean() for seed in range(300)]
    assert np.mean(replaced) == pytest.approx(expected, abs=0.03)


def test_a_class_without_pseudo_labelled_targets_keeps_its_sources():
    pseudo = np.where(PSEUDO == 1, UNLABELLED, PSEUDO)
    graph = draw(1.0, pseudo=pseudo)
    assert not graph.is_target[graph.labels == 1].any()
    assert graph.is_target[graph.labels == 2].all()


def test_no_sample_is_drawn_twice_if_there_are_enough():
    for seed in range(20):
        graph = draw(0.5, seed=seed)
        support = list(zip(graph.is_target[: C * B], graph.rows[: C * B], strict=True))
        assert len(set(support)) == C * B
        assert len(set(graph.rows[C * B :])) == C * B


def test_small_classes_and_few_targets_are_drawn_again():
    graph = draw(source=np.arange(C), pseudo=np.full(2, UNLABELLED))
    assert graph.rows[: C * B].tolist() == np.repeat(np.arange(C), B).tolist()
    assert set(graph.rows[C * B :]) == {0, 1}


def test_without_targets_there_are_no_queries():
    graph = draw(pseudo=np.empty(0, dtype=np.intp))
    assert len(graph.rows) == C * B
    assert not graph.is_target.any()


def test_pseudo_unknown_queries_are_marked():
    graph = draw(0.5, episodes=12)
    queries = slice(C * 12, None)
    assert not graph.is_unknown[: C * 12].any()
    assert (graph.is_unknown[queries] == (PSEUDO[graph.rows[queries]] == C)).all()
    assert graph.is_unknown.any()


def test_the_support_alone_is_drawn_as_in_a_graph():
    sampler = EpisodeSampler(SOURCE, PSEUDO, C, B, 0.5)
    support = sampler.draw_support(np.random.default_rng(0))
    graph = sampler.draw(np.random.default_rng(0))
    for part, whole in zip(support, graph, strict=True):
        np.testing.assert_array_equal(part, whole[: C * B])
