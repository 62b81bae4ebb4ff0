"""Data inside the page, for its scripts, as JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from opensetda.report.content import Report, SampleMap

# 12 bits: finer than the pixels of most screens.
FINEST = 4095
_SURE = 65535


class Axis(NamedTuple):
    """An axis of a chart: its ends as parts of the width of the chart, and its limits."""

    left: float
    right: float
    limits: tuple[float, float]

    def percent(self, value: float) -> float | None:
        """Return the place of a value in percent of the width; None beyond the limits."""
        low, high = self.limits
        part = (value - low) / (high - low)
        place = 100 * (self.left + (self.right - self.left) * part)
        return round(place, 3) if 0 <= part <= 1 else None


def map_values(samples: SampleMap, unknown_label: str) -> dict[str, Any]:
    """Return the map as plain values for the script of the page."""
    finite = np.nan_to_num(np.clip(samples.places, 0.0, 1.0), nan=0.5)
    n_labels = max(len(samples.classes) + 1, len(samples.true_classes))
    index = "<u1" if n_labels <= 255 else "<u2"
    confidence = np.nan_to_num(np.clip(samples.confidence, 0.0, 1.0))
    truth = samples.truth if samples.true_classes else None
    pictures = [picture_address(picture) for picture in samples.pictures]
    return {
        "n": len(samples.names),
        "nSource": int((~samples.is_target).sum()),
        "classes": list(samples.classes),
        "trueClasses": list(samples.true_classes),
        "unknown": unknown_label,
        "finest": FINEST,
        "wide": index == "<u2",
        "places": _base64(_packed(np.rint(finite * FINEST).astype(np.uint32))),
        "labels": _base64(samples.labels.astype(index)),
        "confidence": _base64(np.rint(confidence * _SURE).astype("<u2")),
        "noTruth": samples.no_truth,
        "truth": None if truth is None else _base64(truth.astype(index)),
        "names": list(samples.names),
        "pictures": pictures if any(pictures) else None,
    }


def share_values(report: Report, styles: Mapping[str, str], axis: Axis) -> dict[str, Any]:
    """Return what other shares of unknowns would give, for the script of the page.

    `axis` is that of the histogram.
    """
    what, names = report.what_if, [count.name for count in report.counts]
    # The labels are listed by size, the counts are in the order of the classes.
    place = {name: index for index, name in enumerate([*report.map.classes, names[-1]])}
    return {
        "shares": [round(share, 6) for share in what.shares],
        "places": [axis.percent(cut) for cut in what.cuts],
        "used": what.used,
        "counts": what.counts.tolist(),
        "rows": [place[name] for name in names],
        "styles": [styles[name] for name in place],
        "order": _base64(what.order.astype("<u2")),
        "nearest": _base64(what.nearest.astype("<u2")),
        "below": list(what.below),
    }


def picture_address(picture: str | None) -> str | None:
    """Return the address of a picture only if it is a ``data:`` address."""
    return picture if picture is not None and picture.startswith("data:image/") else None


def script_json(values: Any) -> str:
    """Return ASCII JSON for a script element, without any character that could end it."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _packed(places: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    """Put x and y, twelve bits each, into three bytes, the lowest first."""
    both = places[..., 0] | places[..., 1] << 12
    return np.stack([both & 255, both >> 8 & 255, both >> 16], axis=-1).astype(np.uint8)


def _base64(values: npt.NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")
