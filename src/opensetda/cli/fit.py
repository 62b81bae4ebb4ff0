"""`osda fit`: learn from a source and a target, label the target, leave a run folder."""

from __future__ import annotations

import time
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opensetda.cli import console
from opensetda.cli.options import (
    OUTPUT_PANEL,
    TRAINING_PANEL,
    Debug,
    Drop,
    FeaturesKey,
    IdColumn,
    LabelColumn,
    Overwrite,
    Seed,
    parse_changes,
)
from opensetda.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from opensetda.base import OpenSetClassifier
    from opensetda.data.tables import FeatureTable, TableColumns


class Method(StrEnum):
    """The methods of `opensetda.runs.methods`, spelled out here for the help text."""

    pgl = "pgl"
    class_means = "class-means"
    source_only = "source-only"


def fit(
    context: typer.Context,
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="Labelled rows (.npz, .csv or .parquet).")
    ],
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="Rows to label; labels in it are not read.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="RUN", help="Run folder to make.", rich_help_panel=OUTPUT_PANEL
        ),
    ],
    openness: Annotated[
        str,
        typer.Option(
            metavar="SHARE",
            help="Share of unknowns in the target, in [0, 1), or 'auto' to have it estimated.",
            rich_help_panel=TRAINING_PANEL,
        ),
    ] = "auto",
    method: Annotated[
        Method,
        typer.Option(
            metavar="NAME",
            help="pgl, class-means or source-only.",
            rich_help_panel=TRAINING_PANEL,
        ),
    ] = Method.pgl,
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Settings of pgl: default, paper-office-home, paper-visda, paper-syn2real.",
            rich_help_panel=TRAINING_PANEL,
        ),
    ] = "default",
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Change a setting; may be repeated.",
            rich_help_panel=TRAINING_PANEL,
        ),
    ] = None,
    seed: Seed = 0,
    label_column: LabelColumn = "y",
    id_column: IdColumn = None,
    drop: Drop = None,
    features_key: FeaturesKey = "X",
    unknown_label: Annotated[
        str,
        typer.Option(
            metavar="TEXT", help="What unknowns are called.", rich_help_panel=OUTPUT_PANEL
        ),
    ] = "unknown",
    overwrite: Overwrite = False,
    debug: Debug = False,
) -> None:
    """Learn from a labelled source and an unlabelled target, and label the target.

    [bold]Examples[/bold]

      osda fit shop.csv street.csv --out run --label-column class

      osda fit a.npz b.npz --out run --openness 0.55 --id-column paths

    Tables are .npz, .csv or .parquet files. Of the last two every column is a
    feature, but for the label and the id. The run folder holds the labels
    (predictions.csv), the model, the settings and a picture of the curves.
    How many targets are unknown is estimated without labels, unless you say it.
    """
    share_of_unknowns = _parse_openness(openness)
    from opensetda.runs.files import new_folder
    from opensetda.runs.folder import RunRecord, check_destination, write_run
    from opensetda.runs.methods import build_method, full_settings

    check_destination(out, overwrite)
    settings = parse_changes(changes)
    build = partial(
        build_method,
        method.value,
        openness=share_of_unknowns,
        preset=preset,
        changes=settings,
        seed=seed,
        unknown_label=unknown_label,
    )
    build()  # Wrong settings are found before big files are read.

    from opensetda.data.tables import TableColumns, read_domains

    columns = TableColumns(label_column, id_column, features_key, tuple(drop or ()))
    labelled, unlabelled = read_domains(source, target, columns)
    inputs = {"source": _record(labelled), "target": _record(unlabelled)}
    console.note(_summary(labelled, unlabelled))
    with console.progress_listener(method.value) as listener:
        classifier = build(progress=listener)
        seconds = fit_domains(classifier, labelled.X, labelled.labels, unlabelled.X)

    from opensetda.report.curves import draw_curves

    record = RunRecord(
        method=method.value,
        openness=share_of_unknowns,
        unknown_label=unknown_label,
        preset=preset,
        settings=full_settings(method.value, preset, settings),
        seed=seed,
        inputs=inputs,
        columns=_named(columns),
        feature_names=labelled.feature_names or unlabelled.feature_names,
        has_ids=unlabelled.ids is not None,
        command=("osda", *(context.obj or ())),
        seconds=seconds,
    )
    kept = console.kept_step(classifier)
    title = f"{method.value} on {target.name}"
    curves = draw_curves(classifier.history_, title=title, kept_step=kept)
    with new_folder(out) as aside:
        write_run(aside, classifier, record, unlabelled.ids, curves)
    _show_result(classifier, out, target, seconds)


def fit_domains(
    classifier: OpenSetClassifier,
    source: npt.NDArray[np.float32],
    labels: Any,
    target: npt.NDArray[np.float32],
) -> float:
    """Fit on source and target rows, and return the seconds it took."""
    import numpy as np

    start = time.perf_counter()
    # The targets' places in y hold the first source label: any value would do, none is read.
    y = np.concatenate([labels, np.repeat(labels[:1], len(target))])
    domain = np.repeat([0, -1], [len(source), len(target)])
    classifier.fit(np.concatenate([source, target]), y, sample_domain=domain)
    return time.perf_counter() - start


def _parse_openness(text: str) -> float | str:
    # Spelled here: the module that estimates would make a wrong option a slow one.
    if text == "auto":
        return text
    try:
        openness = float(text)
    except ValueError:
        openness = float("nan")
    if not 0 <= openness < 1:
        raise InputError(
            f"--openness {text}: give the share of unknowns in the target, a number in [0, 1), "
            "or 'auto' to have it estimated"
        )
    return openness


def _summary(source: FeatureTable, target: FeatureTable) -> str:
    return (
        f"source: {len(source):,} rows of {len(source.class_counts())} classes, "
        f"target: {len(target):,} rows, {source.X.shape[1]:,} features"
    )


def _record(table: FeatureTable) -> dict[str, Any]:
    from opensetda.runs.files import file_record

    record = {**file_record(table.path), "rows": len(table), "features": table.X.shape[1]}
    if table.labels is not None:
        record["classes"] = table.class_counts()
    return record


def _named(columns: TableColumns) -> dict[str, Any]:
    return {
        "label": columns.label,
        "id": columns.id,
        "features": columns.features,
        "drop": list(columns.drop),
    }


def _show_result(classifier: OpenSetClassifier, out: Path, target: Path, seconds: float) -> None:
    if len(classifier.history_) > 1:
        kept = console.kept_step(classifier)
        console.show(console.step_table(classifier.history_, kept=kept))
    labels = classifier.transduction_.tolist()
    console.show(console.label_counts(labels, classifier.unknown_label))
    console.show_estimates(classifier)
    console.say(f"Labelled {len(labels):,} rows of {target.name} in {seconds:.1f} s.")
    console.say(f"  labels   {out / 'predictions.csv'}")
    console.say(f"  curves   {out / 'curves.png'}")
    console.say(f"  later    osda predict {out} FILE --out labels.csv")
    console.say(f"  how good osda evaluate {out} --labels TRUTH")
