"""Pseudo-labels by global ranking (Eq. 6 and 12)."""

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
    r"""Label the most confident targets as known and the least confident as unknown (Eq. 6).

    .. math::
        h_b^{(m)}(x) = \begin{cases}
            C + 1     & \text{rank}(\max_i p(i|x)) \le \beta \alpha m n_t \\
            \tilde y  & \text{rank}(\max_i p(i|x)) > n_t - (1 - \beta) \alpha m n_t
        \end{cases}

    At step m, :math:`(1 - \beta) \alpha m n_t` targets are known and
    :math:`\beta \alpha m n_t` unknown (Eq. 12); `openness` is beta, `progress` alpha * m. All
    targets are ranked again at every step; of equal scores, the lower index is less confident.

    With `class_balance` towards 1, not 0 as in the paper, a target's confidence is its rank within
    its class: classes with a strong shift take part from the first steps on.

    Returns class indices, `n_classes` for unknown, `UNLABELLED` in between: (n_t,).
    """
    n_targets = len(known_score)
    n_unknown = round(openness * progress * n_targets)
    # The rest, so that at progress 1 the two add up to n_t.
    n_known = round(progress * n_targets) - n_unknown
    ascending = np.argsort(known_score, kind="stable")
    labels = np.full(n_targets, UNLABELLED, dtype=np.intp)
    labels[ascending[:n_unknown]] = n_classes
    # Those that will be known when all are labelled, most confident first.
    candidates = ascending[round(openness * n_targets) :][::-1]
    place = np.arange(len(candidates)) / max(len(candidates), 1)
    if class_balance > 0:
        own = np.empty(len(candidates))
        for label in range(n_classes):
            members = np.flatnonzero(nearest_class[candidates] == label)
            own[members] = np.arange(len(members)) / max(len(members), 1)
        place = (1 - class_balance) * place + class_balance * own
    surest = candidates[np.argsort(place, kind="stable")[:n_known]]
    labels[surest] = nearest_class[surest]
    return labels
