"""`osda evaluate`: how right the labels are, by true ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opensetda.cli import console
from opensetda.cli.options import Fields, other
from opensetda.cli.report import report_at_end
from opensetda.runs.options import TableOptions

if TYPE_CHECKING:
    from opensetda.usecases.evaluate_run import Evaluation

HEADINGS = {
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
"""Heading and meaning of each metric."""
_RUN_HELP = "Run folder of 'osda fit', or, with --run, a .csv or .parquet file of 'osda predict'."
_TRUTH_HELP = (
    "True labels of all samples or of some: a table (.npz, .csv, .parquet, a folder of .parquet "
    "parts), or images (one folder per class, list, manifest, tar shards)."
)
_MADE_BY_HELP = "Run that wrote the file of 'osda predict'."


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN|LABELS", help=_RUN_HELP)],
    labels: Annotated[Path, other("--labels TRUTH", _TRUTH_HELP)],
    columns: Annotated[TableOptions, Fields("label id", as_in_fit="label id")],
    made_by: Annotated[Path | None, other("--run RUN", _MADE_BY_HELP)] = None,
) -> None:
    """Compute metrics with 95 % intervals. The only command that reads labels of the target.

    [bold]Examples[/bold]

      osda evaluate run --labels truth.csv --label-column class

      osda evaluate labels.csv --labels truth.csv --run run

    Labels are matched by id if the samples have ids, by row otherwise; those
    without a true label (or an empty one) do not count. A label that is not a
    class of the source counts as unknown. Of a run, writes metrics.json
    into its folder, and updates its report, if there is one.
    """
    from opensetda.runs.folder import METRICS, REPORT, RunFolder
    from opensetda.usecases.evaluate_run import evaluate as evaluate_labels

    found = evaluate_labels(
        run, labels, label_column=columns.label, id_column=columns.id, made_by=made_by
    )
    result: dict[str, Any] = found.to_dict()
    share = f"share of unknowns: true {found.true_openness:.0%}"
    if run.is_dir():
        folder = RunFolder.open(run)
        # The existing report does not know the true labels.
        report = report_at_end(folder.path) if (folder.path / REPORT).exists() else None
        result["openness"] = folder.estimates()["openness"]
        result["files"] = {"metrics": run / METRICS, "report": report}
        share += f", used {result['openness']['share']:.0%}"
        if console.is_verbose() and len(folder.history()) > 1:
            console.show_steps(folder.history(), found.steps)
    _show_tables(found)
    final = found.final
    console.say(
        f"HOS {console.percent(final.hos)}, OS* {console.percent(final.os_star)}, "
        f"UNK {console.percent(final.unk)} (%)"
    )
    console.say(share)
    for line in found.notes:
        console.say(line)
    console.say_places(**result.get("files", {}))
    console.result(result)


def _show_tables(found: Evaluation) -> None:
    from opensetda.metrics.intervals import binomial_interval

    rows = []
    for row in found.final.per_class:
        mistaken = f"{row.confused_with} ({row.confused_count})" if row.confused_count else ""
        interval = _interval(binomial_interval(row.correct, row.n) if row.n else None)
        accuracy = console.percent(row.accuracy)
        rows.append([str(row.label), row.kind, str(row.n), accuracy, interval, mistaken])
    numbers = ["n", "right %", "95 % interval"]
    console.show_table("Classes", ["class", "kind"], numbers, rows, "taken for")
    metrics = []
    for name, (heading, meaning) in HEADINGS.items():
        value = console.percent(getattr(found.final, name))
        cells = [heading, value, _interval(found.intervals[name]), meaning]
        metrics.append([console.Bold(cell) for cell in cells] if name == "hos" else cells)
    console.show_table("Metrics", ["metric"], ["%", "95 % interval"], metrics, "meaning")


def _interval(interval: tuple[float, float] | None) -> str:
    return " to ".join(map(console.percent, interval)) if interval else console.DASH
