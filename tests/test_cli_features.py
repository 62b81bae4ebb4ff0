"""`osda features`, run as people run it, on a tiny network."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from extraction_helpers import TINY, make_images, make_recipe
from opensetda.cli.main import main
from opensetda.errors import InputError
from opensetda.runs.outputs import check_new_file


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


def test_npz_holds_numbers_and_text_alone(folder, network, tmp_path, monkeypatch):
    saved, save = {}, np.savez

    def savez(file, **arrays):
        # As in numpy 1.26, where every keyword is the name of an array.
        saved.update(arrays)
        save(file, **arrays)

    monkeypatch.setattr(np, "savez", savez)
    out = tmp_path / "photos.npz"
    assert main(["features", str(folder), "--out", str(out), *network]) == 0
    kinds = {name: np.asarray(array).dtype.kind for name, array in saved.items()}
    assert kinds == {"X": "f", "paths": "U", "y": "i", "classes": "U"}


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


def test_fit_reads_the_npz(folder, network, tmp_path):
    out = tmp_path / "photos.npz"
    assert main(["features", str(folder), "--out", str(out), *network]) == 0
    again = shutil.copy(out, tmp_path / "again.npz")
    fit = [
        "fit",
        "--no-report",
        str(out),
        str(again),
        "--out",
        str(tmp_path / "run"),
        "--id-column",
        "paths",
    ]
    assert main([*fit, "--method", "class-means"]) == 0
    with (tmp_path / "run" / "predictions.csv").open(encoding="utf-8") as stream:
        rows = list(csv.reader(stream))
    assert rows[1][0] == "mug/mug 000.png"


def test_parquet(folder, network, tmp_path):
    out = tmp_path / "photos.parquet"
    assert main(["features", str(folder), "--out", str(out), *network]) == 0
    table = pyarrow.parquet.read_table(out)
    assert table.column_names == [*(f"f{number}" for number in range(256)), "path", "label"]
    assert table.column("label").to_pylist() == ["mug"] * 6 + ["pen"] * 6


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

    def test_strict_refuses(self, folder, network, tmp_path, capsys):
        out = tmp_path / "photos.npz"
        assert main(["features", str(folder), "--out", str(out), *network, "--strict"]) == 2
        assert "a broken one.jpg: not an image" in capsys.readouterr().err
        assert not out.exists()

    def test_an_old_list_does_not_stay(self, folder, network, tmp_path):
        command = ["features", str(folder), "--out", str(tmp_path / "x.npz"), *network]
        assert main(command) == 0
        (folder / "mug" / "a broken one.jpg").unlink()
        assert main([*command, "--overwrite"]) == 0
        assert not (tmp_path / "x.npz.broken.csv").exists()

    def test_nothing_but_broken_images(self, network, tmp_path, capsys):
        (tmp_path / "all").mkdir()
        (tmp_path / "all" / "x.jpg").write_text("no image")
        out = tmp_path / "x.npz"
        assert main(["features", str(tmp_path / "all"), "--out", str(out), *network]) == 2
        assert "none of its 1 images" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "x.csv"], "must end in .npz or .parquet"),
        (["--out", "missing/x.npz"], "no folder missing"),
        (["--out", "there.npz"], "add --overwrite"),
        (["--out", "photos"], "must end in"),
        (["--out", "folder.npz"], "a folder is in the way"),
        (["--out", "x.npz", "--backbone", "resnet5"], "did you mean 'resnet50'"),
        (["--out", "x.npz", "--weights", "missing.pth"], "no such file"),
        (["--out", "x.npz", "--cache", "there.npz"], "this is a file"),
        (["--out", "x.npz", "--cache", "c", "--no-cache"], "contradicts --no-cache"),
    ],
)
def test_wrong_use_is_one_line(folder, tmp_path, arguments, message, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("there.npz").touch()
    Path("folder.npz").mkdir()
    assert main(["features", "photos", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("error:") == 1


@pytest.mark.parametrize(
    ("suffixes", "endings"),
    [
        ((".csv",), ".csv"),
        ((".npz", ".parquet"), ".npz or .parquet"),
        ((".csv", ".json", ".parquet"), ".csv, .json or .parquet"),
    ],
)
def test_names_of_new_files(tmp_path, suffixes, endings):
    with pytest.raises(InputError) as caught:
        check_new_file("--out", Path("x.doc"), suffixes, overwrite=True)
    assert str(caught.value) == f"--out x.doc: the name must end in {endings}"
    path = tmp_path / f"there{suffixes[0].upper()}"
    check_new_file("--out", path, suffixes, overwrite=False)
    path.touch()
    check_new_file("--out", path, suffixes, overwrite=True)
    with pytest.raises(InputError, match="exists already"):
        check_new_file("--out", path, suffixes, overwrite=False)
