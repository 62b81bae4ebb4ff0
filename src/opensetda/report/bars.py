"""Histograms of known scores below each other, with the threshold through all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opensetda.report.content import ScoreHistogram
from opensetda.runs.figure_style import BLACK, BLUE, ORANGE, dress, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class HistogramPanel:
    """One way to tell known and unknown apart, and how the scores of both lie."""

    title: str
    histogram: ScoreHistogram


def draw_histograms(panels: Sequence[HistogramPanel]) -> Figure:
    """Draw histograms of the same scores; unknown stands on known."""
    figure = new_figure(5.0, 2.1 * len(panels) + 0.7)
    first: Axes | None = None
    for number, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(len(panels), 1, number, sharex=first)
        first = first or axes
        _draw_panel(axes, panel)
        axes.tick_params(labelbottom=number == len(panels))
    axes.set_xlabel("known score")
    return figure


def _draw_panel(axes: Axes, panel: HistogramPanel) -> None:
    from matplotlib.ticker import MaxNLocator

    histogram = panel.histogram
    left, widths = histogram.edges[:-1], histogram.edges[1:] - histogram.edges[:-1]
    below = 0 * histogram.known
    for name, counts, color in (
        ("known", histogram.known, BLUE),
        ("unknown", histogram.unknown, ORANGE),
    ):
        label = f"{name} ({int(counts.sum()):,})"
        # A thin gap between bars, so that single ones can be told apart in print.
        axes.bar(left, counts, 0.9 * widths, below, align="edge", color=color, label=label)
        below = below + counts
    dress(axes, panel.title)
    axes.set_ylabel("targets")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axes.set_ylim(0, 1.08 * max(int(below.max(initial=0)), 1))
    if histogram.threshold is not None:
        axes.axvline(
            histogram.threshold,
            color=BLACK,
            linewidth=1.2,
            linestyle=(0, (4, 2)),
            label=f"threshold {histogram.threshold:.3g}",
        )
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        frameon=False,
        fontsize=9,
        handlelength=1.2,
        borderpad=0,
    )
