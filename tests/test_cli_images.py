"""`osda fit` and `osda evaluate` on images: folders, lists, manifests, broken files."""

from __future__ import annotations

import json
import shutil

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from cli_helpers import (
    KNOWN_COLOURS,
    OPENNESS,
    QUICK_IMAGES,
    UNKNOWN_COLOURS,
    image_fit,
    make_images,
    names_in,
)
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


def error_of(capsys):
    """The one line of an error; nothing else may look like one."""
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert err.count("error:") == 1
    return err.splitlines()[-1]


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


def test_a_second_run_computes_no_image(copied, pictures, capsys):
    assert main(fit_copied(pictures)) == 0
    assert "1,280 features of efficientnet-lite0" in capsys.readouterr().err
    assert main(fit_copied(pictures, "--overwrite")) == 0
    assert "(54 from the cache, " in capsys.readouterr().err


def write_list(pictures, path):
    """A list of all images of shop with their classes, in the style of the benchmarks."""
    shop = pictures / "shop"
    files = sorted(file.relative_to(shop) for file in shop.rglob("*.png"))
    path.write_text("".join(f"{file} {file.parts[0]}\n" for file in files))
    return [(str(file), file.parts[0]) for file in files]


def test_lists_and_manifests_give_the_same_labels(place, pictures):
    entries = write_list(pictures, place / "shop.txt")
    columns = {"path": [path for path, _ in entries], "label": [name for _, name in entries]}
    pyarrow.csv.write_csv(pa.table(columns), place / "shop.csv")
    columns["Art"] = columns.pop("label")
    pyarrow.parquet.write_table(pa.table(columns), place / "shop.parquet")
    (place / "street.txt").write_text("".join(f"{n}\n" for n in names_in(pictures / "street")))
    street = str(place / "street.txt")
    assert main(image_fit(pictures, "folders", *MEANS)) == 0
    expected = labels_of(place / "folders", "known_score")
    for name, more in [
        ("shop.txt", []),
        ("shop.csv", []),
        ("shop.parquet", ["--label-column", "Art"]),
    ]:
        arguments = image_fit(pictures, name[5:], *MEANS, *more, source=place / name)
        arguments += ["--images-root", str(pictures / "shop")]
        assert main(arguments) == 0
        assert labels_of(place / name[5:], "known_score") == expected, name
    # Both as lists, with a common root.
    roots = [line.split() for line in (place / "shop.txt").read_text().splitlines()]
    (place / "shop.txt").write_text("".join(f"shop/{path} {label}\n" for path, label in roots))
    (place / "street.txt").write_text(
        "".join(f"street/{name}\n" for name in names_in(pictures / "street"))
    )
    arguments = image_fit(pictures, "both", *MEANS, source=place / "shop.txt", target=street)
    assert main([*arguments, "--images-root", str(pictures)]) == 0
    both = labels_of(place / "both", "known_score")
    assert both == {f"street/{name}": score for name, score in expected.items()}


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


# evaluation --------------------------------------------------------------------------------


def test_every_kind_of_truth_gives_the_same_figures(place, pictures):
    truth = [line.split() for line in (pictures / "truth.txt").read_text().splitlines()]
    for path, name in truth:
        folder = place / "street" / name
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(pictures / "street" / path, folder / path)
    assert main(image_fit(pictures, "run", *MEANS, target=place / "street")) == 0
    ids = [f"{name}/{path}" for path, name in truth]
    names = [name for _, name in truth]
    (place / "truth.txt").write_text("".join(f"{i} {n}\n" for i, n in zip(ids, names, strict=True)))
    table = pa.table({"path": ids, "label": names})
    pyarrow.csv.write_csv(table, place / "truth.csv")
    pyarrow.parquet.write_table(table.rename_columns(["file", "class"]), place / "truth.parquet")
    figures = []
    for given in ("street", "truth.txt", "truth.csv", "truth.parquet"):
        assert main(["evaluate", "run", "--labels", given]) == 0
        metrics = json.loads((place / "run" / "metrics.json").read_text())
        assert metrics["truth"]["rows"] == 30
        figures.append(metrics["final"])
    assert figures[0]["hos"] > 0.8
    assert figures.count(figures[0]) == 4
    unknown = [row["label"] for row in figures[0]["per_class"] if row["kind"] == "unknown"]
    assert unknown == sorted(UNKNOWN_COLOURS)


