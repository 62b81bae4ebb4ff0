"""`osda evaluate`: compare a run, or labels of later samples, with true labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opensetda.cli import console, options

if TYPE_CHECKING:
    from opensetda.runs.evaluation import Evaluation


def evaluate(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|LABELS",
            help="Run folder of 'osda fit', or a .csv or .parquet file of 'osda predict'.",
        ),
    ],
    labels: Annotated[
        Path,
        options.other(
            "--labels TRUTH",
            "True labels of all samples or of some: a table (.npz, .csv, .parquet, a folder of "
            ".parquet parts), or images (one folder per class, list, manifest, tar shards).",
        ),
    ],
    label_column: options.LabelAsInFit = None,
    id_column: options.IdAsInFit = None,
    made_by: Annotated[
        Path | None,
        options.other(
            "--run RUN",
            "Run that wrote the file of 'osda predict'; needed if the file names only the "
            "likeliest classes.",
        ),
    ] = None,
) -> None:
    """Compute metrics with 95 % intervals. The only command that reads labels of the target.

    [bold]Examples[/bold]

      osda evaluate run --labels truth.csv --label-column class

      osda evaluate labels.csv --labels truth.csv

    Labels are matched by id if the samples have ids, by row otherwise; those
    without a true label (or an empty one) do not count. A label that is not a
    class of the source counts as unknown. Of a run, writes metrics.json
    into its folder, and updates its report, if there is one.
    """
    from opensetda.runs.evaluation import evaluate as evaluate_labels

    evaluation = evaluate_labels(
        run, labels, label_column=label_column, id_column=id_column, made_by=made_by
    )
    console.show(console.class_table(evaluation.final))
    result: dict[str, Any] = evaluation.to_dict()
    true, interval = evaluation.true_openness, evaluation.intervals["true_openness"]
    share = f"share of unknowns: true {true:.2f}"
    if interval is not None and (evaluation.is_partial or run.is_file()):
        share += f" ({interval[0]:.2f} to {interval[1]:.2f})"
    if not run.is_dir():
        _show(evaluation, share)
        console.result(result)
        return
    from opensetda.cli.report import report_at_end
    from opensetda.runs.folder import METRICS, REPORT, RunFolder

    folder = RunFolder.open(run)
    # The existing report does not know the true labels.
    report = report_at_end(folder.path) if (folder.path / REPORT).exists() else None
    history, openness = folder.history(), folder.estimates()["openness"]
    if len(history) > 1:
        console.show(console.step_table(history, evaluation.steps))
    _show(evaluation, f"{share}, used {openness['share']:.2f}")
    console.say(f"  metrics  {run / METRICS}")
    if report is not None:
        console.say(f"  report   {report}")
    files = {"metrics": run / METRICS, "report": report}
    console.result({**result, "openness": openness, "files": files})


def _show(evaluation: Evaluation, share: str) -> None:
    console.show(console.metrics_table(evaluation))
    if console.is_quiet():
        # The table is not shown.
        main = ("HOS", "hos"), ("OS*", "os_star"), ("UNK", "unk")
        values = (f"{name} {console.percent(getattr(evaluation.final, key))}" for name, key in main)
        console.say(f"{', '.join(values)} (%)")
    console.say(share)
    for note in evaluation.notes:
        console.say(note)
