"""The curves of a run as one picture: a panel for each question, one line a quantity."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opensetda.metrics.open_set import OpenSetMetrics
from opensetda.runs.figure_style import (
    BLUE,
    CYCLE,
    GREEN,
    GREY,
    LIGHT,
    MARKERS,
    METRIC_STYLE,
    ORANGE,
    EndLabel,
    dress,
    figure_bytes,
    frame_percent,
    label_ends,
    new_figure,
    short_number,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROUNDING, _LEAST_PERCENT = 1e-12, 1e-3


@dataclass(frozen=True)
class Line:
    """One quantity by the number of the step."""

    name: str
    values: Mapping[int, float]
    color: str
    marker: str
    width: float = 1.6


@dataclass(frozen=True)
class Panel:
    """One question and the lines that answer it."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    percent: bool = False
    level: float | None = None
    """A true value, the same at all steps: a dashed line."""


def draw_curves(
    history: Sequence[Mapping[str, Any]],
    step_metrics: Mapping[int, OpenSetMetrics] | None = None,
    title: str = "",
    *,
    kept_step: int | None = None,
    true_share: float | None = None,
) -> bytes:
    """Draw the curves of a run.

    Parameters
    ----------
    history : sequence of mappings
        One entry a step, as `history_` of a classifier holds them; quantities that a
        method does not have are left out.
    step_metrics : mapping of OpenSetMetrics, optional
        The metrics after each step, by its number, if the truth is known.
    title : str
        Above the picture.
    kept_step : int, optional
        The step that was kept, which gets a mark.
    true_share : float, optional
        The true share of unknowns, if the truth is known.

    Returns
    -------
    bytes
        A PNG file. The same curves give the same bytes.
    """
    panels = curve_panels(history, step_metrics, true_share)
    n_steps = max([len(history), *(step_metrics or {})], default=1)
    columns = 2 if len(panels) == 4 else min(max(len(panels), 1), 3)
    width = 5.2 if columns < 3 else 4.4
    return figure_bytes(curve_figure(panels, n_steps, title, kept_step, columns, (width, 3.4)))


def curve_figure(
    panels: Sequence[Panel],
    n_steps: int,
    title: str = "",
    kept_step: int | None = None,
    columns: int = 2,
    size: tuple[float, float] = (4.2, 2.6),
) -> Figure:
    """Draw panels of curves beside and below each other.

    Parameters
    ----------
    panels : sequence of Panel
        What to draw.
    n_steps : int
        The axes go from the first step to this one.
    title : str
        Above the picture.
    kept_step : int, optional
        The step that was kept, which gets a mark.
    columns : int
        How many panels stand beside each other.
    size : tuple of float
        Width and height of a panel in inches.
    """
    rows = math.ceil(max(len(panels), 1) / columns)
    width, height = size
    figure = new_figure(width * columns, height * rows + 0.5, title)
    grid = figure.add_gridspec(rows, columns)
    # What the last row has free, the first panel gets: it is the one people look at.
    free = rows * columns - len(panels)
    for place, panel in enumerate(panels):
        row, column = divmod(place + free if place else 0, columns)
        cell = grid[row, column : column + 1 + (free if place == 0 else 0)]
        _draw_panel(figure.add_subplot(cell), panel, n_steps, kept_step)
    return figure


def curve_panels(
    history: Sequence[Mapping[str, Any]],
    step_metrics: Mapping[int, OpenSetMetrics] | None = None,
    true_share: float | None = None,
) -> list[Panel]:
    """Return the panels that the numbers of a run can fill; parameters as for `draw_curves`."""
    return [
        *_truth_panels(step_metrics or {}),
        *_openness_panels(history, true_share),
        *_label_free_panels(history),
    ]


def _truth_panels(metrics: Mapping[int, OpenSetMetrics]) -> list[Panel]:
    def percent(name: str) -> dict[int, float]:
        return _curve({step: getattr(values, name) for step, values in metrics.items()}, 100)

    lines = []
    for metric in METRIC_STYLE:
        heading, color, marker, width = METRIC_STYLE[metric]
        lines.append(Line(heading, percent(metric), color, marker, width))
    return _panel("How good: against the true labels", "%", tuple(lines), percent=True)


