"""`osda evaluate`: compare a run, or labels of later samples, with true labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opensetda.cli import console
from opensetda.cli.options import Fields, other
from opensetda.runs.options import TableOptions

if TYPE_CHECKING:
    from opensetda.runs.evaluation import Evaluation

_RUN_HELP = "Run folder of 'osda fit', or, with --run, a .csv or .parquet file of 'osda predict'."
_TRUTH_HELP = (
    "True labels of all samples or of some: a table (.npz, .csv, .parquet, a folder of .parquet "
    "parts), or images (one folder per class, list, manifest, tar shards)."
)
_MADE_BY_HELP = "Run that wrote the file of 'osda predict'."


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN|LABELS", help=_RUN_HELP)],
    labels: Annotated[Path, other("--labels TRUTH", _TRUTH_HELP)],
    columns: Annotated[dict[str, Any], Fields(TableOptions, "label id", as_in_fit=True)],
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
    from opensetda.runs.evaluation import evaluate as evaluate_labels

    label, ids = columns.get("label"), columns.get("id")
    found = evaluate_labels(run, labels, label_column=label, id_column=ids, made_by=made_by)
    console.show(console.class_table(found.final))
    result: dict[str, Any] = found.to_dict()
    share = f"share of unknowns: true {found.true_openness:.2f}"
    interval = found.intervals["true_openness"]
    if interval is not None and (found.is_partial or run.is_file()):
        share += f" ({interval[0]:.2f} to {interval[1]:.2f})"
    if not run.is_dir():
        _show(found, share)
        console.result(result)
        return
    from opensetda.cli.report import report_at_end
    from opensetda.runs.folder import METRICS, REPORT, RunFolder

    folder = RunFolder.open(run)
    # The existing report does not know the true labels.
    report = report_at_end(folder.path) if (folder.path / REPORT).exists() else None
    history, openness = folder.history(), folder.estimates()["openness"]
    if len(history) > 1:
        console.show(console.step_table(history, found.steps))
    _show(found, f"{share}, used {openness['share']:.2f}")
    files = {"metrics": run / METRICS, "report": report}
    console.say_places(**files)
    console.result({**result, "openness": openness, "files": files})


def _show(evaluation: Evaluation, share: str) -> None:
    console.show(console.metrics_table(evaluation))
    if console.is_quiet():
        # The table is not shown.
        main = ("HOS", "hos"), ("OS*", "os_star"), ("UNK", "unk")
        values = (f"{name} {console.percent(getattr(evaluation.final, key))}" for name, key in main)
        console.say(f"{', '.join(values)} (%)")
    for line in (share, *evaluation.notes):
        console.say(line)
