"""The look of all figures, and the charts of the page: SVG in its colours and fonts."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from operator import itemgetter
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PatchCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from opensetda.data.names import printable
from opensetda.report.content import Confusion, LinePanel, ScoreHistogram, Series
from opensetda.usecases.evaluate_run import Evaluation

# Okabe and Ito's colours, safe for colour-blind readers and, in this order, of different
# brightness in print. HOS is black.
BLACK = "#000000"
BLUE = "#0072B2"
ORANGE = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
SKY = "#56B4E9"
YELLOW = "#E69F00"
GREY = "#777777"
PALE = "#DDDDDD"
KNOWN = "#3D424B"  # neither is the colour of a class
UNKNOWN = "#9A9EA6"
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, BLACK, SKY, YELLOW)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


class Look(NamedTuple):
    """How a line looks."""

    color: str
    marker: str
    width: float = 1.6


# Metrics look the same in every figure.
METRIC_STYLE = {
    "hos": ("HOS", Look(BLACK, "o", 2.4)),
    "os_star": ("OS*", Look(BLUE, "s")),
    "unk": ("UNK", Look(ORANGE, "^")),
    "os": ("OS", Look(GREEN, "D")),
    "all": ("ALL", Look(PURPLE, "v")),
}
# Of a title, to break it into lines.
_CHARACTERS_PER_INCH = 9.5
# What a file would say about when and with what it was made.
_SAID = {
    "png": ("Software",),
    "pdf": ("CreationDate", "ModDate"),
    "svg": ("Date", "Creator", "Format", "Type"),
}

# Classes of a confusion matrix with numbers in its cells, and with names.
_MOST_NUMBERS = 25
_MOST_NAMES = 80
# Inches of a cell and size of the text: with numbers, with names only, and with neither.
_ROOMY = (0.36, 8.5)
_CLOSE = (0.135, 6.5)
_TINY = (0.03, 6.5)
_LONGEST_NAME = 18
# Opacity of a cell without targets, and how much it grows: words are read on all of them.
_LEAST_OPAQUE = 0.06
_OPAQUE = 0.64

# Pixels of a point: at least, on a phone, where a chart scrolls; at most, as small print.
WIDE_CHART = 11.4  # inches of a chart that fills a card
PHONE_CHART = 4.4
_LEAST = 0.9
_MOST = 1.35
_COLORS = {
    BLACK: "var(--ink)",
    BLUE: "var(--c0)",
    ORANGE: "var(--c1)",
    GREEN: "var(--c2)",
    PURPLE: "var(--c3)",
    YELLOW: "var(--c4)",
    SKY: "var(--c5)",
    GREY: "var(--muted)",
    PALE: "var(--edge)",
    KNOWN: "var(--soft)",
    UNKNOWN: "var(--cu)",
}
_LINK = "{http://www.w3.org/1999/xlink}href"


def new_figure(width: float, height: float, title: str = "") -> Figure:
    """Return an empty figure of that size in inches, with its title at the left."""
    figure = Figure(figsize=(width, height), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    if title:
        # It may hold a file name: undecodable bytes, or dollar signs.
        lines = textwrap.wrap(printable(title), int(width * _CHARACTERS_PER_INCH))
        look: dict[str, Any] = {"fontsize": 12, "fontweight": "bold", "parse_math": False}
        figure.suptitle("\n".join(lines), x=0.01, ha="left", **look)
    return figure


def figure_bytes(figure: Figure, form: str) -> bytes:
    """Return the figure as a PNG, PDF or SVG file, deterministic; SVG has no background."""
    buffer = io.BytesIO()
    # TrueType: publishers refuse the default Type 3 fonts.
    with rc_context({"pdf.fonttype": 42}), warnings.catch_warnings():
        # A missing glyph is a box in the figure.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        look: dict[str, Any] = {
            "transparent": form == "svg",
            "metadata": dict.fromkeys(_SAID[form]),
        }
        figure.savefig(buffer, format=form, **look)
    return buffer.getvalue()


def _dress(axes: Axes, title: str = "") -> None:
    """Set the title, a pale grid behind the data, and no frame."""
    axes.set_title(title, fontsize=10.5, loc="left")
    axes.grid(axis="y", color=PALE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _label_ends(axes: Axes, labels: Sequence[tuple[str, float, str, bool]]) -> None:
    """Write labels (text, value, colour, whether bold) beside the panel, each at its value.

    Overlapping ones are moved apart.
    """
    low, high = axes.get_ylim()
    gap = (high - low) * 0.085
    place = -math.inf
    look: dict[str, Any] = {"fontsize": 9.5, "va": "center", "textcoords": "offset points"}
    look["xycoords"] = axes.get_yaxis_transform()
    for index, (text, value, color, bold) in enumerate(sorted(labels, key=itemgetter(1)), start=1):
        place = max(min(value, high - (len(labels) - index) * gap), place + gap)
        weight = "bold" if bold else "normal"
        axes.annotate(text, (1, place), (8, 0), color=color, fontweight=weight, **look)


def short_number(value: float) -> str:
    """Return a number with few digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def figure_name(name: str, longest: int) -> str:
    """Return the name of a class for matplotlib: short, in one line, never a formula."""
    # Without a glyph: control characters, such as those that change the direction of writing.
    shown = "".join(sign for sign in name.replace("_", " ") if sign.isprintable() or sign.isspace())
    flat = " ".join(shown.split())
    short = flat if len(flat) <= longest else f"{flat[: max(longest - 1, 1)]}…"
    return short.replace("$", r"\$")


