"""The tables in README and docs are those of the measured and of the published figures."""

from __future__ import annotations

from statistics import fmean

import pytest

import published
import rivals


def test_the_means_of_the_rivals_are_those_of_their_tasks():
    for backbone in rivals.BACKBONES:
        rows = rivals.read_figures(backbone)
        for openness in rivals.OPENNESS:
            tasks = [rivals.hos(rows, backbone, openness, task) for task in rivals.TASKS]
            for method, mean in rivals.hos(rows, backbone, openness).items():
                assert mean == pytest.approx(fmean(task[method] for task in tasks), abs=0.02)


def test_the_page_of_published_figures_has_its_tables():
    assert published.main(["--check"]) == 0
