"""`osda predict` on images: folders, files, lists, three formats, broken files."""

from __future__ import annotations

import os
import shutil

import pyarrow.csv
import pyarrow.parquet
import pytest

from cli_helpers import names_in
from opensetda.cli.main import main

COLUMNS = ["path", "label", "confidence", "p_unknown", "known_score", "nearest_class"]


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


def test_both_formats_say_the_same(place, predict, capsys):
    for name in ("l.csv", "l.parquet"):
        assert predict("new", "--out", name) == 0
    out = capsys.readouterr().out
    assert "Labelled 10 images." in out
    rows = read("l.parquet")
    assert [row["path"] for row in rows] == [f"new/{name}" for name in names_in(place / "new")]
    # Four classes and unknown: all five of them.
    assert list(rows[0]) == [
        *COLUMNS,
        *(f"{p}{k}" for k in range(1, 6) for p in ("top_", "p_top_")),
    ]
    for row, text in zip(rows, read("l.csv"), strict=True):
        for name, value in row.items():
            expected = value if isinstance(value, str) else pytest.approx(value, abs=1e-6)
            assert text[name] == expected
        assert row["confidence"] == max(row[f"p_top_{k}"] for k in range(1, 6))


def test_labels_are_those_of_the_run(place, pictures, predict):
    assert predict(pictures / "street", "--out", "l.parquet", "--top-k", 2) == 0
    rows = read("l.parquet")
    assert list(rows[0]) == [*COLUMNS, "top_1", "p_top_1", "top_2", "p_top_2"]
    run = pyarrow.csv.read_csv(pictures / "run" / "predictions.csv")
    assert [os.path.basename(row["path"]) for row in rows] == run["path"].to_pylist()  # noqa: PTH119
    # Judged one by one they are, but for a few on the border.
    labels = zip([row["label"] for row in rows], run["label"].to_pylist(), strict=True)
    assert sum(later == first for later, first in labels) >= 27


def test_alone_as_in_company_and_in_parts(place, predict, monkeypatch):
    assert predict("new", "--out", "all.parquet") == 0
    company = read("all.parquet")
    monkeypatch.setattr("opensetda.runs.predicting.PART", 3)
    first, second = company[0]["path"], company[4]["path"]
    for name, paths in [("one", [first]), ("two", [second, first]), ("parts", ["new"])]:
        assert predict(*paths, "--out", f"{name}.parquet") == 0
    for got, expected in [
        (read("one.parquet"), company[:1]),
        (read("two.parquet"), [company[4], company[0]]),
        (read("parts.parquet"), company),
    ]:
        for row, other in zip(got, expected, strict=True):
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
