"""What a run keeps for the runs that are adapted from it, and how far it is from labelled data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.errors import InputError
from opensetda.methods.base import OpenSetClassifier
from opensetda.rows import Domains, FloatArray, IntArray, Rows
from opensetda.runs.folder import RunFolder
from opensetda.runs.kept import How, Kept, keep
from opensetda.runs.options import absolute
from opensetda.usecases.read_domains import FitData

COMPARED_TARGETS = 2000  # of the new target, labelled by the run before, too
FEWEST_AGREE = 0.6
"""Warn if the run before labels a smaller share of the new target alike."""
LONGEST_CHAIN = 3  # adaptations without a new label from a person


def kept_source(run: RunFolder, source_free: bool = False) -> Kept:
    """Return what a run kept of its source, or an `InputError` if that is nothing.

    If it is nothing, a `source_free` method gets targets of the run with labels of its model.
    """
    kept = run.kept()
    if kept is not None and kept.how == "none" and source_free:
        return _labelled_by_model(run, kept)
    if kept is None or kept.how == "none":
        problem = "kept nothing of its source (--keep-source none)"
        if kept is None:
            problem = "kept nothing of its source: it is of 'osda demo' or an older release"
        raise InputError(f"{run.path}: {problem}; fit again with the source")
    return kept


def _labelled_by_model(run: RunFolder, kept: Kept) -> Kept:
    """Return kept targets as rows of their most probable class, without those called unknown."""
    model = run.model()
    p = model.predict_proba(kept.target)
    nearest = p.argmax(axis=1)
    rows = np.flatnonzero(nearest < len(model.classes_))
    y = nearest[rows]
    # The weights know every class: of one without a target, its most probable one stands for it.
    missing = np.setdiff1d(np.arange(len(model.classes_)), y)
    rows = np.concatenate([rows, p[:, missing].argmax(axis=0)])
    return replace(kept, rows=kept.target[rows], y=np.concatenate([y, missing]))


def keep_domains(
    how: How,
    data: FitData,
    domains: Domains,
    sample: IntArray | None,
    features: Callable[[IntArray], FloatArray] | None,
) -> Kept:
    """Return what a run keeps; `features` are those of a backbone that was trained, see `view_of`.

    `sample` are the rows of the target that the method learned from, None for all.
    """
    n_source = len(data.source)

    def read(source: IntArray, target: IntArray) -> tuple[Any, Any]:
        if features is not None and len(source) + len(target):
            both = features(np.concatenate([source, n_source + target])).astype(np.float32)
            return both[: len(source)], both[len(source) :]
        return _rows(data.source, source), _rows(data.target, target)

    target_rows = np.arange(len(data.target)) if sample is None else sample
    kept = keep(how, domains, target_rows, read, data.n_marked, data.kept)
    if domains.marks is None or how == "none":
        return kept
    marks = domains.marks
    is_class = marks.names_class
    _, marked = read(np.arange(0), target_rows[marks.rows[is_class] - n_source])
    return kept.joined(
        marked,
        moved=np.searchsorted(marks.classes, domains.classes),
        y=marks.labels[is_class],
        classes=tuple(marks.classes.tolist()),
    )


def _rows(X: npt.NDArray[Any], places: IntArray) -> npt.NDArray[np.float32]:
    """Read some rows of a matrix that may be a memory map."""
    none = np.empty((0, X.shape[1]), dtype=np.float32)
    return np.concatenate([none, *(chunk for _, chunk in Rows(X, places).chunks())])


def link_to_base(
    data: FitData, classifier: OpenSetClassifier, sample: IntArray | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the chain of runs that led to this one, and warnings about it.

    The rows of the source pass from run to run as they are, so labels of targets that are wrong do
    not. What may get worse is how much the labelled rows say about the target.
    """
    if data.base is None:
        return [], []
    rows = np.arange(len(data.target)) if sample is None else sample
    labels = classifier.transduction_
    if len(rows) > COMPARED_TARGETS:
        drawn = np.random.default_rng(0).choice(len(rows), COMPARED_TARGETS, replace=False)
        rows = rows[drawn]
        labels = labels[drawn]
    before = data.base.model().predict(_rows(data.target, rows))
    agreement = float((before == labels).mean())
    link = {
        "run": absolute(data.base.path),
        "identity": data.base.settings["identity"],
        "agreement": agreement,
        "marked": data.n_marked,
    }
    chain = [*data.base.chain, link]
    warnings = []
    if agreement < FEWEST_AGREE:
        warnings.append(
            f"the run before labels only {agreement:.0%} of these targets alike: the target "
            "changed much; check its labels"
        )
    without = since_labels(chain)
    if without >= LONGEST_CHAIN:
        warnings.append(
            f"adapted {without} times without a new label: mark some targets with 'osda review "
            "RUN', or fit again with a newer source"
        )
    return chain, warnings


def since_labels(chain: Sequence[Mapping[str, Any]]) -> int:
    """Return how often a run was adapted since a person last labelled something."""
    marks = [link["marked"] for link in chain]
    return next((n for n, mark in enumerate(reversed(marks)) if mark != marks[-1]), len(marks))
