"""How targets of each true class were labelled, as a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from opensetda.report.content import Confusion
from opensetda.report.names import figure_name
from opensetda.runs.figure_style import BLACK, BLUE, GREY, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# With more rows the unknown classes become one.
MOST_ROWS = 80
# Inches of a cell, and points of the words: with numbers in the cells, with names beside them
# only, and for so many classes that nobody could read a name.
_ROOMY, _CLOSE, _TINY = (0.36, 8.5), (0.135, 6.5), (0.03, 6.5)
_MOST_NUMBERS, _MOST_NAMES = 16, 80
_LONGEST_NAME = 18
# Inches of the colours' scale, however large the matrix is.
_SCALE = 1.8


def draw_confusion(confusion: Confusion) -> Figure:
    """Draw the matrix: colour is the share of the row, numbers are targets."""
    confusion = _limited(confusion)
    n_rows, n_columns = confusion.counts.shape
    most = max(n_rows, n_columns)
    named, numbers = most <= _MOST_NAMES, most <= _MOST_NUMBERS
    cell, size = _ROOMY if numbers else _CLOSE if named else _TINY
    figure = new_figure(n_columns * cell + 2.2, n_rows * cell + 1.5)
    # Squares stay squares; the scale stands beside them all the same.
    figure.set_layout_engine("compressed")
    axes = figure.add_subplot()
    shares = _shares(confusion.counts)
    image = axes.imshow(
        shares, cmap=_blues(), vmin=0, vmax=1, interpolation="nearest", aspect="equal"
    )
    if numbers:
        _write_numbers(axes, confusion.counts, shares, size)
    # What lies on this side of both lines are known classes, labelled as such.
    for line, place, length in (
        (axes.axhline, confusion.n_known, n_rows),
        (axes.axvline, n_columns - 1, n_columns),
    ):
        if 0 < place < length:
            line(place - 0.5, color=GREY, linewidth=0.8)
    axes.set_ylabel("true class")
    axes.set_xlabel("label")
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0, pad=2, labelsize=size)
    axes.tick_params(axis="x", top=False, bottom=False, labeltop=True, labelbottom=False)
    if named:
        axes.set_xticks(range(n_columns), _names(confusion.given_names), rotation=90)
        axes.set_yticks(range(n_rows), _names(confusion.true_names))
    else:
        axes.set_xticks([])
        axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(GREY)
        spine.set_linewidth(0.8)
    length = min(1.0, _SCALE / (n_rows * cell))
    bar = figure.colorbar(
        image, ax=axes, shrink=length, aspect=15, pad=0.03, fraction=0.08, ticks=[0, 0.5, 1]
    )
    bar.ax.set_yticklabels(["0", "50", "100"])
    bar.set_label("% of the true class", fontsize=8)
    bar.ax.tick_params(labelsize=8, color=GREY)
    bar.outline.set_visible(False)
    return figure


def _limited(confusion: Confusion) -> Confusion:
    """Put the unknown classes together if there are too many rows."""
    n_unknown = len(confusion.true_names) - confusion.n_known
    if len(confusion.true_names) <= MOST_ROWS or n_unknown < 2:
        return confusion
    known, others = np.split(confusion.counts, [confusion.n_known])
    return replace(
        confusion,
        true_names=(*confusion.true_names[: confusion.n_known], f"{n_unknown} unknown classes"),
        counts=np.concatenate([known, others.sum(axis=0, keepdims=True)]),
    )


def _shares(counts: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
    totals = counts.sum(axis=1, keepdims=True)
    return np.asarray(counts / np.maximum(totals, 1))


def _names(names: Sequence[str]) -> list[str]:
    return [figure_name(name, _LONGEST_NAME) for name in names]


def _write_numbers(
    axes: Axes,
    counts: npt.NDArray[np.intp],
    shares: npt.NDArray[np.float64],
    size: float,
) -> None:
    for (row, column), count in np.ndenumerate(counts):
        # Zeros say nothing; without them the mistakes are seen.
        if count:
            color = "white" if shares[row, column] > 0.55 else BLACK
            # Numbers of five digits still fit.
            smaller = size if count < 1000 else size - 2
            axes.text(
                column, row, str(count), ha="center", va="center", color=color, fontsize=smaller
            )


def _blues() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("blues", ["white", BLUE])
