"""Methods by name, with their settings."""

from __future__ import annotations

import pytest

from opensetda import ClassMeans, InputError, MovingMeans
from opensetda.runs import registry


def test_methods_are_built_by_name():
    built = registry.build_method("class-means", openness=0.2, changes={"steps": "3"})
    assert type(built) is ClassMeans
    assert built.get_params() == ClassMeans(0.2, steps=3).get_params()
    assert registry.full_settings("class-means", None, {})["components"] is None
    settings = registry.full_settings("moving-means", None, {"ridge": "none", "move": "1"})
    assert (settings["ridge"], settings["move"]) == (None, 1.0)
    assert not {"openness", "scaling", "unknown_label"} & settings.keys()
    assert next(iter(registry.METHODS)) == "committee"


def test_fine_tuning_has_settings_of_its_own():
    changes = {"steps": "3", "finetune.flip": "false", "finetune.rounds": "2"}
    assert registry.build_method("moving-means", openness=0.5, changes=changes).steps == 3
    settings = registry.finetune_settings("moving-means", changes)
    assert (settings.flip, settings.rounds) == (False, 2)


def test_a_method_that_trains_has_no_rounds(monkeypatch):
    monkeypatch.setattr(MovingMeans, "trains_backbone", True)
    assert registry.finetune_settings("moving-means", {"finetune.crop": 1}).crop == 1
    with pytest.raises(InputError, match=r"finetune\.rounds: moving-means trains the backbone by"):
        registry.finetune_settings("moving-means", {"finetune.rounds": "1"})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"method": "class-means+osvm"}, "class-means rejects in its own way"),
        ({"preset": "visda-17"}, "class-means has no presets"),
        ({"changes": {"steps": "0"}}, r"'steps' .* must be an int in the range \[1, inf\)"),
        ({"changes": {"message": "much"}}, "message=much: give a number"),
    ],
)
def test_wrong_settings_are_refused(arguments, words):
    values = {"method": "class-means", "openness": 0.5, **arguments}
    with pytest.raises(InputError, match=words):
        registry.build_method(**values)
