"""`osda analyse`: files, tables on the screen, and wrong use in one line."""

from __future__ import annotations

import csv
import struct

import numpy as np
import pytest

from cli_helpers import names_in
from opensetda.analyses import sweeps
from opensetda.analyses.contract import Column, ResultTable
from opensetda.analyses.listing import ANALYSES
from opensetda.cli.analyse import show_table
from opensetda.cli.main import main
from opensetda.data.benchmarks.catalogue import benchmark

QUICK = (
    *("--set", "steps=2", "--set", "optimiser.iterations_per_epoch=2", "--set", "ranking.draws=1"),
    *("--jobs", "1"),
)


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


def run(name, features, out, *more, seeds=("--seeds", "1")):
    task = ("--task", "dslr-webcam")
    given = ["analyse", name, "office31", "--data", str(features), "--out", str(out)]
    return main([*given, *task, *seeds, *QUICK, *more])


@pytest.mark.parametrize(
    ("name", "more", "n_rows"),
    [
        ("ablation", (), 2),
        ("alpha", ("--value", "0.5"), 1),
        ("openness", ("--value", "0.5", "--method", "class-means"), 1),
        ("losses", ("--value", "2"), 4),
        ("steps", (), 2),
        ("embedding", ("--method", "class-means"), 2),
        ("edges", (), 4),
        ("bound", (), 2),
    ],
)
def test_every_analysis_leaves_a_table_and_a_figure(
    name, more, n_rows, features, tmp_path, capsys, monkeypatch
):
    assert name in ANALYSES
    monkeypatch.setattr(sweeps, "ablations_of", lambda preset: {"no graph": {"steps": 1}})
    assert run(name, features, tmp_path / "out", *more) == 0
    shown = capsys.readouterr().out
    for ending in ("csv", "md", "png", "pdf"):
        assert str(tmp_path / "out" / f"{name}.{ending}") in shown
    rows = list(csv.DictReader((tmp_path / "out" / f"{name}.csv").open()))
    assert len(rows) <= n_rows if name == "edges" else len(rows) == n_rows
    png = (tmp_path / "out" / f"{name}.png").read_bytes()
    width, height = struct.unpack(">II", png[16:24])
    assert width > 600
    assert height > 200
    assert (tmp_path / "out" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    page = (tmp_path / "out" / f"{name}.md").read_text()
    assert f"]({name}.png)" in page
    assert f"Made by `osda analyse {name} office31" in page


def test_the_same_command_gives_the_same_files(features, tmp_path, capsys):
    for place in ("one", "two"):
        assert run("steps", features, tmp_path / place) == 0
    out = capsys.readouterr().out
    assert "dslr-webcam" in out
    assert "OS*" in out
    assert names_in(tmp_path / "one") == ["steps.csv", "steps.md", "steps.pdf", "steps.png"]
    for file in ("steps.csv", "steps.png", "steps.pdf"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_a_grid_leaves_its_runs_and_goes_on_with_them(features, tmp_path):
    out = tmp_path / "out"
    assert run("alpha", features, out, "--value", "1") == 0
    assert names_in(out) == [
        "alpha.csv",
        "alpha.md",
        "alpha.parquet",
        "alpha.pdf",
        "alpha.png",
        "runs",
    ]
    before = names_in(out / "runs" / "cells")
    assert run("alpha", features, out, "--value", "0.5", "--value", "1") == 0
    cells = names_in(out / "runs" / "cells")
    assert set(before) < set(cells)
    assert len(cells) == 2


def test_a_run_that_fails_is_named_and_the_others_stand(features, tmp_path, capsys):
    # At 0.99 of 33 unknowns not one of the known targets may stay.
    more = ("--method", "class-means", "--value", "0.5", "--value", "0.99")
    assert run("openness", features, tmp_path / "out", *more) == 0
    out, err = capsys.readouterr()
    assert "warning: 1 run failed, the first: InputError: with_openness" in err
    assert "Failed: class-means on dslr-webcam, seed 0: InputError: with_openness" in out
    rows = list(csv.DictReader((tmp_path / "out" / "openness.csv").open()))
    assert [row["hos"] != "" for row in rows] == [True, False]


def test_where_all_runs_fail_the_command_does(features, tmp_path):
    more = ("--method", "class-means", "--value", "0.99")
    assert run("openness", features, tmp_path / "out", *more) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense", "demo", "--out", "out"], "analysis 'nonsense' does not exist; choose one of"),
        (["steps", "nonsense", "--out", "out"], "nonsense"),
        (["steps", "demo"], "Missing option '--out'"),
        (["steps", "office31", "--out", "out"], "--data: say where Office-31 is"),
        (["steps", "demo", "--out", "out", "--method", "pgl"], "--method pgl: steps is about pgl"),
        (["steps", "demo", "--out", "out", "--value", "1"], "--value 1: steps varies no number"),
        (["alpha", "demo", "--out", "out", "--value", "0.3"], "--value 0.3: alpha is 1 / steps"),
        (["edges", "demo", "--out", "out", "--seeds", "2"], "--seeds 2: edges has one run"),
        (
            ["edges", "demo", "--out", "out", "--task", "mnist-digits", "--task", "mnist-noise"],
            "--task mnist-noise: edges has one task only",
        ),
        (["steps", "demo", "--out", "out", "--preset", "x"], "preset 'x' does not exist"),
        (["steps", "demo", "--out", "out", "--set", "stpes=2"], "did you mean 'steps'?"),
        (["steps", "demo", "--out", "a-file"], "--out a-file: a file is in the way"),
        (["openness", "demo", "--out", "out", "--method", "osb"], "method 'osb' does not exist"),
        (["embedding", "demo", "--out", "out", "--method", "source-only"], "learns no features"),
    ],
)
def test_wrong_use_is_one_line(arguments, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-file").write_text("")
    assert main(["analyse", *arguments]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert len(err.splitlines()) == 1
    assert names_in(tmp_path) == ["a-file"]


@pytest.mark.parametrize("width", ["40", "80", "200"])
def test_no_number_is_cut_and_narrow_screens_do_without_details(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    columns = [Column(f"c{n}", f"heading {n}", "number", detail=n == 3) for n in range(10)]
    table = ResultTable("A title", columns)
    table.add(**{f"c{n}": 0.1 * n for n in range(10)})
    show_table(table)
    out = capsys.readouterr().out
    assert "…" not in out
    assert ("0.300" in out) == (width == "200")
    assert "0.900" in out


def test_the_help_tells_every_analysis(capsys):
    assert main(["analyse", "--help"]) == 0
    out = capsys.readouterr().out
    for name, analysis in ANALYSES.items():
        assert f"{name}: {analysis.summary.split('(')[0].strip()[:40]}" in " ".join(out.split())
