"""Groups of unknowns: how many there are, who is typical, and what is said of them."""

from __future__ import annotations

import numpy as np
import pytest

from opensetda.runs.groups import FEWEST, group_rows


def clouds(sizes, spread=0.15, wide=16, seed=0):
    rng = np.random.default_rng(seed)
    which = np.repeat(np.arange(len(sizes)), sizes)
    return np.eye(len(sizes), wide)[which] + rng.normal(0, spread, (len(which), wide)), which


@pytest.mark.parametrize("sizes", [[30, 30], [30] * 7, [100, 20, 20, 20, 20]])
def test_as_many_groups_as_there_are(sizes):
    rows, which = clouds(sizes)
    groups = group_rows(rows)
    assert [len(members) for members in groups] == sorted(sizes, reverse=True)
    assert all(len(set(which[members].tolist())) == 1 for members in groups)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(rows)))


def test_the_typical_come_first():
    rows, _ = clouds([40, 40])
    rows[3] = rows[3] + 0.9 * rows[45]
    groups = group_rows(rows)
    odd = next(members for members in groups if 3 in members)
    assert odd.tolist().index(3) >= len(odd) - 2
    centre = rows[odd].mean(axis=0)
    cosine = rows[odd] @ centre / np.linalg.norm(rows[odd], axis=1)
    assert cosine[0] == cosine.max()


@pytest.mark.parametrize("n", [0, 1, 2, FEWEST - 1])
def test_a_few_are_one_group(n):
    rows, _ = clouds([n])
    groups = group_rows(rows)
    assert len(groups) == (1 if n else 0)
    assert sum(len(members) for members in groups) == n


def test_twins_make_no_trouble():
    rows = np.tile(np.array([[1.0, 0.0], [0.0, 1.0]]), (20, 1))
    assert [len(members) for members in group_rows(rows)] == [20, 20]
    assert [len(members) for members in group_rows(np.ones((30, 4)))] == [30]
    assert [len(members) for members in group_rows(np.zeros((30, 4)))] == [30]
