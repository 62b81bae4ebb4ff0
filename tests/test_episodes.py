"""Episodes: what a training graph holds, and that nobody is in it twice."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opensetda.pgl.episodes import EpisodeSampler, size_of_graph
from opensetda.pgl.pseudo_labels import UNLABELLED
from opensetda.pgl.settings import EpisodeSettings

C, B = 4, 3


def sampler(progress=0.0, per_class=10, n_targets=60, labelled=0.0, **changes):
    """Ten sources a class; the first targets are pseudo-labelled, classes and unknown in turn."""
    pseudo_labels = np.full(n_targets, UNLABELLED)
    n_labelled = round(labelled * n_targets)
    pseudo_labels[:n_labelled] = np.arange(n_labelled) % (C + 1)
    settings = EpisodeSettings(episodes=B, **{"node_limit": None, "mix_up_limit": 1.0, **changes})
    return EpisodeSampler(np.repeat(np.arange(C), per_class), pseudo_labels, C, progress, settings)


def test_a_graph_has_2cb_nodes_and_b_support_nodes_of_every_class():
    batch = sampler().draw(np.random.default_rng(0))
    assert len(batch.index) == len(batch.is_target) == len(batch.labels) == 2 * C * B
    assert batch.n_support == C * B
    assert Counter(batch.labels[: C * B].tolist()) == dict.fromkeys(range(C), B)
    assert not batch.is_target[: C * B].any()
    assert batch.is_target[C * B :].all()


def test_a_support_node_carries_its_own_label():
    batch = sampler(progress=0.5, labelled=1.0).draw(np.random.default_rng(0))
    support = slice(0, batch.n_support)
    index, is_target, labels = batch.index[support], batch.is_target[support], batch.labels[support]
    assert 0 < is_target.sum() < len(index)
    np.testing.assert_array_equal(labels[~is_target], index[~is_target] // 10)
    np.testing.assert_array_equal(labels[is_target], index[is_target] % (C + 1))


@given(
    sizes=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    pseudo_labels=st.lists(st.integers(-1, 4), max_size=25),
    progress=st.floats(0, 1),
    episodes=st.integers(1, 5),
    mix_up=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_nobody_is_twice_in_a_graph(sizes, pseudo_labels, progress, episodes, mix_up, seed):
    n_classes = len(sizes)
    source_labels = np.repeat(np.arange(n_classes), sizes)
    targets = np.minimum(np.array(pseudo_labels, dtype=np.intp), n_classes)
    settings = EpisodeSettings(episodes=episodes, node_limit=None, mix_up=mix_up)
    draw = EpisodeSampler(source_labels, targets, n_classes, progress, settings).draw
    batch = draw(np.random.default_rng(seed))

    nodes = list(zip(batch.is_target.tolist(), batch.index.tolist(), strict=True))
    assert len(set(nodes)) == len(nodes)
    support, queries = nodes[: batch.n_support], nodes[batch.n_support :]
    taken = sum(is_target for is_target, _ in support)
    assert len(queries) == min(n_classes * episodes, len(targets) - taken)
    assert all(is_target for is_target, _ in queries)
    if not mix_up:
        assert taken == 0
    filled = Counter(batch.labels[: batch.n_support].tolist())
    for label, size in enumerate(sizes):
        assert min(size, episodes) <= filled[label] <= episodes
    for (is_target, index), label in zip(support, batch.labels.tolist(), strict=False):
        assert label == (targets if is_target else source_labels)[index]


def test_a_class_of_one_sample_takes_one_slot():
    labels = np.array([0, 1, 1, 1])
    settings = EpisodeSettings(episodes=3, node_limit=None)
    draw = EpisodeSampler(labels, np.full(20, UNLABELLED), 2, 0.0, settings).draw
    batch = draw(np.random.default_rng(0))
    assert batch.labels[: batch.n_support].tolist() == [0, 1, 1, 1]


def test_targets_of_a_class_fill_the_slots_that_its_source_lacks():
    labels, targets = np.array([0, 1, 1, 1]), np.array([0, 0, 0, 1, 1, 1])
    settings = EpisodeSettings(episodes=3, node_limit=None)
    draw = EpisodeSampler(labels, targets, 2, 0.01, settings).draw
    batch = draw(np.random.default_rng(0))
    assert Counter(batch.labels[: batch.n_support].tolist()) == {0: 3, 1: 3}


@pytest.mark.parametrize(("progress", "limit"), [(0.0, 1.0), (0.3, 1.0), (0.8, 1.0), (0.8, 0.5)])
def test_a_slot_is_replaced_with_probability_m_alpha(progress, limit):
    draw = sampler(progress, labelled=1.0, mix_up_limit=limit).draw
    rng = np.random.default_rng(0)
    graphs = [draw(rng) for _ in range(150)]
    replaced = np.mean([graph.is_target[: graph.n_support] for graph in graphs])
    # 1800 draws: four standard errors are below 0.05.
    assert abs(replaced - progress * limit) < (0.05 if progress else 1e-9)


def test_without_mix_up_the_support_is_all_source():
    draw = sampler(progress=1.0, labelled=1.0, mix_up=False).draw
    rng = np.random.default_rng(0)
    for _ in range(10):
        batch = draw(rng)
        assert not batch.is_target[: batch.n_support].any()


def test_pseudo_unknown_targets_never_enter_the_support():
    draw = sampler(progress=1.0, labelled=1.0).draw
    rng = np.random.default_rng(0)
    for _ in range(10):
        batch = draw(rng)
        assert (batch.labels[: batch.n_support] < C).all()


def test_queries_bring_their_pseudo_label_only_if_asked_to():
    with_labels = sampler(labelled=0.5, labelled_queries=True)
    batch = with_labels.draw(np.random.default_rng(0))
    queries = slice(batch.n_support, None)
    expected = with_labels.pseudo_labels[batch.index[queries]]
    np.testing.assert_array_equal(batch.labels[queries], expected)
    assert UNLABELLED in expected
    assert (expected != UNLABELLED).any()

    without = sampler(labelled=0.5, labelled_queries=False).draw(np.random.default_rng(0))
    assert (without.labels[without.n_support :] == UNLABELLED).all()
    np.testing.assert_array_equal(without.index, batch.index)


@pytest.mark.parametrize(
    ("limit", "n_classes", "expected"),
    [(None, 100, 8), (256, 4, 8), (256, 16, 8), (256, 20, 6), (256, 64, 2), (256, 500, 2)],
)
def test_many_classes_make_fewer_episodes(limit, n_classes, expected):
    assert size_of_graph(n_classes, EpisodeSettings(node_limit=limit))[1] == expected


def test_the_limit_never_adds_episodes():
    assert size_of_graph(4, EpisodeSettings(episodes=1, node_limit=256))[1] == 1


def test_draws_differ_and_the_same_seed_repeats_them():
    draw = sampler().draw
    first, again = draw(np.random.default_rng(1)), draw(np.random.default_rng(1))
    other = draw(np.random.default_rng(2))
    np.testing.assert_array_equal(first.index, again.index)
    assert (first.index != other.index).any()
