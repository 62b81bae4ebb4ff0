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


def test_npz_of_class_folders(folder, network, tmp_path, capsys):
    out = tmp_path / "photos.npz"
    assert main(["features", str(folder), "--out", str(out), *network]) == 0
    assert "12 images" in capsys.readouterr().out
    with np.load(out) as file:
        assert set(file.files) == {"X", "y", "classes", "paths"}
        assert file["X"].shape == (12, 256)
        assert file["classes"].tolist() == ["mug", "pen"]
        assert file["y"].tolist() == [0] * 6 + [1] * 6
        assert file["paths"][0] == "mug/mug 000.png"


def test_second_time_comes_from_the_cache(folder, network, tmp_path, capsys):
    for name in ("a.npz", "b.npz"):
        assert main(["features", str(folder), "--out", str(tmp_path / name), *network]) == 0
    # The two classes hold the same pictures.
    assert "(12 from the cache)" in capsys.readouterr().out
    with np.load(tmp_path / "a.npz") as first, np.load(tmp_path / "b.npz") as second:
        np.testing.assert_array_equal(first["X"], second["X"])


@pytest.mark.parametrize("options", [["--no-cache"], ["--cache", "own"]])
def test_where_features_are_kept(folder, network, tmp_path, options, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["features", str(folder), "--out", "x.npz", *network, *options]) == 0
    assert not (tmp_path / "cache").exists()
    assert (tmp_path / "own" / "features").exists() == ("own" in options)


def test_a_flat_folder_has_no_classes(folder, network, tmp_path, capsys):
    out = tmp_path / "mug.npz"
    assert main(["features", str(folder / "mug"), "--out", str(out), *network]) == 0
    assert "no classes are written" in capsys.readouterr().err
    with np.load(out) as file:
        assert set(file.files) == {"X", "paths"}


class TestBroken:
    @pytest.fixture(autouse=True)
    def broken_image(self, folder):
        (folder / "mug" / "a broken one.jpg").write_text("no image")

    def test_they_are_listed(self, folder, network, tmp_path, capsys):
        out = tmp_path / "photos.npz"
        assert main(["features", str(folder), "--out", str(out), *network]) == 0
        assert "1 of 13 images" in capsys.readouterr().err
        with (tmp_path / "photos.npz.broken.csv").open(encoding="utf-8") as stream:
            heading, row = csv.reader(stream)
        assert heading == ["path", "reason"]
        assert row == [str(folder / "mug" / "a broken one.jpg"), "not an image"]
        with np.load(out) as file:
            assert len(file["X"]) == len(file["y"]) == len(file["paths"]) == 12
