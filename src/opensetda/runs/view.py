"""What a run keeps for the report: embeddings of some samples after each step, and edges."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from opensetda.errors import InputError
from opensetda.rows import FloatArray, IntArray, Rows, unit_rows

if TYPE_CHECKING:
    from opensetda.base import OpenSetClassifier

_NAMES = "names"
_STEP = "step-"

Half = npt.NDArray[np.float16]


@dataclass(frozen=True)
class RunView:
    """A sample of both domains, of bounded size.

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
    steps: tuple[Half, ...]
    nodes: IntArray
    affinity: npt.NDArray[np.uint8]

    def write(self, path: Path) -> None:
        """Write a safetensors file."""
        from safetensors.numpy import save

        arrays = {
            name: np.ascontiguousarray(getattr(self, name))
            for name in ("source", "target", "source_labels", "nodes")
        }
        arrays = {name: values.astype(np.int64) for name, values in arrays.items()}
        arrays["affinity"] = self.affinity
        for number, rows in enumerate(self.steps, start=1):
            arrays[f"{_STEP}{number:03d}"] = np.ascontiguousarray(rows)
        path.write_bytes(save(arrays, metadata={_NAMES: json.dumps(self.source_names)}))

    @classmethod
    def read(cls, path: Path) -> RunView:
        """Read what `write` wrote, or raise an `InputError` that names the file."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="np") as file:
                names = json.loads(file.metadata()[_NAMES])
                arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
                steps = sorted(name for name in arrays if name.startswith(_STEP))
                return cls(
                    steps=tuple(arrays.pop(name) for name in steps),
                    source_names=tuple(names),
                    **arrays,
                )
        except FileNotFoundError:
            raise InputError(
                f"{path}: missing; the run is of an earlier release, fit again"
            ) from None
        except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
            raise InputError(f"{path}: damaged ({error}); fit again") from error


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
        rows = _features(classifier, *(_in_memory(part) for part in chosen))
        steps = (principal_components(np.concatenate(rows)),)
        nodes, affinity = np.arange(0), np.zeros((0, 0), dtype=np.uint8)
    names = () if source_ids is None else tuple(str(source_ids[row]) for row in source_rows)
    return RunView(
        source=source_rows,
        target=target_rows,
        source_labels=np.searchsorted(classifier.classes_, labels[source_rows]),
        source_names=names,
        steps=tuple(steps),
        nodes=nodes,
        affinity=affinity,
    )


def _in_memory(rows: Rows) -> FloatArray:
    return np.concatenate([chunk for _, chunk in rows.chunks()])


def _drawn(count: int, most: int) -> IntArray:
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, most, replace=False))


def _features(
    classifier: OpenSetClassifier, source: FloatArray, target: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the features that a method has learned, or centred rows if it learns none."""
    if classifier.transforms_domains:
        domain = np.repeat([0, -1], [len(source), len(target)])
        learned = np.asarray(
            classifier.transform(np.concatenate([source, target]), sample_domain=domain)
        )
        return learned[: len(source)], learned[len(source) :]
    return _unit_centred(source), _unit_centred(target)


def _unit_centred(rows: FloatArray) -> FloatArray:
    """Return rows of unit length less their mean, which removes the shift of the domain."""
    unit = unit_rows(rows)
    return np.asarray(unit - unit.mean(axis=0))
