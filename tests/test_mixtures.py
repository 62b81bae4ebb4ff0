"""The mixture of knowns and unknowns, on scores whose share of unknowns was made."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opensetda.openness.mixtures import KnownUnknownMixture, ScoreHistogram, fit_mixture

pytestmark = pytest.mark.filterwarnings("error")

N_CLASSES = 6


def made_scores(share, n=4000, weak_classes=0, seed=0):
    """Known scores, held-out scores and nearest classes; `weak_classes` score low from a shift.

    Unknowns score 0.2, as knowns do without their class; knowns 0.8, or 0.5 if they are weak.
    """
    rng = np.random.default_rng(seed)
    unknown = np.arange(n) < round(share * n)
    nearest = rng.integers(0, N_CLASSES, n)
    known = np.where(nearest < weak_classes, 0.5, 0.8) + 0.07 * rng.normal(size=n)
    known[unknown] = 0.2 + 0.08 * rng.normal(size=unknown.sum())
    held_out = np.where(unknown, -0.1, 0.2) + 0.08 * rng.normal(size=n)
    return known, held_out, nearest


def share_of(scores, **options):
    return float(fit_mixture(ScoreHistogram.of(*scores), **options).share[0])


# What is found ----------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.15, 0.3, 0.5, 0.7])
@pytest.mark.parametrize("anchored", [True, False])
def test_the_share_is_found(share, anchored):
    assert share_of(made_scores(share), anchored=anchored) == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_few_unknowns_are_found(share):
    assert share_of(made_scores(share)) == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("share", [0.75, 0.9])
def test_many_unknowns_are_found(share):
    assert share_of(made_scores(share)) == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_few_unknowns_are_found_without_an_anchor(share):
    assert share_of(made_scores(share), anchored=False) == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.3])
def test_knowns_that_a_shift_scores_low_are_not_taken_for_unknowns(share):
    """Half of the classes score 0.5. The free mixture adds them to the unknowns."""
    scores = made_scores(share, weak_classes=N_CLASSES // 2)
    assert share_of(scores) == pytest.approx(share, abs=0.06)
    assert share_of(scores, anchored=False) > share + 0.2


def test_one_peak_is_not_halved():
    scores = made_scores(0.0)
    assert share_of(scores) < 0.01
    assert share_of(scores, anchored=False) > 0.1


def test_where_the_two_lie():
    mixture = fit_mixture(ScoreHistogram.of(*made_scores(0.4)))
    assert mixture.unknown_mean[0] == pytest.approx(0.2, abs=0.02)
    assert mixture.known_mean[0] == pytest.approx(0.8, abs=0.02)
    # A free one would say 0.07 of the knowns; anchored, they are as wide as the unknowns.
    assert mixture.unknown_deviation[0] == pytest.approx(0.08, abs=0.02)
    assert mixture.known_deviation[0] >= mixture.unknown_deviation[0]


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_a_share_that_is_given_stays(share):
    for anchored in (True, False):
        assert share_of(made_scores(0.3), share=share, anchored=anchored) == share


def test_the_posterior_of_what_was_made():
    known, held_out, nearest = made_scores(0.3)
    posterior = fit_mixture(ScoreHistogram.of(known, held_out, nearest)).posterior(known)
    assert posterior.shape == (1, len(known))
    unknown = np.arange(len(known)) < 1200
    assert ((posterior[0] > 0.5) == unknown).mean() > 0.99


# The posterior falls ----------------------------------------------------------------------


def test_the_posterior_never_rises_with_the_score():
    wide = KnownUnknownMixture(*(np.array([value]) for value in (0.2, 0.2, 0.3, 0.6, 0.05)))
    scores = np.linspace(-1, 2, 801)
    plain, falling = wide.posterior(scores)[0], wide.falling_posterior(scores)
    # As it is, the wider component wins above all knowns again, and wins below if it is theirs.
    assert (np.diff(plain) > 0.01).any()
    assert (np.diff(falling) <= 0).all()
    # Nobody is unknown for scoring above all, or known for scoring below all.
    assert falling[-1] < 0.05 < 0.9 < plain[-1]
    lower = KnownUnknownMixture(*(np.array([value]) for value in (0.5, 0.2, 0.05, 0.6, 0.3)))
    assert lower.posterior(scores)[0, 0] < 0.05 < 0.9 < lower.falling_posterior(scores)[0]


@given(st.integers(0, 10_000))
def test_the_falling_posterior_is_in_the_order_of_the_scores(seed):
    rng = np.random.default_rng(seed)
    scores = made_scores(rng.random(), n=int(rng.integers(1, 80)), seed=seed)
    falling = fit_mixture(ScoreHistogram.of(*scores)).falling_posterior(scores[0])
    assert ((falling >= 0) & (falling <= 1)).all()
    assert (np.diff(falling[np.argsort(scores[0])]) <= 1e-12).all()


# Bins and resamples -----------------------------------------------------------------------


def test_bins_keep_what_they_were_given():
    known, held_out, nearest = made_scores(0.3, n=500)
    histogram = ScoreHistogram.of(known, held_out, nearest)
    assert histogram.counts.sum() == 500
    mean = (histogram.counts[0] * histogram.centres).sum() / 500
    assert mean == pytest.approx(known.mean(), abs=1e-3)
    for power in range(3):
        by_class = histogram.by_class[:, :, power].sum(axis=1)
        expected = [(held_out[nearest == label] ** power).sum() for label in range(N_CLASSES)]
        np.testing.assert_allclose(by_class, expected)
    np.testing.assert_allclose(histogram.by_class.sum(axis=0), histogram.held_out[0])


def test_scores_without_held_out_ones():
    known, held_out, nearest = made_scores(0.3)
    assert ScoreHistogram.of(known, held_out, nearest).has_held_out
    nothing = ScoreHistogram.of(known, np.full_like(held_out, np.nan), nearest)
    assert not nothing.has_held_out
    assert fit_mixture(nothing, anchored=False).share[0] == pytest.approx(0.3, abs=0.03)


def test_resamples_draw_targets_and_whole_classes():
    histogram = ScoreHistogram.of(*made_scores(0.3, n=600))
    resampled = histogram.resampled(50, np.random.default_rng(0))
    assert resampled.counts.shape == (50, len(histogram.centres))
    assert (resampled.counts.sum(axis=1) == 600).all()
    assert (resampled.counts[:, histogram.counts[0] == 0] == 0).all()
    sizes = histogram.by_class[:, :, 0].sum(axis=1)
    totals = resampled.held_out[:, :, 0].sum(axis=1)
    # As many classes as there are, some of them twice: never a part of one.
    assert len(np.unique(totals)) > 10
    assert totals.min() >= N_CLASSES * sizes.min()
    assert totals.max() <= N_CLASSES * sizes.max()
    # Each resample fits as if it were alone.
    shares = fit_mixture(resampled).share
    alone = ScoreHistogram(
        histogram.centres, resampled.counts[7:8], resampled.held_out[7:8], histogram.by_class
    )
    assert fit_mixture(alone).share[0] == pytest.approx(shares[7], rel=1e-9)


def test_more_targets_leave_less_doubt():
    def spread(n):
        histogram = ScoreHistogram.of(*made_scores(0.3, n=n))
        return fit_mixture(histogram.resampled(80, np.random.default_rng(0))).share.std()

    assert spread(100) > 2 * spread(4000)


# Any scores -------------------------------------------------------------------------------


finite = st.floats(-1, 1)


@given(
    st.lists(st.tuples(finite, finite, st.integers(0, 3)), min_size=1, max_size=25),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_shares_lie_between_0_and_1_whatever_the_scores_and_their_order(rows, anchored, random):
    def share(rows):
        known, held_out, nearest = (np.array(column) for column in zip(*rows, strict=True))
        with np.errstate(divide="raise", invalid="raise", over="raise"):
            return share_of((known, held_out, nearest), anchored=anchored)

    found = share(rows)
    assert 0 <= found <= 1
    shuffled = rows.copy()
    random.shuffle(shuffled)
    assert share(shuffled) == pytest.approx(found, abs=1e-6)


@pytest.mark.parametrize("n", [1, 2, 3, 50])
@pytest.mark.parametrize("value", [0.0, 0.7, 1.0])
def test_constant_scores(n, value):
    constant = np.full(n, value)
    for held_out in (constant, constant - 0.5, np.linspace(0, 1, n)):
        histogram = ScoreHistogram.of(constant, held_out, np.zeros(n, int))
        for anchored in (True, False):
            mixture = fit_mixture(histogram, anchored=anchored)
            assert 0 <= mixture.share[0] <= 1
            posterior = mixture.falling_posterior(constant)
            assert len(np.unique(posterior)) == 1
            assert 0 <= posterior[0] <= 1
        assert np.isfinite(
            fit_mixture(histogram.resampled(5, np.random.default_rng(0))).share
        ).all()
