"""Tables of analyses: what is written for people and for programs."""

from __future__ import annotations

import csv
import io
import math

import pytest

from opensetda.analyses.contract import Column, ResultTable, Spread, written


def test_a_spread_is_mean_and_deviation_of_what_is_a_number():
    spread = Spread.of([1.0, 3.0, None, math.nan])
    assert (spread.mean, spread.n) == (2.0, 2)
    assert spread.deviation == pytest.approx(math.sqrt(2))
    assert Spread.of([0.5]) == Spread(0.5, None, 1)
    assert math.isnan(Spread.of([]).mean)


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (0.12345, "percent", "12.3"),
        (-0.02, "points", "-2.0"),
        (0.02, "points", "+2.0"),
        (0.12345, "number", "0.123"),
        (Spread(0.5, 0.01, 3), "percent", "50.0 ± 1.0"),
        (Spread(0.5, 0.01, 3), "points", "+50.0 ± 1.0"),
        (Spread(0.5, None, 1), "percent", "50.0"),
        (Spread(math.nan, None, 0), "percent", "-"),
        (None, "percent", "-"),
        (math.nan, "number", "-"),
        ("a|b", "text", "a|b"),
    ],
)
def test_values_as_people_read_them(value, form, text):
    assert written(value, form) == text


def a_table():
    columns = [Column("name", "name"), Column("hos", "HOS", "percent")]
    table = ResultTable("Title", columns, notes=["A note."])
    table.add(marked=True, name="first|one", hos=Spread(0.5, 0.01, 3))
    table.add(name="second", hos=None)
    return table


def test_markdown():
    assert a_table().to_markdown().splitlines() == [
        "# Title",
        "",
        "| name | HOS |",
        "| --- | ---: |",
        "| **first\\|one** | **50.0 ± 1.0** |",
        "| second | - |",
        "",
        "A note.",
    ]


def test_csv_has_fractions_deviations_and_counts():
    rows = list(csv.DictReader(io.StringIO(a_table().to_csv())))
    assert rows == [
        {"name": "first|one", "hos": "0.5", "hos_deviation": "0.01", "hos_runs": "3"},
        {"name": "second", "hos": "", "hos_deviation": "", "hos_runs": ""},
    ]
