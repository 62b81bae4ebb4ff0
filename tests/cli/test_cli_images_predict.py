"""`osda predict` and `osda features` on images: folders, files, lists, formats, broken files."""

from __future__ import annotations

import csv
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from cli_helpers import image_fit, names_in
from extraction_helpers import TINY, make_images, make_recipe
from opensetda.cli.main import main
from opensetda.usecases import evaluate


@pytest.fixture
def place(pictures, tmp_path, monkeypatch):
    """A folder with some of the street's images, made current."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new").mkdir()
    for name in names_in(pictures / "street")[::3]:
        shutil.copy(pictures / "street" / name, tmp_path / "new" / name)
    return tmp_path


@pytest.fixture
def predict(pictures):
    def predict(*arguments):
        return main(["predict", str(pictures / "run"), *map(str, arguments)])

    return predict


def read(name):
    if name.endswith(".csv"):
        return pyarrow.csv.read_csv(name).to_pylist()
    return pyarrow.parquet.read_table(name).to_pylist()


def test_rows_are_those_of_the_fit_and_a_folder_is_their_truth(place, pictures, predict, capsys):
    assert predict(pictures / "street", "--out", "l.csv") == 0
    assert "Labelled 30 images." in capsys.readouterr().out
    # One schema, one form of paths, and the labels of the fit.
    fitted = (pictures / "run" / "predictions.csv").read_bytes()
    assert (place / "l.csv").read_bytes() == fitted
    assert main(image_fit(pictures, "voted")) == 0
    assert main(["predict", "voted", str(pictures / "street"), "--out", "voted.csv"]) == 0
    fitted = (place / "voted" / "predictions.csv").read_bytes()
    assert (place / "voted.csv").read_bytes() == fitted
    assert predict(pictures / "shop", "--out", "shop.csv") == 0
    evaluation = evaluate("shop.csv", pictures / "shop", made_by=pictures / "run")
    assert (evaluation.n_labelled, evaluation.is_partial) == (24, False)


def test_alone_as_in_company_and_in_parts(place, predict, monkeypatch):
    assert predict("new", "--out", "all.parquet") == 0
    company = read("all.parquet")
    monkeypatch.setattr("opensetda.usecases.predict_samples.PART", 3)
    assert predict("new", "--out", "parts.parquet") == 0
    two = [f"new/{company[row]['path']}" for row in (4, 0)]
    assert predict(*two, "--out", "two.parquet") == 0
    got = [*read("parts.parquet"), *read("two.parquet")]
    for row, other in zip(got, [*company, company[4], company[0]], strict=True):
        assert row["label"] == other["label"]
        for name in ("confidence", "p_unknown", "known_score"):
            assert row[name] == pytest.approx(other[name], abs=1e-6)


def test_several_paths_of_all_kinds(place, predict):
    names = names_in(place / "new")
    (place / "list.txt").write_text(f"new/{names[1]} whatever\nnew/{names[2]}\n")
    (place / "manifest.csv").write_text(f"path\nnew/{names[3]}\n")
    assert predict(f"new/{names[0]}", "list.txt", "manifest.csv", "new", "--out", "l.csv") == 0
    paths = [row["path"] for row in read("l.csv")]
    assert [os.path.basename(path) for path in paths] == [*names[:4], *names]  # noqa: PTH119
    assert all(os.path.exists(path) for path in paths)  # noqa: PTH110


def test_broken_images_are_listed(place, predict, capsys):
    (place / "new" / "0-0.png").write_bytes(b"")
    (place / "list.txt").write_text("new/0-3.png\nnew/gone.png\n")
    assert predict("new", "list.txt", "--out", "l.csv") == 0
    assert "warning: 2 images cannot be read: l.csv.broken.csv" in capsys.readouterr().err
    broken = pyarrow.csv.read_csv("l.csv.broken.csv").to_pydict()
    assert broken == {
        "path": ["new/0-0.png", "new/gone.png"],
        "reason": ["empty file", "no such file"],
    }
    assert len(read("l.csv")) == 10
    # The next, which is whole, leaves no list behind.
    assert predict("new/0-3.png", "--out", "l.csv", "--overwrite") == 0
    assert "l.csv.broken.csv" not in names_in(place)


def test_nothing_to_label(place, predict, capsys):
    (place / "new" / "9.png").write_bytes(b"")
    before = names_in(place)
    assert predict("new/9.png", "--out", "l.csv") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "none of its 1 images can be read; the first is new/9.png (empty file)" in error
    assert names_in(place) == before


# features ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> list[str]:
    recipe = make_recipe(tmp_path_factory.mktemp("weights"))
    return ["--backbone", TINY, "--weights", recipe.weights, "--image-size", "32"]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("OSDA_CACHE", str(tmp_path / "cache"))
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
        assert "(12 from the cache)" not in capsys.readouterr().out
        assert (tmp_path / "own" / "features").exists() == bool(number)
    with np.load("a.npz") as first, np.load("b.npz") as second:
        np.testing.assert_array_equal(first["X"], second["X"])


def test_a_flat_folder_has_no_classes(folder, network, tmp_path, capsys):
    out = tmp_path / "mug.npz"
    assert main(["features", str(folder / "mug"), "--out", str(out), *network]) == 0
    assert "no classes are written" in capsys.readouterr().err
    with np.load(out) as file:
        assert set(file.files) == {"X", "paths"}
