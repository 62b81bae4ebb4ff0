"""What `osda fit` and `osda resume` print while they work, and at the end."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from opensetda.cli import console
from opensetda.cli.bars import counting_progress, training_progress
from opensetda.cli.report import report_at_end
from opensetda.data.images.lists import printable
from opensetda.progress import ProgressListener
from opensetda.runs.fit_and_resume import FittedRun
from opensetda.runs.fitting import Training
from opensetda.runs.folder import BROKEN
from opensetda.runs.listening import CountingProgress, RunListener
from opensetda.runs.request import FitRequest
from opensetda.system.files import in_shell

# A report of more targets needs more memory than most machines have.
MOST_REPORTED, MOST_CELLS = 1_000_000, 2**27


class ConsoleListener(RunListener):
    """Prints notes, warnings and progress."""

    def note(self, line: str) -> None:
        """Print a note."""
        console.note(line)

    def warn(self, message: str) -> None:
        """Print a warning."""
        console.warn(message)

    def counting(self, title: str, noun: str = "image") -> AbstractContextManager[CountingProgress]:
        """Show a bar, or lines in a log."""
        return counting_progress(title, noun)

    def training(self, method: str) -> AbstractContextManager[ProgressListener]:
        """Show a bar, or lines in a log."""
        return training_progress(method)


def finish_fit(run: FittedRun) -> None:
    """Write the report of a run, and print the result."""
    if run.training is None or run.request is None:
        console.say(f"{run.path} is complete: nothing to resume.")
        console.result({"run": run.path, "resumed": False})
        return
    report = _report(run.path, run.training) if run.request.report else None
    _show(run.path, run.training, report)
    console.result(_summary(run, run.training, run.request))


def _report(run: Path, training: Training) -> Path | None:
    n_targets, n_classes = training.labels.total(), len(training.classifier.classes_)
    if n_targets <= MOST_REPORTED and n_targets * n_classes <= MOST_CELLS:
        return report_at_end(run)
    console.note(
        f"no report: with {n_targets:,} targets and {n_classes:,} classes it needs much memory; "
        f"'osda report {in_shell(run)}' writes it"
    )
    return None


def _summary(run: FittedRun, training: Training, request: FitRequest) -> dict[str, Any]:
    classifier, labels = training.classifier, training.labels
    return {
        "run": run.path,
        "method": request.method,
        "targets": labels.total(),
        **console.label_summary(labels, classifier.unknown_label),
        "openness": classifier.openness_report_.to_dict(),
        "scaling": classifier.scaler_.name,
        "files": console.files_in(run.path),
        "tensorboard": None if request.tensorboard is None else Path(request.tensorboard),
        "left_out": training.left_out,
        "broken": training.n_broken,
        "resumed": run.resumed,
        "data_seconds": training.data_seconds,
        "seconds": training.seconds,
    }


def _show(out: Path, training: Training, report: Path | None) -> None:
    classifier, labels = training.classifier, training.labels
    if len(classifier.history_) > 1:
        console.show(console.step_table(classifier.history_))
    console.show(console.label_counts(labels, classifier.unknown_label))
    console.show_estimates(classifier)
    many, seconds = console.counted(labels.total(), training.noun), console.seconds_so_far()
    console.say(f"Labelled {many} of {printable(training.target)} in {seconds:.1f} s.")
    if training.n_broken:
        many = console.counted(training.n_broken, "broken image")
        console.say(f"Left out {many}: {out / BROKEN}")
    later, typed = "FILE" if training.noun == "row" else "PATHS", in_shell(out)
    console.say(f"  labels   {out / 'predictions.csv'}")
    console.say(f"  report   {report or f'osda report {typed}'}")
    console.say(f"  check    osda review {typed}")
    console.say(f"  later    osda predict {typed} {later} --out labels.csv")
    console.say(f"  how good osda evaluate {typed} --labels TRUTH")
