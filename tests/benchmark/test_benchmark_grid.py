"""A grid: what is run, what is kept, and what fails."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import benchmark_helpers
from benchmark_helpers import deadly, quick_row, write_domains
from opensetda.benchmark import grid
from opensetda.benchmark.grid import FAILED, OK, Cell, grid_cells, n_finished, run_cell, run_grid
from opensetda.benchmark.tasks import find_tasks
from opensetda.benchmark.variants import Variant, make_variants
from opensetda.errors import InputError
from opensetda.runs.registry import METHODS

MEANS = Variant("means", "class-means")
OTHER = Variant("other", "smoothed-means")
TIMES = ("seconds", "cpu_seconds", "memory_mb")


@pytest.fixture
def tasks(tmp_path):
    return find_tasks("digits", write_domains(tmp_path / "data"), ["usps-mnist", "mnist-usps"])


@pytest.fixture
def broken(monkeypatch):
    monkeypatch.setitem(METHODS, "broken", "benchmark_helpers")
    monkeypatch.setattr(benchmark_helpers.Broken, "fits", [])
    return benchmark_helpers.Broken


@pytest.fixture
def quick_cells(monkeypatch):
    monkeypatch.setattr(grid, "run_cell", quick_row)


def without_times(rows):
    return [{name: row[name] for name in row if name not in TIMES} for row in rows]


# cells ----------------------------------------------------------------------------------------


def test_methods_that_draw_nothing_run_for_one_seed():
    cells = grid_cells([MEANS, Variant("pgl", "pgl")], ["a", "b"], ["true", "auto"], [4, 5, 6])
    assert len(cells) == 2 * 2 * (1 + 3)
    assert {cell.seed for cell in cells if cell.variant is MEANS} == {4}
    assert [cell.seed for cell in cells] == sorted(cell.seed for cell in cells)


def test_a_key_is_of_all_that_decides_the_result_but_not_of_the_label(tasks):
    cell = Cell(MEANS, "usps-mnist", "true", 0)
    others = [
        Cell(OTHER, "usps-mnist", "true", 0),
        Cell(replace(MEANS, scaling="ranks"), "usps-mnist", "true", 0),
        Cell(Variant("means", "class-means", changes=(("steps", 3),)), "usps-mnist", "true", 0),
        Cell(MEANS, "mnist-usps", "true", 0),
        Cell(MEANS, "usps-mnist", "auto", 0),
        Cell(MEANS, "usps-mnist", "true", 1),
        Cell(MEANS, "usps-mnist", "true", 0, 0.5),
    ]
    keys = {other.key(tasks) for other in (cell, *others)}
    assert len(keys) == 1 + len(others)
    renamed = Cell(Variant("another name", "class-means"), "usps-mnist", "true", 0)
    assert renamed.key(tasks) == cell.key(tasks)


def test_a_row_says_what_was_run_and_what_came_out(tasks, tmp_path):
    row = run_cell(tasks, Cell(MEANS, "usps-mnist", "true", 0), tmp_path)
    task = tasks.read("usps-mnist")
    classifier = MEANS.build(0.5)
    X = np.concatenate([task.source_features, task.target_features])
    y = np.concatenate([task.source_labels, np.full(60, "?")])
    classifier.fit(X, y, np.repeat([0, -1], [30, 60]))
    unknown = np.isin(task.target_truth, list("56789"))
    right = classifier.transduction_ == np.where(unknown, "unknown", task.target_truth)
    assert row["all"] == pytest.approx(right.mean())
    assert row["unk"] == pytest.approx(right[unknown].mean())
    assert row["share"] == (classifier.transduction_ == "unknown").mean() == 0.5
    assert (row["true_share"], row["scaling"], row["status"]) == (0.5, "none", OK)
    later = classifier.predict(task.target_features)
    assert row["differs"] == (later != classifier.transduction_).mean()
    named = ("benchmark", "task", "method", "openness", "target_openness", "seed", "error")
    expected = ["digits", "usps-mnist", "means", "true", None, 0, None]
    assert [row[name] for name in named] == expected
    assert row["seconds"] > 0
    assert 50 < row["memory_mb"] < 10_000
    # Targets are dropped until the share is the wanted one.
    thinned = run_cell(tasks, Cell(MEANS, "usps-mnist", "true", 0, 0.25), tmp_path)
    assert thinned["true_share"] == pytest.approx(0.25)


# the folder -----------------------------------------------------------------------------------


def test_a_grid_that_was_cut_goes_on(quick_cells, tasks, tmp_path):
    out = tmp_path / "out"
    cells = grid_cells([MEANS, OTHER], tasks.tasks, ["true"], [0])
    whole = run_grid(tasks, cells, out)
    kept, _, lost, damaged = sorted((out / "cells").iterdir())
    lost.unlink()
    damaged.write_text('{"key": ')
    (out / "cells" / ".rest.json.partial-0").mkdir()
    before = kept.stat().st_mtime_ns
    assert n_finished(tasks, cells, out) == 2
    told = []
    again = run_grid(tasks, cells, out, progress=lambda done, total, row: told.append(done))
    assert told == [0, 1, 2]
    assert kept.stat().st_mtime_ns == before
    assert without_times(again) == without_times(whole)


def test_a_folder_of_something_else_is_refused(quick_cells, tasks, tmp_path):
    cells = grid_cells([MEANS], tasks.tasks[:1], ["true"], [0])
    out = tmp_path / "out"
    run_grid(tasks, cells, out)
    other = find_tasks("digits", write_domains(tmp_path / "more", per_class=7), tasks.tasks)
    with pytest.raises(InputError, match="other data for usps-mnist"):
        run_grid(other, cells, out)
    (out / "benchmark.json").write_text('{"benchmark": "office31", "tasks": {}}')
    with pytest.raises(InputError, match="not of the benchmark digits"):
        run_grid(tasks, cells, out)
    with pytest.raises(InputError, match="not empty"):
        run_grid(tasks, cells, tmp_path / "data")
    # As a process leaves it that is killed while it writes the first file.
    (tmp_path / "killed" / "cells").mkdir(parents=True)
    (tmp_path / "killed" / ".benchmark.json.partial-0").mkdir()
    run_grid(tasks, cells, tmp_path / "killed")
    assert not list((tmp_path / "killed").glob(".*"))


# what fails -----------------------------------------------------------------------------------


def test_a_failing_cell_is_recorded_and_tried_again(tasks, tmp_path, broken, monkeypatch):
    monkeypatch.setattr(broken, "fails_at", range(1, 2))
    out = tmp_path / "out"
    cells = grid_cells([Variant("broken", "broken"), OTHER], tasks.tasks, ["true"], [0])
    results = run_grid(tasks, cells, out)
    assert [row["status"] for row in results] == [OK, OK, FAILED, OK]
    failed = results[2]
    assert failed["error"] == "RuntimeError: out of order second line"
    assert (failed["task"], failed["hos"], failed["seconds"]) == ("mnist-usps", None, None)
    assert n_finished(tasks, cells, out) == 3
    again = run_grid(tasks, cells, out)
    assert broken.fits == [0, 1, 2]
    assert {row["status"] for row in again} == {OK}


# processes ------------------------------------------------------------------------------------


def test_processes_give_the_same_rows_and_a_killed_one_ends_the_grid(tasks, tmp_path):
    cells = grid_cells([OTHER], ["mnist-usps", "usps-mnist"], ["true"], [0])
    killing = replace(tasks, read=partial(deadly, tasks.read))
    with pytest.raises(ChildProcessError, match="killed"):
        run_grid(killing, cells, tmp_path / "out", jobs=2)
    results = run_grid(tasks, cells, tmp_path / "out", jobs=2)
    assert without_times(results) == without_times([run_cell(tasks, c, tmp_path) for c in cells])


# methods --------------------------------------------------------------------------------------


def test_a_sweep_has_a_row_for_each_value_of_the_first_method():
    swept = make_variants(["moving-means", "class-means"], sweep=("steps", ["2", "5"]))
    assert [variant.label for variant in swept] == [
        *("moving-means steps=2", "moving-means steps=5", "class-means")
    ]
    assert swept[1].build("auto").steps == 5
    # The share of unknowns is varied by the targets, not by a setting.
    same = [Variant("moving-means", "moving-means")]
    assert make_variants(["moving-means"], sweep=("openness", ["0.2"])) == same


def test_a_variant_may_have_another_scaling():
    scaled = Variant("moving-means", "moving-means", scaling="standard")
    assert scaled.build("auto").scaling == "standard"


def test_ablations_are_of_pgl():
    from opensetda.pgl.presets import ABLATIONS

    whole, *parts = make_variants(["pgl"], changes={"epochs": 1}, ablations=True)
    assert [part.label for part in parts] == list(ABLATIONS)
    assert all({*whole.changes} <= {*part.changes} for part in parts)
    with pytest.raises(InputError, match="moving-means has none; name --method pgl first"):
        make_variants(["moving-means", "pgl"], ablations=True)


def test_pgl_has_the_preset_of_the_protocol_or_that_of_a_trained_backbone():
    found = [
        make_variants(["pgl"], None, None, True, None, *how) for how in (("", True), ("", False))
    ]
    assert [rows[0].preset for rows in found] == ["end-to-end", None]
    # One preset has no adversary that could be left out.
    names = [[row.label for row in rows] for rows in found]
    assert [name for name in names[1] if name not in names[0]] == ["no-adversary"]
    assert make_variants(["pgl"], None, None, False, None, "visda17", True)[0].preset == "visda-17"
