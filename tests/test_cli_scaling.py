"""`osda fit --scaling`: recorded, printed, resumed; and runs from before there was such a thing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cli_helpers import FIT, FIT_PGL, OPENNESS, blobs, names_in
from cli_processes import Osda
from opensetda import InputError
from opensetda.cli.main import main
from opensetda.nn.scaling import RANKS
from opensetda.runs import fit
from opensetda.runs.folder import ESTIMATES, SETTINGS, RunFolder
from opensetda.runs.methods import build_method
from opensetda.runs.view import view_of

SAME = ("predictions.parquet", "model.json", "model.safetensors", "estimates.json")


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


def test_pgl_chooses_and_says_why(loud, capsys):
    assert main([*FIT_PGL]) == 0
    out, _ = capsys.readouterr()
    found = read("run", ESTIMATES)["scaling"]
    assert found["name"] == RANKS
    better, worse = found["quality"]["ranks"], found["quality"]["none"]
    assert found["reason"] == (
        f"the two classes of the source are told apart better: accuracy {better:.3f} "
        f"against {worse:.3f}"
    )
    assert f"columns: as ranks within each domain ({found['reason']})\n" in out
    settings = read("run", SETTINGS)
    assert settings["scaling"] == "auto"
    assert list(settings)[2:5] == ["method", "openness", "scaling"]
    assert "scaling" not in settings["settings"]
    model = RunFolder.open("run").model()
    assert model.scaling_ == RANKS
    # Later copies of the targets are scaled as they were in fit.
    with np.load("target.npz") as file:
        later = model.predict(file["X"])
    assert np.mean(later == RunFolder.open("run").predictions().labels) > 0.9


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("none", "columns: as given\n"),
        ("standard", "columns: standardised within each domain, as asked\n"),
        ("ranks", "columns: as ranks within each domain, as asked\n"),
    ],
)
def test_what_is_asked_for_is_done(loud, capsys, asked, words):
    assert main([*FIT, *OPENNESS, "--scaling", asked]) == 0
    assert words in capsys.readouterr().out
    assert read("run", SETTINGS)["scaling"] == asked
    reason = "" if asked == "none" else "as asked"
    expected = {"name": asked, "reason": reason, "quality": {}}
    assert read("run", ESTIMATES)["scaling"] == expected


def test_rivals_take_columns_as_given_unless_asked(loud, capsys):
    assert main([*FIT, *OPENNESS, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scaling"]["name"] == "none"
    assert read("run", SETTINGS)["scaling"] == "none"
    assert main([*FIT, *OPENNESS, "--json", "--scaling", "auto", "--overwrite"]) == 0
    found = json.loads(capsys.readouterr().out)["scaling"]
    assert found["name"] == RANKS
    # One column is in a far larger unit.
    assert found["quality"].keys() == {"none", "ranks", "standard"}
    assert main(["evaluate", "run", "--labels", "truth.npz", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scaling"] == found


@pytest.mark.parametrize("wrong", ["rank", "RANKS", ""])
def test_a_wrong_name_is_one_line_and_leaves_nothing(workplace, capsys, wrong):
    before = names_in(workplace)
    assert main([*FIT, "--scaling", wrong]) == 2
    out, err = capsys.readouterr()
    assert err == f"error: scaling={wrong!r}: choose one of auto, none, standard, ranks\n"
    assert out == ""
    assert names_in(workplace) == before


def test_a_killed_run_goes_on_with_the_same_scaling(loud, tmp_path):
    arguments = [*FIT_PGL, "--scaling", "ranks", "--checkpoint-every", "0"]
    assert main(arguments) == 0
    (tmp_path / "run").rename(tmp_path / "undisturbed")
    code, text = Osda(tmp_path, *arguments, moment="step-002", before=True).send()
    assert code < 0, text
    assert main(["resume", "run"]) == 0
    for name in SAME:
        assert (tmp_path / "run" / name).read_bytes() == (
            tmp_path / "undisturbed" / name
        ).read_bytes(), name


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
    assert run.training.classifier.scaling_ == "standard"
    with pytest.raises(InputError, match="scaling='magic': choose one of"):
        fit((X[known], y[known]), blobs(1)[0], tmp_path / "other", scaling="magic")
    assert names_in(tmp_path) == ["run"]


def test_none_is_the_default_of_the_method():
    assert build_method("pgl", openness=0.5).scaling == "auto"
    assert build_method("dann+osvm", openness=0.5).scaling == "none"
    assert build_method("dann+osvm", openness=0.5, scaling="ranks").scaling == "ranks"
    with pytest.raises(InputError, match="setting 'scaling' does not exist"):
        build_method("dann", openness=0.5, changes={"scaling": "ranks"})


def test_the_map_shows_what_the_method_saw(loud):
    """Without scaling, the loud column is all there is to see."""
    with np.load("source.npz") as source, np.load("target.npz") as target:
        X, y, X_target = source["X"], source["y"], target["X"]
    domain = np.repeat([0, -1], [len(X), len(X_target)])
    both, labels = np.concatenate([X, X_target]), np.concatenate([y, y[:1].repeat(len(X_target))])

    def spread(scaling):
        classifier = build_method("class-means", openness=1 / 3, scaling=scaling)
        classifier.fit(both, labels, sample_domain=domain)
        [places] = view_of(classifier, X, y, X_target).steps
        variance = places.astype(float).var(axis=0)
        return variance[0] / variance.sum()

    assert spread("none") > 0.99
    assert spread("ranks") < 0.6
