"""The look of all figures: colours, axes, names beside lines; and figures as files."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from opensetda.data.names import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, safe for colour-blind readers and, in this order, of different
# brightness in print. HOS is black.
BLACK, BLUE, ORANGE, GREEN, PURPLE = "#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SKY, YELLOW, GREY, PALE = "#56B4E9", "#E69F00", "#777777", "#DDDDDD"
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


def figure_bytes(figure: Figure, form: str) -> bytes:
    """Return the figure as a PNG, PDF or SVG file, deterministic; SVG has no background."""
    from matplotlib import rc_context

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


def dress(axes: Axes, title: str = "") -> None:
    """Set the title, a pale grid behind the data, and no frame."""
    axes.set_title(title, fontsize=10.5, loc="left")
    axes.grid(axis="y", color=PALE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def label_ends(axes: Axes, labels: Sequence[tuple[str, float, str, bool]]) -> None:
    """Write labels (text, value, colour, whether bold) beside the panel, each at its value.

    Overlapping ones are moved apart.
    """
    low, high = axes.get_ylim()
    gap, place = (high - low) * 0.085, -math.inf
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
