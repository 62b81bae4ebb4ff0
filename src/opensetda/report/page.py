"""The report as one self-contained HTML file: styles, scripts, data and pictures are inside.

Templates escape everything that comes from a run; only the files of this package are trusted.
The page may not load anything, and runs no script but its own: its content security policy has
the script's hash.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Container, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import takewhile
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from opensetda import __version__
from opensetda.report.charts import HEIGHT, WIDTH, histogram_chart, interval_of, panel_chart
from opensetda.report.collect import Progress, collect
from opensetda.report.content import Confusion, LabelCount, Report, Sample
from opensetda.report.page_data import (
    edge_images,
    map_values,
    picture_address,
    script_json,
    share_values,
)
from opensetda.runs.curves import Panel
from opensetda.runs.figure_style import shorten
from opensetda.runs.folder import REPORT, RunFolder
from opensetda.system.files import in_shell, new_file

_STYLES = ("base.css", "parts.css", "samples.css", "map.css", "share.css")
_MAP_SCRIPTS = ("map_data.js", "map_draw.js", "map_legend.js", "map_input.js", "map.js")
_SCRIPTS = ("page.js", *_MAP_SCRIPTS, "share.js")
# After ten colours the shape changes, as on the map.
_COLORS, _SHAPES = 10, 6
_MOST_NUMBERS = 25
_MOST_SQUARES = 120
_LEAST_CUT = 8
_DASH = "\N{EN DASH}"
_SEPARATED = re.compile(r"[A-Za-z0-9._-]*[._-]")
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
    unknown = _unknown_label(report)
    color, start = _color_classes(report, unknown), _shared_start(report)
    n_unknown = sum(count.count for count in report.counts if count.is_unknown)
    kept = report.kept.step if report.kept else None
    samples = None if report.map is None else Markup(script_json(map_values(report.map, unknown)))
    histogram = histogram_chart(report.histogram) if _has_scores(report) else None
    template = _environment().get_template("report.html")
    page = template.render(
        report=report,
        sections=_sections(report),
        styles=Markup("\n").join(_asset(name) for name in _STYLES),
        light=_asset("light.css"),
        dark=_asset("dark.css"),
        script=script,
        policy=_policy(script),
        version=__version__,
        n_unknown=n_unknown,
        n_known=sum(count.count for count in report.counts) - n_unknown,
        unknown=unknown,
        color=color,
        file_name=lambda path: _without_start(_file_name(path), start),
        is_wrong=lambda sample: _is_wrong(sample, color, unknown),
        interval=interval_of(report.openness),
        bars=_count_bars(report.counts),
        metric_words=_METRIC_WORDS,
        panels=[panel_chart(panel, report.n_steps, kept) for panel in report.panels],
        panel_size=(WIDTH, HEIGHT),
        values=_value_table(report.panels),
        histogram=histogram,
        map_json=samples,
        share_json=Markup(script_json(share_values(report, color, start)))
        if report.what_if
        else None,
        confusion=None if report.confusion is None else _confusion_table(report.confusion),
        edges=None if report.edges is None else edge_images(report.edges),
        galleries=sorted(report.galleries, key=lambda gallery: gallery.name == unknown),
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
        ("map", "Map of the samples", "Map"): report.map is not None,
        ("share", "How many are unknown?", "Share"): report.what_if is not None,
        ("confidence", "Known or unknown", "Threshold"): _has_scores(report),
        ("curves", "Step by step", "Steps"): bool(report.panels),
        ("confusion", "Confusion matrix", "Confusion"): report.confusion is not None,
        ("edges", "Learned edges", "Edges"): report.edges is not None,
        ("classes", "Class by class", "Classes"): bool(report.galleries),
        ("groups", "Groups of unknowns", "Unknowns"): bool(report.groups),
        ("border", "Worth checking first", "To check"): bool(report.border),
        ("facts", "Settings and environment", "Settings"): bool(report.facts),
    }
    fields = ("key", "heading", "short")
    return [dict(zip(fields, names, strict=True)) for names, shown in parts.items() if shown]


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
        plural=_plural,
        options=_option_words,
        sentence=_sentence,
        in_shell=in_shell,
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


def _unknown_label(report: Report) -> str:
    names = [count.name for count in report.counts if count.is_unknown]
    if not names and report.confusion is not None:
        names = list(report.confusion.given_names[-1:])
    return names[0] if names else "unknown"


def _has_scores(report: Report) -> bool:
    histogram = report.histogram
    return bool(len(histogram.known)) and bool((histogram.known + histogram.unknown).sum())


def _color_classes(report: Report, unknown: str) -> Mapping[str, str]:
    """Return the style classes of every label's colour and shape, the same as in the map."""
    if report.map is not None:
        names: Sequence[str] = report.map.classes
    elif report.confusion is not None:
        names = report.confusion.given_names[:-1]
    else:
        names = sorted(count.name for count in report.counts if not count.is_unknown)
    many = len(names) > _COLORS
    styles = {
        name: f"k{index % _COLORS}" + (f" s{index // _COLORS % _SHAPES}" if many else "")
        for index, name in enumerate(names)
    }
    return {**styles, unknown: "ku"}


