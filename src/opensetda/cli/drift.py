"""`osda drift`: whether later samples still look like the target of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from opensetda.cli import console
from opensetda.cli.bars import ConsoleListener
from opensetda.cli.options import Fields, Overwrite, RunArgument, other, output
from opensetda.runs.options import TableOptions

_PATHS_HELP = (
    "Feature tables, or folders, lists, manifests or tar shards of images, each compared on its "
    "own, one after another; image files are compared together."
)
_RECORD_HELP = "Append a row for each of them to this CSV file, for monitoring."
_PAGE_HELP = "HTML file to write."
_FAIL_HELP = "Exit with code 1 if there is a drift."
_AS_IN_FIT = "id features drop path"


def drift(
    run: RunArgument,
    paths: Annotated[list[Path], typer.Argument(metavar="PATHS...", help=_PATHS_HELP)],
    tables: Annotated[TableOptions, Fields(f"{_AS_IN_FIT} root", _AS_IN_FIT)],
    record: Annotated[Path | None, output("--record FILE", _RECORD_HELP)] = None,
    page: Annotated[Path | None, output("--page FILE", _PAGE_HELP)] = None,
    fail_on: Annotated[Literal["never", "drift"], other("--fail-on", _FAIL_HELP)] = "never",
    overwrite: Overwrite = False,
) -> None:
    """Compare later samples with the target of a run, and say what to do.

    [bold]Examples[/bold]

      osda drift run march/ april/ may/ --record drift.csv

      osda drift run today.csv --fail-on drift

    Of many samples, 800 are drawn. On samples of the same target, 5 % of the
    comparisons raise a false alarm. With --fail-on drift the exit code is 1.
    """
    from opensetda.data.names import check_exists, formula_warning

    for path in paths:
        check_exists(path)
    from opensetda.system.files import check_new_file
    from opensetda.usecases.detect_drift import drift as compare_samples
    from opensetda.usecases.drift_of_samples import record as append
    from opensetda.usecases.predict_samples import open_run

    if page is not None:
        check_new_file("--page", page, (".html", ".htm"), overwrite)
    found = []
    for name, samples in _batches(paths):
        one = compare_samples(run, samples, tables=tables, listener=ConsoleListener())
        found.append((name, one))
        console.say(f"{name}: {one.line}")
        if record is not None:
            append(record, open_run(run), name, one)
            for line in formula_warning(record, [name, *one.group]):
                console.warn(line)
    if page is not None:
        from opensetda.report.small_pages import write_drift_page

        write_drift_page(page, str(run), found)
    console.say_places(record=record, page=page)
    is_drift = any(one.is_drift for _, one in found)
    batches = [{"file": name, "drift": one.is_drift, **asdict(one)} for name, one in found]
    console.result(
        {"drift": is_drift, "batches": batches, "files": {"record": record, "page": page}}
    )
    if is_drift and fail_on == "drift":
        raise typer.Exit(1)


def _batches(paths: Sequence[Path]) -> Iterator[tuple[str, list[Path]]]:
    """Yield what is compared together: every table or folder, and all image files."""
    from opensetda.data.images.decoding import IMAGE_SUFFIXES

    images = [path for path in paths if path.suffix.lower() in IMAGE_SUFFIXES]
    for path in paths:
        if path not in images:
            yield str(path), [path]
    if images:
        yield f"{images[0]} ..." if len(images) > 1 else str(images[0]), images