def _openness_panels(history: Sequence[Mapping[str, Any]], true_share: float | None) -> list[Panel]:
    used, own = (
        _curve({step: entry.get(name) for step, entry in enumerate(history, start=1)}, 100)
        for name in ("openness", "openness_estimate")
    )
    lines = (
        # The thin line on top: where both agree it would be hidden.
        Line("used", used, BLUE, "o", 2.0),
        Line("estimate", own, ORANGE, "s", 1.0),
    )
    level = None if true_share is None else 100 * true_share
    return _panel("How open: share of unknowns", "% of targets", lines, percent=True, level=level)


def _label_free_panels(history: Sequence[Mapping[str, Any]]) -> list[Panel]:
    by_step = dict(enumerate(history, start=1))
    changed = _curve({step: entry.get("changed") for step, entry in by_step.items()}, 100)
    scores, threshold, n_known, n_unknown = (
        _curve({step: entry.get(name) for step, entry in by_step.items()})
        for name in ("mean_score", "threshold", "n_known", "n_unknown")
    )
    losses: dict[str, dict[int, Any]] = {}
    for step, entry in by_step.items():
        for name, value in (entry.get("loss") or {}).items():
            losses.setdefault(name, {})[step] = value
    lines = tuple(
        Line(name, _curve(values), CYCLE[place % len(CYCLE)], MARKERS[place % len(MARKERS)])
        for place, (name, values) in enumerate(losses.items())
    )
    return [
        *_panel(
            "How settled: labels that changed",
            "% of targets",
            (Line("changed", changed, BLUE, "o"),),
            percent=True,
        ),
        *_panel(
            "How far: pseudo-labels",
            "targets",
            (Line("known", n_known, BLUE, "o"), Line("unknown", n_unknown, ORANGE, "s")),
        ),
        *_panel(
            "How sure: known score",
            "score",
            (Line("mean", scores, GREEN, "o"), Line("threshold", threshold, ORANGE, "s")),
        ),
        *_panel("What it learns: training losses", "mean over the step", lines),
    ]


def _panel(
    title: str,
    unit: str,
    lines: tuple[Line, ...],
    percent: bool = False,
    level: float | None = None,
) -> list[Panel]:
    """Return the panel, or nothing if it has nothing to show."""
    drawn = tuple(line for line in lines if line.values)
    return [Panel(title, unit, drawn, percent, level)] if drawn else []


def _draw_panel(axes: Axes, panel: Panel, n_steps: int, kept_step: int | None) -> None:
    from matplotlib.ticker import MaxNLocator

    if panel.level is not None:
        axes.axhline(panel.level, color=GREY, linewidth=1.4, linestyle=(0, (5, 3)), zorder=1)
    for line in panel.lines:
        axes.plot(
            list(line.values),
            list(line.values.values()),
            color=line.color,
            marker=line.marker,
            markersize=4,
            linewidth=line.width,
            zorder=3 if line.width > 2 else 2,
        )
    dress(axes, panel.title)
    axes.set_xlabel("step")
    if kept_step is not None:
        # Said below the axis, where no curve can cross the words.
        axes.axvline(kept_step, color=LIGHT, linewidth=7, zorder=0.5)
        axes.set_xlabel(f"step (kept: {kept_step})")
    axes.set_ylabel(panel.unit)
    axes.set_xlim(0.6, n_steps + 0.4)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=min(n_steps, 10), integer=True))
    if n_steps == 1:
        axes.set_xticks([1])
    if panel.percent:
        frame_percent(axes)
    lines = list(panel.lines)
    if panel.level is not None:
        lines.append(Line("true", {n_steps: panel.level}, GREY, ""))
    label_ends(axes, [_end_label(line, named=len(lines) > 1) for line in lines])


def _end_label(line: Line, named: bool) -> EndLabel:
    """Return the last value of a line, and its name if there are several."""
    value = list(line.values.values())[-1]
    number = short_number(value)
    text = f"{line.name} {number}" if named else number
    return EndLabel(text, value, line.color, bold=line.width > 2)


def _curve(values: Mapping[int, Any], factor: float = 1.0) -> dict[int, float]:
    """Leave out steps where the quantity is not defined; what rounding leaves of 0 is 0."""
    least = _ROUNDING if factor == 1 else _LEAST_PERCENT
    return {
        step: float(value) * factor if abs(value * factor) > least else 0.0
        for step, value in values.items()
        if value is not None and math.isfinite(value)
    }
