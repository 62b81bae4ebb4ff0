"""`osda features`, run as people run it, on a tiny network."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from extraction_helpers import TINY, make_images, make_recipe
from opensetda.cli.main import main


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> list[str]:
    recipe = make_recipe(tmp_path_factory.mktemp("weights"))
    return ["--backbone", TINY, "--weights", recipe.weights, "--image-size", "32"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OSDA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path) -> Path:
    folder = tmp_path / "photos"
    for name in ("mug", "pen"):
        (folder / name).mkdir(parents=True)
        for path in make_images(tmp_path / "made", 6):
            Path(path).rename(folder / name / f"{name} {Path(path).name}")
    return folder


def test_npz_of_class_folders_with_a_broken_image(folder, network, tmp_path, capsys):
    (folder / "mug" / "a broken one.jpg").write_text("no image")
    out = tmp_path / "photos.npz"
    assert main(["features", str(folder), "--out", str(out), *network]) == 0
    said, err = capsys.readouterr()
    assert "12 images" in said
    assert "1 of 13 images" in err
    with np.load(out) as file:
        assert set(file.files) == {"X", "y", "classes", "paths"}
        assert file["X"].shape == (12, 256)
        assert file["classes"].tolist() == ["mug", "pen"]
        assert file["y"].tolist() == [0] * 6 + [1] * 6
        assert file["paths"][0] == "mug/mug 000.png"
    with (tmp_path / "photos.npz.broken.csv").open(encoding="utf-8") as stream:
        heading, row = csv.reader(stream)
    assert heading == ["path", "reason"]
    assert row == [str(folder / "mug" / "a broken one.jpg"), "not an image"]


def test_second_time_comes_from_the_cache(folder, network, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("a.npz", "b.npz"):
        assert main(["features", str(folder), "--out", name, *network]) == 0
    assert "(12 from the cache)" in capsys.readouterr().out
    more = ["--no-cache"], ["--cache", "own"]
    for number, options in enumerate(more):
        assert main(["features", str(folder), "--out", f"{number}.npz", *network, *options]) == 0
        assert "(0 from the cache)" in capsys.readouterr().out
        assert (tmp_path / "own" / "features").exists() == bool(number)
    with np.load("a.npz") as first, np.load("b.npz") as second:
        np.testing.assert_array_equal(first["X"], second["X"])


def test_a_flat_folder_has_no_classes(folder, network, tmp_path, capsys):
    out = tmp_path / "mug.npz"
    assert main(["features", str(folder / "mug"), "--out", str(out), *network]) == 0
    assert "no classes are written" in capsys.readouterr().err
    with np.load(out) as file:
        assert set(file.files) == {"X", "paths"}
