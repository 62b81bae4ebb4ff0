"""Output of the commands: results on stdout, notes and warnings on stderr.

With `--quiet` stderr has only warnings and errors, and stdout no tables; with `--json` stdout has
one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import typer

from opensetda.errors import cut, visible

if TYPE_CHECKING:
    pass

DASH = "-"


@dataclass
class _Mode:
    quiet: bool = False
    json: bool = False
    verbose: bool = False
    began: float = field(default_factory=time.monotonic)
    last_output: float = field(default_factory=time.monotonic)
    stage: str = "starting"
    detail: str = ""
    stage_began: float = field(default_factory=time.monotonic)
    warnings: list[str] = field(default_factory=list)


_mode = _Mode()


def begin(quiet: bool = False, as_json: bool = False, verbose: bool = False) -> None:
    """Begin a command with these output options."""
    global _mode
    _mode = _Mode(quiet=quiet, json=as_json, verbose=verbose)
    if quiet:
        # The progress bar of the hub's downloads.
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def state() -> _Mode:
    """Return what is being done, since when, and when something was printed last."""
    return _mode


def begin_stage(name: str) -> None:
    """Begin something that may take a while: it is named if nothing else is printed."""
    _mode.stage = name
    _mode.detail = ""
    _mode.stage_began = time.monotonic()


def detail(state: str) -> None:
    """Say how far the stage is."""
    _mode.detail = state


def touch() -> None:
    """Count as output: a bar has moved."""
    _mode.last_output = time.monotonic()


def waited() -> float:
    """Return how many seconds the user has waited for this command."""
    return time.monotonic() - _mode.began


def is_verbose() -> bool:
    """Whether what only researchers read is shown, too."""
    return _mode.verbose


def is_quiet() -> bool:
    """Whether notes and progress are off."""
    return _mode.quiet


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

        whole = plain({**values, "warnings": _mode.warnings})
        # In ASCII: the name of a file may have bytes that are not text.
        _print(json.dumps(whole, allow_nan=False, default=lambda path: str(path.absolute())))


def note(line: str) -> None:
    """Print a line about what is being done."""
    if not is_quiet():
        _print(visible(line), err=True)


def warn(message: str) -> None:
    """Print the one line of a warning."""
    _mode.warnings.append(" ".join(message.split()))
    _complain("warning:", typer.colors.YELLOW, message)


def fail(message: str, *others: str) -> None:
    """Print the one line of an error, or the lines of a list."""
    _complain("error:", typer.colors.RED, message)
    for line in others:
        _print(visible(line), err=True)


def _complain(label: str, colour: str, message: str) -> None:
    line = visible(" ".join(message.split()))
    if len(line) > 1000:
        # What it is about is at the start, what to do at the end.
        line = f"{cut(line, 700)} {line[-300:].partition(' ')[2]}"
    _print(f"{typer.style(label, fg=colour, bold=True)} {line}", err=True)


def _print(line: str, err: bool = False, color: bool | None = None) -> None:
    # Not `err=err`, which goes past the bars of rich and ends in the middle of one.
    stream = sys.stderr if err else sys.stdout
    touch()
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


def show_estimates(classifier: Any) -> None:
    """Print what was estimated without labels."""
    from opensetda.features.scaling import SENTENCES
    from opensetda.share.confidence import right_range
    from opensetda.share.report import ShareSource

    report = classifier.openness_report_
    scaling = classifier.scaler_.name
    # Otherwise the interval is not that of the share; the origin says what the data look like.
    has_interval = report.source in (ShareSource.ESTIMATED, ShareSource.AUDITED)
    interval = f" ({report.low:.0%} to {report.high:.0%})" if has_interval else ""
    say(f"share of unknowns: {report.share:.0%}{interval}, {report.origin}")
    members = getattr(classifier, "members_", None)
    say(f"members: {', '.join(members)}" if members else f"columns: {SENTENCES[scaling]}")
    confidence = classifier.transduction_confidence_
    if not members:
        say(f"mean confidence: {confidence.mean():.0%}, the method's own, often too high")
        return
    low, high = right_range(confidence)
    say(f"about {low:.0%} to {high:.0%} of these labels should be right")
    say(classifier.separation_["sentence"])


# tables --------------------------------------------------------------------------------------


class Bold(str):
    """A cell of a table that stands out."""

    __slots__ = ()


def show_table(
    title: str,
    left: Sequence[str],
    right: Sequence[str],
    rows: Iterable[Iterable[str]],
    last: str = "",
) -> None:
    """Print a table with columns of text, then of numbers, perhaps a last one of long text."""
    if _mode.json or is_quiet():
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    style: dict[str, Any] = {"title_style": "bold", "header_style": "bold"}
    style |= {"title_justify": "left", "box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0)}
    table = Table(title=visible(title), **style)
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", overflow="fold")
    if last:
        table.add_column(last)
    for row in rows:
        # As text, not markup: a class may be called "[red]".
        table.add_row(*(Text(visible(cell), "bold" * isinstance(cell, Bold)) for cell in row))
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        # A log or a pipe has no width: a long line is better than a cut number.
        console.width = max(console.width, 160)
    with console.capture() as drawn:
        console.print(table)
    _print(drawn.get().removesuffix("\n"), color=True)


def show_labels(counts: Mapping[str, int], unknown_label: str, most: int = 12) -> dict[str, Any]:
    """Show how many targets got each label, the most frequent first; return all for programs."""
    known = {name: counts[name] for name in sorted(counts) if name != unknown_label}
    total = sum(counts.values())
    n_unknown = counts.get(unknown_label, 0)
    rows = sorted(known.items(), key=lambda row: -row[1])
    if rest := rows[most:]:
        rows[most:] = [(f"{len(rest)} more classes", sum(count for _, count in rest))]
    rows.append((Bold(unknown_label), n_unknown))
    cells = [(name, str(count), percent(count / total)) for name, count in rows]
    show_table("Labels given", ["label"], ["targets", "%"], cells)
    return {"labels": known, "unknown": n_unknown}


def show_steps(history: Sequence[Mapping[str, Any]], metrics: Mapping[int, Any]) -> None:
    """Show one row per step, with metrics if the true labels are known; members are no steps."""
    if any("member" in entry for entry in history):
        return
    told = {"os_star": "OS*", "unk": "UNK", "hos": "HOS"} if metrics else {}
    rows = []
    for step, entry in enumerate(history, start=1):
        counts = [str(entry.get(name, DASH)) for name in ("n_known", "n_unknown")]
        cells = [*counts, percent(entry.get("changed")), f"{entry.get('seconds', 0):.1f}"]
        rows.append([str(step), *cells])
        rows[-1] += [percent(getattr(metrics.get(step), name, None)) for name in told]
    headings = ["step", "known", "unknown", "changed %", "seconds", *told.values()]
    show_table("Steps", [], headings, rows)
