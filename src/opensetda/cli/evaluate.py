"""`osda evaluate`: compare a run with true labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from opensetda.cli import console, options


def evaluate(
    run: options.RunArgument,
    labels: Annotated[
        Path,
        options.other(
            "--labels TRUTH",
            "True labels of the target: a table (.npz, .csv, .parquet, a folder of .parquet "
            "parts), or images (one folder per class, list, manifest, tar shards).",
        ),
    ],
    label_column: options.LabelAsInFit = None,
    id_column: options.IdAsInFit = None,
) -> None:
    """Compute the metrics of a run. The only command that reads labels of the target.

    [bold]Example[/bold]

      osda evaluate run --labels truth.csv --label-column class

    Labels are matched by id if the run has ids, by row otherwise. A label that
    is not a class of the source counts as unknown. Writes metrics.json and
    curves.png into the run folder, and updates its report, if there is one.
    """
    from opensetda.cli.report import report_at_end
    from opensetda.runs.evaluation import evaluate as evaluate_run
    from opensetda.runs.folder import CURVES, METRICS, REPORT, RunFolder

    folder = RunFolder.open(run)
    evaluation = evaluate_run(folder, labels, label_column=label_column, id_column=id_column)
    # The existing report does not know the true labels.
    report = report_at_end(folder.path) if (folder.path / REPORT).exists() else None

    history, estimates = folder.history(), folder.estimates()
    openness, kept = estimates["openness"], estimates["kept_step"]
    console.show(console.class_table(evaluation.final))
    if len(history) > 1:
        step = None if kept is None else int(kept["step"])
        console.show(console.step_table(history, evaluation.steps, step))
    console.show(console.metrics_table(evaluation.final))
    true, used = evaluation.true_openness, openness["share"]
    console.say(f"share of unknowns: true {true:.2f}, used {used:.2f}")
    if evaluation.n_ignored:
        console.say(f"{evaluation.n_ignored:,} labels of samples that are not in the run: ignored.")
    console.say(f"  metrics  {run / METRICS}")
    console.say(f"  curves   {run / CURVES}")
    if report is not None:
        console.say(f"  report   {report}")
    files = {"metrics": run / METRICS, "curves": run / CURVES, "report": report}
    estimated = {"openness": openness, "kept_step": kept, "scaling": estimates["scaling"]}
    counts = {"ignored": evaluation.n_ignored}
    console.result({**evaluation.to_dict(), **estimated, **counts, "files": files})
