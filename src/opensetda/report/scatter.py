"""Samples in a plane, a panel a method: colour is the class, the marker the domain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from opensetda.report.style import BLACK, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_UNKNOWN = "#A8A8A8"
# Up to ten classes get colours that most people tell apart; beyond that colours repeat
# with another brightness, and only neighbours in the plane need to differ.
_CLASSES = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"),
    *("#56B4E9", "#7B3F00", "#B2DF3A", "#5B2C83", "#F0E442"),
)
_NAMED = 12


@dataclass(frozen=True)
class ScatterPanel:
    """One method's view of the samples.

    Attributes
    ----------
    places : array of shape (n, 2)
        Where each sample is.
    remark : str
        A line below the title.
    """

    title: str
    places: npt.NDArray[np.floating[Any]]
    remark: str = ""


def draw_scatter(
    panels: Sequence[ScatterPanel],
    classes: npt.NDArray[np.intp],
    is_target: npt.NDArray[np.bool_],
    names: Sequence[str],
    title: str,
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
    """
    columns = len(panels) if len(panels) <= 3 else math.ceil(len(panels) / 2)
    columns = min(columns, 4)
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(max(4.0 * columns, 6.4), 4.15 * rows + 1.15, title)
    for number, panel in enumerate(panels, start=1):
        _draw_panel(
            figure.add_subplot(rows, columns, number), panel, classes, is_target, len(names)
        )
    _legend(figure, names)
    return figure


def _draw_panel(
    axes: Axes,
    panel: ScatterPanel,
    classes: npt.NDArray[np.intp],
    is_target: npt.NDArray[np.bool_],
    n_classes: int,
) -> None:
    unknown = classes >= n_classes
    colors = [_UNKNOWN if label >= n_classes else color_of(label) for label in classes.tolist()]

    def scatter(which: npt.NDArray[np.bool_], marker: str, filled: bool, **more: Any) -> None:
        x, y = panel.places[which].T
        own = [color for color, chosen in zip(colors, which.tolist(), strict=True) if chosen]
        face, edge = (own, "none") if filled else ("none", own)
        axes.scatter(x, y, s=16, marker=marker, facecolors=face, edgecolors=edge, **more)

    scatter(unknown, "^", True, alpha=0.6)
    scatter(~is_target, "o", False, alpha=0.8, linewidths=0.9)
    scatter(is_target & ~unknown, "^", True)
    axes.set_title(panel.title, fontsize=10.5, loc="left", fontweight="bold")
    axes.set_xlabel(panel.remark, fontsize=9)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_aspect("equal", adjustable="datalim")
    for spine in axes.spines.values():
        spine.set_color("#CCCCCC")


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
            entry(str(name).replace("_", " "), "s", color_of(label))
            for label, name in enumerate(names)
        ]
    width = figure.get_figwidth()
    figure.legend(
        handles=entries,
        loc="outside lower left",
        ncols=max(3, int(width / 1.55)),
        frameon=False,
        fontsize=9,
        handletextpad=0.2,
        columnspacing=1.0,
    )
