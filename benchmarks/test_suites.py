"""The pure parts of suites.py: making tasks, resuming, tables. No measurement of any size."""

from __future__ import annotations

import json

import numpy as np
import pytest

import suites
import suites_data
import suites_tables
from opensetda import ProgressiveClassMeans
from suites import COLUMNS, Cell, Store
from suites_tables import GIVEN, SHARE_ONLY, fill, parse


def domain(seed: int, n_classes: int, n_rows: int = 12, width: int = 6):
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(n_classes), n_rows)
    centres = 4 * np.random.default_rng(99).normal(size=(n_classes, width))
    return (centres[y] + rng.normal(size=(len(y), width))).astype(np.float32), y


def names(n_classes: int):
    return np.array([f"class{index:02d}" for index in range(n_classes)])


@pytest.fixture
def data(tmp_path):
    """A data folder with one suite of two tasks."""
    folder = tmp_path / "suites" / "gas"
    folder.mkdir(parents=True)
    for seed, name in enumerate(("one", "two")):
        X, y = domain(seed, 5)
        np.savez(folder / f"{name}.npz", X=X, y=y, classes=names(5))
    listing = {"tasks": [["one", "two"], ["two", "one"]], "known": [0, 1, 4]}
    (folder / "tasks.json").write_text(json.dumps(listing))
    return tmp_path


class TestTasks:
    def test_a_suite_with_a_listing(self, data):
        assert suites_data.task_names("gas", data) == ["one-two", "two-one"]
        task = suites_data.read_task("gas", "one-two", data)
        assert set(task.source_labels) == {"class00", "class01", "class04"}
        assert set(task.target_truth) == set(names(5))
        assert task.split.unknown == ("class02", "class03")
        assert task.openness == 0.4

    def test_a_source_with_classes_that_the_target_lacks(self):
        parts = [domain(seed, 31, 2) for seed in (0, 1)]
        source, target = ((X, names(31)[y]) for X, y in parts)
        task = suites_data.partial_task(source, target)
        assert sorted(set(task.source_labels)) == names(31)[:20].tolist()
        shown = [*names(31)[:10], *names(31)[20:]]
        assert sorted(set(task.target_truth)) == shown
        assert task.openness == 11 / 21
        assert len(task.target_features) == len(task.target_rows) == 42

    def test_without_the_data_only_the_digits_run(self, tmp_path, capsys):
        assert suites.available(suites_data.SUITES, tmp_path) == ["digits"]
        assert "only digits runs" in capsys.readouterr().out


def options(data, *more):
    return suites._options(["--data", str(data), "--suites", "gas", *more])


class TestCells:
    def test_the_sweep_is_of_the_share_alone(self, data):
        cells = list(suites.cells(options(data)))
        methods = {*suites_tables.METHODS, SHARE_ONLY}
        assert {c.method for c in cells if c.openness == GIVEN} == methods
        assert {c.method for c in cells if c.openness != GIVEN} == {SHARE_ONLY}
        assert cells[0].openness == GIVEN
        assert len(cells) == len(set(cells))

    def test_without_random_numbers_one_seed(self, data):
        cells = list(suites.cells(options(data, "--methods", "class-means", "pgl")))
        given = [c for c in cells if c.openness == GIVEN]
        assert {c.seed for c in given if c.method == "class-means"} == {0}
        assert {c.seed for c in given if c.method == "pgl"} == {0, 1, 2}
        drawn = [c for c in cells if c.openness == "0.5" and c.method == "class-means"]
        assert {c.seed for c in drawn} == {0, 1, 2}

    def test_without_unknowns_only_the_estimate(self, data):
        cells = suites.cells(options(data, "--openness", "0"))
        assert {c.share for c in cells} == {"estimated"}

    def test_scaling_is_passed_to_those_that_take_it(self, data, monkeypatch):
        class Scaled(ProgressiveClassMeans):
            def __init__(self, openness="auto", unknown_label="unknown", scaling="auto"):
                super().__init__(openness, unknown_label=unknown_label)
                self.scaling = scaling

        monkeypatch.setattr(suites, "method_class", lambda name: Scaled)
        monkeypatch.setattr(suites, "build_method", lambda name, openness, **_: Scaled(openness))
        assert suites.scalings_of("class-means") == ("none", "ranks")
        assert suites.scalings_of("pgl") == ("default",)
        task = suites_data.read_task("gas", "one-two", data)
        for asked, used in (("ranks", "ranks"), ("default", "auto")):
            cell = Cell("gas", "one-two", "class-means", asked, "told", GIVEN, 0)
            assert suites.build(cell, task).scaling == used

    def test_the_partial_suite_is_run_by_pgl(self, data):
        cells = list(suites.cells(options(data, "--suites", suites_data.PARTIAL)))
        assert {(c.method, c.share, c.openness) for c in cells} == {
            ("pgl", "told", GIVEN),
            ("pgl", "estimated", GIVEN),
        }


