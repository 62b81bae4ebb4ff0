"""Settings: the paper's values, checks on load, and a sentence for every field."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opensetda.errors import InputError
from opensetda.nn import settings as shared
from opensetda.pgl import settings as module
from opensetda.pgl.settings import ABLATIONS, PRESETS, PGLSettings

PAPER = ["paper-office-home", "paper-visda", "paper-syn2real"]


def leaves(settings):
    return {
        f"{group}.{name}" if isinstance(values, dict) else group: value
        for group, values in settings.to_dict().items()
        for name, value in (values.items() if isinstance(values, dict) else [(group, values)])
    }


@pytest.mark.parametrize(
    ("name", "episodes", "width"),
    [
        ("paper-office-home", 2, 512),
        ("paper-visda", 8, 1024),
        ("paper-syn2real", 6, 1024),
    ],
)
def test_the_table_of_the_paper(name, episodes, width):
    settings = PGLSettings.preset(name)
    assert settings.episodes.episodes == episodes
    assert settings.graph.node_width == width
    assert settings.graph.edge_width == width
    assert 1 / settings.steps == 0.05  # alpha


@pytest.mark.parametrize("name", PAPER)
def test_the_values_of_the_papers_implementation_details(name):
    values = leaves(PGLSettings.preset(name))
    expected = {
        "optimiser.weight_decay": 5e-5,
        "optimiser.graph_rate": 1e-4,
        "optimiser.backbone_rate": 1e-5,
        "optimiser.decay": 0.5,
        "optimiser.decay_every": 4,
        "graph.dropout": 0.2,
        "graph.layers": 1,
        "losses.node": 1.0,
        "losses.edge": 0.3,  # mu
        "losses.adversary": 0.4,  # gamma
        "losses.focusing": 2.0,  # rho
        "losses.edge_target": "normalised",
        "graph.enabled": True,
        "graph.form": "paper",
        "graph.projection": None,
        "graph.normalisation": "batch",
        "graph.neighbours": None,
        "episodes.mix_up": True,
        "episodes.mix_up_limit": 1.0,
        "episodes.node_limit": None,
        "episodes.labelled_queries": False,
        "optimiser.iterations_per_epoch": None,
        "ranking.confidence": "softmax",
        "ranking.class_balance": 0.0,
        "alignment.normalise": False,
        "alignment.centring": "none",
        "alignment.components": None,
    }
    assert {key: values[key] for key in expected} == expected


def test_the_default_preset_is_the_default():
    assert PGLSettings.preset("default") == PGLSettings()


def test_an_unknown_preset_names_the_others():
    with pytest.raises(InputError, match=r"'papper' does not exist.*paper-visda"):
        PGLSettings.preset("papper")


def test_changes_by_dotted_name_and_as_typed_on_a_command_line():
    changed = PGLSettings().with_changes(
        {
            "steps": "5",
            "losses.edge": "0.25",
            "episodes.mix_up": "false",
            "alignment.components": "none",
            "alignment.centring": "none",
            "graph.form": "anchored",
            "graph.layers": 2,
        }
    )
    assert changed.steps == 5
    assert changed.losses.edge == 0.25
    assert changed.episodes.mix_up is False
    assert changed.alignment.components is None
    assert changed.alignment.centring == "none"
    assert changed.graph.layers == 2
    assert changed.optimiser == PGLSettings().optimiser


def test_changes_leave_the_original_alone():
    settings = PGLSettings()
    settings.with_changes({"steps": 3, "losses.edge": 9})
    assert settings == PGLSettings()


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("losses.egde", "'losses.edge'"),
        ("step", "'steps'"),
        ("optimizer.graph_rate", "'optimiser.graph_rate'"),
        ("losses", "losses"),
        ("steps.more", "steps"),
        ("zzz.qqq", "the settings are"),
    ],
)
def test_an_unknown_name_is_refused_with_a_suggestion(name, suggestion):
    with pytest.raises(InputError, match="does not exist") as caught:
        PGLSettings().with_changes({name: 1})
    assert name in str(caught.value)
    assert suggestion in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 0),
        ("steps", "many"),
        ("steps", 2.5),
        ("losses.edge", -1),
        ("losses.edge", float("nan")),
        ("losses.edge", float("inf")),
        ("losses.edge", None),
        ("graph.dropout", 1.5),
        ("graph.form", "round"),
        ("episodes.mix_up", "perhaps"),
        ("optimiser.decay", []),
        ("optimiser.first_step_epochs", -1),
    ],
)
def test_a_wrong_value_is_one_line_that_names_the_setting(name, value):
    with pytest.raises(InputError) as caught:
        PGLSettings().with_changes({name: value})
    message = str(caught.value)
    assert message.startswith(f"setting {name}=")
    assert "\n" not in message


def test_settings_that_do_not_go_together():
    with pytest.raises(InputError, match=r"graph\.form=anchored"):
        PGLSettings().with_changes({"graph.form": "paper"})


def test_a_saved_setting_that_does_not_exist_is_refused():
    values = PGLSettings().to_dict()
    values["losses"]["magic"] = 1
    with pytest.raises(InputError, match=r"losses\.magic"):
        PGLSettings.from_dict(values)


some_changes = st.fixed_dictionaries(
    {},
    optional={
        "steps": st.integers(1, 50),
        "alignment.components": st.none() | st.integers(1, 500),
        "alignment.whitening": st.floats(0, 1),
        "alignment.centring": st.sampled_from(["none", "source", "own"]),
        "episodes.episodes": st.integers(1, 50),
        "episodes.mix_up": st.booleans(),
        "graph.neighbours": st.none() | st.integers(1, 50),
        "losses.edge": st.floats(0, 1e6),
        "losses.edge_target": st.sampled_from(["affinity", "normalised"]),
        "optimiser.graph_rate": st.floats(0, 1),
        "optimiser.iterations_per_epoch": st.none() | st.integers(1, 50),
        "ranking.class_balance": st.floats(0, 1),
    },
)


@given(some_changes, st.sampled_from(sorted(PRESETS)))
def test_settings_survive_json(changes, preset):
    settings = PGLSettings.preset(preset).with_changes(changes)
    assert PGLSettings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
    values = leaves(settings)
    assert {name: values[name] for name in changes} == changes


@given(some_changes)
def test_text_means_what_the_value_does(changes):
    text = {name: str(value) for name, value in changes.items()}
    assert PGLSettings().with_changes(text) == PGLSettings().with_changes(changes)


def test_settings_are_frozen():
    settings = PGLSettings()
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.steps = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.losses.edge = 3


def field_sentences():
    trees = [ast.parse(inspect.getsource(each)) for each in (module, shared)]
    for node in [node for tree in trees for node in tree.body]:
        if isinstance(node, ast.ClassDef):
            for statement, after in zip(node.body, [*node.body[1:], None], strict=True):
                if isinstance(statement, ast.AnnAssign):
                    text = after.value.value if _is_text(after) else None
                    yield f"{node.name}.{statement.target.id}", text


def _is_text(statement):
    return isinstance(statement, ast.Expr) and isinstance(
        getattr(statement.value, "value", None), str
    )


def test_every_field_has_a_sentence():
    groups = {field.name for field in dataclasses.fields(PGLSettings)} - {"steps"}
    sentences = dict(field_sentences())
    missing = [
        name
        for name, text in sentences.items()
        if name.partition(".")[2] not in groups and (text is None or not text.endswith("."))
    ]
    assert len(sentences) >= len(leaves(PGLSettings()))
    assert missing == []


@pytest.mark.parametrize("name", sorted(ABLATIONS))
@pytest.mark.parametrize("preset", PAPER)
def test_every_ablation_changes_the_paper(preset, name):
    settings = PGLSettings.preset(preset)
    assert settings.with_changes(PGLSettings.ablations()[name]) != settings


def test_the_ablations_are_those_of_the_paper_and_are_copies():
    assert set(PGLSettings.ablations()) == {
        "no-progressive-steps",
        "nll-instead-of-focal",
        "no-graph",
        "no-mix-up",
        "no-adversary",
        "no-edge-loss",
    }
    PGLSettings.ablations()["no-graph"]["steps"] = 1
    assert "steps" not in PGLSettings.ablations()["no-graph"]
