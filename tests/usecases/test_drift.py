"""Later samples against the target of a run, and two runs against each other."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from opensetda.cli.main import main
from opensetda.errors import InputError
from opensetda.runs.folder import RunFolder
from opensetda.runs.predictions import PredictionTable
from opensetda.usecases import adapt, compare, drift, fit, predict
from opensetda.usecases.drift_of_samples import SampleOfRows

NAMES = np.array(["cup", "pen", "mug", "sun", "new"])


def month(seed, shift=0.0, n=160, new=0):
    """Four classes, of which the source lacks "sun"; the first rows may be of another new class."""
    rng = np.random.default_rng(seed)
    which = np.arange(n) % 4
    which[:new] = 4
    X = 5 * np.eye(5, 10)[which] + shift + rng.normal(0, 0.7, (n, 10))
    return X.astype(np.float32), NAMES[which]


def told(seed, shift=0.0, **how):
    X, y = month(seed, shift, **how)
    return X, np.where(np.isin(y, ("sun", "new")), "unknown", y)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    X, y = month(0)
    known = y != "sun"
    place = tmp_path_factory.mktemp("drift") / "run"
    target = month(1, 1)[0]
    return fit((X[known], y[known]), target, place, method="moving-means", scaling="none")


@pytest.fixture
def months(base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, how in (("february", (2, 1)), ("march", (3, 1, 160, 24)), ("april", (4, 4))):
        np.savez(tmp_path / f"{name}.npz", X=month(*how)[0])
    return tmp_path


def test_samples_of_the_same_target_are_no_drift(base):
    found = drift(base, month(2, 1)[0])
    assert not found.is_drift
    assert found.action == "nothing"
    assert found.compared == found.samples == 160
    assert "nothing to do" in found.line


def test_another_domain_is_to_be_adapted_to(base, tmp_path):
    later = month(4, 4)[0]
    found = drift(base, later)
    assert found.is_drift
    assert found.action == "adapt"
    assert "p < 0.001 (scores)" in replace(found, p_scores=1e-17).line
    # Then there is none.
    assert not drift(adapt(base, later, tmp_path / "adapted"), month(5, 4)[0]).is_drift


def test_without_a_source_the_advice_is_to_fit_again(tmp_path):
    X, y = month(0)
    known = y != "sun"
    how = {"method": "class-means", "keep_source": "none"}
    run = fit((X[known], y[known]), month(1, 1)[0], tmp_path / "run", **how)
    assert drift(run, month(4, 4)[0]).action == "fit again"


def test_a_new_group_is_to_be_reviewed(base):
    found = drift(base, month(3, 1, new=24)[0])
    assert found.is_drift
    assert found.action == "review"
    assert 0.05 < found.group_size <= 0.15
    assert {int(name) for name in found.group} <= set(range(1, 25))
    assert found.group_unknown > 0.5
    assert "new group" in found.line


def test_a_class_that_vanishes_is_named(base):
    X, y = month(2, 1, n=400)
    found = drift(base, X[y != "cup"])
    assert found.is_drift
    gone = [one.name for one in found.classes if one.found < 0.02]
    assert gone == ["cup"]


def test_few_samples_say_nothing(base):
    found = drift(base, month(4, 4)[0][:10])
    assert found.p_features is None
    assert not found.is_drift
    assert "too few" in found.line


def test_of_many_samples_some_are_drawn_by_their_content(base):
    X = np.concatenate([month(seed, 1, n=400)[0] for seed in range(10, 16)])
    found = drift(base, X)
    assert (found.samples, found.compared) == (2400, 800)
    turned = drift(base, X[::-1])
    assert replace(turned, group=()) == replace(found, group=())


def test_prediction_part_by_part_draws_the_same_samples(base):
    X = np.concatenate([month(seed, 1, n=400)[0] for seed in range(10, 16)])
    sample = SampleOfRows()
    folder = base.folder
    model = folder.model()
    for start in range(0, len(X), 500):
        part = X[start : start + 500]
        ids = np.arange(start + 1, start + len(part) + 1).astype(np.str_)
        sample.add(part, PredictionTable.of_samples(model, part, ids))
    assert sample.drift_of(folder) == drift(base, X)


def test_predict_tells_and_a_record_grows(base, months, capsys):
    run = str(base.path)
    assert predict(base, "april.npz", "april.csv").drift.is_drift
    assert main(["predict", run, "february.npz", "--out", "february.csv"]) == 0
    assert "drift: none found" in capsys.readouterr().out
    record = ["--record", "drift.csv", "--fail-on", "drift"]
    assert main(["drift", run, "february.npz", *record]) == 0
    pages = ["--page", "drift.html", "--json"]
    capsys.readouterr()
    assert main(["drift", run, "march.npz", "april.npz", *record, *pages]) == 1
    result = json.loads(capsys.readouterr().out)
    assert [one["action"] for one in result["batches"]] == ["review", "adapt"]
    with (months / "drift.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["action"] for row in rows] == ["nothing", "review", "adapt"]
    assert "march.npz" in (months / "drift.html").read_text()
    # Another file is not overwritten.
    assert main(["drift", run, "april.npz", "--record", "february.csv"]) == 2


def test_two_runs_on_one_target_are_compared_on_all_of_it(base, tmp_path):
    X, y = month(0)
    known = y != "sun"
    other = fit((X[known], y[known]), month(1, 1)[0], tmp_path / "other", method="source-only")
    found = compare(base, other)
    assert not found.is_sample
    assert len(found.ids) == 160
    np.testing.assert_array_equal(found.before, base.folder.labels())
    np.testing.assert_array_equal(found.after, other.folder.labels())
    assert sum(change.count for change in found.changes) == found.is_changed.sum()
    assert compare(base, base).changes == ()


def test_runs_on_two_targets_are_compared_by_the_rows_that_were_kept(base, months, capsys):
    adapted = adapt(base, "april.npz", "adapted")
    found = compare(base, adapted)
    assert found.is_sample
    before = predict(base, "april.npz").labels
    np.testing.assert_array_equal(found.before, before[found.rows])
    for name, n_before, n_after, both in found.by_label():
        assert both <= min(n_before, n_after)
        assert n_after == (found.after == name).sum()
    grouped = np.concatenate([group.rows for group in found.groups])
    assert sorted(grouped) == found.rows[found.is_changed].tolist()
    files = ["--out", "changes.csv", "--page", "changes.html"]
    assert main(["compare", str(base.path), "adapted", *files]) == 0
    assert "labels differ" in capsys.readouterr().out
    with (months / "changes.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == found.is_changed.sum()
    assert all(row["before"] != row["after"] for row in rows)
    assert "Groups of changed samples" in (months / "changes.html").read_text()
    assert main(["compare", str(base.path), "adapted", *files]) == 2


def test_runs_of_other_features_are_not_compared(base, tmp_path):
    X, y = month(0)
    other = fit((X[:, :6], y), X[:, :6], tmp_path / "other", method="class-means")
    with pytest.raises(InputError, match="other features"):
        compare(base, other)


def test_the_command_adapts_like_python(base, months, capsys):
    X, truth = told(4, 4)
    assert main(["adapt", str(base.path), "april.npz", "--out", "run2", "--no-report"]) == 0
    assert "1 step from labelled data" in capsys.readouterr().out
    run = adapt(base, X, "again")
    labels = RunFolder.open("run2").labels()
    np.testing.assert_array_equal(labels, run.folder.labels())
    assert (labels == truth).mean() > 0.8
    assert main(["adapt", "run2", "february.npz", "--out", "s", "--keep-source", "statistics"]) == 0
    assert main(["adapt", "s", "april.npz", "--out", "s2", "--no-report"]) == 0
    assert RunFolder.open("s2").kept().how == "statistics"
    assert main(["adapt", "missing", "april.npz", "--out", "run3"]) == 2
    assert main(["adapt", str(base.path), "february.npz", "--out", "run2"]) == 2


def test_a_report_says_how_far_a_run_is_from_labelled_data(base, months):
    assert main(["adapt", str(base.path), "april.npz", "--out", "run2"]) == 0
    assert "Adapted 1 time since labelled data" in (months / "run2" / "report.html").read_text()
