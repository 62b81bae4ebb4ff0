"""The paper's table of settings, its stop steps, and changes by name."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from opensetda import InputError
from opensetda.data.benchmarks.protocols import BENCHMARKS
from opensetda.pgl.presets import (
    ABLATIONS,
    AUTHORS,
    AUTHORS_RATES,
    PAPER_COMMON,
    PAPER_STOP,
    PAPER_TABLE,
    PRESETS,
)
from opensetda.pgl.settings import PGLSettings

PAPER = Path(__file__).parents[3] / "shared" / "paper" / "progressive-graph-learning.tex"


@pytest.fixture(scope="module")
def paper():
    if not PAPER.is_file():
        pytest.skip("the paper is not in ../shared")
    return PAPER.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("preset", "title"),
    [("office-home", "Office-Home"), ("visda-17", "VisDA-17"), ("syn2real-o", "Syn2Real-O")],
)
def test_presets_have_the_rows_of_the_papers_table(paper, preset, title):
    number = r"\s*&\s*([\d.,]+)(?:-D)?\s*"
    row = re.search(re.escape(rf"\textit{{{title}}}") + 5 * number + r"\\\\", paper)
    episodes, nodes, edges, alpha, beta = (float(cell.replace(",", "")) for cell in row.groups())
    settings = PGLSettings.preset(preset)
    assert settings.episodes_of(len(BENCHMARKS[preset].known)) == episodes
    assert (settings.node_width, settings.edge_width) == (nodes, edges)
    assert 1 / settings.steps == pytest.approx(alpha)
    assert settings.openness == beta
    stop = re.search(rf"training step (\d+) for the \\textit{{{title}}}", paper)
    stop = stop or re.search(rf"the step (\d+) for the \\textit{{{title}}}", paper)
    assert settings.last_step == (20 if stop is None else int(stop[1]))
    assert (stop is None) == (preset == "visda-17")


def test_presets_have_the_papers_implementation_details(paper):
    def stated(pattern):
        found = re.search(pattern, paper)
        assert found is not None, pattern
        return [float(value) for value in found.groups()]

    power = r"(\d)\\times10\^{-(\d)}\$"
    rates = stated(rf"initialized as \${power} and \${power}")
    (decay, every) = stated(r"by a factor of \$([\d.]+)\$ every \$(\d)\$ epochs")
    (gamma, mu) = stated(
        r"\$\\gamma\$ and \$\\mu\$ are empirically set to \$([\d.]+)\$ and \$([\d.]+)\$"
    )
    digit, exponent = stated(rf"weight decay of \${power}")
    for preset in PAPER_TABLE:
        settings = PGLSettings.preset(preset)
        assert settings.graph_rate == pytest.approx(rates[0] * 10 ** -rates[1])
        assert settings.backbone_rate == pytest.approx(rates[2] * 10 ** -rates[3])
        assert settings.weight_decay == pytest.approx(digit * 10**-exponent)
        assert (settings.decay, settings.decay_every) == (decay, every)
        assert (settings.adversary_weight, settings.edge_weight) == (gamma, mu)
        assert [settings.dropout] == stated(r"dropout rate is fixed to \$([\d.]+)\$")
        assert [settings.layers] == stated(r"depth of GNN \$L\$ is set to \$(\d)\$")
        assert [settings.focusing] == stated(r"hyperparameter \$\\rho = (\d)\$")


def test_presets_follow_the_paper_and_then_the_authors():
    for preset, row in PAPER_TABLE.items():
        settings = PGLSettings.preset(preset).to_dict()
        stated = PAPER_COMMON | row | {"stop_step": PAPER_STOP[preset]}
        assert not stated.keys() & AUTHORS.keys()
        for name, value in (stated | AUTHORS).items():
            assert settings[name] == value, (preset, name)
        ours = set(settings) - set(stated) - set(AUTHORS)
        # What is ours is switched off, or changes no more than how samples are scored.
        default = PGLSettings().to_dict()
        off = {"components", "whitening", "scale", "embedding_weight", "unknown_weight", "draws"}
        of_a_source_free_training = {"source_free", "node_weight", "entropy_weight"}
        assert ours == off | of_a_source_free_training
        assert not settings["source_free"]
        assert all(settings[name] == default[name] for name in ours)
        assert (settings["components"], settings["scale"], settings["unknown_weight"]) == (
            None,
            1,
            0,
        )


def test_a_sentence_says_where_a_default_comes_from():
    text = inspect.getsource(PGLSettings)
    for field in dataclasses.fields(PGLSettings):
        sentence = text.partition(f"\n    {field.name}: ")[2].split('"""')[1]
        stated = field.name in {*PAPER_COMMON, *PAPER_TABLE["office-home"], "stop_step"}
        source = "authors" if field.name in AUTHORS else "paper" if stated else "ours"
        assert f"({source})" in sentence, field.name


def test_epochs_and_decays_are_those_of_the_authors():
    settings = PGLSettings.preset("office-home")
    steps = range(1, settings.last_step + 1)
    assert [settings.epochs_of(step) for step in steps] == [4, 6, 8, 10, 12, 14, 16]
    assert sum(settings.epochs_of(step) for step in steps) == 70
    assert [settings.decay_every_of(step) for step in steps] == [4, 4, 5, 5, 6, 6, 7]
    # Every step but the first trains after a decay, and none below a quarter of the rates.
    decays = [(settings.epochs_of(m) - 1) // settings.decay_every_of(m) for m in steps]
    assert decays == [0, 1, 1, 1, 1, 2, 2]


def test_the_authors_rates_can_be_taken():
    changed = PGLSettings.preset("office-home").with_changes(AUTHORS_RATES)
    assert (changed.graph_rate, changed.backbone_rate) == (8e-4, 5e-5)


def test_few_classes_have_more_episodes():
    assert [PGLSettings().episodes_of(n) for n in (2, 4, 10, 31)] == [10, 5, 2, 2]
    assert PGLSettings(episodes=3).episodes_of(4) == 3


def test_the_default_keeps_the_losses_and_episodes_of_the_paper():
    settings = PGLSettings.preset("default")
    paper = PGLSettings.preset("office-home")
    kept = [
        "edge_weight",
        "adversary_weight",
        "focusing",
        "layers",
        "dropout",
        "mix_up",
        "graph_rate",
        "decay",
    ]
    assert all(getattr(settings, name) == getattr(paper, name) for name in kept)
    assert (settings.last_step, paper.last_step) == (5, 7)
    assert (settings.reject, paper.reject) == ("all", "stop-step")
    papers = ["office-home", "visda-17", "syn2real-o"]
    assert list(PRESETS) == ["default", "end-to-end", *papers, "sf-pgl"]


def test_the_ablation_without_progressive_steps_is_that_of_the_paper():
    settings = PGLSettings.preset("syn2real-o").with_changes(ABLATIONS["no-progressive-steps"])
    assert (settings.steps, settings.last_step, settings.openness) == (1, 1, 0.6)


def test_every_ablation_changes_every_preset():
    for preset in PRESETS:
        settings = PGLSettings.preset(preset)
        for name, changes in ABLATIONS.items():
            is_without_it = preset in ("end-to-end", "sf-pgl") and name == "no-adversary"
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


def test_settings_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PGLSettings().steps = 3
