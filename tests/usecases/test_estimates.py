"""What is found out without labels, on its way to people: the folder, the words, the picture."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow.parquet
import pytest

from opensetda import InputError
from opensetda.cli.main import main
from opensetda.runs import folder
from opensetda.runs.folder import RunFolder, check_destination
from opensetda.share.evidence import Evidence, ShareEstimate
from opensetda.share.report import ESTIMATE, HIDDEN
from opensetda.system.files import write_json

NAMES = np.array(["ant", "bee", "cat", "dog", "elk", "fox"])
KNOWN = NAMES[:4]
FIT = ["fit", "source.npz", "target.npz", "--out", "run", "--no-report"]
FIT += ["--method", "class-means"]


def blobs(seed, n=20):
    rng = np.random.default_rng(seed)
    which = np.arange(6 * n) % 6
    X = np.eye(6, 8)[which] * 4 + 1 + rng.normal(0, 0.4, (6 * n, 8))
    return X.astype(np.float32), NAMES[which]


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with source.npz, target.npz, a third of it unknown, closed.npz and truth.npz."""
    monkeypatch.chdir(tmp_path)
    X, y = blobs(0)
    known = np.isin(y, KNOWN)
    np.savez("source.npz", X=X[known], y=y[known])
    X, y = blobs(1)
    np.savez("target.npz", X=X)
    np.savez("closed.npz", X=X[np.isin(y, KNOWN)])
    np.savez("truth.npz", y=y)
    return tmp_path


def read(path):
    return json.loads(path.read_text())


def warnings_in(err):
    lines = err.splitlines()
    return [line.removeprefix("warning: ") for line in lines if line.startswith("warning: ")]


# osda fit -----------------------------------------------------------------------------------


def test_the_share_is_estimated_unless_it_is_told(workplace, capsys):
    assert main(FIT) == 0
    out, err = capsys.readouterr()
    run = workplace / "run"
    settings, estimates = read(run / "settings.json"), read(run / "estimates.json")
    assert settings["openness"] == "auto"
    assert settings["version"] == folder.VERSION
    openness = estimates["openness"]
    assert openness["low"] <= 1 / 3 <= openness["high"]
    assert openness["low"] <= openness["share"] <= openness["high"]
    assert openness["source"] == "estimated"
    assert openness["found_unknowns"]
    state = read(run / "model.json")["state"]
    assert estimates["rejection"] == state["rejection"]
    assert list(openness["estimates"]) == [ESTIMATE, HIDDEN]
    evidence = openness["evidence"]
    assert list(evidence) == list(Evidence._fields)
    assert openness["estimates"][HIDDEN]["share"] == evidence["hidden"]
    assert (
        f"share of unknowns: {openness['share']:.0%} ({openness['low']:.0%} to "
        f"{openness['high']:.0%}), estimated from the data alone\n"
    ) in out
    assert warnings_in(err) == openness["warnings"]
    assert RunFolder.open("run").estimates() == estimates


def test_a_share_that_is_given_is_used_and_nothing_is_estimated(workplace, capsys):
    assert main([*FIT, "--openness", "0.2"]) == 0
    out, err = capsys.readouterr()
    assert read(workplace / "run" / "settings.json")["openness"] == 0.2
    openness = read(workplace / "run" / "estimates.json")["openness"]
    assert openness["share"] == 0.2
    assert openness["source"] == "given"
    assert openness["evidence"] is None
    assert "share of unknowns: 20%, as given\n" in out
    assert "warning:" not in err
    assert main(["evaluate", "run", "--labels", "truth.npz"]) == 0
    assert "share of unknowns: true 33%, used 20%" in capsys.readouterr().out.splitlines()


def test_no_unknowns_is_said_plainly(workplace, capsys, monkeypatch):
    none = ShareEstimate(0.01, 0.0, 0.12)
    monkeypatch.setattr("opensetda.share.report.estimate_share", lambda *_: none)
    assert main(["fit", "source.npz", "closed.npz", *FIT[3:]]) == 0
    out, err = capsys.readouterr()
    assert "share of unknowns: 0% (0% to 12%), no unknowns were found" in out
    (warning,) = warnings_in(err)
    assert warning.startswith("no unknowns were found, and nothing is rejected; up to 12%")
    estimates = RunFolder.open("run").estimates()
    assert not estimates["openness"]["found_unknowns"]
    assert estimates["rejection"] == {"threshold": "-inf", "slope": 0.0, "base": 0.0}
    table = RunFolder.open("run").predictions()
    assert set(table.labels.tolist()) == set(KNOWN.tolist())
    assert (table.proba[:, -1] == 0).all()
    # Nor is anything rejected later, whatever it is.
    assert main(["predict", "run", "target.npz", "--out", "labels.parquet"]) == 0
    later = pyarrow.parquet.read_table("labels.parquet")
    assert "unknown" not in later["label"].to_pylist()
    assert set(later["p_unknown"].to_pylist()) == {0.0}


# the folder ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted_once(tmp_path_factory):
    """A run that nobody may change."""
    folder = tmp_path_factory.mktemp("fitted-once")
    X, y = blobs(0)
    known = np.isin(y, KNOWN)
    np.savez(folder / "source.npz", X=X[known], y=y[known])
    np.savez(folder / "target.npz", X=blobs(1)[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(FIT) == 0
    return folder / "run"


@pytest.fixture
def run(workplace, fitted_once):
    shutil.copytree(fitted_once, "run")
    return RunFolder.open("run")


def test_a_run_of_an_earlier_release_is_not_read_but_may_be_replaced(run, capsys):
    write_json(run.path / folder.SETTINGS, {**run.settings, "version": folder.VERSION - 1})
    (run.path / folder.ESTIMATES).unlink()
    with pytest.raises(InputError, match="version 6 is not 7; fit again"):
        RunFolder.open(run.path)
    check_destination(run.path, overwrite=True)
    assert main([*FIT, "--overwrite"]) == 0
    assert RunFolder.open("run").estimates()["openness"]["found_unknowns"]
