"""The map of samples as compact JSON: places and labels as base64 of little numbers."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.report.content import SampleMap

# Finer than the pixels a map has on most screens; two such numbers are three bytes.
FINEST = 4095
_SURE = 65535


def map_values(samples: SampleMap, unknown_label: str) -> dict[str, Any]:
    """Return what the page's map reads, as plain values.

    Parameters
    ----------
    samples : SampleMap
        Sources first, as it has them.
    unknown_label : str
        What unknowns are called.
    """
    n_steps = len(samples.steps)
    # Places that never change are written once.
    places = samples.places if samples.moves else samples.places[:1]
    finite = np.nan_to_num(np.clip(places, 0.0, 1.0), nan=0.5)
    n_labels = max(len(samples.classes) + 1, len(samples.true_classes))
    index = np.uint8 if n_labels <= np.iinfo(np.uint8).max else np.uint16
    confidence = np.nan_to_num(np.clip(samples.confidence, 0.0, 1.0))
    pictures = [picture_address(picture) for picture in samples.pictures]
    return {
        "n": len(samples.names),
        "nSource": int((~samples.is_target).sum()),
        "steps": [int(step) for step in samples.steps],
        "kept": int(samples.kept),
        "moves": bool(samples.moves) and n_steps > 1,
        "classes": list(samples.classes),
        "trueClasses": list(samples.true_classes),
        "unknown": unknown_label,
        "finest": FINEST,
        "wide": index is np.uint16,
        "places": _base64(_packed(np.rint(finite * FINEST).astype(np.uint32))),
        "labels": _base64(samples.labels.astype(np.dtype(index).newbyteorder("<"))),
        "confidence": _base64(np.rint(confidence * _SURE).astype("<u2")),
        "truth": (
            None
            if samples.truth is None or not samples.true_classes
            else _base64(samples.truth.astype(np.dtype(index).newbyteorder("<")))
        ),
        "names": list(samples.names),
        "pictures": pictures if any(pictures) else None,
    }


def picture_address(picture: str | None) -> str | None:
    """Return the address of a picture if it is one within the page, and nothing else."""
    return picture if picture is not None and picture.startswith("data:image/") else None


def script_json(values: Any) -> str:
    """Return JSON that may stand in a script element: nothing in it can end the element.

    All but ASCII is escaped by `json`, the line separators U+2028 and U+2029 among it.
    """
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _packed(places: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    """Put x and y, twelve bits each, into three bytes, the lowest first."""
    both = places[..., 0] | places[..., 1] << 12
    return np.stack([both & 255, both >> 8 & 255, both >> 16], axis=-1).astype(np.uint8)


def _base64(values: npt.NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")