class TestFile:
    def test_a_killed_run_goes_on(self, data, tmp_path, capsys):
        out = tmp_path / "cells.csv"
        command = ["--data", str(data), "--suites", "gas", "--out", str(out)]
        command += ["--methods", "class-means", "--openness", "given"]
        suites.main([*command, "--shares", "told"])
        whole = out.read_text()
        # Killed within the last line.
        out.write_text(whole[:-20])
        suites.main([*command, "--shares", "told"])
        assert "1 cells to run" in capsys.readouterr().out
        assert [line.split(",")[:7] for line in out.read_text().splitlines()] == [
            line.split(",")[:7] for line in whole.splitlines()
        ]
        suites.main([*command, "--shares", "told", "constant"])
        asked = len(suites.scalings_of("class-means"))
        assert f"{2 * asked} cells to run" in capsys.readouterr().out
        line = Store(out).lines()[0]
        assert float(line["true_share"]) == 0.4
        assert 0 < float(line["hos"]) <= 1
        assert line["error"] == ""

    def test_other_columns_are_refused(self, tmp_path):
        path = tmp_path / "cells.csv"
        path.write_text("suite,task\n")
        with pytest.raises(SystemExit, match="other columns"):
            Store(path).lines()

    def test_too_few_rows_for_an_openness_are_said(self, data):
        cell = Cell("gas", "one-two", "class-means", "none", "told", "0.99", 0)
        line = suites.run(cell, data)
        assert "too few" in line["error"]
        Store(data / "cells.csv").append(line)
        assert parse(Store(data / "cells.csv").lines()) == []


def record(**changes):
    values = {
        **dict.fromkeys(COLUMNS, "0"),
        **{"suite": "gas", "task": "a", "method": "pgl", "scaling": "none", "share": "told"},
        **{"openness": GIVEN, "error": "", "found_unknowns": "1"},
    }
    return {name: str(value) for name, value in (values | changes).items()}


class TestTables:
    def test_the_better_scaling_of_a_rival_counts(self):
        records = parse([
            record(hos=0.7),
            record(hos=0.5, method="daod"),
            record(hos=0.6, method="daod", scaling="ranks"),
            record(hos=0.9, method="class-means", share="estimated"),
        ])  # fmt: skip
        (line,) = suites_tables.told(records).lines
        assert line == ["gas", "70.0", "-", "60.0 (ranks)", "-", "-", "daod", "+10.0"]

    def test_an_unfinished_method_is_marked(self):
        records = parse([record(hos=0.7), record(task="b"), record(hos=0.5, method="daod")])
        (line,) = suites_tables.told(records).lines
        assert line[3] == "50.0 (none), 1 of 2 tasks"

    def test_a_task_with_more_seeds_weighs_no_more(self):
        cells = parse([record(hos=1), record(hos=1, seed=1), record(hos=0, task="b")])
        assert suites_tables.mean(cells, suites_tables.hos) == 50

    def test_kinds_of_share(self):
        estimated = {"share": "estimated", "used_share": 0.7, "true_share": 0.5}
        records = parse([
            record(hos=0.7),
            record(hos=0.6, **estimated),
            record(hos=0.5, share="constant"),
        ])  # fmt: skip
        (line,) = suites_tables.shares(records).lines
        assert line == ["gas", "70.0", "60.0", "50.0", "0.20", "0.10"]

    def test_sweep_and_reliance(self):
        estimated = {"method": SHARE_ONLY, "share": "estimated", "low": 0.4, "high": 0.6}
        records = parse([
            record(**estimated, true_share=0.5, used_share=0.45, warnings=1),
            record(**estimated, true_share=0.9, used_share=0.6, warnings=2, openness="0.9"),
            record(**estimated, true_share=0.75, used_share=0, found_unknowns=0, openness="0.75"),
            record(**estimated, true_share=0, used_share=0.5, openness="0"),
        ])  # fmt: skip
        (line,) = suites_tables.sweep(records).lines
        assert line == ["gas", "0.05", "-", "-", "-", "0.75", "0.30", "0.37", "0.32"]
        (line,) = suites_tables.reliance(records).lines
        assert line == ["gas", "1 of 3", "1 of 2", "1 of 1", "1 of 3"]

    def test_closed_set(self):
        closed = {"method": SHARE_ONLY, "share": "estimated", "openness": "0"}
        records = parse([
            record(**closed, rejected=0.1),
            record(**closed, rejected=0.3, task="b", found_unknowns=0),
        ])  # fmt: skip
        assert suites_tables.closed(records).lines == [["gas", "20.0", "30.0", "1 of 2"]]

    def test_untrained_partial_and_cost(self):
        records = parse([
            record(hos=0.7),
            record(hos=0.6, method="pgl-untrained"),
            record(hos=0.8, suite=suites_data.PARTIAL),
            record(suite="office31-resnet50", seconds=3, memory_mb=500),
        ])  # fmt: skip
        tables = suites_tables.all_tables(records)
        assert ["gas", "70.0", "60.0", "-", "-"] in tables[-3].lines
        assert tables[-2].lines == [["pgl", "80.0", "-", "-"]]
        assert tables[-1].lines[-1] == ["all", "", "1", "3", "500"]
        assert all(len(line) == len(t.header) for t in tables for line in t.lines)
        assert "gas" in tables[0].text()

    def test_nothing_measured(self):
        assert suites_tables.all_tables([]) == []


class TestPage:
    def test_tables_go_between_the_markers(self):
        page = "a\n<!-- suites:begin -->\nold\n<!-- suites:end -->\nb"
        filled = fill(page, "| new |\n")
        assert filled == "a\n<!-- suites:begin -->\n\n| new |\n\n<!-- suites:end -->\nb"
        with pytest.raises(SystemExit, match="no <!-- suites:begin"):
            fill("a", "")

    @pytest.mark.skipif(not suites.OUT.is_file(), reason="suites.py has not measured yet")
    def test_the_page_has_the_tables_of_the_file(self):
        page = suites.PAGE.read_text(encoding="utf-8")
        tables = suites.markdown(parse(Store(suites.OUT).lines()))
        assert fill(page, tables) == page, "run python benchmarks/suites.py --write"
