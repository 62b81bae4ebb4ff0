"""`osda demo`: three methods on the bundled digits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opensetda.cli import console
from opensetda.cli.options import Overwrite, RunOut, Seed, method_option

if TYPE_CHECKING:
    from opensetda.runs.demo import Demo

_TITLES = {
    "moving-means": "moving means, the default (no training)",
    "pgl": "progressive graph learning (PGL), a small network",
    "source-only": "source only, least sure rejected",
}
_COLUMNS = {"os_star": "OS*", "unk": "UNK", "hos": "HOS", "all": "ALL", "auroc": "AUROC"}


def demo(
    context: typer.Context,
    out: RunOut = Path("osda-demo"),
    seed: Seed = 0,
    quick: Annotated[bool, method_option("--quick", "Train PGL for two steps only.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Label scikit-learn's digits by MNIST's: 0 to 4 are known, 5 to 9 unknown.

    [bold]Example[/bold]

      osda demo --out osda-demo

    Downloads nothing. Compares three methods, and writes the run folder of the
    default, moving-means.
    """
    from opensetda.cli.fit import ConsoleListener
    from opensetda.cli.report import report_at_end
    from opensetda.runs.demo import run_demo
    from opensetda.runs.folder import METRICS
    from opensetda.system.files import in_shell

    found = run_demo(
        out,
        seed=seed,
        quick=quick,
        overwrite=overwrite,
        command=console.typed(context),
        listener=ConsoleListener(),
    )
    folder, classifier = found.path, found.classifier
    report = report_at_end(folder)
    console.show(console.step_table(classifier.history_, found.steps))
    _show_comparison(found)
    console.show_estimates(classifier)
    console.say_places(
        labels=folder / "predictions.csv",
        metrics=folder / METRICS,
        report=report or f"osda report {in_shell(folder)}",
    )
    summary = {"run": folder, "true_openness": found.true_openness, "methods": found.rows}
    console.result({**summary, "files": console.files_in(folder)})


def _show_comparison(found: Demo) -> None:
    true = console.percent(found.true_openness)
    title = f"Comparison (%, share of unknowns estimated by each method, true {true})"
    numbers = [*_COLUMNS.values(), "share of unknowns", "seconds"]
    table = console.new_table(title, ["method"], numbers)
    best = max(found.rows, key=lambda method: found.rows[method]["hos"])
    for method, row in found.rows.items():
        cells = [console.percent(row[name]) for name in _COLUMNS]
        cells += [console.percent(row["openness"]["share"]), f"{row['seconds']:.1f}"]
        console.add_row(table, _TITLES[method], *cells, bold=method == best)
    console.show(table)
