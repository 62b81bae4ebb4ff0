"""`osda demo`."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cli_helpers import names_in
from opensetda import ProgressiveClassMeans
from opensetda.cli.main import main
from opensetda.progress import ProgressEvent
from opensetda.runs.folder import BACKBONE, BROKEN, FILES, IMAGES


class StandIn(ProgressiveClassMeans):
    """Takes the arguments of PGLClassifier and reports the same events, in no time."""

    def __init__(
        self,
        openness=0.5,
        preset="default",
        settings=None,
        random_state=0,
        unknown_label="unknown",
    ):
        super().__init__(openness, steps=3, unknown_label=unknown_label)
        self.preset = preset
        self.settings = settings
        self.random_state = random_state

    def fit(self, X, y, sample_domain=None, context=None):
        super().fit(X, y, sample_domain)
        for step, entry in enumerate(self.history_, start=1):
            context.progress(ProgressEvent(step, len(self.history_), loss=0.5))
            entry.update(loss={"node": 0.5}, changed=0.1, n_known=900, n_unknown=897, seconds=0.1)
        unknown = self.transduction_ == self.unknown_label
        nearest = np.searchsorted(self.classes_, self.transduction_nearest_)
        self.step_labels_ = np.tile(np.where(unknown, len(self.classes_), nearest), (3, 1))
        return self


@pytest.fixture
def stand_in(monkeypatch):
    from opensetda.runs import methods

    monkeypatch.setitem(methods.METHODS, "pgl", __name__)


def test_the_demo_compares_three_methods_and_leaves_a_run(workplace, capsys, stand_in, quick_maps):
    assert main(["demo", "--out", "d", "--seed", "3"]) == 0
    out, err = capsys.readouterr()
    assert "2,500 MNIST digits 0-4" in err
    assert "pgl: step 3/3" in err
    for words in ("source only, least sure rejected", "progressive class means", "PGL", "AUROC"):
        assert words in out
    assert str(workplace / "d") in out
    assert names_in(workplace / "d") == sorted({*FILES} - {BACKBONE, BROKEN, IMAGES})
    comparison = json.loads((workplace / "d" / "comparison.json").read_text())
    assert list(comparison) == ["source-only", "class-means", "pgl"]
    metrics = json.loads((workplace / "d" / "metrics.json").read_text())
    assert metrics["final"]["hos"] == comparison["pgl"]["hos"]
    assert [step["step"] for step in metrics["steps"]] == [1, 2, 3]
    settings = json.loads((workplace / "d" / "settings.json").read_text())
    assert settings["openness"] == "auto"
    assert "share of unknowns estimated by each method, true 49.9" in out
    for row in comparison.values():
        assert not row["openness"]["told"]
        assert f" {100 * row['openness']['share']:.1f} " in out
    share = comparison["pgl"]["openness"]["share"]
    assert f"share of unknowns: {share:.2f} (" in out
    estimates = json.loads((workplace / "d" / "estimates.json").read_text())
    assert estimates["openness"] == comparison["pgl"]["openness"]
    assert settings["seed"] == 3
    assert settings["command"] == ["osda", "demo", "--out", "d", "--seed", "3"]
    assert not [name for name in names_in(workplace) if "partial" in name]


def test_the_demo_refuses_a_folder_that_exists_before_it_trains(workplace, capsys):
    (workplace / "osda-demo").mkdir()
    assert main(["demo"]) == 2
    assert "osda-demo: exists already" in capsys.readouterr().err


def test_the_quick_demo_as_json(workplace, capsys, monkeypatch):
    monkeypatch.setattr("opensetda.cli.report.make_report", lambda run: run.path / "report.html")
    assert main(["demo", "--quick", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    folder = workplace / "osda-demo"
    metrics = json.loads((folder / "metrics.json").read_text())
    assert len(metrics["steps"]) == 3
    assert metrics["final"]["hos"] > 0.7
    assert result["methods"] == json.loads((folder / "comparison.json").read_text())
    assert round(result["true_openness"], 3) == 0.499
    assert result["files"]["model.safetensors"] == str(folder / "model.safetensors")
