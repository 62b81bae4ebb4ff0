"""How all figures look: colours, axes, names beside lines; and figures as files."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from opensetda.data.images.lists import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by every kind of colour vision and, in this order,
# by their brightness in print. HOS, the summary, gets black.
BLACK, BLUE, ORANGE, GREEN, PURPLE = "#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SKY, YELLOW = "#56B4E9", "#E69F00"
GREY, PALE, LIGHT = "#777777", "#DDDDDD", "#E3E3E3"
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, BLACK, SKY, YELLOW)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

# Of a title: what does not fit goes into another line.
CHARACTERS_PER_INCH = 9.5

# Metrics look the same in every figure: heading, colour, marker, width of the line.
METRIC_STYLE = {
    "hos": ("HOS", BLACK, "o", 2.4),
    "os_star": ("OS*", BLUE, "s", 1.6),
    "unk": ("UNK", ORANGE, "^", 1.6),
    "os": ("OS", GREEN, "D", 1.6),
    "all": ("ALL", PURPLE, "v", 1.6),
}


class EndLabel(NamedTuple):
    """What is written beside the end of a line."""

    text: str
    value: float
    color: str
    bold: bool = False


def new_figure(width: float, height: float, title: str = "") -> Figure:
    """Return an empty figure of that size in inches, with its title at the left."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    if title:
        # A file's name, above all: it may be no text, or have two dollars, no formula.
        lines = textwrap.wrap(printable(title), int(width * CHARACTERS_PER_INCH))
        look: dict[str, Any] = {"fontsize": 12, "fontweight": "bold", "parse_math": False}
        figure.suptitle("\n".join(lines), x=0.01, ha="left", **look)
    return figure


def figure_bytes(
    figure: Figure, form: str = "png", dpi: float | Literal["figure"] = "figure", crop: bool = False
) -> bytes:
    """Return the figure as a PNG or PDF file; the same figure gives the same bytes.

    With `crop` the borders go that have nothing on them.
    """
    from matplotlib import rc_context

    metadata = {"Software": None} if form == "png" else {"CreationDate": None, "ModDate": None}
    buffer = io.BytesIO()
    # TrueType: publishers refuse the fonts that matplotlib embeds otherwise.
    with rc_context({"pdf.fonttype": 42}), warnings.catch_warnings():
        # Of a letter that no font has there is a box in the figure: that says it once.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(
            buffer,
            format=form,
            metadata=metadata,
            dpi=dpi,
            bbox_inches="tight" if crop else None,
            pad_inches=0.03,
        )
    return buffer.getvalue()


def dress(axes: Axes, title: str = "", grid: str = "y") -> None:
    """Give a panel its title, a pale grid behind the data, and no frame."""
    if title:
        axes.set_title(title, fontsize=10.5, loc="left")
    if grid == "x":
        axes.grid(axis="x", color=PALE, linewidth=0.8)
    else:
        axes.grid(axis="y", color=PALE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def frame_percent(axes: Axes) -> None:
    """Show at least ten points of a percentage, and nothing above 101."""
    low, high = axes.get_ylim()
    axes.set_ylim(0 if low < 20 else min(low, high - 10), min(max(high, low + 10), 101))


def label_ends(axes: Axes, labels: Sequence[EndLabel]) -> None:
    """Write labels beside the panel, each at its value.

    Labels that would overlap are pushed apart, and stay beside the panel.
    """
    low, high = axes.get_ylim()
    gap = (high - low) * 0.085
    ordered = sorted(labels, key=lambda label: label.value)
    place = -math.inf
    for left, label in zip(range(len(ordered) - 1, -1, -1), ordered, strict=True):
        place = max(min(label.value, high - left * gap), place + gap)
        axes.annotate(
            label.text,
            (1, place),
            xycoords=axes.get_yaxis_transform(),
            xytext=(8, 0),
            textcoords="offset points",
            color=label.color,
            fontsize=9.5,
            fontweight="bold" if label.bold else "normal",
            va="center",
        )


def short_number(value: float) -> str:
    """Return a number as it is written beside a line; whole ones are counts."""
    if abs(value) >= 1000 or (abs(value) >= 10 and value == round(value)):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"
