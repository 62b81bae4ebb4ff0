"""`osda fit`: label the target, write a run folder; `osda resume` goes on with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opensetda.benchmark.variants import benchmark_methods
from opensetda.cli import options

# As in opensetda.runs.request; a test compares them.
SAMPLE = 65_536


def fit(
    context: typer.Context,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="Labelled images (one folder per class, list, manifest, tar shards) or feature "
            "table.",
        ),
    ],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="TARGET", help="Images or rows to label; labels in it are not read."
        ),
    ],
    out: options.RunOut,
    openness: Annotated[
        str,
        options.training(
            "--openness SHARE",
            "Share of unknown samples in the target, in [0, 1), or 'auto': by the audit in "
            "--corrections, or estimated; with pgl also 'preset', the paper's. Also "
            "--unknown-share: papers call another figure openness, made of numbers of classes.",
        ),
    ] = "auto",
    method: Annotated[
        str,
        options.training(
            "--method NAME",
            "Use moving-means, pgl, or another: class-means, source-only, dann+osvm ...; "
            "'osda benchmark --help' lists all.",
            autocompletion=benchmark_methods,
        ),
    ] = "moving-means",
    preset: Annotated[
        str | None,
        options.training(
            "--preset NAME",
            "Start from the paper's settings for a dataset, pgl only: office-home (default), "
            "visda-17, syn2real-o.",
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        options.training(
            "--set NAME=VALUE",
            "Change a setting of the method, or of --finetune (finetune.flip=false); may be "
            "repeated.",
        ),
    ] = None,
    scaling: Annotated[
        str | None,
        options.training(
            "--scaling HOW",
            "Scale columns within each domain: none (as given), standard (mean 0, deviation 1) or "
            "ranks; by default ranks for moving-means, none for the others.",
        ),
    ] = None,
    seed: options.Seed = 0,
    sample: Annotated[
        int,
        options.training(
            "--sample NUMBER",
            "Learn from at most this many targets, drawn at random; all are labelled.",
            min=1024,
        ),
    ] = SAMPLE,
    finetune: Annotated[
        options.FineTuned | None,
        options.training(
            "--finetune [last|all]",
            "Train the backbone, too; images only: its last stages, from activations that are "
            "stored once (last), or all of it (all); by default last on a CPU, all on a GPU. For "
            "methods that train nothing themselves it is trained on their labels, in rounds.",
        ),
    ] = None,
    tensorboard: Annotated[
        Path | None,
        options.training(
            "--tensorboard DIR",
            "Write the loss and the numbers of every step to this folder, for TensorBoard.",
        ),
    ] = None,
    backbone: options.Backbone = None,
    weights: options.Weights = None,
    image_size: options.ImageSize = None,
    cache: options.Cache = None,
    no_cache: options.NoCache = False,
    strict: options.Strict = False,
    label_column: options.ManifestLabel = None,
    id_column: options.IdColumn = None,
    drop: options.Drop = None,
    keep: options.Keep = None,
    one_hot: options.OneHot = None,
    impute: options.Impute = options.Imputation.none,
    features_key: options.FeaturesKey = "X",
    path_column: options.PathColumn = None,
    images_root: options.ImagesRoot = None,
    unknown_label: Annotated[
        str, options.output("--unknown-label TEXT", "Label unknowns with this word.")
    ] = "unknown",
    corrections: Annotated[
        Path | None,
        options.training(
            "--corrections FILE",
            "Learn from manually corrected labels of targets, new classes included, and take the "
            "share of unknowns from the audit: the CSV file of 'osda review'.",
        ),
    ] = None,
    no_report: Annotated[
        bool, options.output("--no-report", "Write no report; 'osda report' does it later.")
    ] = False,
    overwrite: options.Overwrite = False,
) -> None:
    """Label an unlabelled target by a labelled source, which lacks some of its classes.

    [bold]Examples[/bold]

      osda fit shop/ street/ --out run

      osda fit a.npz b.npz --out run --openness 0.55 --id-column paths

    The source is a folder with one folder per class, a list of 'path label'
    lines, a manifest (.csv or .parquet with the columns path and label), tar
    shards (.tar, a folder of them, 'shop-{000..009}.tar') or a feature table
    (.npz, .csv, .tsv, .xlsx, .feather, .jsonl, .parquet or a folder of .parquet
    parts). The target is of the same kind, without labels; a table may be .npy,
    too. Columns that look like counters, times or ids are left out, with a
    warning; --keep uses them. The features of images are cached for the next
    run. The run folder holds the labels (predictions.csv), the model, the
    settings and the curves. The share of unknowns is estimated, unless you give
    it or its audit (--corrections). 'osda resume' goes on with an interrupted
    run.
    """
    share = options.parse_openness(openness)
    settings = options.parse_changes(changes)
    from opensetda.cli.fit_display import ConsoleListener, finish_fit
    from opensetda.runs.fit_and_resume import fit as fit_run
    from opensetda.runs.request import ImageOptions, TableOptions

    run = fit_run(
        source,
        target,
        out,
        method=method,
        openness=share,
        preset=preset,
        settings=settings,
        scaling=scaling,
        seed=seed,
        unknown_label=unknown_label,
        sample=sample,
        corrections=corrections,
        tables=TableOptions(
            label=label_column,
            id=id_column,
            features=features_key,
            drop=tuple(drop or ()),
            keep=tuple(keep or ()),
            one_hot=tuple(one_hot or ()),
            impute=impute.value,
            path=path_column,
            root=None if images_root is None else str(images_root.absolute()),
        ),
        images=ImageOptions(
            backbone=backbone,
            weights=None if weights is None else str(weights.absolute()),
            size=image_size,
            cache=options.cache_folder(cache, no_cache),
            strict=strict,
            finetune=None if finetune is None else finetune.value,
        ),
        tensorboard=tensorboard,
        overwrite=overwrite,
        report=not no_report,
        command=("osda", *(context.obj or ())),
        listener=ConsoleListener(),
    )
    finish_fit(run)


def resume(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Run folder that was given to 'osda fit --out'.")
    ],
) -> None:
    """Continue a run that was interrupted; the result is the same.

    [bold]Example[/bold]

      osda resume run

    RUN.unfinished holds what 'osda fit' was asked for and, once a step of a
    training is done, its checkpoint. On the CPU the result is the same to the
    bit. Source and target must be as they were.
    """
    from opensetda.cli.fit_display import ConsoleListener, finish_fit
    from opensetda.runs.fit_and_resume import resume as resume_run

    finish_fit(resume_run(run, listener=ConsoleListener()))