def _is_wrong(sample: Sample, labels: Container[str], unknown: str) -> bool:
    """Return whether a label is wrong; a class that the source does not have is unknown."""
    if sample.truth is None:
        return False
    return sample.label != (sample.truth if sample.truth in labels else unknown)


def _count_bars(counts: Sequence[LabelCount]) -> list[tuple[LabelCount, float]]:
    """Return every label and the length of its bar in percent of the longest."""
    longest = max([count.count for count in counts], default=0) or 1
    return [(count, round(100 * count.count / longest, 2)) for count in counts]


def _value_table(panels: Sequence[Panel]) -> dict[str, Any] | None:
    """Return all curves as one table: for copying, and for screen readers."""
    lines = [(panel, line) for panel in panels for line in panel.lines]
    steps = sorted({step for _, line in lines for step in line.values})
    if not steps:
        return None
    rows = []
    for step in steps:
        values = [line.values.get(step) for _, line in lines]
        rows.append((step, [_DASH if value is None else f"{value:.4g}" for value in values]))
    return {"names": [(line.name, panel.title) for panel, line in lines], "rows": rows}


def _confusion_table(confusion: Confusion) -> dict[str, Any]:
    """Return rows of cells; a cell has its count, its share of the row, and whether it is right.

    If there are very many columns, adjacent empty cells are joined: no phone opens a page of a
    million squares.
    """
    unknown_column = len(confusion.given_names) - 1
    joined = len(confusion.given_names) > _MOST_SQUARES
    rows = []
    for number, name in enumerate(confusion.true_names):
        counts = [int(count) for count in confusion.counts[number]]
        total = sum(counts)
        right = number if number < confusion.n_known else unknown_column
        cells: list[dict[str, Any]] = []
        for column, count in enumerate(counts):
            empty = not count and column != right
            # Browsers read no span above a thousand.
            if joined and empty and cells and cells[-1]["empty"] and cells[-1]["span"] < 1000:
                cells[-1]["span"] += 1
                continue
            share = count / total if total else 0.0
            cell = {"count": count, "share": share, "right": column == right, "column": column}
            cells.append({**cell, "empty": empty, "span": 1})
        rows.append({"name": name, "total": total, "cells": cells})
    return {
        "columns": confusion.given_names,
        "known": rows[: confusion.n_known],
        "unknown": rows[confusion.n_known :],
        "numbers": max(len(confusion.true_names), len(confusion.given_names)) <= _MOST_NUMBERS,
    }


def _percent(value: float | None, decimals: int = 0) -> str:
    """Return a share as it is read; "100 %" only if it is one."""
    if value is None or not math.isfinite(value):
        return _DASH
    shown = f"{100 * value:.{decimals}f}"
    if value < 1 and float(shown) >= 100:
        shown = f"{100 - 10.0**-decimals:.{decimals}f}"
    return f"{shown}\u202f%"


def _file_name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2].strip() or path


def _shared_start(report: Report) -> str:
    """Return how the names of all shown files begin, up to a separator; it tells none apart."""
    galleries = [card for one in report.galleries for card in (*one.surest, *one.least_sure)]
    groups = [card for group in report.groups for card in group.typical]
    names = sorted({_file_name(card.name) for card in (*galleries, *groups, *report.border)})
    ends = zip(names[0], names[-1], strict=False) if len(names) > 1 else ()
    start = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], ends))
    # Only plain names are cut: letters of other scripts change their form at a cut.
    found = _SEPARATED.match(start)
    return found[0] if found and len(found[0]) >= _LEAST_CUT else ""


def _without_start(name: str, start: str) -> str:
    return f"\N{HORIZONTAL ELLIPSIS}{name[len(start) :]}" if start and name != start else name


def _option_words(text: str) -> Markup:
    """Return a text whose options, such as --openness, are not broken at their hyphens."""
    return Markup(_OPTION.sub(r"<code>\g<0></code>", str(escape(text))))


def _sentence(text: str) -> str:
    """Return a text with a capital at its start and a full stop at its end."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?", ":")) else ".")


def _plural(noun: str, count: int) -> str:
    if count == 1:
        return noun
    return f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2:-1] not in "aeiou" else f"{noun}s"
