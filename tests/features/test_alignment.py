"""The alignment of two domains before anything is learned, and rows that move to neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from opensetda.features import alignment as alignment_module
from opensetda.features.alignment import Alignment, mean_cosine, move_to_neighbours
from opensetda.rows import Rows, unit_rows

WIDTH = 7


def domains(n_source=40, n_target=25, width=WIDTH, seed=0):
    rng = np.random.default_rng(seed)
    scales = np.linspace(1, 3, width)
    X = rng.normal(size=(n_source + n_target, width)) * scales + 1
    X[n_source:] += rng.normal(size=width)
    return X.astype(np.float32), n_source


def split(X, n_source):
    return Rows(X, np.arange(n_source)), Rows(X, np.arange(n_source, len(X)))


def aligned(X, n_source, **settings):
    source, target = split(X, n_source)
    alignment = Alignment.fit(source, target, **settings)
    return alignment, alignment.source(source), alignment.target(target)


def later(alignment, X):
    return alignment(torch.from_numpy(X.astype(np.float64))).numpy()


def test_unit_rows_are_centred_before_they_are_normalised_again():
    X, n_source = domains()
    alignment, source, target = aligned(X, n_source, components=None)
    for rows, mean, answer in [
        (X[:n_source], alignment.source_mean.numpy(), source),
        (X[n_source:], alignment.target_mean.numpy(), target),
    ]:
        centred = unit_rows(rows) - mean
        np.testing.assert_allclose(centred.mean(axis=0), 0, atol=1e-6)
        np.testing.assert_allclose(answer, unit_rows(centred), atol=1e-5)
        np.testing.assert_allclose(np.linalg.norm(answer, axis=1), 1, atol=1e-5)


def test_without_whitening_the_projection_is_a_rotation():
    alignment, _, _ = aligned(*domains(), components=WIDTH, whitening=0.0)
    gram = alignment.projection.T @ alignment.projection
    np.testing.assert_allclose(gram.numpy(), np.eye(WIDTH), atol=1e-8)
    half, _, _ = aligned(*domains(), components=WIDTH)
    lengths = np.linalg.norm(half.projection.numpy(), axis=0)
    assert (np.diff(lengths) > 0).all()  # small variances are enlarged


def test_each_domain_counts_one_half_whatever_its_size():
    X, n_source = domains()
    often = np.concatenate([X[:n_source], np.tile(X[n_source:], (9, 1))])
    once, _, _ = aligned(X, n_source)
    nine_times, _, _ = aligned(often, n_source)
    np.testing.assert_allclose(once.projection, nine_times.projection, rtol=1e-2, atol=1e-3)


def test_the_order_of_the_rows_changes_no_bit():
    X, n_source = domains()
    order = np.random.default_rng(1).permutation(n_source)
    shuffled = np.concatenate([X[:n_source][order], X[n_source:][::-1]])
    answers = []
    for rows in (X, shuffled):
        source, target = (part.in_canonical_order() for part in split(rows, n_source))
        alignment = Alignment.fit(source, target)
        answers.append((alignment.projection, alignment.source(source), alignment.target(target)))
    for one, other in zip(*answers, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("settings", [{}, {"components": None}])
@pytest.mark.parametrize("X", [np.ones((30, 5)), np.zeros((30, 5)), np.arange(30.0)[:, None] - 15])
def test_degenerate_rows_stay_finite(X, settings):
    alignment, source, target = aligned(X.astype(np.float32), 20, **settings)
    assert source.shape[1] >= 1
    for rows in (source, target, later(alignment, X)):
        assert np.isfinite(rows).all()


def test_constant_features_are_no_components():
    X, n_source = domains()
    padded = np.concatenate([X, np.zeros((len(X), 5), dtype=np.float32)], axis=1)
    alignment, source, _ = aligned(padded, n_source)
    assert alignment.projection.shape == (WIDTH + 5, WIDTH)
    assert source.dtype == np.float32
    assert aligned(padded, n_source, components=3)[0].projection.shape == (WIDTH + 5, 3)


def test_without_targets_later_samples_are_treated_as_sources():
    X, _ = domains()
    source, nothing = Rows(X, np.arange(len(X))), Rows(X, np.arange(0))
    alignment = Alignment.fit(source, nothing)
    np.testing.assert_allclose(later(alignment, X), alignment.source(source), atol=1e-5)


def test_a_single_target_is_centred_on_the_source():
    X, n_source = domains(n_target=1)
    alignment, _, target = aligned(X, n_source)
    assert torch.equal(alignment.target_mean, alignment.source_mean)
    assert np.abs(target).sum() > 0


@pytest.fixture
def unit():
    return unit_rows(np.random.default_rng(0).normal(size=(30, 6)))


def test_a_row_moves_half_way_to_its_nearest_rows(unit):
    moved = move_to_neighbours(unit, unit, 3, 0.5)
    for row, after in zip(unit, moved, strict=True):
        mean = unit[np.argsort(unit @ row)[-4:-1]].sum(axis=0)
        expected = row + mean / np.linalg.norm(mean)
        np.testing.assert_allclose(after, expected / np.linalg.norm(expected))


def test_equal_rows_are_no_neighbours(unit):
    twice = np.concatenate([unit, unit])
    copies = move_to_neighbours(twice, twice, 1, 0.5)
    np.testing.assert_allclose(copies[:30], move_to_neighbours(unit, unit, 1, 0.5), atol=1e-6)
    same = np.repeat(unit[:1], 5, axis=0)
    np.testing.assert_allclose(move_to_neighbours(same, same, 3, 0.5), same)


def test_chunks_change_nothing(unit, monkeypatch):
    whole = move_to_neighbours(unit, unit, 4, 0.5)
    monkeypatch.setattr(alignment_module, "MOST_COSINES", 90)
    np.testing.assert_allclose(move_to_neighbours(unit, unit, 4, 0.5), whole)


def test_the_mean_cosine_leaves_the_row_itself_out(unit):
    found = mean_cosine(torch.from_numpy(unit), torch.from_numpy(unit), 3).numpy()
    expected = [np.sort(unit @ row)[-4:-1].mean() for row in unit]
    np.testing.assert_allclose(found, expected)
    one = torch.from_numpy(unit[:1])
    assert mean_cosine(one, one, 3).tolist() == [0.0]
