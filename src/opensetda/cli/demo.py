"""`osda demo`: the whole way on embedded data, next to two simple methods."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opensetda.cli import console
from opensetda.cli.options import OUTPUT_PANEL, TRAINING_PANEL, Debug, Json, Overwrite, Quiet, Seed

if TYPE_CHECKING:
    from opensetda.base import OpenSetClassifier
    from opensetda.data.benchmarks.protocols import OpenSetTask
    from opensetda.metrics.open_set import OpenSetMetrics
    from opensetda.openness.tracker import OpennessReport
    from opensetda.runs.view import RunView
    from opensetda.runs.writing import RunRecord

METHODS = {
    "source-only": "source only, least sure rejected",
    "class-means": "progressive class means",
    "pgl": "progressive graph learning (PGL)",
}
_QUICK = {
    "steps": 3,
    "optimiser.iterations_per_epoch": 5,
    "ranking.draws": 1,
    "ranking.graph_targets": 256,
    "ranking.support_nodes": 80,
}
_COLUMNS = {"os_star": "OS*", "unk": "UNK", "hos": "HOS", "all": "ALL", "auroc": "AUROC"}


def demo(
    context: typer.Context,
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="RUN", help="Run folder to make.", rich_help_panel=OUTPUT_PANEL
        ),
    ] = Path("osda-demo"),
    seed: Seed = 0,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="A few steps only, to see that it runs.",
            rich_help_panel=TRAINING_PANEL,
        ),
    ] = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train on MNIST digits, label scikit-learn's digits: 0 to 4 are known, 5 to 9 unknown.

    [bold]Example[/bold]

      osda demo --out osda-demo

    Nothing is downloaded. Compares three methods and leaves the run folder of PGL.
    """
    from opensetda.cli.report import report_at_end
    from opensetda.data.benchmarks.digits import load_digits_task
    from opensetda.runs.evaluation import evaluate_targets
    from opensetda.runs.folder import COMPARISON, METRICS
    from opensetda.runs.writing import check_destination
    from opensetda.system.files import in_shell, new_folder, plain, write_json

    check_destination(out, overwrite)
    task = load_digits_task()
    console.note(
        f"source: {len(task.source_features):,} MNIST digits 0-4, target: "
        f"{len(task.target_features):,} digits 0-9 of scikit-learn, "
        "share of unknowns: to be estimated"
    )
    changes = _QUICK if quick else {}
    outcomes: dict[str, OpenSetMetrics] = {}
    seconds: dict[str, float] = {}
    openness: dict[str, OpennessReport] = {}
    with new_folder(out) as aside:
        for method in METHODS:
            own = changes if method == "pgl" else {}
            classifier, seconds[method] = _train(method, task, own, seed)
            outcomes[method] = evaluate_targets(classifier, task.target_truth)
            openness[method] = classifier.openness_report_
        record = _record(task, changes, seed, seconds[method], context.obj or ())
        metrics = _write(aside, classifier, task, record)
        rows = {
            method: {
                **outcomes[method].to_dict(),
                "openness": plain(openness[method].to_dict()),
                "seconds": round(seconds[method], 3),
            }
            for method in METHODS
        }
        write_json(aside / COMPARISON, rows)

    report = report_at_end(out.resolve())
    kept = console.kept_step(classifier)
    console.show(console.step_table(classifier.history_, metrics, kept))
    _show_comparison(outcomes, openness, seconds, task.openness)
    console.show_estimates(classifier)
    folder = out.resolve()
    console.say(f"  labels   {folder / 'predictions.csv'}")
    console.say(f"  metrics  {folder / METRICS}")
    console.say(f"  report   {report or f'osda report {in_shell(folder)}'}")
    console.result(
        {
            "run": folder,
            "true_openness": task.openness,
            "methods": rows,
            "files": console.files_in(folder),
        }
    )


