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

import broken_method
from benchmark_helpers import quick_row, read_rows, write_domains
from cli_helpers import names_in
from opensetda.cli.main import main
from opensetda.runs.methods import METHODS

QUICK = ["--task", "usps-mnist", "--jobs", "1", "--method", "smoothed-means"]
FILES = ["results.parquet", "table.csv", "table.md"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_domains(tmp_path / "data")
    return tmp_path


@pytest.fixture
def broken(monkeypatch):
    monkeypatch.setitem(METHODS, "broken", "broken_method")
    monkeypatch.setattr(broken_method.Broken, "fits", [])
    return broken_method.Broken


@pytest.fixture
def quick_cells(monkeypatch):
    monkeypatch.setattr("opensetda.benchmark.grid.run_cell", quick_row)


def benchmark(*more):
    return main(["benchmark", "digits", "--data", "data", *QUICK, *more])


def test_rows_tables_and_where_they_are(place, capsys):
    more = ["--method", "class-means", "--reference", "class-means", "--out", "out"]
    assert benchmark(*more) == 0
    assert names_in(place / "out") == ["benchmark.json", "cells", *FILES]
    rows = read_rows(place / "out" / "results.parquet")
    assert [(row["method"], row["openness"], row["seed"]) for row in rows] == [
        *(("smoothed-means", "true", 0), ("class-means", "true", 0)),
        *(("smoothed-means", "auto", 0), ("class-means", "auto", 0)),
    ]
    out, err = capsys.readouterr()
    hos = f"{100 * rows[0]['hos']:.1f} ± -"
    assert hos in out
    assert hos in (place / "out" / "table.md").read_text()
    assert "True share of unknowns given: HOS in %" in out
    assert "class-means better" in out
    assert "out/results.parquet" in out
    assert "digits: 2 methods, 1 task, 4 runs" in err
    assert "osda benchmark digits --data data" in (place / "out" / "table.md").read_text()


def test_again_is_from_the_folder_and_the_folder_has_a_usual_name(quick_cells, place, capsys):
    assert benchmark("--openness", "true") == 0
    table = (place / "benchmark-digits" / "table.md").read_bytes()
    capsys.readouterr()
    assert benchmark("--openness", "true") == 0
    assert "1 run, of which 1 are finished already" in capsys.readouterr().err
    assert (place / "benchmark-digits" / "table.md").read_bytes() == table


def test_quiet_prints_no_tables_but_where_they_are(quick_cells, place, capsys):
    assert benchmark("--quiet", "--openness", "auto") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "HOS" not in out
    assert "table.md" in out
    assert set(FILES) < set(names_in(place / "benchmark-digits"))


def test_a_terminal_shows_a_table_that_fits(quick_cells, place, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "37")
    assert benchmark("--openness", "true") == 0
    out = capsys.readouterr().out
    assert "usps-" in out
    assert "usps-mnist" not in out
    assert "\x1b[1m" in out
    assert " ± " not in out.partition("averages over")[0]


def test_a_terminal_shows_a_bar(monkeypatch, capsys):
    from opensetda.cli.benchmark import grid_progress

    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with grid_progress() as tell:
        tell(0, 4, None)
        tell(1, 4, {"error": "ValueError: no", "method": "x", "task": "a-b"})
        time.sleep(0.15)
    err = capsys.readouterr().err
    assert "1/4 runs, 1 failed" in err
    assert "x on a-b failed: ValueError: no" in err


def test_lines_tell_how_far_a_long_grid_is(capsys, clock):
    from opensetda.cli.benchmark import grid_progress

    with grid_progress() as tell:
        tell(0, 6, None)
        for done, seconds in enumerate((10.0, 80.0), start=1):
            clock[0] += seconds
            tell(done, 6, {"error": None})
    assert capsys.readouterr().err.splitlines() == [
        "benchmark: 1/6 runs, 0:00:10 so far",
        "benchmark: 2/6 runs, 80.0 s/run, 0:01:30 so far, 0:05:20 left",
    ]


def test_settings_and_columns_reach_the_runs(place):
    with np.load("data/usps.npz") as file:
        np.savez("data/usps.npz", Z=file["X"], kind=file["classes"][file["y"]])
    with np.load("data/mnist.npz") as file:
        np.savez("data/mnist.npz", Z=file["X"], kind=file["classes"][file["y"]])
    more = ["--label-column", "kind", "--features-key", "Z", "--openness", "true"]
    assert benchmark(*more, "--method", "class-means", "--set", "steps=2") == 0
    rows = read_rows(place / "benchmark-digits" / "results.parquet")
    assert [(row["method"], row["status"]) for row in rows] == [
        *(("smoothed-means", "ok"), ("class-means", "ok"))
    ]


def test_a_setting_or_the_share_of_unknowns_is_varied(quick_cells, place, capsys):
    more = ["--openness", "true", "--method", "class-means", "--sweep"]
    assert benchmark(*more, "steps=2, 5", "--reference", "class-means") == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("smoothed-means steps=2", "smoothed-means steps=5"))
    assert "class-means better" in out
    assert benchmark(*more, "openness=0.25,0.5") == 0
    assert "targets reduced to 0.25 unknown" in " ".join(capsys.readouterr().out.split())
    rows = read_rows(place / "benchmark-digits" / "results.parquet")
    assert {(row["method"], row["target_openness"]) for row in rows} == {
        *(("smoothed-means", 0.25), ("class-means", 0.25)),
        *(("smoothed-means", 0.5), ("class-means", 0.5)),
    }


