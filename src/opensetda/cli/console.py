"""Output of the commands: results on stdout, notes and warnings on stderr.

With `--quiet` stderr has only warnings and errors, and stdout no tables; with `--json` stdout has
one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from opensetda.errors import visible

if TYPE_CHECKING:
    from rich.table import Table

    from opensetda.base import OpenSetClassifier
    from opensetda.metrics.open_set import OpenSetMetrics
    from opensetda.runs.evaluation import Evaluation

DASH = "-"
# Of a warning or an error.
_LONGEST_LINE = 1000


@dataclass
class _Mode:
    quiet: bool = False
    json: bool = False
    warnings: list[str] = field(default_factory=list)
    begun: float = field(default_factory=lambda: time.monotonic())


_mode = _Mode()


@contextmanager
def command_line() -> Iterator[None]:
    """Run one command line with output options of its own."""
    global _mode
    before, _mode = _mode, _Mode()
    try:
        yield
    finally:
        _mode = before


def be_quiet(wanted: bool) -> bool:
    """Handle `--quiet`."""
    _mode.quiet = wanted
    if wanted:
        # The progress bar of the hub's downloads.
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    return wanted


def speak_json(wanted: bool) -> bool:
    """Handle `--json`."""
    _mode.json = wanted
    return wanted


def is_quiet() -> bool:
    """Whether notes and progress are off."""
    return _mode.quiet


def say(line: str = "") -> None:
    """Print a line of results, never wrapped: paths stay whole."""
    if not _mode.json:
        _print(visible(line))


def result(values: Mapping[str, Any]) -> None:
    """Print the result as one JSON object on one line, with `--json`.

    Paths become absolute, NaN and infinity null; "warnings" holds all that were printed.
    """
    if _mode.json:
        from opensetda.system.files import plain

        whole = plain(_with_paths({**values, "warnings": _mode.warnings}))
        # In ASCII: the name of a file may have bytes that are not text.
        _print(json.dumps(whole, allow_nan=False))


def _with_paths(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_paths(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_with_paths(entry) for entry in value]
    return str(value.absolute()) if isinstance(value, Path) else value


def note(line: str) -> None:
    """Print a line about what is being done."""
    if not is_quiet():
        _print(visible(line), err=True)


def seconds_so_far() -> float:
    """Return how long the command has been running."""
    return time.monotonic() - _mode.begun


def warn(message: str) -> None:
    """Print the one line of a warning."""
    _mode.warnings.append(" ".join(message.split()))
    _complain("warning:", typer.colors.YELLOW, message)


def fail(message: str | Sequence[str], exit_code: int) -> int:
    """Print the one line of an error, or the lines of a list, and return the exit code."""
    first, *others = [message] if isinstance(message, str) else message
    _complain("error:", typer.colors.RED, first)
    for line in others:
        _print(visible(line), err=True)
    return exit_code


def _complain(label: str, colour: str, message: str) -> None:
    line = visible(" ".join(message.split()))
    if len(line) > _LONGEST_LINE:
        # What it is about is at the start, what to do at the end.
        line = f"{line[: _LONGEST_LINE - 300]} ... {line[-300:]}"
    _print(f"{typer.style(label, fg=colour, bold=True)} {line}", err=True)


def _print(line: str, err: bool = False) -> None:
    try:
        # Not `err=err`, which goes past the bars of rich and ends in the middle of one.
        typer.echo(line, file=sys.stderr if err else sys.stdout)
    except OSError as error:
        # No reader any more, or no terminal; what is said on stderr never ends the work.
        if not err and not isinstance(error, BrokenPipeError):
            raise
        print_nowhere(sys.stderr if err else sys.stdout)


def print_nowhere(stream: Any) -> None:
    """Drop further output: its reader is gone, as after ``| head -1``, but the work goes on."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def show(table: Table, at_least: int = 0) -> None:
    """Print a table, at least `at_least` characters wide."""
    if _mode.json or is_quiet():
        return
    from rich.console import Console

    class Screen(Console):
        def on_broken_pipe(self) -> None:
            print_nowhere(sys.stdout)

    # No markup: a class may be called "[red]".
    console = Screen(highlight=False, markup=False)
    # A log or a pipe has no width: a long line is better than a cut number.
    console.width = max(console.width, at_least, 0 if console.is_terminal else 160)
    console.print(table)


