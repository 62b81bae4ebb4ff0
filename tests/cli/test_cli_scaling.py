"""`osda fit --scaling`: recorded, printed, used for later samples."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cli_helpers import FIT, OPENNESS
from opensetda.cli.main import main
from opensetda.runs.folder import SETTINGS, RunFolder


@pytest.fixture
def loud(workplace):
    """The tables with a column that says nothing, in large units."""
    rng = np.random.default_rng(0)
    for name in ("source", "target"):
        with np.load(f"{name}.npz") as file:
            arrays = dict(file)
        n = len(arrays["X"])
        arrays["X"] = np.column_stack([arrays["X"], 1e4 * rng.normal(size=n)]).astype(np.float32)
        np.savez(f"{name}.npz", **arrays)
    return workplace


def read(*parts):
    return json.loads(Path(*parts).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("none", "columns: as given\n"),
        ("standard", "columns: standardised within each domain\n"),
        ("ranks", "columns: as ranks within each domain\n"),
    ],
)
def test_what_is_asked_for_is_done(loud, capsys, asked, words):
    assert main([*FIT, *OPENNESS, "--scaling", asked]) == 0
    assert words in capsys.readouterr().out
    assert read("run", SETTINGS)["scaling"] == asked
    run = RunFolder.open("run")
    assert run.model().scaler_.name == asked
    # Later copies of the targets are scaled as they were in fit.
    with np.load("target.npz") as file:
        later = run.model().predict(file["X"])
    assert np.mean(later == run.predictions().labels) > 0.9


def test_each_method_has_its_own_default(loud, capsys):
    for method, scaling in {"class-means": "none", "moving-means": "ranks"}.items():
        assert main([*FIT[:-1], method, *OPENNESS, "--json", "--overwrite"]) == 0
        assert json.loads(capsys.readouterr().out)["scaling"] == scaling
        settings = read("run", SETTINGS)
        assert settings["scaling"] == scaling
        assert "scaling" not in settings["settings"]
