"""The mixture of knowns and unknowns on made scores, and the cut at a share of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opensetda.share.decision import rejection_cut
from opensetda.share.mixtures import fit_mixture

pytestmark = pytest.mark.filterwarnings("error")

N_CLASSES = 6


def made_scores(share, n=4000, weak_classes=0, seed=0):
    """Known and held-out scores; `weak_classes` of `N_CLASSES` score low from a shift.

    Unknowns score 0.2, as knowns do without their class; knowns 0.8, or 0.5 if they are weak.
    """
    rng = np.random.default_rng(seed)
    unknown = np.arange(n) < round(share * n)
    nearest = rng.integers(0, N_CLASSES, n)
    known = np.where(nearest < weak_classes, 0.5, 0.8) + 0.07 * rng.normal(size=n)
    known[unknown] = 0.2 + 0.08 * rng.normal(size=unknown.sum())
    held_out = np.where(unknown, -0.1, 0.2) + 0.08 * rng.normal(size=n)
    return known, held_out


def share_of(scores):
    return fit_mixture(*scores).share


@pytest.mark.parametrize("share", [0.1, 0.5, 0.7])
def test_the_share_is_found(share):
    assert share_of(made_scores(share)) == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_knowns_that_a_shift_scores_low_are_not_taken_for_unknowns(share):
    """Half of the classes score 0.5."""
    scores = made_scores(share, weak_classes=N_CLASSES // 2)
    assert share_of(scores) == pytest.approx(share, abs=0.06)


finite = st.floats(-1, 1)


@given(
    st.lists(st.tuples(finite, finite), min_size=1, max_size=25),
    st.randoms(use_true_random=False),
)
def test_shares_lie_between_0_and_1_whatever_the_scores_and_their_order(rows, random):
    def share(rows):
        scores = tuple(np.array(column) for column in zip(*rows, strict=True))
        with np.errstate(divide="raise", invalid="raise", over="raise"):
            return share_of(scores)

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
        assert 0 <= fit_mixture(constant, held_out).share <= 1


# The cut: at the nearest end of a group of equal scores --------------------------------------

FEW = [-np.inf, -2.5, -0.0, 0.0, 5e-324, 1.0, np.nextafter(1.0, 2.0), 1e300, np.inf]


@st.composite
def score_arrays(draw):
    n = draw(st.integers(0, 300))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    few = rng.permutation(FEW)[: draw(st.integers(1, 9))]
    kinds = rng.normal(size=n), rng.random(n).round(draw(st.integers(1, 3))), rng.choice(few, n)
    return draw(st.sampled_from(kinds))


@given(score_arrays(), st.floats(0, 1))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_cut_is_at_the_nearest_end_of_a_group(scores, share):
    """No other cut that separates no equal scores rejects a number nearer to the share."""
    ordered, n = np.sort(scores), len(scores)
    possible = [k for k in range(n + 1) if k in (0, n) or ordered[k - 1] < ordered[k]]
    nearest = min(possible, key=lambda k: abs(k - round(share * n)))
    cut = rejection_cut(scores, share)
    assert (scores < cut).sum() == nearest or cut == ordered[-1] == np.inf
    if 0 < nearest < n and np.isfinite(middle := (ordered[nearest - 1] + ordered[nearest]) / 2):
        assert cut == max(middle, np.nextafter(ordered[nearest - 1], np.inf))
