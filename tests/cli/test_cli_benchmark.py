"""`osda benchmark`: from feature files to tables, cut and taken up again, and wrong use."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import benchmark_helpers
from benchmark_helpers import quick_row, read_rows, write_domains
from cli_helpers import names_in
from opensetda.cli.main import main
from opensetda.runs.registry import METHODS

QUICK = ["--task", "usps-mnist", "--jobs", "1", "--method", "smoothed-means"]
FILES = ["results.csv", "summary.json", "table.md"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_domains(tmp_path / "data")
    return tmp_path


@pytest.fixture
def broken(monkeypatch):
    monkeypatch.setitem(METHODS, "broken", "benchmark_helpers")
    monkeypatch.setattr(benchmark_helpers.Broken, "fits", [])
    return benchmark_helpers.Broken


@pytest.fixture
def quick_cells(monkeypatch):
    monkeypatch.setattr("opensetda.benchmark.grid.run_cell", quick_row)


def benchmark(*more):
    return main(["benchmark", "digits", "--data", "data", *QUICK, *more])


def test_rows_tables_and_where_they_are(place, capsys):
    more = ["--method", "class-means", "--reference", "class-means", "--out", "out"]
    assert benchmark(*more) == 0
    assert names_in(place / "out") == ["benchmark.json", "cells", *FILES]
    rows = read_rows(place / "out" / "results.csv")
    assert [(row["method"], row["openness"], row["seed"]) for row in rows] == [
        *(("smoothed-means", "true", 0), ("class-means", "true", 0)),
        *(("smoothed-means", "auto", 0), ("class-means", "auto", 0)),
    ]
    out, err = capsys.readouterr()
    hos = f"{100 * rows[0]['hos']:.1f} ± -"
    assert hos in out
    assert hos in (place / "out" / "table.md").read_text()
    assert "class-means better" in out
    assert "digits: 2 methods, 1 task, 4 runs" in err
    assert "osda benchmark digits --data data" in (place / "out" / "table.md").read_text()


def test_columns_reach_the_runs_and_a_failing_one_is_not_fatal(place, broken, capsys):
    for name in ("usps", "mnist"):
        with np.load(f"data/{name}.npz") as file:
            np.savez(f"data/{name}.npz", Z=file["X"], kind=file["classes"][file["y"]])
    more = ["--label-column", "kind", "--features-key", "Z", "--openness", "true"]
    assert benchmark(*more, "--method", "broken", "--set", "steps=2") == 0
    out, err = capsys.readouterr()
    assert "warning: broken on usps-mnist failed: RuntimeError: out of order second line" in err
    assert "1 of 2 runs failed" in out
    rows = read_rows(place / "benchmark-digits" / "results.csv")
    assert [(row["method"], row["status"]) for row in rows] == [
        *(("smoothed-means", "ok"), ("broken", "failed"))
    ]


def test_a_setting_or_the_share_of_unknowns_is_varied(quick_cells, place, capsys):
    more = ["--openness", "true", "--method", "class-means", "--sweep"]
    assert benchmark(*more, "steps=2, 5", "--reference", "class-means") == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("smoothed-means steps=2", "smoothed-means steps=5"))
    assert benchmark(*more, "openness=0.25,0.5") == 0
    assert "targets reduced to 0.25 unknown" in " ".join(capsys.readouterr().out.split())
    rows = read_rows(place / "benchmark-digits" / "results.csv")
    assert {(row["method"], row["target_openness"]) for row in rows} == {
        *(("smoothed-means", 0.25), ("class-means", 0.25)),
        *(("smoothed-means", 0.5), ("class-means", 0.5)),
    }


def test_ctrl_c_says_how_to_go_on(place, broken, monkeypatch, capsys):
    monkeypatch.setattr(broken, "error", KeyboardInterrupt())
    monkeypatch.setattr(broken, "fails_at", range(1, 2))
    command = ["benchmark", "digits", "--data", "data", *QUICK, "--method", "broken"]
    assert main(command) == 130
    err = capsys.readouterr().err.splitlines()[-1]
    assert "3 of 4 runs are finished and kept in benchmark-digits" in err
    assert err.endswith(f"the same command: {shlex.join(['osda', *command])}")
    assert main(command) == 0
    assert broken.fits == [0, 1, 2]
    assert len(read_rows(place / "benchmark-digits" / "results.csv")) == 4


def test_a_killed_grid_goes_on(place):
    command = ["benchmark", "digits", "--data", "data", "--jobs", "1", "--out", "out"]
    command += ["--method", "moving-means", "--set", "steps=300", "--method", "class-means"]
    command += ["--openness", "true"]
    cells = place / "out" / "cells"
    process = subprocess.Popen(
        [sys.executable, "-m", "opensetda", *command], stderr=subprocess.PIPE
    )
    while process.poll() is None and not (cells.is_dir() and any(cells.glob("[!.]*.json"))):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    kept = {path: path.stat().st_mtime_ns for path in cells.glob("[!.]*.json")}
    assert 1 <= len(kept) < 6
    assert not (place / "out" / "table.md").exists()
    assert main(command) == 0
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert len(read_rows(place / "out" / "results.csv")) == 6
