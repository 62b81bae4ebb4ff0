"""The view of a run: a sample of both domains with its embeddings, for the report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from opensetda.rows import FloatArray, IntArray, Rows, unit_rows
from opensetda.runs.checked import parse_tensors, reading

if TYPE_CHECKING:
    from opensetda.base import OpenSetClassifier

_VIEW_NAMES, _VIEW_STEP = "names", "step-"


@dataclass(frozen=True)
class RunView:
    """What the report shows: a sample of both domains, of bounded size.

    Attributes
    ----------
    source, target : arrays of int of shape (k_s,) and (k_t,)
        Rows of the sample in each domain, from 0.
    source_labels : array of int of shape (k_s,)
        Classes of the source sample, as indices.
    source_names : tuple of str
        Ids of the source sample; empty if they have none.
    steps : tuple of arrays of shape (k_s + k_t, components)
        Embeddings after each step, sources first; one only if the method keeps none.
    nodes, affinity : arrays of shape (N,) and (N, N)
        Members of the sample, and the edge network's affinity of their pairs; 255 is 1.
    """

    source: IntArray
    target: IntArray
    source_labels: IntArray
    source_names: tuple[str, ...]
    steps: tuple[npt.NDArray[np.float16], ...]
    nodes: IntArray
    affinity: npt.NDArray[np.uint8]

    def write(self, path: Path) -> None:
        """Write a safetensors file."""
        arrays: dict[str, npt.NDArray[Any]] = {
            name: np.ascontiguousarray(getattr(self, name), dtype=np.int64)
            for name in ("source", "target", "source_labels", "nodes")
        }
        arrays["affinity"] = self.affinity
        for number, rows in enumerate(self.steps, start=1):
            arrays[f"{_VIEW_STEP}{number:03d}"] = np.ascontiguousarray(rows)
        metadata = {_VIEW_NAMES: json.dumps(self.source_names)}
        path.write_bytes(safetensors.numpy.save(arrays, metadata=metadata))

    @classmethod
    def parse(cls, content: bytes, path: Path) -> RunView:
        """Return what `write` wrote, or raise an `InputError` that names the file."""
        arrays = parse_tensors(content, path)
        with reading(path):
            header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
            names = tuple(map(str, json.loads(header["__metadata__"][_VIEW_NAMES])))
            steps = sorted(name for name in arrays if name.startswith(_VIEW_STEP))
            of_steps = tuple(arrays.pop(name) for name in steps)
            return cls(steps=of_steps, source_names=names, **arrays)

    def check(self, n_targets: int, n_classes: int) -> None:
        """Raise a `ValueError` if a view does not fit the run."""
        n_source, n_target, n_nodes = len(self.source), len(self.target), len(self.nodes)
        size = n_source + n_target
        wanted: dict[str, tuple[npt.NDArray[Any], tuple[int, ...], int | None]] = {
            "source": (self.source, (n_source,), None),
            "target": (self.target, (n_target,), n_targets),
            "source_labels": (self.source_labels, (n_source,), n_classes),
            "nodes": (self.nodes, (n_nodes,), size),
            "affinity": (self.affinity, (n_nodes, n_nodes), 256),
        }
        for name, (values, shape, below) in wanted.items():
            is_whole = values.shape == shape and values.dtype.kind in "iu"
            if (
                not is_whole
                or (values < 0).any()
                or (below is not None and (values >= below).any())
            ):
                raise ValueError(f"{name!r} does not fit the run")
        if not self.steps or any(step.ndim != 2 or len(step) != size for step in self.steps):
            raise ValueError("the embeddings do not fit the samples")
        if self.source_names and len(self.source_names) != n_source:
            raise ValueError("the names do not fit the samples")


def view_of(
    classifier: OpenSetClassifier,
    source: npt.NDArray[np.float32],
    labels: npt.NDArray[Any],
    target: npt.NDArray[np.float32],
    source_ids: Sequence[str] | npt.NDArray[Any] | None = None,
    sample: IntArray | None = None,
) -> RunView:
    """Return the view of a fitted classifier; `sample` are the target rows of fit, if not all."""
    from opensetda.pgl.view import MOST_SOURCES, MOST_TARGETS, principal_components

    shown = classifier.view_
    if shown is not None:
        source_rows, target_rows, steps = shown.source, shown.target, shown.steps
        target_rows = target_rows if sample is None else sample[target_rows]
        nodes, affinity = shown.nodes, shown.affinity
    else:
        source_rows = _drawn(len(source), MOST_SOURCES)
        target_rows = _drawn(len(target), MOST_TARGETS)
        chosen = [Rows(X, rows) for X, rows in ((source, source_rows), (target, target_rows))]
        in_memory = [np.concatenate([chunk for _, chunk in rows.chunks()]) for rows in chosen]
        steps = (principal_components(_features(classifier, *in_memory)),)
        nodes, affinity = np.arange(0), np.zeros((0, 0), dtype=np.uint8)
    names = () if source_ids is None else tuple(str(source_ids[row]) for row in source_rows)
    classes = np.searchsorted(classifier.classes_, labels[source_rows])
    return RunView(source_rows, target_rows, classes, names, tuple(steps), nodes, affinity)


def _drawn(count: int, most: int) -> IntArray:
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, most, replace=False))


def _features(
    classifier: OpenSetClassifier, source: FloatArray, target: FloatArray
) -> npt.NDArray[Any]:
    """Return the features that a method has learned, or centred rows if it learns none."""
    if classifier.transforms_domains:
        domain = np.repeat([0, -1], [len(source), len(target)])
        both = np.concatenate([source, target])
        return np.asarray(classifier.transform(both, sample_domain=domain))
    scaler = classifier.scaler_
    unit = unit_rows(scaler.of_source(source)), unit_rows(scaler.of_target(target))
    # Less their mean, which removes the shift between the domains.
    return np.concatenate([rows - rows.mean(axis=0) for rows in unit])