def _train(
    method: str, task: OpenSetTask, changes: dict[str, Any], seed: int
) -> tuple[OpenSetClassifier, float]:
    from opensetda.cli.counting import training_progress
    from opensetda.context import FitContext
    from opensetda.runs.fitting import fit_domains
    from opensetda.runs.methods import build_method

    with training_progress(method) as listener:
        classifier = build_method(method, openness="auto", changes=changes, seed=seed)
        seconds = fit_domains(
            classifier,
            task.source_features,
            task.source_labels,
            task.target_features,
            context=FitContext(progress=listener, view=True),
        )
    return classifier, seconds


def _record(
    task: OpenSetTask, changes: dict[str, Any], seed: int, seconds: float, command: Sequence[str]
) -> RunRecord:
    from opensetda.runs.methods import full_settings
    from opensetda.runs.writing import RunRecord

    return RunRecord(
        method="pgl",
        openness="auto",
        unknown_label="unknown",
        preset="default",
        settings=full_settings("pgl", "default", changes),
        seed=seed,
        inputs={
            "source": {"embedded": "MNIST digits 0-4", "rows": len(task.source_features)},
            "target": {"embedded": "scikit-learn digits", "rows": len(task.target_features)},
        },
        command=("osda", *command),
        seconds=seconds,
    )


def _write(
    folder: Path, classifier: OpenSetClassifier, task: OpenSetTask, record: RunRecord
) -> dict[int, OpenSetMetrics]:
    """Write the run of PGL with its evaluation; return the metrics of its steps."""
    from opensetda.runs.curves import draw_curves
    from opensetda.runs.evaluation import evaluate_labels
    from opensetda.runs.view import view_of
    from opensetda.runs.writing import ShownSamples, write_run

    view = view_of(classifier, task.source_features, task.source_labels, task.target_features)
    curves = draw_curves(classifier.history_)
    run = write_run(folder, classifier, record, None, curves, shown=ShownSamples(view))
    _write_thumbnails(folder, view)
    evaluation = evaluate_labels(
        run.predictions(), run.steps(), task.target_truth, run.unknown_label
    )
    title = "PGL: MNIST digits to scikit-learn's digits"
    curves = draw_curves(
        classifier.history_,
        evaluation.steps,
        title,
        kept_step=console.kept_step(classifier),
        true_share=evaluation.true_openness,
    )
    truth = {"embedded": "scikit-learn digits", "rows": len(task.target_truth)}
    run.write_metrics({"truth": truth, **evaluation.to_dict()}, curves, evaluation.truth)
    return evaluation.steps


def _write_thumbnails(folder: Path, view: RunView) -> None:
    """Draw the digits: there are no files that they could be read from."""
    from opensetda.data.benchmarks.digits import digit_pictures
    from opensetda.runs.folder import THUMBNAILS
    from opensetda.runs.pictures import SOURCE, TARGET, Shown, thumbnail, write_thumbnails

    source, target = digit_pictures()
    chosen = {SOURCE: (source, view.source.tolist()), TARGET: (target, range(len(target)))}
    write_thumbnails(
        folder / THUMBNAILS,
        {
            Shown(domain, row): thumbnail(pictures[row], smooth=False)
            for domain, (pictures, rows) in chosen.items()
            for row in rows
        },
    )


def _show_comparison(
    outcomes: dict[str, OpenSetMetrics],
    openness: dict[str, OpennessReport],
    seconds: dict[str, float],
    true_share: float,
) -> None:
    headings = {"method": "left", **dict.fromkeys(_COLUMNS.values(), "right")}
    headings |= {"share of unknowns": "right", "seconds": "right"}
    title = (
        "Comparison (%, share of unknowns estimated by each method, "
        f"true {console.percent(true_share)})"
    )
    table = console.new_table(title, headings)
    best = max(outcomes, key=lambda method: outcomes[method].hos)
    for method, metrics in outcomes.items():
        cells = [console.percent(getattr(metrics, name)) for name in _COLUMNS]
        cells += [console.percent(openness[method].share), f"{seconds[method]:.1f}"]
        table.add_row(METHODS[method], *cells, style="bold" if method == best else None)
    console.show(table)
