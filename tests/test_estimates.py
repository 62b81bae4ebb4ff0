"""What is found out without labels, on its way to people: the folder, the words, the picture."""

from __future__ import annotations

import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet
import pytest

from opensetda import ClassMeans, InputError
from opensetda.cli import console
from opensetda.cli.main import main
from opensetda.features.scaling import Scaling
from opensetda.openness.evidence import Evidence
from opensetda.openness.report import ESTIMATE, HIDDEN, OpennessReport
from opensetda.openness.share_model import ShareEstimate
from opensetda.runs import folder
from opensetda.runs.folder import RunFolder, check_destination
from opensetda.runs.predictions import PredictionTable
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
    assert not openness["told"]
    assert openness["found_unknowns"]
    state = read(run / "model.json")["state"]
    assert estimates["rejection"] == {
        "threshold": state["rejection_threshold"],
        "slope": state["rejection_slope"],
    }
    assert list(openness["estimates"]) == [ESTIMATE, HIDDEN]
    evidence = openness["evidence"]
    assert list(evidence) == list(Evidence._fields)
    assert openness["estimates"][HIDDEN]["share"] == evidence["hidden"]
    assert (
        f"share of unknowns: {openness['share']:.2f} ({openness['low']:.2f} to "
        f"{openness['high']:.2f}), estimated: hidden classes alone say {evidence['hidden']:.2f}, "
        f"and {evidence['below']:.0%} of the targets score below nine tenths of the source\n"
    ) in out
    assert warnings_in(err) == openness["warnings"]
    assert RunFolder.open("run").estimates() == estimates


def test_a_share_that_is_told_is_used_and_the_estimate_stands_beside_it(workplace, capsys):
    assert main([*FIT, "--openness", "0.2"]) == 0
    out, err = capsys.readouterr()
    assert read(workplace / "run" / "settings.json")["openness"] == 0.2
    openness = read(workplace / "run" / "estimates.json")["openness"]
    assert openness["share"] == 0.2
    assert openness["told"]
    line = r"share of unknowns: 0\.20, as given; the data look like 0\.\d\d \(.* to .*\) \(hidden"
    assert re.search(line, out)
    assert "warning:" not in err


def test_auto_can_be_said(workplace, fitted_once):
    assert main([*FIT, "--openness", "auto"]) == 0
    run = RunFolder.open("run")
    assert run.estimates() == RunFolder.open(fitted_once).estimates()


def test_warnings_are_lines_on_stderr_and_in_the_folder(workplace, capsys):
    assert main([*FIT, "--openness", "0.9"]) == 0
    out, err = capsys.readouterr()
    warnings = read(workplace / "run" / "estimates.json")["openness"]["warnings"]
    assert warnings_in(err) == warnings
    assert warnings[0].startswith("openness 0.90 was given, but the data look like")
    assert "warning:" not in out


@pytest.mark.parametrize("method", ["class-means", "source-only"])
def test_no_unknowns_is_said_plainly(workplace, capsys, monkeypatch, method):
    none = ShareEstimate(0.01, 0.0, 0.12)
    monkeypatch.setattr("opensetda.openness.report.estimate_share", lambda *_: none)
    assert (
        main(["fit", "source.npz", "closed.npz", "--out", "run", "--no-report", "--method", method])
        == 0
    )
    out, err = capsys.readouterr()
    assert re.search(
        r"^share of unknowns: 0\.00 \(0\.00 to 0\.12\), no unknowns were found, "
        r"so nothing is rejected \(hidden classes alone say 0\.",
        out,
        re.MULTILINE,
    )
    (warning,) = warnings_in(err)
    assert warning.startswith("no unknowns were found, and nothing is rejected; up to 12%")
    estimates = RunFolder.open("run").estimates()
    assert not estimates["openness"]["found_unknowns"]
    assert estimates["rejection"] == {"threshold": "-inf", "slope": 0.0}
    table = RunFolder.open("run").predictions()
    assert set(table.labels.tolist()) == set(KNOWN.tolist())
    assert (table.proba[:, -1] == 0).all()
    # Nor is anything rejected later, whatever it is.
    assert main(["predict", "run", "target.npz", "--out", "labels.parquet"]) == 0
    later = pyarrow.parquet.read_table("labels.parquet")
    assert "unknown" not in later["label"].to_pylist()
    assert set(later["p_unknown"].to_pylist()) == {0.0}


def test_labels_in_the_target_do_not_change_the_estimates(workplace):
    X, y = blobs(1)
    outcomes = []
    for labels in (y, np.full(len(y), "elk")):
        np.savez("target.npz", X=X, y=labels)
        assert main([*FIT, "--overwrite"]) == 0
        outcomes.append((workplace / "run" / "estimates.json").read_bytes())
    assert outcomes[0] == outcomes[1]


