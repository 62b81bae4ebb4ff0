"""`osda fit` and `osda evaluate` on images: folders, lists, manifests, broken files."""

from __future__ import annotations

import json
import shutil

import pyarrow.csv
import pyarrow.parquet
import pytest

from cli_helpers import KNOWN_COLOURS, OPENNESS, QUICK_IMAGES, image_fit, names_in
from opensetda.cli.main import main

MEANS = ("--method", "class-means", "--set", "steps=2")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder, made current."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def copied(pictures, place):
    """Copies of shop and street that a test may change."""
    for name in ("shop", "street"):
        shutil.copytree(pictures / name, place / name)
    return place


def fit_copied(pictures, *more):
    return [
        *("fit", "shop", "street", "--out", "run", "--image-size", "32"),
        *("--cache", str(pictures / "cache"), "--no-report", *OPENNESS, *MEANS, *more),
    ]


def labels_of(run, column="label"):
    table = pyarrow.csv.read_csv(run / "predictions.csv")
    return dict(zip(table["path"].to_pylist(), table[column].to_pylist(), strict=True))


# what the source and the target may be -----------------------------------------------------


def test_a_run_on_folders(pictures):
    assert sorted(labels_of(pictures / "run")) == names_in(pictures / "street")
    settings = json.loads((pictures / "run" / "settings.json").read_text())
    assert settings["backbone"]["backbone"] == "efficientnet-lite0"
    assert settings["backbone"]["finetuned"] is False
    assert settings["inputs"]["source"]["images"] == 24
    assert settings["inputs"]["source"]["classes"] == dict.fromkeys(KNOWN_COLOURS, 6)
    assert "classes" not in settings["inputs"]["target"]
    assert "broken.csv" not in names_in(pictures / "run")
    assert "run.unfinished" not in names_in(pictures)


def test_names_of_the_targets_class_folders_change_nothing(place, pictures):
    truth = dict(line.split() for line in (pictures / "truth.txt").read_text().splitlines())
    outcomes = []
    # Names that sort alike: the order of the targets decides what is drawn at random.
    for number, prefix in enumerate(("", "not ")):
        target, out = place / f"street{number}", place / f"run{number}"
        for path, name in truth.items():
            (target / f"{prefix}{name}").mkdir(parents=True, exist_ok=True)
            shutil.copy(pictures / "street" / path, target / f"{prefix}{name}" / path)
        assert main(image_fit(pictures, out, *QUICK_IMAGES, target=target)) == 0
        table = pyarrow.csv.read_csv(out / "predictions.csv")
        assert all(name.startswith(prefix) for name in table["path"].to_pylist())
        outcomes.append(table.drop(["path"]))
        assert "black" not in (out / "settings.json").read_text()
    assert outcomes[0] == outcomes[1]


# broken images -----------------------------------------------------------------------------


def break_images(folder):
    whole = (folder / "street" / "0-1.png").read_bytes()
    (folder / "street" / "0-1.png").write_bytes(whole[: len(whole) // 2])
    (folder / "street" / 'new, "quoted".jpg').write_bytes(b"")
    (folder / "shop" / "red" / "größe.PNG").write_bytes(b"no image")


def test_broken_images_are_listed_and_left_out(copied, pictures, capsys):
    break_images(copied)
    assert main(fit_copied(pictures)) == 0
    out, err = capsys.readouterr()
    assert "warning: 3 images cannot be read: left out" in err
    assert "  left out run/broken.csv" in out
    assert "source: 24 images of 4 classes, target: 29 images" in err
    broken = pyarrow.csv.read_csv("run/broken.csv").to_pydict()
    assert sorted(broken["path"]) == sorted(
        str(copied / name)
        for name in ("shop/red/größe.PNG", "street/0-1.png", 'street/new, "quoted".jpg')
    )
    assert all(reason and "/" not in reason for reason in broken["reason"])
    assert "0-1.png" not in labels_of(copied / "run")


def test_strict_makes_them_an_error(copied, pictures, capsys):
    break_images(copied)
    before = names_in(copied)
    assert main(fit_copied(pictures, "--strict")) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: shop/red/größe.PNG: ")
    assert names_in(copied) == before
