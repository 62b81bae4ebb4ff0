"""The report as one self-contained HTML file: styles, scripts, data and pictures are inside.

Templates escape everything that comes from a run; only the files of this package, and the charts
(`opensetda.report.charts`), are trusted. The page may not load anything, and runs no script but
its own: its content security policy has the script's hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from opensetda import __version__
from opensetda.report.charts import (
    PHONE_CHART,
    draw_confusion,
    draw_histogram,
    draw_lines,
    inline_svg,
)
from opensetda.report.content import Confusion, Report, SampleMap
from opensetda.system.files import in_shell

_STYLES = ("base.css", "parts.css", "samples.css", "map.css", "share.css")
_MAP_SCRIPTS = ("map_data.js", "map_draw.js", "map_legend.js", "map_input.js", "map.js")
_SCRIPTS = ("page.js", *_MAP_SCRIPTS, "share.js")
# After ten colours the shape changes, as on the map.
_COLORS = 10
_SHAPES = 6
# Fractions are sent to the scripts as whole numbers up to this.
_FINEST = 65535
_DASH = "\N{EN DASH}"
_SEPARATOR = re.compile(r"[_./\\ -]+(?=[^_./\\ -])")
_OPTION = re.compile(r"--[a-z][a-z-]*")


def render_page(report: Report) -> str:
    """Return the report as an HTML file, to be written as UTF-8; missing parts are left out."""
    code = Markup("\n").join(asset(name) for name in _SCRIPTS)
    script = Markup('(function () {\n"use strict";\n') + code + Markup("\n})();")
    *_, unknown = report.counts
    n_known = report.n_target - unknown.count
    color = {**_color_classes(report.map.classes), unknown.name: "ku"}
    histogram = draw_histogram(report.histogram)
    words = f"Histogram of the known score: {n_known:,} known and {unknown.count:,} unknown targets"
    # First: drawing makes the layout, which the places of thresholds need.
    histogram_chart = inline_svg(histogram, words, fills=True)
    narrow_chart = inline_svg(
        draw_histogram(report.histogram, PHONE_CHART), f"{words} (small)", fills=True
    )
    curves = "Curves over the steps. " + "; ".join(panel.title for panel in report.panels)
    template = template_environment().get_template("report.html")
    page = template.render(
        report=report,
        styles=Markup("\n").join(asset(name) for name in _STYLES),
        light=asset("light.css"),
        dark=asset("dark.css"),
        script=script,
        policy=page_policy(script),
        version=__version__,
        n_unknown=unknown.count,
        n_known=n_known,
        unknown=unknown.name,
        color=color,
        longest=max(count.count for count in report.counts) or 1,
        histogram=histogram_chart,
        narrow_histogram=narrow_chart,
        histogram_box=histogram.axes[0].get_position(),
        map_json=_script_json(map_values(report.map, unknown.name)),
        share_json=_script_json(_share_values(report, color, histogram)),
        confusion=None if report.confusion is None else _confusion_chart(report.confusion),
        curves=report.panels and inline_svg(draw_lines(report.panels, ""), curves),
    )
    # A file name that is no valid text has surrogates, which UTF-8 cannot hold.
    return page.encode("utf-8", "backslashreplace").decode("utf-8")


def _color_classes(names: Sequence[str]) -> dict[str, str]:
    """Return the style classes of every class's colour and shape, the same as in the map."""
    many = len(names) > _COLORS
    return {
        name: f"k{index % _COLORS}" + (f" s{index // _COLORS % _SHAPES}" if many else "")
        for index, name in enumerate(names)
    }


def _confusion_chart(confusion: Confusion) -> Markup:
    counts = confusion.counts
    n_known = confusion.n_known
    right = int(counts.diagonal()[:n_known].sum() + counts[n_known:, -1].sum())
    words = f"Confusion matrix: {right:,} of {int(counts.sum()):,} targets are labelled right"
    return inline_svg(draw_confusion(confusion), words)


# Data for the scripts -------------------------------------------------------------------------


