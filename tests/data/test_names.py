"""Names of classes and samples: which are refused, which look alike, what cannot be seen."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opensetda.data.names import (
    folded,
    formula_warning,
    id_problem,
    label_problem,
    printable,
    shown,
    twins,
)

PERSIAN = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Straße", "STRASSE"),
        ("caf\u00e9", "cafe\u0301"),
        ("\uff43\uff41\uff54", "cat"),
        ("cat", "c\u200bat\ufeff"),
        ("hot dog", " hot\u00a0dog\t"),
        ("cat", "cat\u3164"),
        (PERSIAN, PERSIAN.replace("\u200c", "")),
    ],
)
def test_names_that_look_alike(one, other):
    assert folded(one) == folded(other)


def test_names_that_do_not():
    names = ("cat", "cats", "hot dog", "hotdog", "cát", "1", "l")
    assert len({*map(folded, names)}) == len(names)


@given(st.text())
def test_folding_twice_changes_nothing_and_every_name_can_be_printed(name):
    assert folded(folded(name)) == folded(name)
    assert folded(unicodedata.normalize("NFD", name)) == folded(name)
    printable(name).encode()
    shown(name).encode("utf-8", "strict")


@pytest.mark.parametrize("name", ["cup", "写真", "café", "👩‍👩‍👧", "a b", "0", "x" * 200, PERSIAN])
def test_ordinary_names(name):
    assert label_problem(name) is None
    assert id_problem(name) is None


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("x" * 201, "201 characters, at most 200 are read"),
        ("a\x1b[2J", r"'a\x1b[2J' holds '\x1b', which is no character of a name"),
        ("a\u2028b", r"holds '\u2028'"),
        ("\ud800", r"holds '\ud800'"),
        *((name, "cannot be seen") for name in ("", " \u3000", "\u0301", "\u200d\ufe0f", "\u3164")),
    ],
)
def test_names_that_no_class_can_have(name, problem):
    message = label_problem(name)
    assert problem in message
    assert message.isprintable()


def test_names_of_samples_may_be_those_of_any_file():
    assert id_problem("a\tb\n.jpg") is None
    assert "at most 4,096" in id_problem("x" * 4097)
    assert id_problem("a\0") is not None
    assert id_problem("\udcff") is not None


def test_names_that_look_alike_are_told():
    (warning,) = twins(["café", "cafe\u0301"])
    assert r"'cafe\u0301' and 'caf\xe9' differ only in case, white space or Unicode" in warning
    assert twins(["cat", "dog"]) == ()


@pytest.mark.parametrize("cell", ["=1+1", "+1+1", "-a", "@SUM(A1)", "\t=1", "\r=1", "-1+1", "-"])
def test_cells_that_start_a_formula_are_told(cell):
    (warning,) = formula_warning(Path("a.csv"), ["cat", "-1", cell, "=2"])
    assert warning.startswith(f"a.csv: a cell is {cell!r}, which a spreadsheet")
    assert formula_warning(Path("a.parquet"), [cell]) == []


def test_numbers_and_names_are_no_formulas():
    assert formula_warning(Path("a.csv"), ["", "cat", "a=1", "-1", "+.5", "-0.25", "1-1"]) == []
