"""The report as one self-contained HTML file: styles, scripts, data and pictures are inside.

Templates escape everything that comes from a run; only the files of this package, and the charts
(`opensetda.report.inline`), are trusted. The page may not load anything, and runs no script but
its own: its content security policy has the script's hash.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from opensetda import __version__
from opensetda.report.collect import Progress, collect
from opensetda.report.content import Confusion, LinePanel, Report
from opensetda.report.inline import inline_svg
from opensetda.report.matrices import draw_confusion
from opensetda.report.page_data import (
    Axis,
    map_values,
    picture_address,
    script_json,
    share_values,
)
from opensetda.report.plots import draw_histograms, draw_lines
from opensetda.runs.figure_style import shorten
from opensetda.runs.folder import REPORT, RunFolder
from opensetda.system.files import in_shell, new_file

_STYLES = ("base.css", "parts.css", "samples.css", "map.css", "share.css")
_MAP_SCRIPTS = ("map_data.js", "map_draw.js", "map_legend.js", "map_input.js", "map.js")
_SCRIPTS = ("page.js", *_MAP_SCRIPTS, "share.js")
# After ten colours the shape changes, as on the map.
_COLORS, _SHAPES = 10, 6
# Inches of the histogram.
_WIDE = 7.4
_DASH = "\N{EN DASH}"
_OPTION = re.compile(r"--[a-z][a-z-]*")

_METRIC_WORDS = {
    "HOS": "harmonic mean of OS* and UNK: high only if both are",
    "OS*": "known classes labelled right, each class the same weight",
    "UNK": "unknowns that were labelled unknown",
    "OS": "all classes, the unknowns together being one",
    "ALL": "targets labelled right",
    "AUROC": "separation of known and unknown, over all thresholds",
}


def render_page(report: Report) -> str:
    """Return the report as an HTML file, to be written as UTF-8; missing parts are left out."""
    code = Markup("\n").join(_asset(name) for name in _SCRIPTS)
    script = Markup('(function () {\n"use strict";\n') + code + Markup("\n})();")
    *_, unknown = report.counts
    color = {**_color_classes(report.map.classes), unknown.name: "ku"}
    histogram, axis, box = _histogram_chart(report)
    page = (
        _environment()
        .get_template("report.html")
        .render(
            report=report,
            sections=_sections(report),
            styles=Markup("\n").join(_asset(name) for name in _STYLES),
            light=_asset("light.css"),
            dark=_asset("dark.css"),
            script=script,
            policy=_policy(script),
            version=__version__,
            n_unknown=unknown.count,
            n_known=report.n_target - unknown.count,
            unknown=unknown.name,
            color=color,
            longest=max(count.count for count in report.counts) or 1,
            metric_words=_METRIC_WORDS,
            curves=_curve_chart(report.panels) if report.panels else None,
            values=_value_table(report.panels),
            histogram=histogram,
            histogram_box=box,
            map_json=Markup(script_json(map_values(report.map, unknown.name))),
            share_json=Markup(script_json(share_values(report, color, axis))),
            confusion=None if report.confusion is None else _confusion_chart(report.confusion),
            galleries=sorted(report.galleries, key=lambda gallery: gallery.name == unknown.name),
        )
    )
    # A file name that is no valid text has surrogates, which UTF-8 cannot hold.
    return page.encode("utf-8", "backslashreplace").decode("utf-8")


def write_report(
    run: RunFolder,
    out: Path | None = None,
    images: Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write the report of a run as one HTML file, by default into its folder; return the path."""
    path = run.path / REPORT if out is None else out
    page = render_page(collect(run, images, progress))
    with new_file(path) as aside:
        aside.write_text(page, encoding="utf-8")
    return path


def _sections(report: Report) -> list[dict[str, str]]:
    """Return the parts that have something to show: key, heading, name in the navigation."""
    parts = {
        ("map", "Map of the samples", "Map"): True,
        ("share", "How many are unknown?", "Share"): True,
        ("confidence", "Known or unknown", "Threshold"): True,
        ("confusion", "Confusion matrix", "Confusion"): report.confusion is not None,
        ("classes", "Class by class", "Classes"): bool(report.galleries),
        ("groups", "Groups of unknowns", "Unknowns"): bool(report.groups),
        ("border", "Worth checking first", "To check"): bool(report.border),
        ("steps", "Step by step", "Steps"): bool(report.panels),
        ("facts", "Settings and environment", "Settings"): bool(report.facts),
    }
    fields = ("key", "heading", "short")
    return [dict(zip(fields, names, strict=True)) for names, shown in parts.items() if shown]


def _histogram_chart(report: Report) -> tuple[Markup, Axis, tuple[float, float]]:
    """Return the chart, its axis, and how far the axes are from its top and bottom, in percent."""
    histogram = report.histogram
    figure = draw_histograms({"": histogram}, _WIDE)
    known, unknown = int(histogram.known.sum()), int(histogram.unknown.sum())
    words = f"Histogram of the known score: {known:,} known and {unknown:,} unknown targets"
    chart = inline_svg(figure, words)
    axes = figure.axes[0]
    place = axes.get_position()
    axis = Axis(place.x0, place.x1, axes.get_xlim())
    return chart, axis, (100 * (1 - place.y1), 100 * place.y0)


def _curve_chart(panels: Sequence[LinePanel]) -> Markup:
    titles = "; ".join(panel.title for panel in panels)
    return inline_svg(draw_lines(panels, "", columns=2), f"Curves over the steps. {titles}")


def _confusion_chart(confusion: Confusion) -> Markup:
    counts, n_known = confusion.counts, confusion.n_known
    right = int(counts.diagonal()[:n_known].sum() + counts[n_known:, -1].sum())
    words = f"Confusion matrix: {right:,} of {int(counts.sum()):,} targets are labelled right"
    return inline_svg(draw_confusion(confusion), words)


@cache
def _environment() -> jinja2.Environment:
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
        shorten=shorten,
        picture=picture_address,
        plural=lambda noun, count: noun if count == 1 else f"{noun}s",
        options=_option_words,
        sentence=_sentence,
        in_shell=in_shell,
        file_name=lambda path: path.rstrip("/").rpartition("/")[2].strip() or path,
    )
    return environment


@cache
def _template(name: str) -> str:
    return files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def _asset(name: str) -> Markup:
    """Return a file of this package as trusted markup; no text of a run ever gets here."""
    return Markup(_template(name))


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


def _color_classes(names: Sequence[str]) -> dict[str, str]:
    """Return the style classes of every class's colour and shape, the same as in the map."""
    many = len(names) > _COLORS
    return {
        name: f"k{index % _COLORS}" + (f" s{index // _COLORS % _SHAPES}" if many else "")
        for index, name in enumerate(names)
    }


def _value_table(panels: Sequence[LinePanel]) -> dict[str, Any]:
    """Return all curves as one table: for copying, and for screen readers."""
    lines = [(panel, line) for panel in panels for line in panel.series]
    rows = []
    for step in sorted({step for _, line in lines for step in line.points}):
        values = [line.points.get(step) for _, line in lines]
        rows.append((step, [_DASH if value is None else f"{value:.4g}" for value in values]))
    return {"names": [(line.name, panel.title) for panel, line in lines], "rows": rows}


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


def _sentence(text: str) -> str:
    """Return a text with a capital at its start and a full stop at its end."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?", ":")) else ".")
