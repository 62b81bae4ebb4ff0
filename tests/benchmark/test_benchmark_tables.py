"""The table: its numbers by hand, the best, the test, and text that means itself."""

from __future__ import annotations

import csv
import json
import math
from itertools import product

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from opensetda.benchmark.grid import FAILED, NUMBERS, OK
from opensetda.benchmark.output import (
    average_table,
    notes,
    paired_p_value,
    summarise,
    task_table,
    write_report,
)


def a_row(method, task, hos, seed=0, openness="auto", **more):
    return {
        **{"benchmark": "toy", "task": task, "method": method, "openness": openness},
        **{"target_openness": None, "seed": seed, "status": OK, "error": None, "warnings": None},
        **dict.fromkeys(NUMBERS, 0.5),
        "hos": hos,
        "scaling": "none",
        **more,
    }


def a_failure(method, task, seed=0, openness="auto", error="RuntimeError: no"):
    nothing = dict.fromkeys(NUMBERS)
    return a_row(method, task, None, seed, openness) | nothing | {"status": FAILED, "error": error}


ROWS = [
    *(a_row("ours", "a-b", hos, seed) for seed, hos in enumerate([0.80, 0.82, 0.90])),
    *(a_row("ours", "b-a", hos, seed) for seed, hos in enumerate([0.70, 0.72, 0.62])),
    a_row("theirs", "a-b", 0.81, seconds=3.0, memory_mb=99.6, share=0.35, true_share=0.5),
    a_row("theirs", "b-a", 0.60, seconds=2.0, memory_mb=98.0, share=0.65, true_share=0.5),
]


def texts(table):
    return [[entry.text for entry in row] for row in table.rows]


def best(table):
    return [[entry.best for entry in row] for row in table.rows]


# numbers --------------------------------------------------------------------------------------


def test_means_and_deviations_are_those_of_a_hand_computation():
    (section,) = summarise(ROWS, "ours")
    ours, theirs = section.averages.values()
    assert section.hos["ours"]["a-b"].mean == pytest.approx(0.84)
    deviation = np.std([0.80, 0.82, 0.90], ddof=1)
    assert section.hos["ours"]["a-b"].deviation == pytest.approx(deviation)
    assert ours["hos"].mean == pytest.approx((0.84 + 0.68) / 2)
    # Seed by seed the means over the tasks are 0.75, 0.77 and 0.76.
    assert ours["hos"].deviation == pytest.approx(0.01)
    assert theirs["hos"].mean == pytest.approx(0.705)
    assert math.isnan(theirs["hos"].deviation)
    assert theirs["share_error"].mean == pytest.approx(0.15)
    assert section.tests == {"theirs": (0.5, 2, 2)}


def test_the_text_of_the_tables():
    (section,) = summarise(ROWS, "ours")
    table = task_table(section)
    assert table.title == "Share of unknowns estimated: HOS in %"
    assert table.headings == ("method", "a-b", "b-a", "average", "p", "ours better")
    assert texts(table) == [
        ["ours", "84.0 ± 5.3", "68.0 ± 5.3", "76.0 ± 1.0", "-", "-"],
        ["theirs", "81.0 ± -", "60.0 ± -", "70.5 ± -", "0.500", "2 of 2"],
    ]
    assert best(table) == [[False, True, True, True, False, False], [False] * 6]
    table = average_table(section)
    assert table.headings == (
        *("method", "OS", "OS*", "UNK", "HOS", "ALL", "AUROC"),
        *("share %", "share off by", "seconds", "MB"),
    )
    assert texts(table)[1][7:] == ["50.0", "15.0", "2.5", "99"]


# failures -------------------------------------------------------------------------------------


def test_what_failed_is_left_out_marked_and_never_best():
    rows = [
        *(a_row("x", task, 0.5) for task in ("a-b", "b-a")),
        *(a_row("y", "a-b", 0.9, seed) for seed in (0, 1)),
        *(a_row("y", "b-a", 0.4, 0), a_failure("y", "b-a", 1)),
        *(a_row("z", "a-b", 0.9), a_failure("z", "b-a")),
    ]
    (section,) = summarise(rows, "x")
    table = task_table(section)
    assert texts(table)[1:] == [
        ["y", "90.0 ± 0.0", "40.0 ± - †", "65.0 ± - †", "1.000", "1 of 2"],
        ["z", "90.0 ± -", "- †", "90.0 ± - †", "1.000", "0 of 1"],
    ]
    assert best(table)[0] == [False, False, True, True, False, False]
    assert section.averages["y"]["hos"].n_failed == 1
    assert "2 of 8 runs failed" in notes(rows, [section])[-1]


def test_what_is_not_defined_is_a_dash_and_not_a_zero():
    rows = [a_row("x", "a-b", 0.5, auroc=None), a_row("x", "b-a", 0.5), a_row("y", "a-b", 0.4)]
    x, y = texts(average_table(summarise(rows)[0]))
    assert (x[6], y[6]) == ("-", "50.0 ± -")


# the test -------------------------------------------------------------------------------------

FINITE = st.floats(-1, 1)


@given(st.lists(FINITE, min_size=1, max_size=7))
def test_the_p_value_is_that_of_all_signs(differences):
    """Against the definition: try every assignment of signs to the ranks."""
    from scipy.stats import rankdata

    apart = [difference for difference in differences if difference]
    ranks = rankdata(np.abs(apart)) if apart else np.zeros(0)
    observed = sum(rank for rank, d in zip(ranks, apart, strict=True) if d > 0)
    sums = [np.dot(ranks, signs) for signs in product([0, 1], repeat=len(ranks))]
    low = np.mean([total <= observed for total in sums])
    high = np.mean([total >= observed for total in sums])
    expected = min(1.0, 2 * min(low, high))
    assert paired_p_value(differences) == pytest.approx(expected)
    assert paired_p_value([-d for d in differences]) == pytest.approx(expected)


# files ----------------------------------------------------------------------------------------


def test_the_files_of_a_report(tmp_path):
    rows = [*ROWS, a_failure("late|r", "a-b", error="ValueError: 5 % of all_things")]
    write_report(rows, tmp_path, "Toy", "ours", "osda benchmark toy")
    text = (tmp_path / "table.md").read_text()
    assert "osda benchmark toy" in text
    assert "| theirs | 81.0 ± - | 60.0 ± - | 70.5 ± - | 0.500 | 2 of 2 |" in text
    assert r"| late\|r | - † |" in text
    assert "p: exact two-sided Wilcoxon signed-rank test against ours over the tasks" in text
    with (tmp_path / "results.csv").open(newline="") as stream:
        *_, theirs, late = csv.DictReader(stream)
    assert (theirs["hos"], theirs["error"], late["hos"]) == ("0.6", "", "")
    assert late["error"] == "ValueError: 5 % of all_things"
    (section,) = json.loads((tmp_path / "summary.json").read_text())
    assert section["averages"]["ours"]["hos"]["deviation"] == pytest.approx(0.01)
    assert section["averages"]["theirs"]["hos"]["deviation"] is None
    assert section["tests"]["theirs"] == [0.5, 2, 2]
