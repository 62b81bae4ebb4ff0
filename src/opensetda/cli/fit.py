"""`osda fit` labels a target and writes a run; `osda resume` goes on; `osda demo` shows it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opensetda.cli import console
from opensetda.cli.bars import ConsoleListener
from opensetda.cli.options import NoCache, Overwrite, RunOut, Seed, cached, of_method, output
from opensetda.cli.results import HEADINGS, report_at_end
from opensetda.runs.options import FitOptions, ImageOptions, TableOptions

if TYPE_CHECKING:
    from opensetda.runs.fit_and_resume import FittedRun

# A report of more targets times classes needs more memory than most machines have.
_MOST_CELLS, _FEWEST_CLASSES = 2**27, 128
_SOURCE_HELP = "Labelled images (folder per class, list, manifest, tar shards) or feature table."
_TARGET_HELP = "Images or rows to label; labels in it are not read."
_RESUME_HELP = "Run folder that was given to 'osda fit --out'."
_NO_REPORT_HELP = "Write no report; 'osda report' does it later."
_COLUMNS = ("os_star", "unk", "hos", "all", "auroc")


def fit(
    context: typer.Context,
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help=_SOURCE_HELP)],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help=_TARGET_HELP)],
    out: RunOut,
    options: FitOptions,
    images: ImageOptions,
    tables: TableOptions,
    no_cache: NoCache = False,
    no_report: Annotated[bool, output("--no-report", _NO_REPORT_HELP)] = False,
) -> None:
    """Label an unlabelled target by a labelled source, which lacks some of its classes.

    [bold]Examples[/bold]

      osda fit shop/ street/ --out run

      osda fit a.npz b.npz --out run --openness 0.55 --id-column paths

    The source is a folder with one folder per class, a list of 'path label'
    lines, a manifest (.csv or .parquet with the columns path and label), tar
    shards (.tar, a folder or list of them) or a feature table (.npz, .csv, .tsv,
    .xlsx, .feather, .jsonl, .parquet). The target is of the same kind, without labels.
    Columns that look like counters, times or ids are left out, with a warning;
    --keep uses them. The share of unknowns is estimated, unless you give it or
    its audit (--corrections). 'osda resume' continues an interrupted run.
    """
    from opensetda.runs.fit_and_resume import fit as fit_run

    options = replace(options, images=cached(images, no_cache), tables=tables)
    how: dict[str, Any] = {"command": context.obj, "listener": ConsoleListener()}
    _finish(fit_run(source, target, out, report=not no_report, **how, **vars(options)))


def resume(run: Annotated[Path, typer.Argument(metavar="RUN", help=_RESUME_HELP)]) -> None:
    """Continue a run that was interrupted; the result is the same.

    RUN.unfinished holds what 'osda fit' was asked for and, once a step of a
    training is done, its checkpoint. On the CPU the result is the same to the
    bit. Source and target must be as they were.
    """
    from opensetda.runs.fit_and_resume import resume as resume_run

    _finish(resume_run(run, listener=ConsoleListener()))


def _finish(run: FittedRun) -> None:
    """Write the report of a run, and print the result."""
    from opensetda.data.names import printable
    from opensetda.runs.folder import BROKEN, predictions_name
    from opensetda.system.files import in_shell

    training, request, path = run.training, run.request, run.path
    if training is None or request is None:
        console.say(f"{path} is complete: nothing to resume.")
        console.result({"run": path, "resumed": False})
        return
    classifier, counts, shell = training.classifier, training.labels, in_shell(path)
    report = None
    n_cells = counts.total() * max(len(classifier.classes_), _FEWEST_CLASSES)
    if request.report and n_cells > _MOST_CELLS:
        console.note("no report: with so many targets and classes it needs much memory")
    elif request.report:
        report = report_at_end(path)
    if len(classifier.history_) > 1:
        console.show_steps(classifier.history_, {})
    labels = console.show_labels(counts, classifier.unknown_label)
    console.show_estimates(classifier)
    many = console.counted(counts.total(), training.noun)
    console.say(f"Labelled {many} of {printable(training.target)} in {training.seconds:.1f} s.")
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
            "openness": classifier.openness_report_.to_dict(),
            "scaling": classifier.scaler_.name,
            "files": {file.name: file for file in sorted(path.iterdir())},
            "tensorboard": None if request.tensorboard is None else Path(request.tensorboard),
            "left_out": training.left_out,
            "broken": training.n_broken,
            "resumed": run.resumed,
            "data_seconds": training.data_seconds,
            "seconds": training.seconds,
        }
    )


def demo(
    context: typer.Context,
    out: RunOut = Path("osda-demo"),
    seed: Seed = 0,
    quick: Annotated[bool, of_method("--quick", "Train PGL for two steps only.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Label scikit-learn's digits by MNIST's: 0 to 4 are known, 5 to 9 unknown.

    Downloads nothing. Compares three methods, and writes the run folder of the
    default, moving-means.
    """
    from opensetda.runs.demo import run_demo
    from opensetda.system.files import in_shell

    how: dict[str, Any] = {"command": context.obj, "listener": ConsoleListener()}
    found = run_demo(out, seed=seed, quick=quick, overwrite=overwrite, **how)
    folder, rows = found.path, found.rows
    report = report_at_end(folder)
    console.show_steps(found.classifier.history_, found.steps)
    true = console.percent(found.true_openness)
    title = f"Comparison (%, share of unknowns estimated by each method, true {true})"
    numbers = [*(HEADINGS[name][0] for name in _COLUMNS), "share of unknowns", "seconds"]
    table = console.new_table(title, ["method"], numbers)
    best = max(rows, key=lambda method: rows[method]["hos"])
    for method, row in rows.items():
        cells = [console.percent(row[name]) for name in _COLUMNS]
        cells += [console.percent(row["openness"]["share"]), f"{row['seconds']:.1f}"]
        console.add_row(table, method, *cells, bold=method == best)
    console.show(table)
    console.show_estimates(found.classifier)
    console.say_places(
        labels=folder / "predictions.csv",
        metrics=folder / "metrics.json",
        report=report or f"osda report {in_shell(folder)}",
    )
    summary = {"run": folder, "true_openness": found.true_openness, "methods": rows}
    console.result({**summary, "files": {file.name: file for file in sorted(folder.iterdir())}})
