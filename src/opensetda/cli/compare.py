"""`osda compare`: which labels differ between two runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opensetda.cli import console
from opensetda.cli.options import Overwrite, RunArgument, output

_OTHER_HELP = "Run folder to compare it with, of 'osda fit' or 'osda adapt'."
_OUT_HELP = "The .csv or .parquet file to make: the samples whose label differs."
_PAGE_HELP = "HTML file to make: changes by label and by group, with samples to look at."
_MOST = 20


def compare(
    run: RunArgument,
    other: Annotated[Path, typer.Argument(metavar="RUN2", help=_OTHER_HELP)],
    out: Annotated[Path | None, output("--out FILE", _OUT_HELP)] = None,
    page: Annotated[Path | None, output("--page FILE", _PAGE_HELP)] = None,
    overwrite: Overwrite = False,
) -> None:
    """Show which labels differ between two runs, by label and by group.

    [bold]Examples[/bold]

      osda compare run run-april --page changes.html

    Two runs on the same target, by two methods or before and after marks, are
    compared on all of it. Of two targets, the model of RUN labels up to 800
    targets that RUN2 kept.
    """
    from opensetda.runs.place import check_is_run
    from opensetda.system.files import check_new_file

    check_is_run(other)
    if out is not None:
        check_new_file("--out", out, (".csv", ".parquet"), overwrite)
    if page is not None:
        check_new_file("--page", page, (".html", ".htm"), overwrite)
    from opensetda.usecases.compare_runs import compare as compare_runs
    from opensetda.usecases.predict_samples import open_run

    second = open_run(other)
    found = compare_runs(run, second)
    rows = [(name, *map(str, counts)) for name, *counts in found.by_label()]
    console.show_table("Labels", ["label"], ["before", "after", "both"], rows)
    changes = [(one.before, one.after, str(one.count)) for one in found.changes[:_MOST]]
    console.show_table("Changes", ["before", "after"], ["samples"], changes)
    n_changed = int(found.is_changed.sum())
    whose = " of those that the second run kept" if found.is_sample else ""
    console.say(f"{n_changed:,} of {console.counted(len(found.ids), 'label')} differ{whose}.")
    for group in found.groups[:_MOST]:
        look = ", ".join(str(found.ids[found.place(row)]) for row in group.rows[:3].tolist())
        many = console.counted(len(group.rows), "sample")
        most = f"{group.most.count:,} {group.most.before} before, {group.most.after} after"
        console.say(f"  group of {many}, {most}; look at {look}")
    if out is not None:
        found.write(out)
    if page is not None:
        from opensetda.report.small_pages import write_comparison_page

        write_comparison_page(page, second, found)
    console.say_places(table=out, page=page)
    console.result(
        {
            "samples": len(found.ids),
            "changed": n_changed,
            "changes": [
                {"before": one.before, "after": one.after, "samples": one.count}
                for one in found.changes
            ],
            "files": {"table": out, "page": page},
        }
    )
