"""Fit a classifier on two domains, without any label of the target."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.base import OpenSetClassifier


def fit_domains(
    classifier: OpenSetClassifier,
    source: npt.NDArray[np.float32],
    labels: Any,
    target: npt.NDArray[np.float32],
) -> float:
    """Fit on source and target rows, and return the seconds it took."""
    # The targets' places in y hold the first source label: any value would do, none is read.
    y = np.concatenate([labels, np.repeat(labels[:1], len(target))])
    domain = np.repeat([0, -1], [len(source), len(target)])
    X = np.concatenate([source, target])
    start = time.perf_counter()
    classifier.fit(X, y, sample_domain=domain)
    return time.perf_counter() - start