def new_table(title: str, columns: Mapping[str, str]) -> Table:
    """Return an empty table; `columns` maps each heading to "left" or "right"."""
    from rich import box
    from rich.table import Table

    class VisibleTable(Table):
        def add_row(self, *cells: Any, **options: Any) -> None:
            # Of several lines, if the table is ours: a name in a table has none.
            shown = [
                "\n".join(map(visible, cell.split("\n"))) if isinstance(cell, str) else cell
                for cell in cells
            ]
            super().add_row(*shown, **options)

    style: dict[str, Any] = {"title_style": "bold", "header_style": "bold"}
    style |= {"title_justify": "left", "box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0)}
    table = VisibleTable(title=visible(title), **style)
    for name, justify in columns.items():
        table.add_column(name, justify="right" if justify == "right" else "left", no_wrap=True)
    return table


def counted(number: int, noun: str) -> str:
    """Return "1 image" or "2,000 images"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def percent(value: float | None) -> str:
    """Return a share as a percentage with one digit; a dash if it is not defined."""
    return DASH if value is None or value != value else f"{100 * value:.1f}"


def show_estimates(classifier: OpenSetClassifier) -> None:
    """Print what was estimated without labels."""
    report = classifier.openness_report_
    # Otherwise the interval is not that of the share; the origin says what the data look like.
    estimated = not report.told and not report.own_boundary
    interval = f" ({report.low:.2f} to {report.high:.2f})" if estimated else ""
    say(f"share of unknowns: {report.share:.2f}{interval}, {report.origin}")
    from opensetda.features.scaling import SENTENCES

    say(f"columns: {SENTENCES[classifier.scaler_.name]}")


def label_counts(labels: Iterable[str], unknown_label: str, most: int = 12) -> Table:
    """Show how many targets got each label: the most frequent classes, and unknown."""
    counts = Counter(labels)
    total, n_unknown = counts.total(), counts.pop(unknown_label, 0)
    ordered = sorted(counts, key=lambda name: (-counts[name], name))
    table = new_table("Labels given", {"label": "left", "targets": "right", "%": "right"})
    rows = [(name, counts[name]) for name in ordered[:most]]
    rest = sum(counts[name] for name in ordered[most:])
    if rest:
        rows.append((f"{len(ordered) - most} more classes", rest))
    for name, count in rows:
        table.add_row(name, str(count), percent(count / total))
    table.add_section()
    table.add_row(unknown_label, str(n_unknown), percent(n_unknown / total), style="bold")
    return table


def label_summary(labels: Iterable[str], unknown_label: str) -> dict[str, Any]:
    """Return the content of `label_counts` for programs."""
    counts = Counter(labels)
    unknown = counts.pop(unknown_label, 0)
    return {"labels": dict(sorted(counts.items())), "unknown": unknown}


def files_in(folder: Path) -> dict[str, Path]:
    """Return the files of a folder by name, for programs."""
    return {path.name: path for path in sorted(folder.iterdir())}


def step_table(
    history: Sequence[Mapping[str, Any]], metrics: Mapping[int, OpenSetMetrics] | None = None
) -> Table:
    """Show one row per step, with metrics if the true labels are known."""
    own = [name for name in _STEP_COLUMNS if any(entry.get(name) is not None for entry in history)]
    headings = {"step": "right", **{_STEP_COLUMNS[name]: "right" for name in own}}
    if metrics:
        headings |= {"OS*": "right", "UNK": "right", "HOS": "right"}
    table = new_table("Steps", headings)
    for step, entry in enumerate(history, start=1):
        cells = [str(step), *(_step_cell(name, entry.get(name)) for name in own)]
        if metrics:
            values = metrics.get(step)
            cells += [percent(getattr(values, m, None)) for m in ("os_star", "unk", "hos")]
        table.add_row(*cells)
    return table


_STEP_COLUMNS = {
    "n_known": "known",
    "n_unknown": "unknown",
    "changed": "changed %",
    "mean_score": "mean score",
    "loss": "loss",
    "seconds": "seconds",
}


def _step_cell(name: str, value: Any) -> str:
    if value is None:
        return DASH
    if name == "changed":
        return percent(value)
    if name == "loss":
        return f"{value.get('total', sum(value.values())):.3f}"
    if name in ("n_known", "n_unknown"):
        return str(value)
    return f"{value:.3f}" if name == "mean_score" else f"{value:.1f}"


_METRICS = {
    "os_star": ("OS*", "mean accuracy of the known classes"),
    "unk": ("UNK", "unknowns that were called unknown"),
    "hos": ("HOS", "harmonic mean of OS* and UNK"),
    "os": ("OS", "mean accuracy of the known classes and unknown"),
    "all": ("ALL", "accuracy over all samples"),
    "unk_per_class": ("UNK/class", "UNK, averaged over the true unknown classes"),
    "auroc": ("AUROC", "known before unknown, by the known score"),
    "oscr": ("OSCR", "knowns accepted and right, over accepted unknowns"),
    "ece": ("ECE", "calibration error of the labels (lower is better)"),
    "unknown_ece": ("UNK ECE", "calibration error of the probability of unknown (lower is better)"),
}


def interval_text(interval: tuple[float, float] | None) -> str:
    """Return an interval in percent; a dash if there is none."""
    return DASH if interval is None else f"{percent(interval[0])} to {percent(interval[1])}"


def metrics_table(evaluation: Evaluation) -> Table:
    """Show every metric with its interval and its meaning."""
    headings = {"metric": "left", "%": "right", "95 % interval": "right", "meaning": "left"}
    table = new_table("Metrics", headings)
    for name, (heading, meaning) in _METRICS.items():
        style = "bold" if name == "hos" else None
        interval = interval_text(evaluation.intervals[name])
        value = percent(getattr(evaluation.final, name))
        table.add_row(heading, value, interval, meaning, style=style)
    return table


def class_table(metrics: OpenSetMetrics) -> Table:
    """Show one row per true class."""
    from opensetda.metrics.intervals import binomial_interval

    headings = {"class": "left", "kind": "left", "n": "right", "right %": "right"}
    table = new_table("Classes", {**headings, "95 % interval": "right", "taken for": "left"})
    kind = "known"
    for row in metrics.per_class:
        if row.kind != kind:
            table.add_section()
            kind = row.kind
        mistaken = f"{row.confused_with} ({row.confused_count})" if row.confused_count else ""
        interval = interval_text(binomial_interval(row.correct, row.n) if row.n else None)
        cells = (str(row.label), row.kind, str(row.n), percent(row.accuracy), interval, mistaken)
        table.add_row(*cells)
    return table
