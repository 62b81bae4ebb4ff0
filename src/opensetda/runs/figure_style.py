"""The look of all figures: colours, axes, names beside lines; and figures as files."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

from opensetda.data.images.lists import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, safe for colour-blind readers and, in this order, of different
# brightness in print. HOS is black.
BLACK, BLUE, ORANGE, GREEN, PURPLE = "#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SKY, YELLOW = "#56B4E9", "#E69F00"
GREY, PALE, LIGHT = "#777777", "#DDDDDD", "#E3E3E3"
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, BLACK, SKY, YELLOW)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

# Of a title, to break it into lines.
_CHARACTERS_PER_INCH = 9.5
# Metrics look the same in every figure: heading, colour, marker, width of the line.
METRIC_STYLE = {
    "hos": ("HOS", BLACK, "o", 2.4),
    "os_star": ("OS*", BLUE, "s", 1.6),
    "unk": ("UNK", ORANGE, "^", 1.6),
    "os": ("OS", GREEN, "D", 1.6),
    "all": ("ALL", PURPLE, "v", 1.6),
}


def new_figure(width: float, height: float, title: str = "") -> Figure:
    """Return an empty figure of that size in inches, with its title at the left."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    if title:
        # It may hold a file name: undecodable bytes, or dollar signs.
        lines = textwrap.wrap(printable(title), int(width * _CHARACTERS_PER_INCH))
        look: dict[str, Any] = {"fontsize": 12, "fontweight": "bold", "parse_math": False}
        figure.suptitle("\n".join(lines), x=0.01, ha="left", **look)
    return figure


# What a file would say about when and with what it was made.
_SAID = {
    "png": ("Software",),
    "pdf": ("CreationDate", "ModDate"),
    "svg": ("Date", "Creator", "Format", "Type"),
}


def figure_bytes(
    figure: Figure, form: str = "png", dpi: float | Literal["figure"] = "figure", crop: bool = False
) -> bytes:
    """Return the figure as a PNG, PDF or SVG file, deterministic.

    `crop` removes empty borders. SVG has no background: it is for a page.
    """
    from matplotlib import rc_context

    how: dict[str, Any] = {"metadata": dict.fromkeys(_SAID[form]), "dpi": dpi}
    how |= {"bbox_inches": "tight", "pad_inches": 0.03} if crop else {}
    buffer = io.BytesIO()
    # TrueType: publishers refuse the default Type 3 fonts.
    with rc_context({"pdf.fonttype": 42}), warnings.catch_warnings():
        # A missing glyph is a box in the figure.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format=form, transparent=form == "svg", **how)
    return buffer.getvalue()


def dress(axes: Axes, title: str = "", grid: Literal["x", "y"] = "y") -> None:
    """Set the title, a pale grid behind the data, and no frame."""
    if title:
        axes.set_title(title, fontsize=10.5, loc="left")
    axes.grid(axis=grid, color=PALE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def frame_percent(axes: Axes) -> None:
    """Show at least ten points of a percentage, and nothing above 101."""
    low, high = axes.get_ylim()
    axes.set_ylim(0 if low < 20 else min(low, high - 10), min(max(high, low + 10), 101))


def plot_line(
    axes: Axes, values: Mapping[Any, float], color: str, marker: str, width: float
) -> None:
    """Plot values by place; wide lines are above others."""
    look: dict[str, Any] = {"color": color, "marker": marker, "markersize": 4, "linewidth": width}
    axes.plot(list(values), list(values.values()), zorder=3 if width > 2 else 2, **look)


def write_beside(axes: Axes, text: str, place: float, color: str, bold: bool) -> None:
    """Write a text at the right of the panel, at the height `place` of its axis."""
    where, weight = axes.get_yaxis_transform(), "bold" if bold else "normal"
    look: dict[str, Any] = {"color": color, "fontsize": 9.5, "fontweight": weight, "va": "center"}
    axes.annotate(text, (1, place), (8, 0), xycoords=where, textcoords="offset points", **look)


def label_ends(axes: Axes, labels: Sequence[tuple[str, float, str, bool]]) -> None:
    """Write labels (text, value, colour, whether bold) beside the panel, each at its value.

    Overlapping ones are moved apart.
    """
    low, high = axes.get_ylim()
    gap, place = (high - low) * 0.085, -math.inf
    for index, (text, value, color, bold) in enumerate(sorted(labels, key=itemgetter(1)), start=1):
        place = max(min(value, high - (len(labels) - index) * gap), place + gap)
        write_beside(axes, text, place, color, bold)


def short_number(value: float) -> str:
    """Return a number with few digits."""
    if abs(value) >= 1000 or (abs(value) >= 10 and value == round(value)):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def shorten(text: str, longest: int) -> str:
    """Return a text in one line, and of a long one the beginning."""
    flat = " ".join(text.split())
    return flat if len(flat) <= longest else f"{flat[: max(longest - 1, 1)]}…"


def figure_name(name: str, longest: int) -> str:
    """Return the name of a class for matplotlib: short, in one line, never a formula."""
    # Without a glyph: control characters, such as those that change the direction of writing.
    shown = "".join(sign for sign in name.replace("_", " ") if sign.isprintable() or sign.isspace())
    return shorten(shown, longest).replace("$", r"\$")
