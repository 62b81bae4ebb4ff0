"""Samples in a plane, one panel per method: colours are classes, hollow marks the source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from opensetda.runs import figure_style as style

_UNKNOWN = "#A8A8A8"
# With more than ten classes the marker changes with every ten; the first of the source are circles.
_OKABE_ITO = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE, style.YELLOW, style.SKY)
_CLASSES = (*_OKABE_ITO, "#7B3F00", "#B2DF3A", "#5B2C83", "#F0E442")
_MARKERS = ("^", "s", "D", "v", "P", "h")
_NAMED = 40
_LONGEST_NAME = 26
# Up to so many samples are drawn at full size.
_FEW = 1500
# Inches of a line of the legend.
_LINE, _FEW_LINES = 0.2, 3


@dataclass(frozen=True)
class ScatterPanel:
    """Positions of the samples, shape (n, 2), with a remark below.

    `classes` replaces the classes of all panels.
    """

    title: str
    places: npt.NDArray[np.floating[Any]]
    remark: str = ""
    classes: npt.NDArray[np.intp] | None = None


def draw_scatter(
    panels: Sequence[ScatterPanel],
    classes: npt.NDArray[np.intp],
    is_target: npt.NDArray[np.bool_],
    names: Sequence[str],
    title: str,
    side: float = 4.0,
) -> Figure:
    """Draw the same samples in every panel, whose side is in inches.

    `classes` has shape (n,): index into `names`, the known classes, or their number for unknown.
    """
    columns = len(panels) if len(panels) <= 3 else min(math.ceil(len(panels) / 2), 4)
    rows = math.ceil(len(panels) / columns)
    width, around = max(side * columns, 6.4), 1.15 if title else 0.6
    entries = _entries(names)
    legend_columns = _columns([str(line.get_label()) for line in entries], width)
    # Room for a few lines of legend is in the sides.
    around += _LINE * max(math.ceil(len(entries) / legend_columns) - _FEW_LINES, 0)
    figure = style.new_figure(width, (side + 0.15) * rows + around, title)
    # Markers are smaller in small panels and for many samples.
    size = (side / 4.0) ** 2 * 16 * min(1.0, (_FEW / max(len(classes), 1)) ** 0.5)
    for number, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, number)
        own = classes if panel.classes is None else panel.classes
        _draw_classes(axes, panel, own, is_target, len(names), size)
        _dress(axes, panel)
    figure.legend(
        # matplotlib fills columns, people read rows.
        handles=[
            line for start in range(legend_columns) for line in entries[start::legend_columns]
        ],
        loc="outside lower left",
        ncols=legend_columns,
        frameon=False,
        fontsize=9,
        handletextpad=0.2,
        columnspacing=1.0,
    )
    return figure


def _draw_classes(
    axes: Axes,
    panel: ScatterPanel,
    classes: npt.NDArray[np.intp],
    is_target: npt.NDArray[np.bool_],
    n_classes: int,
    size: float,
) -> None:
    unknown = classes >= n_classes
    colors = [_UNKNOWN if label >= n_classes else color_of(label) for label in classes.tolist()]
    markers = np.where(unknown, 0, marker_of(classes))

    def scatter(which: npt.NDArray[np.bool_], filled: bool, **more: Any) -> None:
        for number in np.unique(markers[which]).tolist():
            chosen = np.flatnonzero(which & (markers == number))
            x, y = panel.places[chosen].T
            own = [colors[sample] for sample in chosen.tolist()]
            face, edge = (own, "none") if filled else ("none", own)
            marker = _MARKERS[number] if filled or number else "o"
            axes.scatter(x, y, s=size, marker=marker, facecolors=face, edgecolors=edge, **more)

    scatter(unknown, True, alpha=0.6)
    scatter(~is_target, False, alpha=0.8, linewidths=0.9)
    scatter(is_target & ~unknown, True)


def _dress(axes: Axes, panel: ScatterPanel) -> None:
    axes.set_title(panel.title, fontsize=10.5, loc="left", fontweight="bold")
    axes.set_xlabel(panel.remark, fontsize=9)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color("#CCCCCC")
    if len(panel.places):
        # All places in a square; matplotlib's own limits would grow with each layout pass.
        low, high = panel.places.min(axis=0), panel.places.max(axis=0)
        half = 0.53 * float((high - low).max()) or 1.0
        x, y = (low + high) / 2
        axes.set_xlim(x - half, x + half)
        axes.set_ylim(y - half, y + half)
        axes.set_aspect("equal", adjustable="box")


def color_of(label: int) -> str:
    """Return the colour of a class."""
    return _CLASSES[label % len(_CLASSES)]


def marker_of(label: Any) -> Any:
    """Return the place of the marker of a class, or of each of several."""
    return label // len(_CLASSES) % len(_MARKERS)


def _entries(names: Sequence[str]) -> list[Line2D]:
    """Return what the legend explains."""

    def entry(name: str, marker: str, color: str, filled: bool = True) -> Line2D:
        face = color if filled else "none"
        look: dict[str, Any] = {"color": color, "markerfacecolor": face, "markersize": 6}
        return Line2D([], [], linestyle="none", marker=marker, label=name, **look)

    entries = [
        entry("source", "o", style.BLACK, filled=False),
        entry("target", "^", style.BLACK),
        entry("target, unknown", "^", _UNKNOWN),
    ]
    if len(names) <= _NAMED:
        entries += [
            entry(
                style.figure_name(str(name), _LONGEST_NAME),
                _MARKERS[marker_of(label)] if len(names) > len(_CLASSES) else "s",
                color_of(label),
            )
            for label, name in enumerate(names)
        ]
    return entries


def _columns(labels: Sequence[str], width: float) -> int:
    """Return the number of legend columns that fit into a width in inches."""
    inches = [0.42 + 0.075 * len(label) for label in labels]
    for columns in range(len(labels), 3, -1):
        if sum(max(inches[start::columns]) for start in range(columns)) <= width:
            return columns
    return 3
