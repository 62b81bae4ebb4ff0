"""`osda fit`: label the target, write a run folder; `osda resume` goes on with it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opensetda.cli import console
from opensetda.cli.bars import counting_progress, training_progress
from opensetda.cli.options import NoCache, RunOut, output, with_cache
from opensetda.progress import ProgressListener
from opensetda.runs.listening import CountingProgress, RunListener
from opensetda.runs.options import FitOptions

if TYPE_CHECKING:
    from opensetda.runs.fit_and_resume import FittedRun
    from opensetda.runs.fitting import Training

# A report of more targets needs more memory than most machines have.
MOST_REPORTED, MOST_CELLS = 1_000_000, 2**27
_SOURCE_HELP = (
    "Labelled images (one folder per class, list, manifest, tar shards) or feature table."
)
_TARGET_HELP = "Images or rows to label; labels in it are not read."
_RESUME_HELP = "Run folder that was given to 'osda fit --out'."


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


def fit(
    context: typer.Context,
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help=_SOURCE_HELP)],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help=_TARGET_HELP)],
    out: RunOut,
    options: FitOptions,
    no_cache: NoCache = False,
    no_report: Annotated[
        bool, output("--no-report", "Write no report; 'osda report' does it later.")
    ] = False,
) -> None:
    """Label an unlabelled target by a labelled source, which lacks some of its classes.

    [bold]Examples[/bold]

      osda fit shop/ street/ --out run

      osda fit a.npz b.npz --out run --openness 0.55 --id-column paths

    The source is a folder with one folder per class, a list of 'path label'
    lines, a manifest (.csv or .parquet with the columns path and label), tar
    shards (.tar, a folder or list of them) or a feature table
    (.npz, .csv, .tsv, .xlsx, .feather, .jsonl, .parquet or a folder of .parquet
    parts). The target is of the same kind, without labels; a table may be .npy,
    too. Columns that look like counters, times or ids are left out, with a
    warning; --keep uses them. The features of images are cached for the next
    run. The run folder holds the labels (predictions.csv), the model, the
    settings and the curves. The share of unknowns is estimated, unless you give
    it or its audit (--corrections). 'osda resume' goes on with an interrupted
    run.
    """
    options = replace(options, images=with_cache(options.images, no_cache))
    from opensetda.runs.fit_and_resume import fit as fit_run

    run = fit_run(
        source,
        target,
        out,
        report=not no_report,
        command=console.typed(context),
        listener=ConsoleListener(),
        **vars(options),
    )
    _finish(run)


def resume(run: Annotated[Path, typer.Argument(metavar="RUN", help=_RESUME_HELP)]) -> None:
    """Continue a run that was interrupted; the result is the same.

    [bold]Example[/bold]

      osda resume run

    RUN.unfinished holds what 'osda fit' was asked for and, once a step of a
    training is done, its checkpoint. On the CPU the result is the same to the
    bit. Source and target must be as they were.
    """
    from opensetda.runs.fit_and_resume import resume as resume_run

    _finish(resume_run(run, listener=ConsoleListener()))


def _finish(run: FittedRun) -> None:
    """Write the report of a run, and print the result."""
    training, request = run.training, run.request
    if training is None or request is None:
        console.say(f"{run.path} is complete: nothing to resume.")
        console.result({"run": run.path, "resumed": False})
        return
    report = _report(run.path, training) if request.report else None
    _show(run.path, training, report)
    classifier, labels = training.classifier, training.labels
    console.result(
        {
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
    )


def _report(run: Path, training: Training) -> Path | None:
    from opensetda.cli.report import report_at_end
    from opensetda.system.files import in_shell

    n_targets, n_classes = training.labels.total(), len(training.classifier.classes_)
    if n_targets <= MOST_REPORTED and n_targets * n_classes <= MOST_CELLS:
        return report_at_end(run)
    console.note(
        f"no report: with {n_targets:,} targets and {n_classes:,} classes it needs much memory; "
        f"'osda report {in_shell(run)}' writes it"
    )
    return None


def _show(out: Path, training: Training, report: Path | None) -> None:
    from opensetda.data.images.lists import printable
    from opensetda.runs.folder import BROKEN
    from opensetda.system.files import in_shell

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
    console.say_places(
        labels=out / "predictions.csv",
        report=report or f"osda report {typed}",
        check=f"osda review {typed}",
        later=f"osda predict {typed} {later} --out labels.csv",
        how_good=f"osda evaluate {typed} --labels TRUTH",
    )
