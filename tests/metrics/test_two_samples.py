"""The permutation test by which samples are compared: its level, its power, what it shows."""

from __future__ import annotations

import numpy as np

from opensetda.metrics.two_samples import compare_samples


def rows(seed, n, shift=0.0, width=6):
    rng = np.random.default_rng(seed)
    return (4 * np.eye(3, width)[np.arange(n) % 3] + rng.normal(size=(n, width)) + shift).astype(
        np.float32
    )


def test_samples_of_one_distribution_rarely_raise_an_alarm():
    p_values = [compare_samples(rows(n, 60), rows(n + 100, 40)).p_value for n in range(40)]
    # 2 of 40 are expected below 0.05.
    assert sum(p <= 0.05 for p in p_values) <= 6
    assert 0.3 < np.mean(p_values) < 0.7


def test_equal_rows_in_both_samples_are_no_difference():
    # Of few different rows, neighbours are at the same distance: their order must say nothing.
    reference = np.repeat(rows(0, 5), 30, axis=0)
    new = np.repeat(rows(0, 5), 20, axis=0)
    found = compare_samples(reference, new)
    assert found.p_value > 0.05
    assert found.apart < 0.6


def test_another_domain_is_found_and_told_apart():
    found = compare_samples(rows(0, 200), rows(1, 60, shift=2))
    assert found.p_value <= 0.01
    assert found.apart > 0.9


def test_a_column_of_other_units_does_not_hide_a_difference():
    reference, new = rows(0, 200), rows(1, 60, shift=2)
    for part, seed in ((reference, 2), (new, 3)):
        part[:, -1] = 1e6 * np.random.default_rng(seed).normal(size=len(part))
    assert compare_samples(reference, new).p_value <= 0.05


def test_a_new_group_is_found_with_its_members():
    new = rows(1, 100)
    new[:12] = 8 * np.eye(1, 6, k=5) + 0.3 * np.random.default_rng(5).normal(size=(12, 6))
    found = compare_samples(rows(0, 300), new)
    assert found.p_value <= 0.05
    assert found.apart < 0.7
    assert set(found.group) <= set(range(12))
    assert len(found.group) >= 8


def test_the_order_of_rows_changes_nothing():
    reference, new = rows(0, 100), rows(1, 40, shift=0.2)
    found = compare_samples(reference, new)
    turned = compare_samples(reference[::-1], new[::-1])
    assert (found.p_value, found.apart) == (turned.p_value, turned.apart)
    assert sorted(39 - turned.group) == sorted(found.group)


def test_wide_rows_and_constant_columns_are_compared():
    wide = rows(0, 60, width=300)
    wide[:, 10:20] = 1
    other = rows(1, 40, shift=3, width=300)
    assert compare_samples(wide, other).p_value <= 0.05