def draw_histogram(histogram: ScoreHistogram, width: float = WIDE_CHART) -> Figure:
    """Draw the known scores of known and unknown targets, stacked, with the threshold."""
    figure = new_figure(width, 2.9)
    axes = figure.add_subplot()
    left = histogram.edges[:-1]
    widths = np.diff(histogram.edges)
    below = np.zeros_like(histogram.known)
    kinds = (("known", histogram.known, KNOWN), ("unknown", histogram.unknown, UNKNOWN))
    for name, counts, color in kinds:
        label = f"{name} ({int(counts.sum()):,})"
        axes.bar(left, counts, 0.9 * widths, below, align="edge", color=color, label=label)
        below = below + counts
    cut = histogram.threshold
    if cut is not None:
        look: dict[str, Any] = {"color": BLACK, "linewidth": 1.2, "linestyle": (0, (4, 2))}
        axes.axvline(cut, label=f"threshold {cut:.3g}", **look)
    _dress(axes)
    axes.set_xlabel("known score")
    axes.set_ylabel("targets")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axes.set_ylim(0, 1.08 * max(int(below.max(initial=0)), 1))
    spaces = {"handlelength": 1.2, "borderpad": 0, "frameon": False, "fontsize": 9}
    if width < WIDE_CHART:
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, **spaces)
    else:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), **spaces)
    return figure


def draw_confusion(confusion: Confusion) -> Figure:
    """Draw the matrix: blue is right, orange wrong, the opacity is the share of the row."""
    counts, (n_rows, n_columns) = confusion.counts, confusion.counts.shape
    most = max(n_rows, n_columns)
    numbers = most <= _MOST_NUMBERS
    named = most <= _MOST_NAMES
    cell, size = _ROOMY if numbers else _CLOSE if named else _TINY
    figure = new_figure(n_columns * cell + 2.0, n_rows * cell + 1.5)
    axes = figure.add_subplot()
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    cells = []
    colors = []
    for row, column in np.argwhere(counts).tolist():
        right = row if row < confusion.n_known else n_columns - 1
        opacity = _LEAST_OPAQUE + _OPAQUE * float(shares[row, column])
        cells.append(Rectangle((column - 0.5, row - 0.5), 1, 1))
        colors.append(to_rgba(BLUE if column == right else ORANGE, opacity))
        if numbers:
            # Numbers of five digits still fit.
            count = int(counts[row, column])
            look: dict[str, Any] = {"fontsize": size if count < 1000 else size - 2}
            axes.text(column, row, str(count), ha="center", va="center", color=BLACK, **look)
    axes.add_collection(PatchCollection(cells, facecolors=colors, edgecolors="none"))
    axes.set(xlim=(-0.5, n_columns - 0.5), ylim=(n_rows - 0.5, -0.5), aspect="equal")
    # What lies on this side of both lines are known classes, labelled as such.
    if 0 < confusion.n_known < n_rows:
        axes.axhline(confusion.n_known - 0.5, color=GREY, linewidth=0.8)
    if n_columns > 1:
        axes.axvline(n_columns - 1.5, color=GREY, linewidth=0.8)
    given, true = (
        [figure_name(name, _LONGEST_NAME) for name in names] if named else []
        for names in (confusion.given_names, confusion.true_names)
    )
    axes.set_xticks(range(len(given)), given, rotation=90)
    axes.set_yticks(range(len(true)), true)
    axes.set_xlabel("label")
    axes.set_ylabel("true class")
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0, pad=2, labelsize=size)
    axes.tick_params(axis="x", top=False, bottom=False, labeltop=True, labelbottom=False)
    for spine in axes.spines.values():
        spine.set(color=GREY, linewidth=0.8)
    return figure


