"""Pseudo-labels by global ranking: Eq. 6, its quotas, and the authors' bug."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from opensetda.methods.pseudo_labels import UNLABELLED, rank_pseudo_labels

C = 3
# Few distinct scores make ties common.
scores = st.lists(
    st.sampled_from([0.0, 0.25, 0.5, 1.0]) | st.floats(-1e3, 1e3), min_size=1, max_size=40
).map(np.array)
shares = st.floats(0, 1)
opennesses = st.floats(0, 1, exclude_max=True)


def some_classes(known_score):
    return np.arange(len(known_score)) % C


def test_equation_6_by_hand():
    known_score = np.array([0.9, 0.1, 0.8, 0.2, 0.7, 0.3, 0.6, 0.4, 0.5, 0.0])
    nearest = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])
    # beta 0.4, alpha m 0.5, n_t 10: the 2 least sure are unknown, the 3 surest known.
    labels = rank_pseudo_labels(known_score, nearest, 0.4, 0.5, C)
    assert labels.tolist() == [0, C, 2, -1, 1, -1, -1, -1, -1, C]


@given(scores, opennesses, shares)
def test_the_labelled_are_the_ends_of_the_ranking(known_score, openness, progress):
    nearest = some_classes(known_score)
    labels = rank_pseudo_labels(known_score, nearest, openness, progress, C)
    known, unknown = (labels >= 0) & (labels < C), labels == C
    np.testing.assert_array_equal(labels[known], nearest[known])
    middle = known_score[labels == UNLABELLED]
    for low, high in [
        (known_score[unknown], middle),
        (middle, known_score[known]),
        (known_score[unknown], known_score[known]),
    ]:
        if len(low) and len(high):
            assert low.max() <= high.min()


def test_ties_are_broken_by_index():
    labels = rank_pseudo_labels(np.zeros(6), np.zeros(6, dtype=int), 1 / 3, 1.0, 1)
    assert labels.tolist() == [1, 1, 0, 0, 0, 0]
    labels = rank_pseudo_labels(np.zeros(6), np.zeros(6, dtype=int), 1 / 3, 0.5, 1)
    assert labels.tolist() == [1, -1, -1, -1, 0, 0]


@given(scores, opennesses, shares)
def test_at_the_last_step_all_are_labelled(known_score, openness, class_balance):
    nearest = some_classes(known_score)
    plain = rank_pseudo_labels(known_score, nearest, openness, 1.0, C)
    assert (plain != UNLABELLED).all()
    assert (plain == C).sum() == round(openness * len(known_score))
    balanced = rank_pseudo_labels(known_score, nearest, openness, 1.0, C, class_balance)
    np.testing.assert_array_equal(balanced, plain)


def test_class_balance_lets_every_class_take_part():
    # Class 1 is less sure throughout: by global rank it would have to wait.
    known_score = np.concatenate([np.linspace(2, 3, 10), np.linspace(0, 1, 10)])
    nearest = np.repeat([0, 1], 10)
    plain = rank_pseudo_labels(known_score, nearest, 0.0, 0.5, 2)
    balanced = rank_pseudo_labels(known_score, nearest, 0.0, 0.5, 2, class_balance=1.0)
    assert (plain == 0).sum() == 10
    assert (plain == 1).sum() == 0
    assert (balanced == 0).sum() == 5
    assert (balanced == 1).sum() == 5
    assert (balanced[5:10] == 0).all()
    assert (balanced[15:] == 1).all()
