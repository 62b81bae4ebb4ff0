"""`osda fit --scaling`: recorded, printed, used for later samples."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cli_helpers import FIT, OPENNESS, blobs, names_in
from opensetda import InputError
from opensetda.cli.main import main
from opensetda.runs import fit
from opensetda.runs.folder import SETTINGS, RunFolder
from opensetda.runs.methods import build_method
from opensetda.runs.view import view_of


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


@pytest.mark.parametrize("wrong", ["rank", "RANKS", ""])
def test_a_wrong_name_is_one_line_and_leaves_nothing(workplace, capsys, wrong):
    before = names_in(workplace)
    assert main([*FIT, "--scaling", wrong]) == 2
    out, err = capsys.readouterr()
    assert err == f"error: scaling={wrong!r}: choose one of none, standard, ranks\n"
    assert out == ""
    assert names_in(workplace) == before


def test_from_python(tmp_path):
    X, y = blobs(0)
    known = y != "horse"
    run = fit(
        (X[known], y[known]),
        blobs(1)[0],
        tmp_path / "run",
        method="class-means",
        scaling="standard",
    )
    assert run.request.scaling == "standard"
    assert run.training.classifier.scaler_.name == "standard"
    with pytest.raises(InputError, match="scaling='magic': choose one of"):
        fit((X[known], y[known]), blobs(1)[0], tmp_path / "other", scaling="magic")
    assert names_in(tmp_path) == ["run"]


def test_scaling_is_no_setting():
    with pytest.raises(InputError, match="setting 'scaling' does not exist"):
        build_method("class-means", openness=0.5, changes={"scaling": "ranks"})


def test_the_map_shows_what_the_method_saw(loud):
    """Without scaling, the loud column is all there is to see."""
    with np.load("source.npz") as source, np.load("target.npz") as target:
        X, y, X_target = source["X"], source["y"], target["X"]
    domain = np.repeat([0, -1], [len(X), len(X_target)])
    both, labels = np.concatenate([X, X_target]), np.concatenate([y, y[:1].repeat(len(X_target))])

    def spread(scaling):
        classifier = build_method("source-only", openness=1 / 3, scaling=scaling)
        classifier.fit(both, labels, sample_domain=domain)
        places = view_of(classifier, X, y, X_target).embedding
        variance = places.astype(float).var(axis=0)
        return variance[0] / variance.sum()

    assert spread("none") > 0.99
    assert spread("ranks") < 0.6
