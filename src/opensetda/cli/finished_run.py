"""What `osda fit` and `osda resume` do with a run that is complete: its report, and the result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from opensetda.cli import console
from opensetda.cli.report import report_at_end

if TYPE_CHECKING:
    from opensetda.usecases.fit_run import FittedRun

# A report of more targets times classes needs more memory than most machines have.
_MOST_CELLS = 2**27
_FEWEST_CLASSES = 128


def show_fitted(run: FittedRun) -> None:
    """Write the report of a run, and print the result."""
    from opensetda.data.names import printable
    from opensetda.runs.folder import BROKEN, predictions_name
    from opensetda.system.files import in_shell

    training = run.training
    request = run.request
    path = run.path
    if training is None or request is None:
        _show_complete(run)
        return
    fitted = training.fitted
    classifier = fitted.classifier
    counts = training.labels
    shell = in_shell(path)
    report = None
    n_cells = counts.total() * max(len(classifier.classes_), _FEWEST_CLASSES)
    if request.report and n_cells > _MOST_CELLS:
        console.note("no report: with so many targets and classes it needs much memory")
    elif request.report:
        console.begin_stage("report")
        report = report_at_end(path)
    if console.is_verbose() and len(fitted.history) > 1:
        console.show_steps(fitted.history, {})
    labels = console.show_labels(counts, classifier.unknown_label)
    console.show_estimates(classifier)
    many = console.counted(counts.total(), training.noun)
    console.say(f"Labelled {many} of {printable(training.target)} in {console.waited():.1f} s.")
    later = "FILE" if training.noun == "row" else "PATHS"
    console.say_places(
        labels=path / predictions_name(counts.total()),
        left_out=path / BROKEN if training.n_broken else None,
        report=report or f"osda report {shell}",
        check=f"osda review {shell}",
        later=f"osda predict {shell} {later} --out labels.csv",
        how_good=f"osda evaluate {shell} --labels TRUTH",
    )
    console.result(
        {
            "run": path,
            "method": request.method,
            "targets": counts.total(),
            **labels,
            "openness": fitted.report.to_dict(),
            "alarms": getattr(classifier, "alarms_", []),
            "scaling": classifier.scaler_.name,
            "files": {file.name: file for file in sorted(path.iterdir())},
            "tensorboard": None if request.tensorboard is None else Path(request.tensorboard),
            "left_out": training.left_out,
            "broken": training.n_broken,
            "resumed": run.resumed,
            "data_seconds": training.data_seconds,
            "seconds": fitted.seconds,
        }
    )


def _show_complete(run: FittedRun) -> None:
    """Write the report of a complete run if it was asked for and is missing."""
    from opensetda.runs.folder import REPORT

    folder = run.folder
    report = None
    if folder.settings.get("report") and not (run.path / REPORT).exists():
        n_cells = len(folder.labels()) * max(len(folder.settings["classes"]), _FEWEST_CLASSES)
        report = None if n_cells > _MOST_CELLS else report_at_end(run.path)
    if report is None:
        console.say(f"{run.path} is complete: nothing to resume.")
    else:
        console.say(f"{run.path} is complete; its report was missing, and is written now.")
        console.say_places(report=report)
    console.result({"run": run.path, "resumed": False, "files": {"report": report}})
