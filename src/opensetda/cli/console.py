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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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


def seconds_so_far() -> float:
    """Return how long the command has been running."""
    return time.monotonic() - _mode.begun


def typed(context: typer.Context) -> tuple[str, ...]:
    """Return the command line, for the record."""
    return ("osda", *(context.obj or ()))


# lines ---------------------------------------------------------------------------------------


def say(line: str = "") -> None:
    """Print a line of results, never wrapped: paths stay whole."""
    if not _mode.json:
        _print(visible(line))


def say_places(**places: object) -> None:
    """Print files that were made, or commands that come next, each after its name."""
    for name, place in places.items():
        if place is not None:
            say(f"  {name.replace('_', ' '):<8} {place}")


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


def _print(line: str, err: bool = False, color: bool | None = None) -> None:
    # Not `err=err`, which goes past the bars of rich and ends in the middle of one.
    stream = sys.stderr if err else sys.stdout
    try:
        typer.echo(line, file=stream, color=color)
    except OSError as error:
        if not err and not isinstance(error, BrokenPipeError):
            raise
        print_nowhere(stream)


def print_nowhere(stream: Any) -> None:
    """Drop further output: terminal or reader are gone, as after `| head -1`; work goes on."""
    with suppress(OSError, ValueError), open(os.devnull, "w") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), stream.fileno())


def counted(number: int, noun: str) -> str:
    """Return "1 image" or "2,000 images"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def percent(value: float | None) -> str:
    """Return a share as a percentage with one digit; a dash if it is not defined."""
    return DASH if value is None or value != value else f"{100 * value:.1f}"


def show_estimates(classifier: OpenSetClassifier) -> None:
    """Print what was estimated without labels."""
    from opensetda.features.scaling import SENTENCES

    report = classifier.openness_report_
    # Otherwise the interval is not that of the share; the origin says what the data look like.
    estimated = not report.told and not report.own_boundary
    interval = f" ({report.low:.2f} to {report.high:.2f})" if estimated else ""
    say(f"share of unknowns: {report.share:.2f}{interval}, {report.origin}")
    say(f"columns: {SENTENCES[classifier.scaler_.name]}")


def label_summary(labels: Iterable[str], unknown_label: str) -> dict[str, Any]:
    """Return the content of `label_counts` for programs."""
    counts = Counter(labels)
    unknown = counts.pop(unknown_label, 0)
    return {"labels": dict(sorted(counts.items())), "unknown": unknown}


def files_in(folder: Path) -> dict[str, Path]:
    """Return the files of a folder by name, for programs."""
    return {path.name: path for path in sorted(folder.iterdir())}


# tables --------------------------------------------------------------------------------------


def show(table: Table) -> None:
    """Print a table."""
    if _mode.json or is_quiet():
        return
    from rich.console import Console

    # No markup: a class may be called "[red]".
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        # A log or a pipe has no width: a long line is better than a cut number.
        console.width = max(console.width, 160)
    with console.capture() as drawn:
        console.print(table)
    _print(drawn.get().removesuffix("\n"), color=True)


def new_table(title: str, left: Sequence[str], right: Sequence[str] = ()) -> Table:
    """Return an empty table with columns of text, then of numbers; further ones may be added."""
    from rich import box
    from rich.table import Table

    style: dict[str, Any] = {"title_style": "bold", "header_style": "bold"}
    style |= {"title_justify": "left", "box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0)}
    table = Table(title=visible(title), **style)
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def add_row(table: Table, *cells: str, bold: bool = False) -> None:
    """Add a row to a table; names in it may come from outside."""
    table.add_row(*map(visible, cells), style="bold" if bold else None)


def label_counts(labels: Iterable[str], unknown_label: str, most: int = 12) -> Table:
    """Show how many targets got each label: the most frequent classes, and unknown."""
    counts = Counter(labels)
    total, n_unknown = counts.total(), counts.pop(unknown_label, 0)
    ordered = sorted(counts, key=lambda name: (-counts[name], name))
    rows = [(name, counts[name]) for name in ordered[:most]]
    if rest := sum(counts[name] for name in ordered[most:]):
        rows.append((f"{len(ordered) - most} more classes", rest))
    table = new_table("Labels given", ["label"], ["targets", "%"])
    for name, count in rows:
        add_row(table, name, str(count), percent(count / total))
    table.add_section()
    add_row(table, unknown_label, str(n_unknown), percent(n_unknown / total), bold=True)
    return table


_STEP_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "n_known": ("known", str),
    "n_unknown": ("unknown", str),
    "changed": ("changed %", percent),
    "mean_score": ("mean score", "{:.3f}".format),
    "loss": ("loss", lambda losses: f"{losses.get('total', sum(losses.values())):.3f}"),
    "seconds": ("seconds", "{:.1f}".format),
}


def step_table(
    history: Sequence[Mapping[str, Any]], metrics: Mapping[int, OpenSetMetrics] | None = None
) -> Table:
    """Show one row per step, with metrics if the true labels are known."""
    own = [name for name in _STEP_COLUMNS if any(entry.get(name) is not None for entry in history)]
    told = ["os_star", "unk", "hos"] if metrics else []
    headings = [*(_STEP_COLUMNS[name][0] for name in own), *(_METRICS[name][0] for name in told)]
    table = new_table("Steps", [], ["step", *headings])
    for step, entry in enumerate(history, start=1):
        values = [(_STEP_COLUMNS[name][1], entry.get(name)) for name in own]
        cells = [DASH if value is None else text(value) for text, value in values]
        cells += [percent(getattr((metrics or {}).get(step), name, None)) for name in told]
        add_row(table, str(step), *cells)
    return table


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


def metrics_table(evaluation: Evaluation) -> Table:
    """Show every metric with its interval and its meaning."""
    table = new_table("Metrics", ["metric"], ["%", "95 % interval"])
    table.add_column("meaning")
    for name, (heading, meaning) in _METRICS.items():
        value, interval = getattr(evaluation.final, name), evaluation.intervals[name]
        cells = (heading, percent(value), _interval(interval), meaning)
        add_row(table, *cells, bold=name == "hos")
    return table


def class_table(metrics: OpenSetMetrics) -> Table:
    """Show one row per true class."""
    from opensetda.metrics.intervals import binomial_interval

    table = new_table("Classes", ["class", "kind"], ["n", "right %", "95 % interval"])
    table.add_column("taken for", no_wrap=True)
    kind = "known"
    for row in metrics.per_class:
        if row.kind != kind:
            table.add_section()
            kind = row.kind
        mistaken = f"{row.confused_with} ({row.confused_count})" if row.confused_count else ""
        interval = _interval(binomial_interval(row.correct, row.n) if row.n else None)
        cells = (str(row.label), row.kind, str(row.n), percent(row.accuracy), interval, mistaken)
        add_row(table, *cells)
    return table


def _interval(interval: tuple[float, float] | None) -> str:
    return DASH if interval is None else f"{percent(interval[0])} to {percent(interval[1])}"
