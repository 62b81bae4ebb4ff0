"""Learned edges and the labels they should follow, as two small pictures of all pairs."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from opensetda.report.content import EdgeMap

# With grey 16 levels, four bits: the eye tells no more apart, and the file is small.
_LEVELS = 15
_BLUE = (43, 140, 205)
_GREY = (138, 143, 152)


@dataclass(frozen=True)
class Block:
    """Nodes of one class on the diagonal: where it starts and how many there are."""

    name: str
    start: int
    size: int


@dataclass(frozen=True)
class EdgeImages:
    """Two pictures as ``data:`` addresses, of the same order, and the classes' blocks."""

    learned: str
    labels: str
    n_nodes: int
    blocks: tuple[Block, ...]
    same: float | None
    """Mean affinity of two different nodes of one known class."""
    different: float | None
    """Mean affinity of two nodes of different labels."""


def edge_images(edges: EdgeMap) -> EdgeImages:
    """Draw both maps.

    The strength of an edge is the opacity of one blue, so that the pictures suit a light and
    a dark page. Two unknowns may be of one class or of two: in the map of labels they are grey.
    """
    labels = np.asarray(edges.labels)
    unknown = labels == len(edges.names) - 1
    same = labels[:, None] == labels[None, :]
    levels = np.where(same, _LEVELS - 1, 0)
    levels[np.ix_(unknown, unknown)] = _LEVELS
    affinity = np.nan_to_num(np.clip(edges.affinity, 0.0, 1.0))
    known = same & ~unknown[:, None] & ~np.eye(len(labels), dtype=bool)
    return EdgeImages(
        learned=_png(np.rint(affinity * (_LEVELS - 1))),
        labels=_png(levels),
        n_nodes=len(labels),
        blocks=tuple(_blocks(labels, edges.names)),
        same=_mean(affinity[known]),
        different=_mean(affinity[~same]),
    )


def _blocks(labels: npt.NDArray[np.intp], names: tuple[str, ...]) -> list[Block]:
    if not len(labels):
        return []
    starts = np.flatnonzero(np.diff(labels, prepend=labels[0] - 1))
    stops = [*starts[1:].tolist(), len(labels)]
    return [
        Block(names[labels[start]], start, stop - start)
        for start, stop in zip(starts.tolist(), stops, strict=True)
    ]


def _mean(values: npt.NDArray[np.float64]) -> float | None:
    return float(values.mean()) if values.size else None


def _png(levels: npt.NDArray[Any]) -> str:
    """Return a picture of opacities; one more level than those is grey."""
    picture = Image.fromarray(levels.astype(np.uint8), mode="P")
    picture.putpalette([*(_BLUE * _LEVELS), *_GREY])
    opacity = [round(255 * level / (_LEVELS - 1)) for level in range(_LEVELS)]
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True, transparency=bytes([*opacity, 110]))
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
