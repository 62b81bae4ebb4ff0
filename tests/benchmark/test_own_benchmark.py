"""`osda benchmark SOURCE TARGET`: two labelled folders or tables of one's own."""

from __future__ import annotations

import shlex

import numpy as np
import pandas as pd
import pytest

from benchmark_helpers import domain, read_rows
from cli_helpers import KNOWN_COLOURS, UNKNOWN_COLOURS, make_images, names_in, write_csv
from opensetda.benchmark.tasks import own_task
from opensetda.cli.main import main
from opensetda.errors import InputError
from opensetda.usecases import ImageOptions, TableOptions

QUICK = ["--method", "class-means", "--jobs", "1", "--openness", "auto"]
NAMES = np.array(["ant", "bee", "cow", "dog", "elk", "fox", "gnu", "hen", "ibis", "jay"])


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Two tables, of which the source has four of the ten classes."""
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("farm", "wild")):
        X, which = domain(seed)
        chosen = which < (4 if name == "farm" else 10)
        write_csv(tmp_path / f"{name}.csv", X[chosen], animal=NAMES[which[chosen]])
        np.savez(tmp_path / f"{name}.npz", X=X[chosen], y=NAMES[which[chosen]])
    return tmp_path


def test_two_tables_give_the_table_and_files_of_a_benchmark(place, capsys):
    more = ["--label-column", "animal", "--method", "moving-means", "--sweep", "steps=2,3"]
    command = ["benchmark", "farm.csv", "wild.csv", *more, *QUICK]
    assert main(command) == 0
    # One task is no sample for a test.
    assert "p: exact" not in capsys.readouterr().out
    folder = place / "benchmark-farm-wild"
    assert {"benchmark.json", "cells", "results.csv", "table.md"} <= {*names_in(folder)}
    assert (folder / "table.md").read_text().startswith("# farm.csv to wild.csv\n")
    rows = read_rows(folder / "results.csv")
    assert [row["method"] for row in rows] == [
        *("moving-means steps=2", "moving-means steps=3", "class-means"),
    ]
    assert all(row["true_share"] == pytest.approx(0.6) and 0 < row["hos"] <= 1 for row in rows)
    # The same command finds everything finished.
    assert main(command) == 0
    assert "of which 3 are finished already" in capsys.readouterr().err


def test_named_classes_are_known_and_all_others_unknown(place):
    found = own_task("wild.npz", "wild.npz", known=["cow", "ant"])
    rows = found.read(found.tasks[0])
    assert rows.split.known == ("ant", "cow")
    assert set(rows.source_labels) == {"ant", "cow"}
    assert len(rows.target_features) == 60
    assert rows.openness == pytest.approx(0.8)
    with pytest.raises(InputError, match="--known Ant: no class of the source, but 'ant', 'bee'"):
        own_task("wild.npz", "wild.npz", known=["cow", "Ant"])


def test_wrong_use(place, capsys):
    write_csv(place / "caps.csv", np.ones((3, 12)), y=["ANT", "BEE", "Cow"])
    (place / "gap.csv").write_text((place / "wild.csv").read_text().replace("gnu", ""))
    for arguments, words in [
        (["farm.npz"], "or give a source and a target of your own, both labelled"),
        (["demo", "--label-column", "y"], "demo: it has data of its own"),
        (["farm.npz", "wild.npz", "--data", "x"], "--data and --task: for a PROTOCOL"),
        (["demo", "--known", "ant"], "--known, --id-column"),
        (["farm.npz", "caps.csv"], "none of its classes ('ANT', 'BEE', 'Cow') is known"),
        (["farm.csv", "gap.csv", "--label-column", "animal"], "gap.csv: 'animal', row 7: empty"),
        (["farm.npz", "wild.npz", "--backbone", "resnet50"], "--backbone: farm.npz is a feature"),
    ]:
        assert main(["benchmark", *arguments, *QUICK]) == 2, arguments
        assert words in capsys.readouterr().err
    assert not any(path.name.startswith("benchmark-") for path in place.iterdir())


def test_columns_left_out_are_named_and_the_corrected_command_works(place, capsys):
    for name in ("farm", "wild"):
        frame = pd.read_csv(f"{name}.csv").assign(at=lambda f: np.arange(len(f)))
        frame["file"] = [f"{name}-{row}" for row in range(len(frame))]
        frame.iloc[3, 2] = np.nan
        frame.to_csv(f"{name}.csv", index=False)
    command = ["benchmark", "farm.csv", "wild.csv", "--label-column", "animal", *QUICK]
    assert main(command) == 2
    corrected = shlex.split(capsys.readouterr().err.rpartition("Run instead: ")[2])
    assert corrected == ["osda", *command, "--id-column", "file", "--impute", "median"]
    assert main(corrected[1:]) == 0
    assert "left out 1 column: 'at'" in " ".join(capsys.readouterr().err.split())


def test_a_target_without_unknowns_is_told_of(place, capsys):
    assert main(["benchmark", "farm.npz", "farm.npz", *QUICK, "--out", "out"]) == 0
    err = capsys.readouterr().err
    assert "no class that is not known, so UNK and HOS are not defined" in err
    assert read_rows(place / "out" / "results.csv")[0]["hos"] is None
    assert read_rows(place / "out" / "results.csv")[0]["os_star"] is not None


def test_images_in_folders_lists_and_manifests_are_the_same_task(pictures, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    colours = (*KNOWN_COLOURS, *UNKNOWN_COLOURS)
    made = make_images(tmp_path / "street", colours, 3, seed=1)
    (tmp_path / "street" / "pink" / "torn.png").write_bytes(b"torn")
    images = ImageOptions(size=32, cache=str(pictures / "cache"))
    found = own_task(pictures / "shop", "street", images=images)
    assert any("left out 1 image, the first is" in line for line in found.warnings)
    rows = found.read("shop-street")
    assert rows.target_features.shape == (18, 1280)
    assert set(rows.split.unknown) == {*UNKNOWN_COLOURS}
    (tmp_path / "list.txt").write_text("".join(f"street/{path} {name}\n" for path, name in made))
    shop = [(path, path.parent.name) for path in sorted((pictures / "shop").glob("*/*.png"))]
    street = [(f"street/{path}", name) for path, name in made]
    for manifest, images_of in (("manifest.csv", street), ("shop.csv", shop)):
        lines = "".join(f"{path},{name}\n" for path, name in images_of)
        (tmp_path / manifest).write_text(f"image_file,colour\n{lines}")
    columns = TableOptions(label="colour", path="image_file")
    for other in (
        own_task(pictures / "shop", "list.txt", images=images),
        own_task("shop.csv", "manifest.csv", columns, images),
    ):
        again = other.read(other.tasks[0])
        np.testing.assert_array_equal(again.target_features, rows.target_features)
        assert again.target_truth.tolist() == rows.target_truth.tolist()
        assert again.source_labels.tolist() == rows.source_labels.tolist()
