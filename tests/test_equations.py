"""The map from the paper's equations to the code."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from opensetda.pgl import EQUATIONS

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
