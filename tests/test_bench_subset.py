"""What `make bench` says and README and docs repeat, as far as it needs no data."""

from __future__ import annotations

import re
from statistics import fmean

import pytest
from pyarrow import parquet

import rivals
from opensetda.cli.main import main


def test_the_figures_of_the_digits(tmp_path):
    """Another processor may round in another way, which moves a few digits of 1,797."""
    line = re.search(r"digits of the demo, HOS.*?\| ([\d., ]+) \|", rivals.PAGE.read_text())
    assert line is not None
    source_only, class_means, _ = map(float, line[1].split(","))
    methods = ["--method", "source-only", "--method", "class-means"]
    task = ["--task", "mnist-digits", "--openness", "auto", "--jobs", "1", "--quiet"]
    assert main(["benchmark", "demo", *methods, *task, "--out", str(tmp_path / "out")]) == 0
    rows = parquet.read_table(tmp_path / "out" / "results.parquet").to_pylist()
    measured = {row["method"]: 100 * row["hos"] for row in rows}
    assert measured["source-only"] == pytest.approx(source_only, abs=0.5)
    assert measured["class-means"] == pytest.approx(class_means, abs=0.5)


def test_the_means_of_the_rivals_are_those_of_their_tasks():
    for backbone in rivals.BACKBONES:
        rows = rivals.read_figures(backbone)
        for openness in rivals.OPENNESS:
            tasks = [rivals.hos(rows, backbone, openness, task) for task in rivals.TASKS]
            for method, mean in rivals.hos(rows, backbone, openness).items():
                assert mean == pytest.approx(fmean(task[method] for task in tasks), abs=0.02)