def test_columns_are_those_of_fit(place, pictures):
    entries = write_list(pictures, place / "shop.txt")
    (place / "shop.csv").write_text(
        "img,kind,note\n" + "".join(f"{pictures}/shop/{path},{name},x\n" for path, name in entries)
    )
    truth = [line.split() for line in (pictures / "truth.txt").read_text().splitlines()]
    (place / "street.csv").write_text(
        "img,kind,note\n" + "".join(f"{pictures}/street/{path},{name},x\n" for path, name in truth)
    )
    more = [*MEANS, "--path-column", "img", "--label-column", "kind"]
    arguments = image_fit(
        pictures, "run", *more, source=place / "shop.csv", target=place / "street.csv"
    )
    assert main(arguments) == 0
    assert main(["evaluate", "run", "--labels", "street.csv"]) == 0
    assert main(["predict", "run", "street.csv", "--out", "labels.csv"]) == 0
    assert len(pyarrow.csv.read_csv("labels.csv")) == 30
    # Another manifest, with the usual names.
    (place / "truth.csv").write_text(
        "path,kind\n" + "".join(f"{pictures}/street/{path},{name}\n" for path, name in truth)
    )
    assert main(["evaluate", "run", "--labels", "truth.csv"]) == 0


def test_truth_of_other_images_is_refused(place, pictures, capsys):
    assert main(image_fit(pictures, "run", *MEANS)) == 0
    make_images(place / "others", KNOWN_COLOURS, 1, seed=3)
    capsys.readouterr()
    assert main(["evaluate", "run", "--labels", "others"]) == 2
    assert "others" in error_of(capsys)


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
    assert "Left out 3 broken images: run/broken.csv" in out
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
    error = error_of(capsys)
    assert error.startswith("error: shop/red/größe.PNG: ")
    assert "(3 broken images in all)" in error
    assert "leave out --strict" in error
    assert names_in(copied) == before


def test_a_class_without_a_readable_image_is_an_error(copied, pictures, capsys):
    for path in (copied / "shop" / "blue").iterdir():
        path.write_bytes(b"broken")
    before = names_in(copied)
    assert main(fit_copied(pictures)) == 2
    assert "no image of the class 'blue' can be read" in error_of(capsys)
    assert names_in(copied) == before


def test_a_target_without_a_readable_image_is_an_error(copied, pictures, capsys):
    for path in (copied / "street").iterdir():
        path.write_bytes(b"broken")
    assert main(fit_copied(pictures)) == 2
    assert "street: none of its 30 images can be read; the first is 0-0.png" in error_of(capsys)


# wrong use ---------------------------------------------------------------------------------

WRONG = {
    "mixed": (["shop", "target.npz"], "shop holds images, but target.npz is a feature table"),
    "mixed-other": (["source.npz", "shop"], "shop holds images, but source.npz is a feature"),
    "finetune-table": (["source.npz", "target.npz", "--finetune"], "--finetune: source.npz is a"),
    "backbone-table": (["source.npz", "target.npz", "--backbone", "resnet50"], "--backbone: "),
    "weights-table": (["source.npz", "target.npz", "--weights", "w.pth"], "--weights: "),
    "size-table": (["source.npz", "target.npz", "--image-size", "64"], "--image-size: "),
    "strict-table": (["source.npz", "target.npz", "--strict"], "--strict: "),
    "no-folder": (["shopp", "shop"], "shopp: no such folder; did you mean shop?"),
    "no-image": (["shop", "empty"], "empty: no image in this folder or below"),
    "one-class": (["shop/red", "shop"], "directly in the folder, without a class"),
    "backbone": (["shop", "shop/blue", "--backbone", "resnet5"], "resnet5"),
    "no-weights": (["shop", "shop/blue", "--weights", "no.pth"], "no.pth"),
    "size": (["shop", "shop/blue", "--image-size", "0"], "size"),
    "cache": (["shop", "shop", "--cache", "source.npz"], "--cache source.npz: this is a file"),
    "caches": (["shop", "shop", "--cache", "c", "--no-cache"], "contradicts --no-cache"),
    "list": (["wrong.txt", "shop"], "wrong.txt, line 2: no such file 'shop/no.png'"),
    # Before the images are read: one of them is broken.
    "unknown-label": (
        ["shop", "shop/blue", "--unknown-label", "red"],
        "'red' is a class of the source",
    ),
    "root": (["wrong.txt", "shop", "--images-root", "empty"], "paths start from "),
}


def test_wrong_use_of_fit_with_images(workplace, capsys):
    make_images(workplace / "shop", KNOWN_COLOURS[:2], 1, seed=0)
    (workplace / "shop" / "red").mkdir()
    (workplace / "shop" / "red" / "0.png").write_bytes(b"")
    (workplace / "empty").mkdir()
    (workplace / "wrong.txt").write_text("shop/blue/0.png blue\nshop/no.png red\n")
    before = names_in(workplace)
    for case, (arguments, words) in WRONG.items():
        assert main(["fit", *arguments, "--out", "deep/run", *OPENNESS]) == 2, case
        error = error_of(capsys)
        assert error.startswith("error: "), case
        assert words in error, (case, error)
        assert names_in(workplace) == before, case
