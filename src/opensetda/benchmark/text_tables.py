"""The two tables of a section: HOS by task, and all averages; as Markdown, LaTeX and text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from opensetda.benchmark.summary import Figure, Section

DASH = "-"
INCOMPLETE = "†"
PLUS_MINUS = "±"

OPENNESS_TITLES = {
    "true": "true share of unknowns given",
    "auto": "share of unknowns estimated",
}


@dataclass(frozen=True)
class Entry:
    """A cell of a table, and whether it is the best of its column."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class TextTable:
    """A table of text; the first column is the method."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]


@dataclass(frozen=True)
class _Column:
    """The format of a figure, and which value is best."""

    heading: str
    scale: float
    digits: int
    best: Callable[[Sequence[float]], float] | None


_PERCENT = ("os", "os_star", "unk", "hos", "all", "auroc")
_NAMES = {"os": "OS", "os_star": "OS*", "unk": "UNK", "hos": "HOS", "all": "ALL", "auroc": "AUROC"}
_COLUMNS = {
    **{name: _Column(_NAMES[name], 100, 1, max) for name in _PERCENT},
    "share": _Column("share %", 100, 1, None),
    "share_error": _Column("share off by", 100, 1, min),
    "seconds": _Column("seconds", 1, 1, min),
    "memory_mb": _Column("MB", 1, 0, min),
}
_SHARES = ("share", "share_error")
_HOS = _COLUMNS["hos"]


def task_table(section: Section) -> TextTable:
    """Return HOS of each method on each task, with the average and the test."""
    columns = [
        _shown(_HOS, [method.tasks[task] for method in section.methods]) for task in section.tasks
    ]
    columns.append(_shown(_HOS, [method.averages["hos"] for method in section.methods]))
    headings = ["method", *section.tasks, "average"]
    if section.reference is not None:
        headings += ["p", f"{section.reference} better"]
        columns.append([Entry(_p_value(method.p_value)) for method in section.methods])
        columns.append(
            [
                Entry(f"{method.n_better} of {method.n_compared}" if method.n_compared else DASH)
                for method in section.methods
            ]
        )
    return _table(section, "HOS in %", headings, columns)


def average_table(section: Section) -> TextTable:
    """Return every average over the tasks."""
    # A given share is met by every method.
    shown = {n: c for n, c in _COLUMNS.items() if section.openness != "true" or n not in _SHARES}
    columns = [
        _shown(column, [method.averages[name] for method in section.methods])
        for name, column in shown.items()
    ]
    headings = ["method", *(column.heading for column in shown.values())]
    return _table(section, f"averages over {counted(len(section.tasks))}", headings, columns)


def _table(
    section: Section, title: str, headings: Sequence[str], columns: Sequence[Sequence[Entry]]
) -> TextTable:
    names = [Entry(method.method) for method in section.methods]
    how = OPENNESS_TITLES.get(section.openness, section.openness)
    rows = tuple(zip(names, *columns, strict=True))
    return TextTable(f"{how[:1].upper()}{how[1:]}: {title}", tuple(headings), rows)


def _shown(column: _Column, figures: Sequence[Figure]) -> list[Entry]:
    """Return a column as text; values with equal digits are equally good."""
    rounded = [round(column.scale * figure.mean, column.digits) for figure in figures]
    whole = [value for value, figure in zip(rounded, figures, strict=True) if figure.complete]
    best = column.best(whole) if column.best is not None and whole else math.nan
    return [
        Entry(_figure(column, figure), figure.complete and value == best)
        for value, figure in zip(rounded, figures, strict=True)
    ]


def _figure(column: _Column, figure: Figure) -> str:
    text = number(column.scale * figure.mean, column.digits)
    if column.best is max and text != DASH:
        text += f" {PLUS_MINUS} {number(column.scale * figure.deviation, column.digits)}"
    return text if figure.n_failed == 0 else f"{text} {INCOMPLETE}"


def counted(n_tasks: int) -> str:
    """Return "1 task" or "6 tasks"."""
    return f"{n_tasks} task" if n_tasks == 1 else f"{n_tasks} tasks"


def number(value: float, digits: int) -> str:
    """Return a number with `digits` decimals, or a dash for NaN."""
    return f"{value:.{digits}f}" if math.isfinite(value) else DASH


def _p_value(value: float) -> str:
    return "<0.001" if value < 0.001 else number(value, 3)


# Forms --------------------------------------------------------------------------------------


def markdown(table: TextTable) -> str:
    """Return a table in GitHub's Markdown, under its title."""
    lines = [
        f"**{markdown_text(table.title)}**",
        "",
        _line(map(markdown_text, table.headings)),
        _line("---" if place == 0 else "---:" for place in range(len(table.headings))),
    ]
    for row in table.rows:
        texts = ((markdown_text(entry.text), entry.best) for entry in row)
        lines.append(_line(f"**{text}**" if best else text for text, best in texts))
    return "\n".join(lines) + "\n"


def latex(table: TextTable) -> str:
    """Return a table for LaTeX with the package booktabs."""
    lines = [
        rf"\begin{{tabular}}{{l{'r' * (len(table.headings) - 1)}}}",
        r"\toprule",
        _latex_line(map(latex_text, table.headings)),
        r"\midrule",
    ]
    for row in table.rows:
        texts = ((latex_text(entry.text), entry.best) for entry in row)
        lines.append(_latex_line(rf"\textbf{{{text}}}" if best else text for text, best in texts))
    lines += [r"\bottomrule", r"\end{tabular}"]
    title = " ".join(table.title.split())
    return f"% {title}\n" + "\n".join(lines) + "\n"


def markdown_text(text: str) -> str:
    """Return text escaped for a Markdown table."""
    return re.sub(r"([\\|*_`<>\[\]])", r"\\\1", " ".join(text.split()))


_LATEX = {
    **{sign: rf"\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    PLUS_MINUS: r"$\pm$",
    INCOMPLETE: r"$\dagger$",
}


def latex_text(text: str) -> str:
    """Return text escaped for LaTeX."""
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))


def _line(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _latex_line(texts: Iterable[str]) -> str:
    return f"{' & '.join(texts)} \\\\"
