"""Names that a spreadsheet program takes for formulas: written as they are, with a warning."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from cli_helpers import FIT, OPENNESS, blobs
from opensetda.backbones.extraction import Broken
from opensetda.benchmark.output import formulas_in, write_csv
from opensetda.cli.main import main
from opensetda.runs.pictures import write_broken_list

FORMULA = "=cmd|' /C calc'!A0"
WARNING = "which a spreadsheet program may run as a formula; import all columns as text"


@pytest.fixture
def place(workplace):
    """A target of which one sample is named like a formula."""
    ids = [f"image {row}" for row in range(60)]
    ids[7] = FORMULA
    np.savez("target.npz", X=blobs(1)[0], id=np.array(ids))
    return workplace


def ids_in(path):
    with open(path, encoding="utf-8", newline="") as stream:  # noqa: PTH123
        return [row[0] for row in csv.reader(stream)][1:]


def warned(capsys):
    """The files that warnings of formulas name."""
    lines = capsys.readouterr().err.splitlines()
    told = [line for line in lines if WARNING in line]
    assert [line for line in told if f'a cell is "{FORMULA}"' not in line] == []
    return [line.split(": ")[1] for line in lines if WARNING in line]


def test_commands_that_write_tables_warn(place, capsys, monkeypatch):
    assert main([*FIT, *OPENNESS, "--id-column", "id"]) == 0
    assert warned(capsys) == ["run/predictions.csv"]
    ids = np.load("target.npz")["id"].tolist()
    assert ids_in("run/predictions.csv") == ids
    predict = ["predict", "run", "target.npz", "--id-column", "id", "--out"]
    assert main([*predict, "labels.csv"]) == 0
    assert warned(capsys) == ["labels.csv"]
    assert ids_in("labels.csv") == ids
    assert main([*predict, "labels.parquet"]) == 0
    assert warned(capsys) == []

    def serve(server):
        server.session.decide(7, "border", "cat")
        raise KeyboardInterrupt

    monkeypatch.setattr("opensetda.review.server.ReviewServer.serve_forever", serve)
    assert main(["review", "run", "--no-browser"]) == 0
    assert warned(capsys) == ["run/corrections.csv"]
    assert ids_in("run/corrections.csv") == [FORMULA]


def test_a_class_and_a_broken_image(place, capsys):
    X, y = blobs(0)
    np.savez("source.npz", X=X, y=np.where(y == "cat", FORMULA, y))
    np.savez("target.npz", X=X)
    assert main([*FIT, *OPENNESS, "--json"]) == 0
    (warning,) = [w for w in json.loads(capsys.readouterr().out)["warnings"] if WARNING in w]
    assert warning.startswith("run/predictions.csv: ")
    warnings = []
    write_broken_list(Path("out.csv"), [Broken("a", f"{FORMULA}.jpg", "empty")], warnings.append)
    assert [WARNING in warning for warning in warnings] == [True]
    assert ids_in("out.csv.broken.csv") == [f"{FORMULA}.jpg"]


def test_tables_of_a_benchmark(tmp_path):
    for name, expected in ((FORMULA, 1), ("shop to street", 0)):
        rows = [{"task": "a", "hos": -0.5}, {"task": name, "hos": 0.5}]
        write_csv(rows, tmp_path / "results.csv")
        warnings = formulas_in(tmp_path / "results.csv", rows)
        assert [WARNING in warning for warning in warnings] == [True] * expected
