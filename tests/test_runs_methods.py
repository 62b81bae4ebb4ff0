"""Methods by name, with their settings."""

from __future__ import annotations

import pytest

from opensetda import InputError
from opensetda.runs import methods


def test_methods_are_built_by_name():
    built = methods.build_method("class-means", openness=0.2, changes={"steps": "3"})
    given = {"openness": 0.2, "scaling": "none", "steps": 3, "unknown_label": "unknown"}
    assert built.get_params() == given
    assert methods.full_settings("class-means", "default", {}) == {"steps": 10}
    expected = {"C": 2.0, "rejector": "quantile"}
    assert methods.full_settings("source-only", "default", {"C": "2"}) == expected
    assert methods.full_settings("pgl", "default", {"steps": "7"})["steps"] == 7


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"method": "magic"}, "choose one of pgl"),
        ({"preset": "paper-visda"}, "only the method pgl has presets"),
        ({"changes": {"stepz": "3"}}, "class-means has steps"),
        ({"changes": {"steps": "0"}}, "steps=0: give a whole number above 0"),
        ({"changes": {"steps": "2.5"}}, "steps=2.5: give a whole number"),
        ({"method": "source-only", "changes": {"C": "nan"}}, "C=nan: give a number above 0"),
    ],
)
def test_wrong_settings_are_refused(arguments, words):
    values = {"method": "class-means", "openness": 0.5, **arguments}
    with pytest.raises(InputError, match=words):
        methods.build_method(**values)
