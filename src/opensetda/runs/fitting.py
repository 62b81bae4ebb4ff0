"""Fit a classifier on two domains, without any label of the target."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.base import OpenSetClassifier
from opensetda.context import FitContext
from opensetda.rows import IntArray, Rows


def fit_domains(
    classifier: OpenSetClassifier,
    source: npt.NDArray[Any],
    labels: Any,
    target: npt.NDArray[Any],
    sample: IntArray | None = None,
    context: FitContext | None = None,
) -> float:
    """Fit on source and target rows, and return the seconds it took.

    Both may be memory maps, of any type of numbers; `sample` are the target rows to learn from,
    None takes all.
    """
    chosen = np.arange(len(target)) if sample is None else sample
    # The targets' places in y hold the first source label: any value would do, none is read.
    y = np.concatenate([labels, np.repeat(labels[:1], len(chosen))])
    domain = np.repeat([0, -1], [len(source), len(chosen)])
    X = np.empty((len(source) + len(chosen), source.shape[1]), dtype=np.float32)
    for rows, place in (
        (Rows(source, np.arange(len(source))), 0),
        (Rows(target, chosen), len(source)),
    ):
        for part, chunk in rows.chunks():
            X[place + part.start : place + part.stop] = chunk
    start = time.perf_counter()
    classifier.fit(X, y, sample_domain=domain, context=context)
    return time.perf_counter() - start
