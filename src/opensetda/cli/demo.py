"""`osda demo`: three methods on bundled digits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opensetda.cli import console
from opensetda.cli.bars import ConsoleListener
from opensetda.cli.evaluate import HEADINGS
from opensetda.cli.options import Overwrite, RunOut, Seed, option_of
from opensetda.cli.report import report_at_end

_COLUMNS = ("os_star", "unk", "hos", "all", "auroc")


def demo(
    context: typer.Context,
    out: RunOut = Path("osda-demo"),
    seed: Seed = 0,
    quick: Annotated[bool, option_of("Method", "--quick", "Train PGL for two steps only.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Label scikit-learn's digits by MNIST's: 0 to 4 are known, 5 to 9 unknown.

    Downloads nothing. Compares three methods, and writes the run folder of the
    default, the committee.
    """
    from opensetda.system.files import in_shell
    from opensetda.usecases.demo import run_demo

    found = run_demo(
        out,
        seed=seed,
        quick=quick,
        overwrite=overwrite,
        command=context.obj,
        listener=ConsoleListener(),
    )
    folder = found.path
    rows = found.rows
    report = report_at_end(folder)
    if console.is_verbose():
        console.show_steps(found.classifier.history_, found.steps)
    true = console.percent(found.true_openness)
    title = f"Comparison (%, share of unknowns estimated by each method, true {true})"
    numbers = [HEADINGS[name][0] for name in _COLUMNS]
    best = max(rows, key=lambda method: rows[method]["hos"])
    cells = []
    for method, row in rows.items():
        shares = [row[name] for name in _COLUMNS] + [row["openness"]["share"]]
        own = [method, *map(console.percent, shares), f"{row['seconds']:.1f}"]
        cells.append([console.Bold(cell) for cell in own] if method == best else own)
    console.show_table(title, ["method"], [*numbers, "share of unknowns", "seconds"], cells)
    console.show_estimates(found.classifier)
    console.say_places(
        labels=folder / "predictions.csv",
        metrics=folder / "metrics.json",
        report=report or f"osda report {in_shell(folder)}",
    )
    console.result(
        {
            "run": folder,
            "true_openness": found.true_openness,
            "methods": rows,
            "files": {file.name: file for file in sorted(folder.iterdir())},
        }
    )