def map_values(samples: SampleMap, unknown_label: str) -> dict[str, Any]:
    """Return the map as plain values for the script of the page."""
    return {
        "n": len(samples.names),
        "nSource": int((~samples.is_target).sum()),
        "classes": list(samples.classes),
        "trueClasses": list(samples.true_classes),
        "unknown": unknown_label,
        "places": _fractions(samples.places),
        "labels": _base64(samples.labels),
        "confidence": _fractions(samples.confidence),
        "noTruth": samples.no_truth,
        "truth": None if samples.truth is None else _base64(samples.truth),
        "names": list(samples.names),
        "pictures": list(samples.pictures) if any(samples.pictures) else None,
    }


def _share_values(report: Report, styles: Mapping[str, str], histogram: Figure) -> dict[str, Any]:
    """Return what other shares of unknowns would give, for the script of the page."""
    what = report.what_if
    names = [count.name for count in report.counts]
    # The labels are listed by size, the counts are in the order of the classes.
    place = {name: index for index, name in enumerate([*report.map.classes, names[-1]])}
    axes = histogram.axes[0]
    (low, high), box = axes.get_xlim(), axes.get_position()
    # Of the thresholds in the histogram, in percent of its width; None beyond its ends.
    at = [100 * (box.x0 + box.width * (cut - low) / (high - low)) for cut in what.cuts]
    inside = [low <= cut <= high for cut in what.cuts]
    return {
        "shares": [round(share, 6) for share in what.shares],
        "places": [round(x, 3) if ok else None for x, ok in zip(at, inside, strict=True)],
        "used": what.used,
        "counts": what.counts.tolist(),
        "rows": [place[name] for name in names],
        "styles": [styles[name] for name in place],
        "order": _base64(what.order),
        "nearest": _base64(what.nearest),
        "below": list(what.below),
    }


def _fractions(values: npt.NDArray[np.float64]) -> str:
    return _base64(np.rint(np.nan_to_num(np.clip(values, 0.0, 1.0), nan=0.5) * _FINEST))


def _base64(values: npt.NDArray[Any]) -> str:
    """Return whole numbers, of two bytes each, as text."""
    return base64.b64encode(values.astype("<u2").tobytes()).decode("ascii")


def _script_json(values: Any) -> Markup:
    """Return ASCII JSON for a script element, without any character that could end it."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


# Templates ------------------------------------------------------------------------------------


@cache
def template_environment() -> jinja2.Environment:
    """Return the templates of this package, which escape whatever comes from a run."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        percent=_percent,
        thousands="{:,}".format,
        plural=lambda noun, count: noun if count == 1 else f"{noun}s",
        options=_option_words,
        breakable=_breakable,
        sentence=_sentence,
        in_shell=in_shell,
        file_name=lambda path: path.rstrip("/").rpartition("/")[2].strip() or path,
    )
    return environment


@cache
def _template(name: str) -> str:
    return files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def asset(name: str) -> Markup:
    """Return a file of this package as trusted markup; no text of a run ever gets here."""
    return Markup(_template(name))


def page_policy(script: str) -> str:
    """Return what a page may load and run: nothing but its own script."""
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


def _percent(value: float | None, decimals: int = 0) -> str:
    """Return a share as it is read; "100 %" only if it is one."""
    if value is None or not math.isfinite(value):
        return _DASH
    shown = f"{100 * value:.{decimals}f}"
    if value < 1 and float(shown) >= 100:
        shown = f"{100 - 10.0**-decimals:.{decimals}f}"
    return f"{shown}\u202f%"


def _option_words(text: str) -> Markup:
    """Return a text whose options, such as --openness, are not broken at their hyphens."""
    return Markup(_OPTION.sub(r"<code>\g<0></code>", str(escape(text))))


def _breakable(name: str) -> Markup:
    """Return the name of a file, which may be broken after a separator."""
    return Markup(_SEPARATOR.sub("\\g<0><wbr>", str(escape(name))))


def _sentence(text: str) -> str:
    """Return a text with a capital at its start and a full stop at its end."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?", ":")) else ".")
