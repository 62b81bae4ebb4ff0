"""Data inside the page: the map as JSON, the edges as two pictures."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from opensetda.report.content import EdgeMap, Report, SampleMap

# 12 bits: finer than the pixels of most screens.
FINEST = 4095
_SURE = 65535


def map_values(samples: SampleMap, unknown_label: str) -> dict[str, Any]:
    """Return the map as plain values for the script of the page."""
    # Places that never change are written once.
    places = samples.places if samples.moves else samples.places[:1]
    finite = np.nan_to_num(np.clip(places, 0.0, 1.0), nan=0.5)
    n_labels = max(len(samples.classes) + 1, len(samples.true_classes))
    index = "<u1" if n_labels <= 255 else "<u2"
    confidence = np.nan_to_num(np.clip(samples.confidence, 0.0, 1.0))
    truth = samples.truth if samples.true_classes else None
    pictures = [picture_address(picture) for picture in samples.pictures]
    return {
        "n": len(samples.names),
        "nSource": int((~samples.is_target).sum()),
        "steps": [int(step) for step in samples.steps],
        "kept": int(samples.kept),
        "moves": bool(samples.moves) and len(samples.steps) > 1,
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


def share_values(report: Report, styles: Mapping[str, str], start: str) -> dict[str, Any]:
    """Return what other shares of unknowns would give, for the script of the page.

    `start` is what file names are shown without.
    """
    what, names = report.what_if, [count.name for count in report.counts]
    assert what is not None
    edges = report.histogram.edges
    low, width = float(edges[0]), float(edges[-1] - edges[0]) or 1.0
    places = [100 * (cut - low) / width for cut in what.cuts]
    # The labels are listed by size, the counts are in the order of the classes.
    classes = sorted(names[:-1]) if report.map is None else list(report.map.classes)
    place = {name: index for index, name in enumerate([*classes, names[-1]])}
    return {
        "shares": [round(share, 6) for share in what.shares],
        "places": [round(at, 3) if 0 <= at <= 100 else None for at in places],
        "used": what.used,
        "counts": what.counts.tolist(),
        "rows": [place[name] for name in names],
        "styles": [styles[name] for name in place],
        "order": _base64(what.order.astype("<u2")),
        "nearest": _base64(what.nearest.astype("<u2")),
        "below": list(what.below),
        "start": start,
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


# With grey 16 levels, which is four bits per pixel.
_LEVELS = 15
_BLUE = (43, 140, 205)
_GREY = (138, 143, 152)


class Block(NamedTuple):
    """The nodes of one class on the diagonal."""

    name: str
    start: int
    size: int


class EdgeImages(NamedTuple):
    """Two pictures as ``data:`` addresses, and the blocks of the classes."""

    learned: str
    labels: str
    n_nodes: int
    blocks: tuple[Block, ...]
    same: float | None  # mean affinity of two different nodes of one known class
    different: float | None  # mean affinity of two nodes of different labels


def edge_images(edges: EdgeMap) -> EdgeImages:
    """Draw both maps in one blue, its opacity the affinity, for light and dark themes.

    In the map of labels pairs of unknowns are grey: they may be of one class or of two.
    """
    labels = np.asarray(edges.labels)
    unknown = labels == len(edges.names) - 1
    same = labels[:, None] == labels[None, :]
    levels = np.where(same, _LEVELS - 1, 0)
    levels[np.ix_(unknown, unknown)] = _LEVELS
    affinity = np.nan_to_num(np.clip(edges.affinity, 0.0, 1.0))
    known = same & ~unknown[:, None] & ~np.eye(len(labels), dtype=bool)
    starts = np.flatnonzero(np.diff(labels, prepend=-1))
    sizes = np.diff(starts, append=len(labels)).tolist()
    return EdgeImages(
        learned=_png(np.rint(affinity * (_LEVELS - 1))),
        labels=_png(levels),
        n_nodes=len(labels),
        blocks=tuple(
            Block(edges.names[label], start, size)
            for label, start, size in zip(labels[starts], starts.tolist(), sizes, strict=True)
        ),
        same=float(affinity[known].mean()) if known.any() else None,
        different=float(affinity[~same].mean()) if not same.all() else None,
    )


def _png(levels: npt.NDArray[Any]) -> str:
    """Return a picture of opacities; the highest level is grey."""
    picture = Image.fromarray(levels.astype(np.uint8), mode="P")
    picture.putpalette([*(_BLUE * _LEVELS), *_GREY])
    opacity = [round(255 * level / (_LEVELS - 1)) for level in range(_LEVELS)]
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True, transparency=bytes([*opacity, 110]))
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
