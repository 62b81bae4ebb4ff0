"""`osda analyse`: files, tables on the screen, and wrong use in one line."""

from __future__ import annotations

import csv
import struct

import numpy as np
import pytest

from opensetda.cli.main import main
from opensetda.data.benchmarks.protocols import benchmark

MEANS = ("--method", "moving-means", "--set", "steps=2")
PGL = ("--set", "steps=1", "--set", "epochs=1", "--set", "edge_width=8", "--set", "node_width=8")


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    """Office-31 in small: two rows of each class in two domains."""
    folder = tmp_path_factory.mktemp("features")
    spec = benchmark("office31")
    names = np.array([*spec.known, *spec.unknown])
    rng = np.random.default_rng(0)
    centres = 3 * rng.normal(size=(len(names), 24))
    y = np.repeat(np.arange(len(names)), 2)
    for domain in ("dslr", "webcam"):
        X = centres[y] + rng.normal(size=(len(y), 24)) + rng.normal(size=24)
        np.savez(folder / f"{domain}.npz", X=X.astype(np.float32), y=y, classes=names)
    return folder


def run(name, features, out, *more):
    given = ["analyse", name, "office31", "--data", str(features), "--out", str(out)]
    return main([*given, "--task", "dslr-webcam", *more])


@pytest.mark.parametrize(
    ("name", "more", "n_rows"),
    [("steps", MEANS, 2), ("embedding", MEANS, 2), ("bound", MEANS, 2), ("edges", PGL, 2)],
)
def test_every_analysis_leaves_a_table_and_a_figure(name, more, n_rows, features, tmp_path, capsys):
    assert run(name, features, tmp_path / "out", *more) == 0
    shown = capsys.readouterr().out
    for ending in ("csv", "md", "png"):
        assert str(tmp_path / "out" / f"{name}.{ending}") in shown
    assert len(list(csv.DictReader((tmp_path / "out" / f"{name}.csv").open()))) == n_rows
    png = (tmp_path / "out" / f"{name}.png").read_bytes()
    width, height = struct.unpack(">II", png[16:24])
    assert width > 600
    assert height > 200
    page = (tmp_path / "out" / f"{name}.md").read_text()
    assert f"]({name}.png)" in page
    assert f"Made by `osda analyse {name} office31" in page