# osda evaluate ------------------------------------------------------------------------------


def test_the_true_share_stands_beside_the_one_used(workplace, capsys):
    assert main([*FIT, "--openness", "0.2"]) == 0
    capsys.readouterr()
    assert main(["evaluate", "run", "--labels", "truth.npz"]) == 0
    line = "share of unknowns: true 0.33, used 0.20"
    assert line in capsys.readouterr().out.splitlines()
    assert read(workplace / "run" / "metrics.json")["true_openness"] == pytest.approx(1 / 3)


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


@pytest.mark.parametrize(
    "change",
    [
        lambda estimates: [],
        lambda estimates: {},
        lambda estimates: {**estimates, "rejection": 3},
        lambda estimates: {**estimates, "rejection": {"threshold": "high", "slope": 1}},
        lambda estimates: {**estimates, "openness": {"share": 0.5}},
        lambda estimates: {**estimates, "openness": {"share": None, "low": 0, "high": 1}},
        lambda estimates: {**estimates, "scaling": {"name": "magic", "reason": ""}},
        lambda estimates: {**estimates, "scaling": {"name": "none"}},
    ],
)
def test_tampered_estimates_are_named(run, change, capsys):
    path = run.path / folder.ESTIMATES
    write_json(path, change(run.estimates()))
    with pytest.raises(InputError, match=r"estimates\.json: damaged \(.*fit again"):
        run.estimates()
    capsys.readouterr()
    assert main(["evaluate", "run", "--labels", "truth.npz"]) == 2
    assert "estimates.json: damaged" in capsys.readouterr().err


def test_a_run_of_an_earlier_release_is_not_read_but_may_be_replaced(run, capsys):
    write_json(run.path / folder.SETTINGS, {**run.settings, "version": 1})
    (run.path / folder.ESTIMATES).unlink()
    with pytest.raises(InputError, match="version 1 is not 6; fit again"):
        RunFolder.open(run.path)
    check_destination(run.path, overwrite=True)
    assert main([*FIT, "--overwrite"]) == 0
    assert RunFolder.open("run").estimates()["openness"]["found_unknowns"]


def test_later_samples_are_judged_as_the_classifier_does_where_nothing_is_rejected():
    X, y = blobs(0)
    known = np.isin(y, KNOWN)
    later, _ = blobs(1)
    classifier = ClassMeans(openness=0)
    domain = np.repeat([0, -1], [known.sum(), known.sum()])
    classifier.fit(np.tile(X[known], (2, 1)), np.tile(y[known], 2), sample_domain=domain)
    table = PredictionTable.of_samples(classifier, later, None)
    np.testing.assert_array_equal(table.labels, classifier.predict(later))
    np.testing.assert_array_equal(table.proba, classifier.predict_proba(later))


def test_the_label_is_unknown_where_its_probability_is_above_a_half(run):
    for table in (run.predictions(), PredictionTable.of_samples(run.model(), blobs(2)[0], None)):
        unknown = table.labels == "unknown"
        assert 0 < unknown.mean() < 1
        np.testing.assert_array_equal(unknown, table.proba[:, -1] > 0.5)


# the words ----------------------------------------------------------------------------------


def report(**changes):
    values = {"share": 0.52, "low": 0.47, "high": 0.58, "told": False, "found_unknowns": True}
    values |= {"estimates": {ESTIMATE: ShareEstimate(0.53, 0.47, 0.58)}}
    values |= {"evidence": Evidence(0.4, 0.5, -0.2, 0.25, 10), "warnings": ()}
    return OpennessReport(**{**values, **changes})


WHY = "hidden classes alone say 0.40, and 25% of the targets score below nine tenths of the source"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, f"0.52 (0.47 to 0.58), estimated: {WHY}"),
        (
            {"told": True, "share": 0.3},
            f"0.30, as given; the data look like 0.53 (0.47 to 0.58) ({WHY})",
        ),
        (
            {"own_boundary": True, "share": 0.3},
            "0.30, what the method's own boundary rejects; "
            f"the data look like 0.53 (0.47 to 0.58) ({WHY})",
        ),
        (
            {"found_unknowns": False, "share": 0.0, "low": 0.0},
            f"0.00 (0.00 to 0.58), no unknowns were found, so nothing is rejected ({WHY})",
        ),
    ],
)
def test_the_share_in_words(capsys, changes, words):
    found = {"openness_report_": report(**changes), "scaler_": Scaling("none", {})}
    console.show_estimates(SimpleNamespace(**found))
    assert capsys.readouterr() == (f"share of unknowns: {words}\ncolumns: as given\n", "")
