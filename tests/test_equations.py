"""The map from the paper's equations to the code."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from opensetda.pgl import EQUATIONS

PAPER = Path(__file__).parents[2] / "shared" / "paper" / "progressive-graph-learning.tex"
CODED = {number: name for number, name in EQUATIONS.items() if name is not None}


def find(name):
    """Return an object by its dotted name below `opensetda`: module, then attributes."""
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            found = importlib.import_module("opensetda." + ".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            found = getattr(found, attribute)
        return found
    raise LookupError(name)


@pytest.mark.parametrize("number", CODED)
def test_the_docstring_names_the_equation(number):
    assert re.search(rf"Eq\. {number}\b", find(CODED[number]).__doc__)


def test_no_docstring_names_an_equation_that_does_not_exist():
    source = Path(importlib.import_module("opensetda").__file__).parent
    for path in source.rglob("*.py"):
        for number in re.findall(r"\bEq\. (\d+)", path.read_text()):
            assert int(number) in EQUATIONS, path


def numbered_equations(tex):
    """Count the numbers that LaTeX gives: one per equation, one per line of an align."""
    tex = re.sub(r"(?<!\\)%.*", "", tex)
    total = 0
    for kind, body in re.findall(r"\\begin\{(equation|align)\}(.*?)\\end\{\1\}", tex, re.DOTALL):
        body = re.sub(r"\\begin\{(split|cases)\}.*?\\end\{\1\}", "inner", body, flags=re.DOTALL)
        lines = body.split("\\\\") if kind == "align" else [body]
        total += sum("nonumber" not in line and "notag" not in line for line in lines)
    return total


@pytest.mark.skipif(not PAPER.exists(), reason="the paper is not here")
def test_every_equation_of_the_paper_has_its_place():
    assert list(EQUATIONS) == list(range(1, numbered_equations(PAPER.read_text()) + 1))
