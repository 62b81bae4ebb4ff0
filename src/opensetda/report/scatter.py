"""Samples in a plane, a panel a method: colour is the class, the marker the domain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from opensetda.report.names import figure_name
from opensetda.runs.figure_style import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    YELLOW,
    new_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_UNKNOWN = "#A8A8A8"
# Up to ten classes get colours that most people tell apart; beyond that colours repeat
# with another brightness, and only neighbours in the plane need to differ.
_CLASSES = (BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY, "#7B3F00", "#B2DF3A", "#5B2C83", "#F0E442")
_NAMED = 12
_LONGEST_NAME = 18
# As many samples are drawn at full size.
_FEW = 1500


@dataclass(frozen=True)
class ScatterPanel:
    """One method's view of the samples.

    Attributes
    ----------
    places : array of shape (n, 2)
        Where each sample is.
    remark : str
        A line below the panel.
    classes : array of shape (n,), optional
        What the colours are here, if that differs from panel to panel.
    by_domain : bool
        Colour is the domain.
    """

    title: str
    places: npt.NDArray[np.floating[Any]]
    remark: str = ""
    classes: npt.NDArray[np.intp] | None = None
    by_domain: bool = False


def draw_scatter(
    panels: Sequence[ScatterPanel],
    classes: npt.NDArray[np.intp],
    is_target: npt.NDArray[np.bool_],
    names: Sequence[str],
    title: str,
    side: float = 4.0,
) -> Figure:
    """Draw the same samples in every panel.

    Parameters
    ----------
    panels : sequence of ScatterPanel
        At least one.
    classes : array of shape (n,)
        Index into `names`, or its length for unknown.
    is_target : array of shape (n,)
        The samples' domain.
    names : sequence of str
        The known classes.
    title : str
        Above the picture.
    side : float
        Inches that a panel takes.
    """
    columns = len(panels) if len(panels) <= 3 else math.ceil(len(panels) / 2)
    columns = min(columns, 4)
    rows = math.ceil(len(panels) / columns)
    around = 1.15 if title else 0.6
    figure = new_figure(max(side * columns, 6.4), (side + 0.15) * rows + around, title)
    # Markers shrink with the panel, and where there are many.
    size = (side / 4.0) ** 2 * 16 * min(1.0, (_FEW / max(len(classes), 1)) ** 0.5)
    for number, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, number)
        if panel.by_domain:
            _draw_domains(axes, panel, is_target, size)
        else:
            own = classes if panel.classes is None else panel.classes
            _draw_classes(axes, panel, own, is_target, len(names), size)
        _dress(axes, panel)
    _legend(figure, names)
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

    def scatter(which: npt.NDArray[np.bool_], marker: str, filled: bool, **more: Any) -> None:
        x, y = panel.places[which].T
        own = [color for color, chosen in zip(colors, which.tolist(), strict=True) if chosen]
        face, edge = (own, "none") if filled else ("none", own)
        axes.scatter(x, y, s=size, marker=marker, facecolors=face, edgecolors=edge, **more)

    scatter(unknown, "^", True, alpha=0.6)
    scatter(~is_target, "o", False, alpha=0.8, linewidths=0.9)
    scatter(is_target & ~unknown, "^", True)


def _draw_domains(
    axes: Axes, panel: ScatterPanel, is_target: npt.NDArray[np.bool_], size: float
) -> None:
    for name, which, marker, face, edge in (
        ("target", is_target, "^", YELLOW, "none"),
        ("source", ~is_target, "o", "none", BLACK),
    ):
        x, y = panel.places[which].T
        axes.scatter(
            x,
            y,
            s=size,
            marker=marker,
            facecolors=face,
            edgecolors=edge,
            linewidths=0.7,
            alpha=0.7,
            label=name,
        )
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(0.0, -0.01),
        ncols=2,
        frameon=False,
        fontsize=9,
        handletextpad=0.1,
        columnspacing=1.0,
        borderpad=0,
        markerscale=max(1.0, (36 / size) ** 0.5),
    )


def _dress(axes: Axes, panel: ScatterPanel) -> None:
    axes.set_title(panel.title, fontsize=10.5, loc="left", fontweight="bold")
    axes.set_xlabel(panel.remark, fontsize=9)
    axes.set_xticks([])
    axes.set_yticks([])
    _frame_square(axes, panel.places)
    for spine in axes.spines.values():
        spine.set_color("#CCCCCC")


def _frame_square(axes: Axes, places: npt.NDArray[np.floating[Any]]) -> None:
    """Show all places in a square, one scale for both directions.

    Limits are set by hand: matplotlib's own adjustment of them widens them with every pass of
    the layout.
    """
    if not len(places):
        return
    low, high = places.min(axis=0), places.max(axis=0)
    half = 0.53 * float((high - low).max()) or 1.0
    middle = (low + high) / 2
    axes.set_xlim(middle[0] - half, middle[0] + half)
    axes.set_ylim(middle[1] - half, middle[1] + half)
    axes.set_aspect("equal", adjustable="box")


def color_of(label: int) -> str:
    """Return the colour of a class."""
    return _CLASSES[label % len(_CLASSES)]


def _legend(figure: Figure, names: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    def entry(name: str, marker: str, color: str, filled: bool = True) -> Line2D:
        return Line2D(
            [],
            [],
            linestyle="none",
            marker=marker,
            color=color,
            markerfacecolor=color if filled else "none",
            markersize=6,
            label=name,
        )

    entries = [
        entry("source", "o", BLACK, filled=False),
        entry("target", "^", BLACK),
        entry("target, unknown", "^", _UNKNOWN),
    ]
    if len(names) <= _NAMED:
        entries += [
            entry(figure_name(str(name), _LONGEST_NAME), "s", color_of(label))
            for label, name in enumerate(names)
        ]
    columns = _columns([str(line.get_label()) for line in entries], figure.get_figwidth())
    figure.legend(
        # matplotlib fills columns, people read rows.
        handles=[line for start in range(columns) for line in entries[start::columns]],
        loc="outside lower left",
        ncols=columns,
        frameon=False,
        fontsize=9,
        handletextpad=0.2,
        columnspacing=1.0,
    )


def _columns(labels: Sequence[str], width: float) -> int:
    """Return how many columns of a legend fit into so many inches."""
    inches = [0.42 + 0.075 * len(label) for label in labels]
    for columns in range(len(labels), 3, -1):
        if sum(max(inches[start::columns]) for start in range(columns)) <= width:
            return columns
    return 3
