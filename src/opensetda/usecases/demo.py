"""The use case demo: three methods on the bundled digits, and the run folder of the default."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from opensetda.context import FitContext
from opensetda.data.benchmarks.digits import digit_pictures, load_digits_task
from opensetda.methods.base import OpenSetClassifier
from opensetda.metrics.open_set import OpenSetMetrics
from opensetda.progress import RunListener
from opensetda.runs.folder import COMPARISON, THUMBNAILS, check_destination, new_run_folder
from opensetda.runs.pictures import SOURCE, TARGET, Shown, thumbnail, thumbnail_table
from opensetda.runs.registry import build_method, full_settings
from opensetda.runs.sample_map import view_of
from opensetda.system.files import json_bytes, plain
from opensetda.usecases.evaluate_run import evaluate_labels, evaluate_targets, write_evaluation
from opensetda.usecases.fit_rows import FittedMethod, fit_method, read_rows_of, write_run

# Settings of PGL that take less than a minute, for so small a task.
_SMALL = {"edge_width": 64, "node_width": 64, "epochs": 1}


class Demo(NamedTuple):
    """The run folder of the default, fitted, with the metrics of its steps.

    `rows` are the metrics, estimated openness and seconds of each method, as in comparison.json.
    """

    path: Path
    classifier: OpenSetClassifier
    steps: dict[int, OpenSetMetrics]
    rows: dict[str, dict[str, Any]]
    true_openness: float


def run_demo(
    out: Path,
    *,
    seed: int = 0,
    quick: bool = False,
    overwrite: bool = False,
    command: Sequence[str] = (),
    listener: RunListener | None = None,
) -> Demo:
    """Compare three methods on the bundled digits, and write the run folder of the first.

    `quick` trains PGL for two steps only.
    """
    listener = listener or RunListener()
    task = load_digits_task()
    check_destination(out, overwrite)
    domains = read_rows_of(task.source_features, task.source_labels, task.target_features)
    n_source = len(task.source_features)
    n_target = len(task.target_features)
    listener.note(
        f"source: {n_source:,} MNIST digits 0-4, target: {n_target:,} digits 0-9 of scikit-learn, "
        "share of unknowns: to be estimated"
    )
    fitted: dict[str, FittedMethod] = {}
    rows: dict[str, dict[str, Any]] = {}
    small = _SMALL | {"stop_step": 2} if quick else _SMALL
    own_settings: dict[str, Any] = {"committee": {}, "pgl": small, "source-only": {}}
    for method, changes in own_settings.items():
        one = build_method(method, openness="auto", changes=changes, seed=seed)
        with listener.training(method) as progress:
            fitted[method] = fit_method(one, domains, FitContext(progress))
        rows[method] = evaluate_targets(one, task.target_truth).to_dict()
        rows[method]["openness"] = plain(one.openness_report_.to_dict())
        rows[method]["scaling"] = one.scaler_.name
        rows[method]["seconds"] = round(fitted[method].seconds, 3)
    method = next(iter(fitted))
    classifier = fitted[method].classifier
    source = {"embedded": "MNIST digits 0-4", "rows": n_source}
    target = {"embedded": "scikit-learn digits", "rows": n_target}
    record = {
        "method": method,
        "openness": "auto",
        "unknown_label": "unknown",
        "seed": seed,
        "settings": full_settings(method, None, {}),
        "inputs": {"source": source, "target": target},
        "command": list(command),
    }
    with new_run_folder(out) as aside:
        view = view_of(classifier, task.source_features, task.source_labels, task.target_features)
        run = write_run(aside, fitted[method], record, ids=None, view=view)
        # There are no image files to read the digits from.
        thumbnails = {}
        for domain, pictures in zip((SOURCE, TARGET), digit_pictures(), strict=True):
            for row in view.source.tolist() if domain == SOURCE else range(len(pictures)):
                thumbnails[Shown(domain, row)] = thumbnail(pictures[row], smooth=False)
        contents = {THUMBNAILS: thumbnail_table(thumbnails), COMPARISON: json_bytes(rows)}
        run.manifest.replace(contents)
        evaluation = evaluate_labels(
            run.predictions(), run.steps(), task.target_truth, run.unknown_label
        )
        write_evaluation(run, evaluation, target)
    for warning in classifier.openness_report_.warnings:
        listener.warn(warning)
    return Demo(out.resolve(), classifier, evaluation.steps, rows, task.openness)
