"""Scores of samples if their nearest class were not among the known ones.

A target whose class is held out is an unknown with the same shift as all targets: held-out
scores show how unknowns score.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opensetda.rows import FloatArray, IntArray

Vector = npt.NDArray[np.float64]


def cosine_without_nearest(
    v: FloatArray,
    nearest: IntArray,
    source_sums: FloatArray,
    source_counts: npt.NDArray[np.floating],
    target_means: FloatArray | None = None,
    mix: FloatArray | None = None,
) -> Vector:
    r"""Largest cosine to the class means, the nearest class left out.

    With features centred on the mean of the source, class means of few classes point away
    from each other. Without class k the centre would be another: the means of the others are
    centred again,

    .. math::
        \mu_c^{(-k)} = \operatorname{unit}\Big(\mu_c^s -
            \tfrac{1}{n - n_k} \textstyle\sum_{j \neq k} n_j \mu_j^s\Big).

    Without this, held-out targets score lower than real unknowns.

    Shapes: unit rows v (n, d), source_sums (C, d), source_counts (C,), unit target_means (C, d),
    mix (C,), how far each class mean moves to them -> (n,), NaN with two classes: the one that
    is left is its own centre.
    """
    n_classes = len(source_sums)
    if n_classes <= 2:
        return np.full(len(v), np.nan)
    sums, counts = source_sums.astype(np.float64), source_counts.astype(np.float64)
    means = sums / np.maximum(counts, 1)[:, None]
    # Row k: the centre of all classes but k.
    centres = (sums.sum(axis=0) - sums) / (counts.sum() - counts)[:, None]
    # [k, c]: length of the mean of class c, centred without class k.
    squares = (means**2).sum(axis=1) - 2 * centres @ means.T + (centres**2).sum(axis=1)[:, None]
    lengths = np.sqrt(np.maximum(squares, 1e-24))
    cosine = (_products(v, means) - (v * centres[nearest]).sum(axis=1)[:, None]) / lengths[nearest]
    if target_means is not None and mix is not None:
        along = ((means * target_means).sum(axis=1) - centres @ target_means.T) / lengths
        squares = (1 - mix) ** 2 + mix**2 + 2 * mix * (1 - mix) * along
        # Means of equal classes have no direction: a cosine of theirs may be anything.
        mixed = np.sqrt(np.maximum(squares, 0.0))
        cosine = (1 - mix) * cosine + mix * _products(v, target_means)
        cosine = cosine / np.maximum(mixed, 1e-12)[nearest]
    cosine[np.arange(len(v)), nearest] = -np.inf
    return np.asarray(cosine.max(axis=1), dtype=np.float64)


def softmax_without_nearest(logits: FloatArray) -> Vector:
    """Largest softmax of the classes but the nearest: logits (n, C) -> (n,).

    NaN with two classes: the softmax of the one that is left is always 1.
    """
    if logits.shape[1] <= 2:
        return np.full(len(logits), np.nan)
    ordered = np.sort(logits, axis=1)[:, :-1]
    return np.asarray(1 / np.exp(ordered - ordered[:, -1:]).sum(axis=1), dtype=np.float64)


def _products(rows: FloatArray, others: FloatArray) -> Vector:
    """Products of rows with rows without the threads of BLAS, which compete with torch's."""
    return np.asarray(np.einsum("nd,md->nm", rows, others), dtype=np.float64)
