"""`osda fit`, `resume` and `demo` make a run, `predict` and `export` use it; `osda features`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opensetda.cli import console
from opensetda.cli.bars import ConsoleListener
from opensetda.cli.options import (
    Fields,
    Overwrite,
    RunArgument,
    Scheduler,
    Seed,
    cached,
    option_of,
    output,
)
from opensetda.cli.results import HEADINGS, report_at_end
from opensetda.runs.options import FitOptions, ImageOptions, TableOptions

if TYPE_CHECKING:
    from opensetda.usecases.fit_run import FittedRun

# A report of more targets times classes needs more memory than most machines have.
_MOST_CELLS, _FEWEST_CLASSES = 2**27, 128
_SOURCE_HELP = "Labelled images (folder per class, list, manifest, tar shards) or feature table."
_TARGET_HELP = "Images or rows to label; labels in it are not read."
_NO_REPORT_HELP = "Write no report; 'osda report' does it later."
_PATHS_HELP = "Images: files, folders, lists, manifests or tar shards; or one feature table."
_OUT_HELP = "The .csv or .parquet file to make; with --scheduler, the folder of Parquet parts."
_FEATURES_HELP = "The .npz file to make; with --scheduler, the folder of Parquet parts."
_TO_HELP = "The .onnx file to make, or a folder for it, its description and a script."
_AS_IN_FIT = "id features drop path"
_IMAGES_HELP = "Images: a folder, a list (.txt), a manifest (.csv, .parquet) or tar shards."
_COLUMNS = ("os_star", "unk", "hos", "all", "auroc")
RunOut = Annotated[Path, output("--out RUN", "Run folder to make.")]
NoCache = Annotated[bool, option_of("Images", "--no-cache", "Do not cache features.")]


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
    from opensetda.usecases.fit_run import fit as fit_run

    options = replace(options, images=cached(images, no_cache), tables=tables)
    how: dict[str, Any] = {"command": context.obj, "listener": ConsoleListener()}
    _finish(fit_run(source, target, out, report=not no_report, **how, **vars(options)))


def resume(run: RunArgument) -> None:
    """Continue a run that was interrupted; the result is the same.

    RUN.unfinished holds what 'osda fit' was asked for and, once a step of a
    training is done, its checkpoint. On the CPU the result is the same to the
    bit. Source and target must be as they were.
    """
    from opensetda.usecases.fit_run import resume as resume_run

    _finish(resume_run(run, listener=ConsoleListener()))


def _finish_complete(run: FittedRun) -> None:
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


def _finish(run: FittedRun) -> None:
    """Write the report of a run, and print the result."""
    from opensetda.data.names import printable
    from opensetda.runs.folder import BROKEN, predictions_name
    from opensetda.system.files import in_shell

    training, request, path = run.training, run.request, run.path
    if training is None or request is None:
        _finish_complete(run)
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
        report = report_at_end(path)
    if len(fitted.history) > 1:
        console.show_steps(fitted.history, {})
    labels = console.show_labels(counts, classifier.unknown_label)
    console.show_estimates(classifier)
    many = console.counted(counts.total(), training.noun)
    console.say(f"Labelled {many} of {printable(training.target)} in {fitted.seconds:.1f} s.")
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

    how: dict[str, Any] = {"command": context.obj, "listener": ConsoleListener()}
    found = run_demo(out, seed=seed, quick=quick, overwrite=overwrite, **how)
    folder, rows = found.path, found.rows
    report = report_at_end(folder)
    console.show_steps(found.classifier.history_, found.steps)
    true = console.percent(found.true_openness)
    title = f"Comparison (%, share of unknowns estimated by each method, true {true})"
    numbers = [*(HEADINGS[name][0] for name in _COLUMNS), "share of unknowns", "seconds"]
    best, cells = max(rows, key=lambda method: rows[method]["hos"]), []
    for method, row in rows.items():
        shares = [*(row[name] for name in _COLUMNS), row["openness"]["share"]]
        own = [method, *map(console.percent, shares), f"{row['seconds']:.1f}"]
        cells.append(map(console.Bold, own) if method == best else own)
    console.show_table(title, ["method"], numbers, cells)
    console.show_estimates(found.classifier)
    console.say_places(
        labels=folder / "predictions.csv",
        metrics=folder / "metrics.json",
        report=report or f"osda report {in_shell(folder)}",
    )
    summary = {"run": folder, "true_openness": found.true_openness, "methods": rows}
    console.result({**summary, "files": {file.name: file for file in sorted(folder.iterdir())}})


def predict(
    run: RunArgument,
    paths: Annotated[list[Path], typer.Argument(metavar="PATHS...", help=_PATHS_HELP)],
    out: Annotated[Path, output("--out LABELS", _OUT_HELP)],
    tables: Annotated[TableOptions, Fields(f"{_AS_IN_FIT} root", _AS_IN_FIT)],
    overwrite: Overwrite = False,
    scheduler: Scheduler = None,
) -> None:
    """Label later samples with the model of a run, independently of each other.

    [bold]Examples[/bold]

      osda predict run new-photos/ --out labels.csv

      osda predict run new.csv --out labels.parquet

    Any number of images is read, labelled and written part by part. Features of
    a table that had names in 'osda fit' are found by name, empty cells and
    categories are treated as there, and other columns are ignored.
    """
    from opensetda.usecases.predict_samples import predict as predict_samples

    how: dict[str, Any] = {"overwrite": overwrite, "listener": ConsoleListener()}
    how["scheduler"] = scheduler
    written: Any = predict_samples(run, paths, out, tables=tables, **how)
    labels = console.show_labels(written.counts, written.unknown_label)
    total = written.counts.total()
    console.say(f"Labelled {console.counted(total, written.noun)}.")
    console.say_places(labels=out)
    files = {"labels": out, "broken": written.broken_list}
    console.result({"samples": total, **labels, "broken": written.n_broken, "files": files})


def export(
    run: RunArgument,
    to: Annotated[Path, output("--to PLACE", _TO_HELP)],
    overwrite: Overwrite = False,
) -> None:
    """Write the model of a run as ONNX, to label samples without torch and OpenSetDA.

    [bold]Examples[/bold]

      osda export run --to model.onnx

      osda export run --to model && python model/use.py photo.jpg

    The file takes resized RGB images, or rows of features, and returns label,
    confidence, probabilities (unknown last) and known score; use.py in the folder
    resizes images. It is compared with 'osda predict' before it is written.
    """
    from opensetda.usecases.export_model import export as export_model

    written = export_model(run, to, overwrite=overwrite)
    many = console.counted(written.n_checked, "image" if written.has_images else "row")
    console.say(
        f"Same labels as 'osda predict' for {many}; "
        f"probabilities differ by at most {written.difference:.0e}."
    )
    use = f"python {written.path / 'use.py'} FILE" if written.path != written.model else None
    console.say_places(model=written.model, try_it=use)
    checked = {"samples": written.n_checked, "difference": written.difference}
    console.result({**checked, "files": {"model": written.model}})


def features(
    data: Annotated[Path, typer.Argument(metavar="DATA", help=_IMAGES_HELP)],
    out: Annotated[Path, output("--out FILE", _FEATURES_HELP)],
    images: Annotated[ImageOptions, Fields("backbone weights size views cache strict")],
    columns: Annotated[TableOptions, Fields("label path root")],
    no_cache: NoCache = False,
    overwrite: Overwrite = False,
    scheduler: Scheduler = None,
) -> None:
    """Turn images into features, one row per image.

    [bold]Examples[/bold]

      osda features photos/ --out photos.npz

      osda fit photos.npz drawings.npz --out run --id-column paths

    The file holds X, paths and, if the images have classes, y and classes. Images
    that cannot be read are left out and listed beside it.
    """
    from opensetda.runs.pictures import broken_list
    from opensetda.usecases.predict_samples import extract_features

    how: dict[str, Any] = {"overwrite": overwrite, "listener": ConsoleListener()}
    how |= {"tables": columns, "scheduler": scheduler}
    written: Any = extract_features(data, out, cached(images, no_cache), **how)
    n_images, n_features = written.X.shape if scheduler is None else written.shape
    console.say(
        f"{n_images:,} images, {n_features:,} features each, in "
        f"{written.seconds:.1f} s ({written.n_cached:,} from the cache)."
    )
    console.say_places(features=out)
    counts = {"images": n_images, "features": n_features}
    counts |= {"broken": len(written.broken), "cached": written.n_cached}
    files = {"features": out, "broken": broken_list(out) if written.broken else None}
    console.result({**counts, "seconds": written.seconds, "files": files})
