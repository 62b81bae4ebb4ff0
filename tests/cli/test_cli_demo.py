"""`osda demo`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from cli_helpers import names_in
from opensetda import ClassMeans
from opensetda.cli.main import main
from opensetda.runs.folder import BACKBONE, BROKEN, FILES, IMAGES, LARGE_PREDICTIONS
from opensetda.runs.kept import KEPT
from opensetda.runs.registry import METHODS


@dataclass(eq=False, repr=False, kw_only=True)
class StandIn(ClassMeans):
    """Takes the arguments of PGLClassifier, in no time."""

    preset: str = "office-home"
    settings: Any = None
    presets = ("office-home",)

    @classmethod
    def settings_of(cls, preset, changes):
        return dict(changes)


def test_the_demo_compares_three_methods_and_leaves_a_run(
    workplace, capsys, monkeypatch, quick_maps
):
    monkeypatch.setitem(METHODS, "pgl", f"{__name__}:StandIn")
    assert main(["demo", "--out", "d", "--seed", "3"]) == 0
    out, err = capsys.readouterr()
    assert "2,500 MNIST digits 0-4" in err
    assert "committee: step 5/5" in err
    for words in ("committee", "pgl", "source-only", "AUROC"):
        assert words in out
    assert str(workplace / "d") in out
    others = {BACKBONE, BROKEN, IMAGES, KEPT, LARGE_PREDICTIONS}
    assert names_in(workplace / "d") == sorted({*FILES} - others)
    comparison = json.loads((workplace / "d" / "comparison.json").read_text())
    assert list(comparison) == ["committee", "pgl", "source-only"]
    metrics = json.loads((workplace / "d" / "metrics.json").read_text())
    assert metrics["final"]["hos"] == comparison["committee"]["hos"] > 0.7
    assert [step["step"] for step in metrics["steps"]] == [5]
    assert "share of unknowns estimated by each method, true 49.9" in out
    for row in comparison.values():
        assert row["openness"]["source"] != "given"
        assert f" {100 * row['openness']['share']:.1f} " in out
    settings = json.loads((workplace / "d" / "settings.json").read_text())
    assert (settings["method"], settings["openness"]) == ("committee", "auto")
    assert (settings["seed"], settings["scaling"]) == (3, "none")
    assert settings["command"] == ["osda", "demo", "--out", "d", "--seed", "3"]


def test_the_demo_refuses_a_folder_that_exists_before_it_trains(workplace, capsys):
    (workplace / "osda-demo").mkdir()
    assert main(["demo"]) == 2
    assert "osda-demo: exists already" in capsys.readouterr().err
