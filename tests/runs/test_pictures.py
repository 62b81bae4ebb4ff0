"""Pictures of samples: thumbnails that stay with the run, and files that it or its ids name."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image

from cli_helpers import FIT, OPENNESS, draw_image
from opensetda.cli.main import main
from opensetda.errors import InputError
from opensetda.runs.folder import IMAGES, PREDICTIONS, THUMBNAILS, RunFolder
from opensetda.runs.integrity import Manifest
from opensetda.runs.pictures import (
    SIDE,
    SOURCE,
    TARGET,
    Pictures,
    Shown,
    smaller,
    thumbnail,
    thumbnail_table,
    write_images,
)


def with_images(run, *images):
    """Return a run that lists these images."""
    if images:
        write_images(run.path / IMAGES, *images)
    Manifest.of(run.path).write()
    return RunFolder.open(run.path)


def opened(webp):
    return Image.open(io.BytesIO(webp))


@pytest.fixture
def run(workplace):
    """A run on rows, without any picture, whose ids are paths."""
    rng = np.random.default_rng(0)
    target = np.load("target.npz")["X"]
    ids = [f"street/{row}.png" for row in range(len(target))]
    np.savez("named.npz", X=target, ids=ids)
    np.savez("sources.npz", **{**np.load("source.npz"), "ids": [f"s{n}" for n in range(40)]})
    command = ["sources.npz" if part == "source.npz" else part for part in FIT]
    command = ["named.npz" if part == "target.npz" else part for part in command]
    assert main([*command, *OPENNESS, "--id-column", "ids"]) == 0
    (workplace / "photos" / "street").mkdir(parents=True)
    for row in range(3):
        draw_image("red", rng, side=300).save(workplace / "photos" / "street" / f"{row}.png")
    return RunFolder.open("run")


def test_a_thumbnail_is_small_and_keeps_its_shape():
    wide = np.zeros((300, 600, 3), dtype=np.uint8)
    assert opened(thumbnail(wide)).size == (SIDE, SIDE // 2)
    assert opened(thumbnail(np.zeros((8, 8), dtype=np.uint8), smooth=False)).size == (SIDE, SIDE)
    assert opened(smaller(thumbnail(wide), 48)).size == (48, 24)
    assert smaller(thumbnail(wide, side=40), 48) == thumbnail(wide, side=40)


def test_ids_are_paths_below_the_folder_given(run, workplace):
    assert not Pictures(run).any
    for folder, words in ((".", "none of the ids is an image in it"), ("no", "no such folder")):
        with pytest.raises(InputError, match=words):
            Pictures(run, workplace / folder)
    pictures = Pictures(run, workplace / "photos")
    assert pictures.any
    assert pictures.file(1) == (workplace / "photos" / "street" / "1.png").resolve()
    assert pictures.file(5) is None
    told = []
    pictures.keep([Shown(TARGET, 0), Shown(TARGET, 1)], lambda *counts: told.append(counts))
    assert told == [(1, 2), (2, 2)]
    # Kept with the run: the folder is not needed again.
    assert opened(Pictures(run).thumbnail(1)).size == (SIDE, SIDE)


def test_no_file_outside_of_the_folder(run, workplace):
    """Ids come from a table that somebody else may have written."""
    table, photos = run.predictions(), workplace / "photos"
    (workplace / "secret.png").write_bytes((photos / "street/0.png").read_bytes())
    (photos / "notes.txt").write_text("no image")
    (photos / "link.png").symlink_to(workplace / "secret.png")
    names = ["../secret.png", str(workplace / "secret.png"), "notes.txt", "nul\0.png", "link.png"]
    table.ids[1 : 1 + len(names)] = names
    table.write(run.path / PREDICTIONS)
    pictures = Pictures(with_images(run), photos)
    assert pictures.file(0) is not None
    assert all(pictures.file(1 + row) is None for row in range(len(names)))


def test_images_of_a_run_are_remembered(run, workplace):
    photos = workplace / "photos" / "street"
    # A file's name need not be text.
    odd = os.fsdecode(os.fsencode(photos) + b"/caf\xe9 'x'.png")
    (photos / "0.png").rename(odd)
    run = with_images(run, {7: odd}, [str(photos / "1.png"), "gone.png"])
    pictures = Pictures(run)
    assert pictures.file(7, SOURCE) == Path(odd)
    assert pictures.file(0) == photos / "1.png"
    assert opened(pictures.thumbnail(0)).size == (SIDE, SIDE)
    # A file that has gone since is a card without a picture.
    assert pictures.thumbnail(1) is None
    pictures.keep([Shown(TARGET, 0), Shown(TARGET, 1), Shown(SOURCE, 7)])
    kept = pyarrow.parquet.read_table(run.path / THUMBNAILS)
    assert kept["row"].to_pylist() == [0, 7]
    assert pictures.lost == ["gone.png"]


def test_damaged_thumbnails_are_made_anew_if_the_images_are_there(run, workplace):
    run.manifest.replace({THUMBNAILS: thumbnail_table({Shown(TARGET, 0): b"kept"})})
    assert Pictures(run).thumbnail(0) == b"kept"
    (run.path / THUMBNAILS).write_bytes(b"no parquet")
    with pytest.raises(InputError, match=r"thumbnails\.parquet: damaged"):
        Pictures(run)
    run = with_images(run, {}, [str(workplace / "photos/street/0.png")])
    Pictures(run).keep([Shown(TARGET, 0)])
    assert Pictures(run).thumbnail(0).startswith(b"RIFF")
