"""`osda predict`: label samples that came after `osda fit`."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opensetda.cli import console
from opensetda.cli.image_options import ImagesRoot, PathColumn, Strict
from opensetda.cli.options import (
    OUTPUT_PANEL,
    TABLE_PANEL,
    Debug,
    Drop,
    IdColumn,
    Json,
    Overwrite,
    Quiet,
    RunArgument,
    broken_list,
    check_new_file,
)
from opensetda.cli.processes import join_team, shared_folder
from opensetda.errors import InputError

if TYPE_CHECKING:
    from opensetda.data.images.lists import ImageColumns
    from opensetda.data.tables.loading import TableColumns
    from opensetda.runs.folder import RunFolder
    from opensetda.system.team import Team

_SUFFIXES = (".csv", ".json", ".parquet")
_TOP_K = 5


def predict(
    run: RunArgument,
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATHS...",
            help="Images to label: files, folders, lists, manifests or tar shards; or one "
            "feature table.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="LABELS",
            help="The .csv, .json or .parquet file to make.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ],
    top_k: Annotated[
        int | None,
        typer.Option(
            "--top-k",
            metavar="NUMBER",
            min=1,
            help="Give so many of the likeliest classes instead of all; images: 5.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    strict: Strict = False,
    id_column: IdColumn = None,
    drop: Drop = None,
    features_key: Annotated[
        str | None,
        typer.Option(
            "--features-key",
            metavar="NAME",
            help="Array of the features in .npz files.",
            rich_help_panel=TABLE_PANEL,
        ),
    ] = None,
    path_column: PathColumn = None,
    images_root: ImagesRoot = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Label later samples with the model of a run. Each is judged on its own.

    [bold]Examples[/bold]

      osda predict run new-photos/ --out labels.csv

      osda predict run new.csv --out labels.parquet

    Images are read, labelled and written part by part: a folder may hold any
    number of them. A table is .npz, .npy, .csv, .parquet or a folder of
    .parquet parts. Features that had names in 'osda fit' are found by name;
    other columns do not matter.
    """
    team = join_team()
    team.first_does(lambda: check_new_file("--out", out, _SUFFIXES, overwrite))
    from opensetda.data.images.lists import ImageColumns
    from opensetda.data.images.loading import is_image_data
    from opensetda.data.tables.loading import TableColumns
    from opensetda.runs.folder import RunFolder
    from opensetda.system.files import check_writable

    team.first_does(lambda: check_writable(out))
    folder = RunFolder.open(run)
    columns = ImageColumns(path=path_column or folder.column("path"), root=images_root)
    images = [path for path in paths if is_image_data(path, columns)]
    if images and not folder.has_images:
        raise InputError(
            f"{images[0]}: images, but {run} was fitted to a feature table; give a table, or "
            "fit to images"
        )
    if images and len(images) < len(paths):
        table = next(path for path in paths if path not in images)
        raise InputError(f"{table}: a feature table among images; label it in a run of its own")
    for_tables = {"--id-column": id_column, "--drop": drop, "--features-key": features_key}
    for_images = {"--strict": strict, "--path-column": path_column, "--images-root": images_root}
    what, is_for = ("images", "tables") if images else ("a feature table", "images")
    for name, value in (for_tables if images else for_images).items():
        if value:
            raise InputError(f"{name}: {paths[0]} is {what}; this option is for {is_for}")
    if images:
        _predict_images(folder, images, columns, out, top_k or _TOP_K, strict, team)
        return
    if folder.is_finetuned:
        raise InputError(
            f"{paths[0]}: a feature table, but the backbone of {run} was fine-tuned, and "
            "features of any other do not fit; give the images"
        )
    if len(paths) > 1:
        raise InputError(f"{paths[1]}: one feature table at a time; label it in a run of its own")
    options = TableColumns(
        label=folder.column("label") or "y",
        id=id_column,
        features=features_key or folder.column("features") or "X",
        drop=tuple(drop or folder.column("drop") or ()),
    )
    _predict_table(folder, paths[0], options, out, top_k, team)


def _predict_images(
    folder: RunFolder,
    paths: list[Path],
    columns: ImageColumns,
    out: Path,
    top_k: int,
    strict: bool,
    team: Team,
) -> None:
    from opensetda.cli.counting import counting_progress
    from opensetda.data.images.loading import iterate_images
    from opensetda.runs.labelling import label_images
    from opensetda.runs.shared_tables import written_together
    from opensetda.runs.writing import write_broken
    from opensetda.system.files import new_file

    total = sum(1 for _ in iterate_images(paths, columns))
    rows = team.rows(total)
    with (
        counting_progress("predict") as progress,
        shared_folder(out, team) as scratch,
        written_together(out, scratch, team, top_k) as together,
    ):
        progress(0, len(rows))
        names = (path for _, path in iterate_images(paths, columns))
        own = islice(names, rows.start, rows.stop)
        counts, broken, warnings = together.add_up(
            *label_images(
                folder, own, together.writer, strict, lambda done: progress(done, len(rows))
            )
        )
        if not counts:
            raise InputError(
                f"{paths[0]}: none of the {total:,} images can be read; the first is "
                f"{broken[0].id} ({broken[0].reason})"
            )
    if not team.is_first:
        return
    for warning in warnings:
        console.warn(warning)
    listed = broken_list(out)
    listed.unlink(missing_ok=True)
    if broken:
        with new_file(listed) as aside:
            write_broken(aside, broken)
        console.warn(f"{console.counted(len(broken), 'image')} cannot be read: {listed}")
    _show_result(folder, counts, console.counted(counts.total(), "image"), out, len(broken))


def _predict_table(
    folder: RunFolder,
    path: Path,
    columns: TableColumns,
    out: Path,
    top_k: int | None,
    team: Team,
) -> None:
    from opensetda.cli.counting import counting_progress
    from opensetda.data.tables.loading import read_samples
    from opensetda.runs.predictions import label_rows
    from opensetda.runs.shared_tables import written_together

    model = folder.model()
    with counting_progress("predict", "row") as progress, shared_folder(out, team) as scratch:
        own = scratch / f"table-{team.rank:04d}"
        own.mkdir()
        samples = read_samples(
            path,
            model.n_features_in_,
            folder.feature_names(),
            columns,
            usual_id=folder.column("id"),
            scratch=own,
        )
        rows = team.rows(len(samples.X))
        progress(0, len(rows))
        with written_together(out, scratch, team, top_k) as together:
            counts = label_rows(
                model,
                samples.X,
                samples.ids,
                rows,
                together.writer,
                lambda done: progress(done, len(rows)),
            )
            counts, _, _ = together.add_up(counts, [], [])
    if not team.is_first:
        return
    _show_result(folder, counts, f"{counts.total():,} rows of {path.name}", out)


def _show_result(
    folder: RunFolder, counts: Counter[str], what: str, out: Path, n_broken: int = 0
) -> None:
    console.show(console.label_counts(counts, folder.unknown_label))
    console.say(f"Labelled {what}.")
    console.say(f"  labels   {out}")
    console.result(
        {
            "samples": counts.total(),
            **console.label_summary(counts, folder.unknown_label),
            "broken": n_broken,
            "files": {"labels": out, "broken": broken_list(out) if n_broken else None},
        }
    )
