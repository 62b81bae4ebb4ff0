"""`osda fit`: learn from a source and a target, label the target, leave a run folder."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer

from opensetda.cli.image_options import (
    Backbone,
    Cache,
    ImageSize,
    ImagesRoot,
    NoCache,
    PathColumn,
    Strict,
    Weights,
    cache_folder,
)
from opensetda.cli.options import (
    OUTPUT_PANEL,
    TABLE_PANEL,
    TRAINING_PANEL,
    Debug,
    Drop,
    FeaturesKey,
    IdColumn,
    Json,
    Overwrite,
    Quiet,
    Seed,
    parse_changes,
)
from opensetda.cli.processes import join_team
from opensetda.errors import InputError
from opensetda.system.launch import launch_identity

# As in opensetda.runs.request, which would make a wrong option a slow one.
SAMPLE = 65_536


def fit(
    context: typer.Context,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="Labelled images (folder of class folders, list, manifest, tar shards) or "
            "feature table.",
        ),
    ],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="TARGET", help="Images or rows to label; labels in it are not read."
        ),
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
        str,
        typer.Option(
            metavar="NAME",
            help="pgl, or a rival: class-means, source-only, dann+osvm ...; "
            "'osda benchmark --help' tells all.",
            rich_help_panel=TRAINING_PANEL,
        ),
    ] = "pgl",
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Settings of pgl: default, finetune, paper-office-home, paper-visda, "
            "paper-syn2real.",
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
    sample: Annotated[
        int,
        typer.Option(
            "--sample",
            metavar="NUMBER",
            min=1024,
            help="Of more targets, learn from so many, drawn at random; all are labelled.",
            rich_help_panel=TRAINING_PANEL,
        ),
    ] = SAMPLE,
    finetune: Annotated[
        bool,
        typer.Option(
            "--finetune",
            help="Images: train the backbone, too, end to end.",
            rich_help_panel=TRAINING_PANEL,
        ),
    ] = False,
    checkpoint_every: Annotated[
        float,
        typer.Option(
            "--checkpoint-every",
            metavar="SECONDS",
            min=0,
            help="How often to write down what was learned, beside the end of each step.",
            rich_help_panel=TRAINING_PANEL,
        ),
    ] = 60.0,
    tensorboard: Annotated[
        Path | None,
        typer.Option(
            "--tensorboard",
            metavar="DIR",
            help="Write curves for TensorBoard while it trains: the loss, and every step.",
            rich_help_panel=TRAINING_PANEL,
        ),
    ] = None,
    backbone: Backbone = None,
    weights: Weights = None,
    image_size: ImageSize = None,
    cache: Cache = None,
    no_cache: NoCache = False,
    strict: Strict = False,
    label_column: Annotated[
        str | None,
        typer.Option(
            "--label-column",
            metavar="NAME",
            help="Column of the labels; tables: 'y' (.npz: array, with names in 'classes'), "
            "manifests: 'label'.",
            rich_help_panel=TABLE_PANEL,
        ),
    ] = None,
    id_column: IdColumn = None,
    drop: Drop = None,
    features_key: FeaturesKey = "X",
    path_column: PathColumn = None,
    images_root: ImagesRoot = None,
    unknown_label: Annotated[
        str,
        typer.Option(
            metavar="TEXT", help="What unknowns are called.", rich_help_panel=OUTPUT_PANEL
        ),
    ] = "unknown",
    corrections: Annotated[
        Path | None,
        typer.Option(
            "--corrections",
            metavar="FILE",
            help="Labels of targets that a person told: the CSV file of 'osda review'. "
            "New classes are learned, too.",
            rich_help_panel=TRAINING_PANEL,
        ),
    ] = None,
    no_report: Annotated[
        bool,
        typer.Option(
            "--no-report",
            help="Make no report; 'osda report' does it later.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Learn from a labelled source and an unlabelled target, and label the target.

    [bold]Examples[/bold]

      osda fit shop/ street/ --out run

      osda fit a.npz b.npz --out run --openness 0.55 --id-column paths

    The source is a folder of class folders, a list of 'path label' lines, a
    manifest (.csv or .parquet with the columns path and label), tar shards
    (.tar, a folder of them, 'shop-{000..009}.tar') or a table of features
    (.npz, .csv, .parquet or a folder of .parquet parts). The target is of the
    same kind, without labels; a table may be .npy, too. Images become features
    once: the next run finds them in a cache. The run folder holds the labels
    (predictions.csv), the model, the settings and a picture of the curves. How
    many targets are unknown is estimated, unless you say it. An interrupted
    run goes on with 'osda resume'.
    """
    share_of_unknowns = _parse_openness(openness)
    if not unknown_label.strip():
        raise InputError(f"--unknown-label {unknown_label!r}: give a word that can be seen")
    settings = parse_changes(changes)
    from opensetda.cli.fitting import carry_out
    from opensetda.cli.starting import begin
    from opensetda.runs.request import FitRequest, ImageOptions, TableOptions

    team = join_team()
    request = FitRequest(
        identity=launch_identity(str(out.absolute())) or secrets.token_hex(16),
        source=str(source.absolute()),
        target=str(target.absolute()),
        openness=share_of_unknowns,
        method=method,
        preset="finetune" if finetune and method == "pgl" and preset == "default" else preset,
        changes=settings,
        seed=seed,
        unknown_label=unknown_label,
        tables=TableOptions(
            label=label_column,
            id=id_column,
            features=features_key,
            drop=tuple(drop or ()),
            path=path_column,
            root=None if images_root is None else str(images_root.absolute()),
        ),
        images=ImageOptions(
            backbone=backbone,
            weights=None if weights is None else str(weights.absolute()),
            size=image_size,
            cache=cache_folder(cache, no_cache),
            strict=strict,
            finetune=finetune,
        ),
        checkpoint_seconds=checkpoint_every,
        corrections=None if corrections is None else str(corrections.absolute()),
        sample=sample,
        report=not no_report,
        tensorboard=None if tensorboard is None else str(tensorboard.absolute()),
        overwrite=overwrite,
        command=("osda", *(context.obj or ())),
    )
    run = begin(out, request, team)
    if run is not None:
        carry_out(run, team)


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
