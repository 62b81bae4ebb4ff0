"""What the tests of run folders share: a classifier fitted to three blobs."""

from __future__ import annotations

import numpy as np

from opensetda import ClassMeans


def blobs(seed=0, n=30):
    """Three classes in the source's space; the third is unknown to the source."""
    rng = np.random.default_rng(seed)
    centres = np.array([[4, 0, 0, 1], [0, 4, 0, 1], [0, 0, 4, 1]])
    which = np.arange(3 * n) % 3
    X = (centres[which] + rng.normal(0, 0.5, (3 * n, 4))).astype(np.float32)
    return X, which


def fitted(method=ClassMeans, **parameters):
    source, which = blobs(0)
    known = which < 2
    target, _ = blobs(1)
    X = np.concatenate([source[known], target])
    labels = np.array(["cat", "dog"])[which[known]]
    y = np.concatenate([labels, np.full(len(target), "cat")])
    domain = np.repeat([0, -1], [known.sum(), len(target)])
    return method(openness=1 / 3, **parameters).fit(X, y, sample_domain=domain)
