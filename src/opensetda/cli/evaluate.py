"""`osda evaluate`: compare a run with the truth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opensetda.cli import console
from opensetda.cli.options import TABLE_PANEL, Debug, Json, Quiet, RunArgument
from opensetda.errors import InputError

if TYPE_CHECKING:
    from opensetda.data.tables.loading import TruthTable
    from opensetda.runs.folder import RunFolder


def evaluate(
    run: RunArgument,
    labels: Annotated[
        Path,
        typer.Option(
            "--labels",
            metavar="TRUTH",
            help="True labels of the target: a table (.npz, .csv, .parquet, a folder of .parquet "
            "parts), or images (class folders, list, manifest, tar shards).",
        ),
    ],
    label_column: Annotated[
        str | None,
        typer.Option(
            "--label-column",
            metavar="NAME",
            help="Column of the labels; by default as in fit.",
            rich_help_panel=TABLE_PANEL,
        ),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option(
            "--id-column",
            metavar="NAME",
            help="Column of the ids; by default as in fit.",
            rich_help_panel=TABLE_PANEL,
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Say how good a run is. The only command that reads labels of the target.

    [bold]Example[/bold]

      osda evaluate run --labels truth.csv --label-column class

    Labels are matched by id if the run has ids, by row otherwise. A label that
    is no class of the source counts as unknown. Writes metrics.json and
    curves.png into the run folder, and its report anew, if there is one.
    """
    from opensetda.cli.report import report_at_end
    from opensetda.runs.curves import draw_curves
    from opensetda.runs.evaluation import evaluate_run
    from opensetda.runs.folder import CURVES, METRICS, REPORT, RunFolder
    from opensetda.system.files import file_record

    folder = RunFolder.open(run)
    if id_column is not None and not folder.has_ids:
        raise InputError(
            f"--id-column {id_column}: {run} has no ids, its rows are matched by number; "
            "fit with --id-column to have them"
        )
    truth = _read_truth(folder, labels, label_column, id_column)
    evaluation = evaluate_run(folder, truth)
    history, estimates = folder.history(), folder.estimates()
    kept = None if estimates["kept_step"] is None else int(estimates["kept_step"]["step"])
    where = file_record(labels) if labels.is_file() else {"path": str(labels.resolve())}
    record = {**where, "rows": len(truth.labels)}
    curves = draw_curves(
        history,
        evaluation.steps,
        f"{folder.settings['method']}: {run.name}",
        kept_step=kept,
        true_share=evaluation.true_openness,
    )
    folder.write_metrics({"truth": record, **evaluation.to_dict()}, curves, evaluation.truth)
    # One that is there would go on to say that nothing is known of the truth.
    report = report_at_end(folder.path) if (folder.path / REPORT).exists() else None

    console.show(console.class_table(evaluation.final))
    if len(history) > 1:
        console.show(console.step_table(history, evaluation.steps, kept))
    console.show(console.metrics_table(evaluation.final))
    openness = estimates["openness"]
    console.say(
        f"share of unknowns: true {evaluation.true_openness:.2f}, used {openness['share']:.2f}"
    )
    if evaluation.n_ignored:
        console.say(f"{evaluation.n_ignored:,} labels of samples that are not in the run: ignored.")
    console.say(f"  metrics  {run / METRICS}")
    console.say(f"  curves   {run / CURVES}")
    if report is not None:
        console.say(f"  report   {report}")
    console.result(
        {
            **evaluation.to_dict(),
            "openness": openness,
            "kept_step": estimates["kept_step"],
            "ignored": evaluation.n_ignored,
            "files": {"metrics": run / METRICS, "curves": run / CURVES, "report": report},
        }
    )


def _read_truth(
    folder: RunFolder, labels: Path, label_column: str | None, id_column: str | None
) -> TruthTable:
    from opensetda.data.images.lists import ImageColumns
    from opensetda.data.images.loading import is_image_data, read_image_truth
    from opensetda.data.tables.loading import TableColumns, read_truth

    label = label_column or folder.column("label")
    # A manifest may name its columns as others do, or as the one of 'osda fit' did.
    for path in (id_column, folder.column("path")) if folder.has_images else ():
        columns = ImageColumns(path=path, label=label)
        if is_image_data(labels, columns):
            return read_image_truth(labels, columns)
    return read_truth(
        labels,
        TableColumns(
            label=label or "y",
            id=(id_column or folder.column("id")) if folder.has_ids else None,
        ),
    )
