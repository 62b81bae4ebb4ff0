"""The curves of a run as one picture: a panel for each question, one line a quantity."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opensetda.metrics import OpenSetMetrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, told apart by every kind of colour vision and, in this order,
# by their brightness in print. HOS, the summary, gets black.
_BLACK, _BLUE, _ORANGE, _GREEN, _PURPLE = "#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7"
_CYCLE = (_BLUE, _ORANGE, _GREEN, _PURPLE, _BLACK)
_MARKERS = ("o", "s", "^", "D", "v")


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


def draw_curves(
    history: Sequence[Mapping[str, Any]],
    step_metrics: Mapping[int, OpenSetMetrics] | None = None,
    title: str = "",
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

    Returns
    -------
    bytes
        A PNG file. The same curves give the same bytes.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [*_truth_panels(step_metrics or {}), *_label_free_panels(history)]
    n_steps = max([len(history), *(step_metrics or {})], default=1)
    columns = 2 if len(panels) == 4 else max(len(panels), 1)
    rows = math.ceil(max(len(panels), 1) / columns)
    size = (5.2 * columns, 3.4 * rows + 0.5)
    figure = Figure(figsize=size, layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
    for place, panel in enumerate(panels, start=1):
        _draw_panel(figure.add_subplot(rows, columns, place), panel, n_steps)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _truth_panels(metrics: Mapping[int, OpenSetMetrics]) -> list[Panel]:
    def percent(name: str) -> dict[int, float]:
        return _curve({step: getattr(values, name) for step, values in metrics.items()}, 100)

    lines = (
        Line("HOS", percent("hos"), _BLACK, "o", 2.4),
        Line("OS*", percent("os_star"), _BLUE, "s"),
        Line("UNK", percent("unk"), _ORANGE, "^"),
    )
    return _panel("How good: against the true labels", "%", lines, percent=True)


def _label_free_panels(history: Sequence[Mapping[str, Any]]) -> list[Panel]:
    by_step = dict(enumerate(history, start=1))
    changed = _curve({step: entry.get("changed") for step, entry in by_step.items()}, 100)
    scores = _curve({step: entry.get("mean_score") for step, entry in by_step.items()})
    losses: dict[str, dict[int, Any]] = {}
    for step, entry in by_step.items():
        for name, value in (entry.get("loss") or {}).items():
            losses.setdefault(name, {})[step] = value
    lines = tuple(
        Line(name, _curve(values), _CYCLE[place % len(_CYCLE)], _MARKERS[place % len(_MARKERS)])
        for place, (name, values) in enumerate(losses.items())
    )
    return [
        *_panel(
            "How settled: labels that changed",
            "% of targets",
            (Line("changed", changed, _BLUE, "o"),),
            percent=True,
        ),
        *_panel(
            "How sure: known score",
            "mean over all targets",
            (Line("mean known score", scores, _GREEN, "o"),),
        ),
        *_panel("What it learns: training losses", "mean over the step", lines),
    ]


def _panel(title: str, unit: str, lines: tuple[Line, ...], percent: bool = False) -> list[Panel]:
    """Return the panel, or nothing if it has nothing to show."""
    drawn = tuple(line for line in lines if line.values)
    return [Panel(title, unit, drawn, percent)] if drawn else []


def _draw_panel(axes: Axes, panel: Panel, n_steps: int) -> None:
    from matplotlib.ticker import MaxNLocator

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
    axes.set_title(panel.title, fontsize=10.5, loc="left")
    axes.set_xlabel("step")
    axes.set_ylabel(panel.unit)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(0.6, n_steps + 0.4)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=min(n_steps, 10), integer=True))
    if panel.percent:
        low, high = axes.get_ylim()
        axes.set_ylim(0 if low < 20 else min(low, high - 10), min(max(high, low + 10), 101))
    _label_ends(axes, panel.lines)


def _label_ends(axes: Axes, lines: Sequence[Line]) -> None:
    """Write the last value beside each line, and its name if there are several.

    Labels that would overlap are pushed apart.
    """
    low, high = axes.get_ylim()
    gap = (high - low) * 0.07
    place = -math.inf
    for line in sorted(lines, key=_last):
        value = _last(line)
        place = max(value, place + gap)
        number = f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"
        axes.text(
            1.02,
            place,
            number if len(lines) == 1 else f"{line.name} {number}",
            transform=axes.get_yaxis_transform(),
            color=line.color,
            fontsize=9.5,
            fontweight="bold" if line.width > 2 else "normal",
            va="center",
        )


def _last(line: Line) -> float:
    return list(line.values.values())[-1]


def _curve(values: Mapping[int, Any], factor: float = 1.0) -> dict[int, float]:
    """Leave out steps where the quantity is not defined."""
    return {
        step: float(value) * factor
        for step, value in values.items()
        if value is not None and math.isfinite(value)
    }
