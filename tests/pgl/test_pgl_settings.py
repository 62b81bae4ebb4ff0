"""The paper's table of settings, its stop steps, and changes by name."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from opensetda import InputError
from opensetda.data.benchmarks.protocols import BENCHMARKS
from opensetda.pgl.settings import ABLATIONS, PRESETS, PGLSettings


@pytest.mark.parametrize(
    ("preset", "episodes", "width", "openness", "last_step"),
    [
        ("office-home", 2, 512, 0.6, 7),
        ("visda-17", 8, 1024, 0.85, 20),
        ("syn2real-o", 6, 1024, 0.9, 5),
    ],
)
def test_presets_have_what_the_paper_states(preset, episodes, width, openness, last_step):
    settings = PGLSettings.preset(preset)
    assert settings.episodes_of(len(BENCHMARKS[preset].known)) == episodes
    assert (settings.node_width, settings.edge_width) == (width, width)
    assert (settings.openness, settings.last_step) == (openness, last_step)
    assert not settings.taught
    assert not settings.query_labels
    assert settings.unknown_weight == 0
    # The same for all three datasets.
    assert settings.steps == 20  # alpha 0.05
    assert (settings.layers, settings.dropout, settings.focusing) == (1, 0.2, 2)
    assert (settings.edge_weight, settings.adversary_weight) == (0.3, 0.4)
    assert (settings.graph_rate, settings.backbone_rate) == (1e-4, 1e-5)
    assert (settings.weight_decay, settings.decay, settings.decay_every) == (5e-5, 0.5, 4)


def test_few_classes_have_more_episodes():
    assert [PGLSettings().episodes_of(n) for n in (2, 4, 10, 31)] == [10, 5, 2, 2]
    assert PGLSettings(episodes=3).episodes_of(4) == 3


def test_the_default_is_that_of_office_home_but_for_its_steps():
    settings, paper = PGLSettings.preset("default"), PGLSettings.preset("office-home")
    assert (settings.last_step, paper.last_step) == (5, 7)
    assert settings.with_changes({"steps": 20, "stop_step": 7}) == paper == PGLSettings()
    assert list(PRESETS) == ["default", "end-to-end", "office-home", "visda-17", "syn2real-o"]


def test_the_ablation_without_progressive_steps_is_that_of_the_paper():
    settings = PGLSettings.preset("syn2real-o").with_changes(ABLATIONS["no-progressive-steps"])
    assert (settings.steps, settings.last_step, settings.openness) == (1, 1, 0.6)


def test_every_ablation_changes_every_preset():
    for preset in PRESETS:
        settings = PGLSettings.preset(preset)
        for name, changes in ABLATIONS.items():
            is_without_it = (preset, name) == ("end-to-end", "no-adversary")
            same = settings.with_changes(changes) == settings
            assert same == is_without_it, (preset, name)


@pytest.mark.parametrize(("stop_step", "last"), [(None, 20), (3, 3), (50, 20)])
def test_the_last_step(stop_step, last):
    assert PGLSettings(stop_step=stop_step).last_step == last


def test_changes_may_be_text_of_a_command_line():
    changes = {"steps": "5", "stop_step": "none", "mix_up": "false", "dropout": "0.1"}
    settings = PGLSettings().with_changes(changes)
    assert (settings.steps, settings.stop_step, settings.mix_up, settings.dropout) == (
        5,
        None,
        False,
        0.1,
    )
    assert PGLSettings(**settings.to_dict()) == settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": 5}, "setting step does not exist; did you mean 'steps'? There are steps"),
        ({"qqq": 5}, "setting qqq does not exist; choose one of steps, stop_step"),
        ({"steps": 0}, "setting steps=0: Input should be greater than or equal to 1"),
        ({"dropout": 1}, "setting dropout=1: Input should be less than 1"),
        ({"openness": 1.0}, "setting openness=1.0: Input should be less than 1"),
        ({"graph_rate": "fast"}, "setting graph_rate=fast: Input should be a valid number"),
        ({"edge_weight": float("nan")}, "setting edge_weight=nan: Input should be"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(changes, message):
    with pytest.raises(InputError) as caught:
        PGLSettings().with_changes(changes)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_preset_that_does_not_exist():
    with pytest.raises(InputError, match=r"preset 'visda17' does not exist; .*'visda-17'"):
        PGLSettings.preset("visda17")


def test_every_setting_has_a_sentence():
    text = inspect.getsource(PGLSettings)
    fields = dataclasses.fields(PGLSettings)
    for field in fields:
        _, _, after = text.partition(f"\n    {field.name}: ")
        assert after.splitlines()[1].strip().startswith('"""'), field.name


def test_settings_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PGLSettings().steps = 3
