"""The tables in README and docs are those of the measured and of the published figures."""

from __future__ import annotations

from statistics import fmean

import pyarrow as pa
import pyarrow.parquet
import pytest

import paper
import published
import rivals
from opensetda.pgl.settings import PGLSettings


def test_the_means_of_the_rivals_are_those_of_their_tasks():
    for backbone in rivals.BACKBONES:
        rows = rivals.read_figures(backbone)
        for openness in rivals.OPENNESS:
            tasks = [rivals.hos(rows, backbone, openness, task) for task in rivals.TASKS]
            for method, mean in rivals.hos(rows, backbone, openness).items():
                assert mean == pytest.approx(fmean(task[method] for task in tasks), abs=0.02)


def test_the_page_of_published_figures_has_its_tables():
    assert published.main(["--check"]) == 0


def test_the_page_of_experiments_has_the_figures_of_the_paper():
    page = paper.PAGE.read_text(encoding="utf-8")
    assert page == paper.filled_page(paper.read_figures()), "run paper.py --tables --write"


def test_the_path_from_the_paper_ends_at_the_default():
    *_, last, default = paper.variants("path").values()
    reached = PGLSettings.preset(last.preset).with_changes(dict(last.changes))
    assert reached == PGLSettings.preset(default.preset)


def results(folder, method, tasks, hos):
    """Write what `osda benchmark` writes."""
    row = dict.fromkeys(rivals.METRICS, hos) | {"method": method, "openness": "true"}
    row |= {"seed": 0, "status": "ok", "error": None}
    rows = [row | {"task": "-".join(rivals.TASKS[task])} for task in tasks]
    folder.mkdir(exist_ok=True)
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), folder / "results.parquet")


def test_a_part_of_the_rivals_replaces_its_own_lines(tmp_path, monkeypatch):
    """And a method has a mean only if it has all tasks."""
    monkeypatch.setattr(rivals, "FIGURES", tmp_path)
    *most, last = rivals.TASKS
    for method, tasks, hos in (
        ("osbp", rivals.TASKS, 0.5),
        ("pgl-paper", most, 0.6),
        ("pgl-paper", [last], 0.9),
        ("osbp", [last], 0.2),
    ):
        results(tmp_path / "out", method, tasks, hos)
        rivals._keep_figures("resnet50", tmp_path / "out")
        rows = rivals.read_figures("resnet50")
        if method == "pgl-paper" and last not in tasks:
            assert "pgl-paper" not in rivals.hos(rows, "resnet50", "true")
            assert "| pgl-paper | **60.0** |" in rivals.task_table(rows, "resnet50", "true")
    assert rivals.hos(rows, "resnet50", "true") == pytest.approx({"osbp": 45, "pgl-paper": 65})
    assert rivals.hos(rows, "resnet50", "true", last) == {"osbp": 20, "pgl-paper": 90}
    assert len(rows) == 14