def test_the_parts_of_pgl(quick_cells, place):
    more = ["--method", "pgl", "--ablations", "--openness", "true", "--seeds", "1"]
    task = ["--data", "data", "--task", "usps-mnist", "--jobs", "1"]
    assert main(["benchmark", "digits", *task, *more]) == 0
    rows = read_rows(place / "benchmark-digits" / "results.parquet")
    assert [row["method"] for row in rows][:2] == ["pgl", "no-progressive-steps"]


def test_a_failing_run_is_reported_and_not_fatal(place, broken, capsys):
    assert benchmark("--method", "broken", "--openness", "true") == 0
    out, err = capsys.readouterr()
    assert "warning: broken on usps-mnist failed: RuntimeError: out of order second line" in err
    assert "1 of 2 runs failed" in out
    assert "tries the failed runs again" in err
    assert "- †" in out
    table = (place / "benchmark-digits" / "table.md").read_text()
    assert "broken, usps-mnist, openness true, seed 0: RuntimeError: out of order" in table


def test_nothing_but_failures_is_a_failure(place, broken):
    arguments = ["--method", "broken", "--task", "usps-mnist", "--jobs", "1"]
    assert main(["benchmark", "digits", "--data", "data", *arguments]) == 1


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
    assert len(read_rows(place / "benchmark-digits" / "results.parquet")) == 4


SERVED = """
import sys
from opensetda.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_killed_grid_goes_on(place):
    command = ["benchmark", "digits", "--data", "data", "--jobs", "1", "--out", "out"]
    command += ["--method", "moving-means", "--set", "steps=300", "--method", "class-means"]
    command += ["--openness", "true"]
    cells = place / "out" / "cells"
    process = subprocess.Popen([sys.executable, "-c", SERVED, *command], stderr=subprocess.PIPE)
    while process.poll() is None and not (cells.is_dir() and any(cells.glob("[!.]*.json"))):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    kept = {path: path.stat().st_mtime_ns for path in cells.glob("[!.]*.json")}
    assert 1 <= len(kept) < 6
    assert not (place / "out" / "table.md").exists()
    assert main(command) == 0
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert len(read_rows(place / "out" / "results.parquet")) == 6


def test_the_help_imports_nothing_heavy():
    from test_imports import HEAVY, modules_after

    code = "from opensetda.cli.main import main; assert main(['benchmark', '--help']) == 0"
    assert not modules_after(code) & HEAVY


# wrong use ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("office32 --data data", "no such benchmark; did you mean 'office31'?"),
        ("digits --data data --method xyz", "method 'xyz' does not exist"),
        ("digits --data data --method pgl+osvm", "pgl rejects in its own way"),
        ("digits --data data --method source-only+xyz", "xyz"),
        ("digits --data data --task a-b", "--task a-b: "),
        ("digits --data data --method class-means --reference pgl", "--reference pgl: not among"),
        ("digits --data data --method class-means --set stpes=3", "did you mean 'steps'"),
        ("digits --data data --method class-means --sweep stpes=3", "did you mean 'steps'"),
        ("digits --data data --sweep steps", "write SETTING=V1,V2,..."),
        ("digits --data data --sweep openness=1.5", "--openness 1.5: give the share"),
        ("digits --data data --sweep openness=0", "give shares between 0 and 1"),
        ("digits --data data --method class-means --ablations", "name --method pgl first"),
        ("digits --data data --set steps", "write NAME=VALUE"),
        ("digits --data data --seeds 0", "--seeds"),
        ("digits --data data --openness 0.5", "--openness"),
        ("digits --data data --backbone resnet50", "--backbone: data holds feature files"),
        ("digits --data data --label-column kind", "kind"),
        ("digits --data data --out data", "not empty"),
        ("digits --data data --out data/mnist.npz", "a file is in the way"),
        ("digits --data nowhere", "nowhere: no such folder"),
        ("office31 --data data", "neither a feature file"),
        ("office31", "--data: say where Office-31 is"),
        ("demo --data data", "leave --data out"),
    ],
)
def test_wrong_use_is_one_line_and_leaves_nothing(place, capsys, arguments, words):
    before = names_in(place), names_in(place / "data")
    assert main(["benchmark", *shlex.split(arguments), "--jobs", "1"]) == 2
    *before_it, error = capsys.readouterr().err.splitlines()
    assert words in error
    assert error.startswith("error: ")
    # How large the grid is may have been said.
    assert len(before_it) <= 1
    assert (names_in(place), names_in(place / "data")) == before


def test_a_missing_domain_is_named(place, capsys):
    (place / "data" / "svhn.npz").unlink()
    assert main(["benchmark", "digits", "--data", "data"]) == 2
    assert "data/svhn.npz: missing" in capsys.readouterr().err
    assert names_in(place) == ["data"]


def test_a_folder_of_other_data_is_refused(quick_cells, place, capsys):
    assert benchmark("--openness", "true") == 0
    write_domains(place / "data", per_class=7)
    capsys.readouterr()
    assert benchmark("--openness", "true") == 2
    assert "other data for usps-mnist" in capsys.readouterr().err
