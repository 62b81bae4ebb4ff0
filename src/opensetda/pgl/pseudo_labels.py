"""Pseudo-labels by global ranking (Eq. 6)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opensetda.rows import IntArray

UNLABELLED = -1


def rank_pseudo_labels(
    known_score: npt.NDArray[np.float64],
    nearest_class: IntArray,
    openness: float,
    progress: float,
    n_classes: int,
    class_balance: float = 0.0,
) -> IntArray:
    r"""Label the surest targets as known and the least sure as unknown (Eq. 6).

    .. math::
        h_b^{(m)}(x) = \begin{cases}
            C + 1     & \text{rank}(\max_i p(i|x)) \le \beta \alpha m n_t \\
            \tilde y  & \text{rank}(\max_i p(i|x)) > n_t - (1 - \beta) \alpha m n_t
        \end{cases}

    All targets are ranked anew at every step; nobody stays labelled for ever.

    Parameters
    ----------
    known_score : array of shape (n_t,)
        The ranked confidence; ties are broken by index, the lower index counting as less sure.
    nearest_class : array of shape (n_t,)
        The class a target would get if it is known.
    openness : float
        beta, the share of unknowns.
    progress : float
        alpha * m, the share of the targets that get a pseudo-label; 1 labels all of them.
    n_classes : int
        C.
    class_balance : float, default=0
        0 is the paper's: the surest of all. Towards 1, a target is as sure as its rank
        among those of its own class, so that classes which the shift hits hard take
        part from the first steps on. It only chooses who is labelled first: at progress 1
        the answer is the same.

    Returns
    -------
    array of shape (n_t,)
        Class index, `n_classes` for unknown, `UNLABELLED` for those between.
    """
    n_targets = len(known_score)
    n_unknown = round(openness * progress * n_targets)
    # What is left of the whole, so that at progress 1 the two add up to n_t.
    n_known = round(progress * n_targets) - n_unknown
    ascending = np.argsort(known_score, kind="stable")
    labels = np.full(n_targets, UNLABELLED, dtype=np.intp)
    labels[ascending[:n_unknown]] = n_classes
    # Those who will be known when all are labelled, surest first.
    candidates = ascending[round(openness * n_targets) :][::-1]
    place = np.arange(len(candidates)) / max(len(candidates), 1)
    if class_balance > 0:
        own = _rank_within(nearest_class[candidates], n_classes)
        place = (1 - class_balance) * place + class_balance * own
    surest = candidates[np.argsort(place, kind="stable")[:n_known]]
    labels[surest] = nearest_class[surest]
    return labels


def _rank_within(classes: IntArray, n_classes: int) -> npt.NDArray[np.float64]:
    """Rank of each sample among those of its class, in [0, 1); the samples come surest first."""
    rank = np.empty(len(classes))
    for label in range(n_classes):
        members = np.flatnonzero(classes == label)
        rank[members] = np.arange(len(members)) / max(len(members), 1)
    return rank
