"""Is one method better than another, or was it luck: Wilcoxon's signed-rank test, exactly.

Wilcoxon, Individual comparisons by ranking methods, Biometrics Bulletin 1945; for methods on
several data sets recommended by Demsar, JMLR 2006.

Of n tasks with differences d_t between two methods, those with d_t = 0 are left out, and the
others are ranked by |d_t|; equal ones share the mean of their ranks. W is the sum of the ranks
with d_t > 0. If neither method is better, each rank counts with probability 1/2: all 2^n sums
are as likely. The p-value is twice the share of sums that are as far out as W, at most 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import rankdata


def paired_p_value(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the two-sided p-value of the signed-rank test; NaN without any pair.

    Parameters
    ----------
    first, second : sequences of float of length n
        A figure of two methods, task by task. Pairs in which one is NaN are left out.
    """
    differences = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    differences = differences[~np.isnan(differences)]
    if not len(differences):
        return float("nan")
    differences = differences[differences != 0]
    # Twice the ranks are whole numbers, shared ones, too: sums can be counted.
    ranks = np.rint(2 * rankdata(np.abs(differences))).astype(np.intp)
    ways = np.ones(1)
    for rank in ranks:
        more = np.zeros(len(ways) + rank)
        more[: len(ways)] += ways
        more[rank:] += ways
        ways = more / 2
    positive = int(ranks[differences > 0].sum())
    smaller = min(positive, int(ranks.sum()) - positive)
    return min(1.0, 2 * float(ways[: smaller + 1].sum()))


def smallest_p_value(n_tasks: int) -> float:
    """Return the p-value of a method that wins on every task: no figures can give a smaller."""
    return min(1.0, 2.0 ** (1 - n_tasks))