def curve_panels(
    history: Sequence[Mapping[str, Any]], evaluation: Evaluation | None
) -> list[LinePanel]:
    """Return the curves over the steps of a method that learns: it has losses, and steps."""
    if len(history) < 2 or not any(entry.get("loss") for entry in history):
        return []
    steps = [] if evaluation is None else [found for _, found in sorted(evaluation.steps.items())]
    good = [
        step_line(heading, (getattr(found, name) for found in steps), look, factor=100)
        for name, (heading, look) in METRIC_STYLE.items()
    ]
    looks = [Look(color, marker) for color, marker in zip(CYCLE, MARKERS, strict=True)]
    values = (entry.get("changed") for entry in history)
    changed = [step_line("changed", values, looks[0], factor=100)]
    losses = [entry.get("loss") or {} for entry in history]
    names = dict.fromkeys(name for loss in losses for name in loss)
    learned = [
        step_line(name, (loss.get(name) for loss in losses), look)
        for name, look in zip(names, cycle(looks), strict=False)
    ]
    panels = [
        LinePanel("How good: against the true labels", "%", good, percent=True),
        LinePanel("How settled: labels that changed", "% of targets", changed, True),
        LinePanel("What it learns: training losses", "mean over the step", learned),
    ]
    return [panel for panel in panels if any(series.points for series in panel.series)]


def step_line(name: str, values: Iterable[Any], look: Look, factor: float = 1) -> Series:
    """Return the values of all steps as a line of that look, without those that are undefined."""
    found = ((step, value) for step, value in enumerate(values, start=1) if value is not None)
    points = {float(step): factor * value for step, value in found if math.isfinite(value)}
    return Series(name, points, color=look.color, marker=look.marker, width=look.width)


def draw_lines(panels: Sequence[LinePanel], title: str) -> Figure:
    """Draw panels beside and below each other; each line has its name and last value at its end."""
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / 2)
    figure = new_figure(max(4.7 * columns, 6.2), 3.6 * rows + 0.5, title)
    for place, panel in enumerate(panels, start=1):
        _draw_panel(figure.add_subplot(rows, columns, place), panel)
    return figure


def _draw_panel(axes: Axes, panel: LinePanel) -> None:
    ends = []
    for series in panel.series:
        values = list(series.points.values())
        is_wide = series.width > 2
        look: dict[str, Any] = {"marker": series.marker, "markersize": 4, "color": series.color}
        look |= {"linewidth": series.width, "zorder": 3 if is_wide else 2}
        axes.plot(list(series.points), values, **look)
        if values:
            value = values[-1]
            text = f"{series.name} {short_number(value)}"
            ends.append((text, value, series.color, is_wide))
    _dress(axes, panel.title)
    axes.set_xlabel("step")
    axes.set_ylabel(panel.unit)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    if panel.percent:
        # At least ten points, and nothing above 101.
        low, high = axes.get_ylim()
        axes.set_ylim(0 if low < 20 else min(low, high - 10), min(max(high, low + 10), 101))
    _label_ends(axes, ends)


def inline_svg(figure: Figure, words: str, fills: bool = False) -> Markup:
    """Return a figure as an SVG element; `words` describe it to those who do not see it.

    One that `fills` its card has no size of its own.
    """
    # Text stays text, in the fonts of the page; ids are made from the words.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": words}):
        root = ElementTree.fromstring(figure_bytes(figure, "svg"))
    width = float(root.attrib["viewBox"].split()[2])
    for parent in list(root.iter()):
        for child in list(parent):
            # It would be a style of the whole page.
            if child.tag.endswith("}style"):
                parent.remove(child)
    for node in root.iter():
        node.tag = node.tag.partition("}")[2]
        if _LINK in node.attrib:
            node.attrib["href"] = node.attrib.pop(_LINK)
        if node.tag == "g":
            # The same in every figure, and nothing refers to it.
            node.attrib.pop("id", None)
        if "style" in node.attrib:
            node.attrib["style"] = _themed(node.attrib["style"])
        node.text = node.text if node.tag == "text" else None
        node.tail = None
    size = f"min-width: {_LEAST * width:.0f}px; max-width: {_MOST * width:.0f}px"
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": words}
    root.attrib |= {"class": "chart"} if fills else {"class": "chart", "style": size}
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _themed(declarations: str) -> str:
    """Return the style of a mark in the colours, and of words in the font, of the page."""
    pairs = (declaration.partition(": ") for declaration in declarations.split("; "))
    kept = [(name, value) for name, _, value in pairs if name != "font-family"]
    return "; ".join(f"{name}: {_COLORS.get(value.upper(), value)}" for name, value in kept)
