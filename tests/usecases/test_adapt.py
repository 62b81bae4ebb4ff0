"""A run for a new target from what an earlier run kept of its source."""

from __future__ import annotations

import json

import numpy as np
import pytest

from opensetda.errors import InputError, RunPausedError
from opensetda.runs.folder import RunFolder
from opensetda.runs.kept import MOST_ROWS, MOST_SOURCES, class_statistics, drawn_rows
from opensetda.usecases import (
    RunListener,
    TableOptions,
    adapt,
    drift,
    export,
    fit,
    predict,
    resume,
)
from opensetda.usecases.read_run import with_marks

MEANS = {"method": "moving-means", "scaling": "none"}
TOLD = {"openness": 0.25}
NAMES = np.array(["cup", "pen", "mug", "sun"])


def domain(seed, shift=0.0, n=120):
    """Four classes, of which the source lacks the last one."""
    rng = np.random.default_rng(seed)
    which = np.arange(n) % 4
    X = 5 * np.eye(4, 12)[which] + shift + rng.normal(0, 0.5, (n, 12))
    return X.astype(np.float32), NAMES[which]


@pytest.fixture(scope="module")
def source():
    X, y = domain(0)
    known = y != "sun"
    return X[known], y[known]


@pytest.fixture(scope="module")
def base(source, tmp_path_factory):
    """A run on a first target."""
    return fit(source, domain(1, 1)[0], tmp_path_factory.mktemp("base") / "run", **MEANS)


def right(run, truth):
    expected = np.where(truth == "sun", "unknown", truth)
    return (run.folder.labels() == expected).mean()


def test_the_rows_that_a_run_kept_are_as_good_as_its_source(source, base, tmp_path):
    X, truth = domain(2, 2)
    adapted = adapt(base, X, tmp_path / "adapted", **TOLD)
    fitted = fit(source, X, tmp_path / "fitted", **MEANS, **TOLD)
    # So few rows are all kept: nothing is lost.
    np.testing.assert_array_equal(adapted.folder.labels(), fitted.folder.labels())
    assert right(adapted, truth) > 0.9
    link = adapted.folder.chain[0]
    assert link["identity"] == base.folder.settings["identity"]
    assert 0 < link["agreement"] <= 1
    assert base.folder.chain == []


def test_statistics_are_enough_for_classes_that_spread_alike(source, tmp_path):
    first = fit(source, domain(1, 1)[0], tmp_path / "first", keep_source="statistics", **MEANS)
    assert len(first.folder.kept().rows) == 0
    X, truth = domain(2, 2)
    second = adapt(first, X, tmp_path / "second", **TOLD)
    assert right(second, truth) > 0.9
    # They pass from run to run as they are.
    for name, values in first.folder.kept().statistics.items():
        np.testing.assert_array_equal(second.folder.kept().statistics[name], values)
    with pytest.raises(InputError, match="statistics only"):
        adapt(first, X, tmp_path / "third", keep_source="rows")


@pytest.mark.parametrize("how", ["rows", "statistics"])
def test_the_order_of_rows_carries_nothing(how, source, tmp_path):
    X, y = source
    rng = np.random.default_rng(0)
    order = rng.permutation(len(y))
    targets = domain(1, 1)[0]
    later = domain(2, 2)[0]
    moved = rng.permutation(len(later))
    made = []
    for number, rows in enumerate((np.arange(len(y)), order)):
        base = fit((X[rows], y[rows]), targets, tmp_path / f"b{number}", keep_source=how, **MEANS)
        shown = later if number == 0 else later[moved]
        adapted = adapt(base, shown, tmp_path / f"a{number}")
        made.append((adapted.folder.predictions().proba, drift(base, shown)))
    np.testing.assert_array_equal(made[0][0][moved], made[1][0])
    assert made[0][1].p_scores == made[1][1].p_scores
    assert made[0][1].apart == made[1][1].apart


def test_nothing_kept_is_refused_in_one_line(source, tmp_path):
    run = fit(source, domain(1)[0], tmp_path / "run", keep_source="none", **MEANS)
    kept = run.folder.kept()
    assert (len(kept.rows), kept.statistics) == (0, {})
    assert len(kept.target) == 120  # to notice a drift
    with pytest.raises(InputError, match="kept nothing of its source") as error:
        adapt(run, domain(2)[0], tmp_path / "second")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "second").exists()


def test_what_is_kept_is_bounded_and_has_every_class(tmp_path):
    rng = np.random.default_rng(0)
    y = np.array(["rare"] * 3 + ["common"] * 6000)
    X = rng.normal(size=(len(y), 3)) + 4 * (y == "rare")[:, None]
    run = fit((X, y), X[::2], tmp_path / "run", method="class-means")
    kept = run.folder.kept()
    counts = np.bincount(kept.y, minlength=2)
    assert counts.sum() <= MOST_SOURCES
    assert len(kept.target) <= MOST_ROWS
    assert counts[kept.classes.index("rare")] == 3
    # Rows as the method is given them, before any scaling.
    np.testing.assert_array_equal(kept.target, X[::2][kept.target_rows].astype(np.float32))


@pytest.mark.parametrize("method", ["committee", "daod", "source-only"])
def test_other_methods_adapt(method, source, tmp_path):
    run = fit(source, domain(1, 1)[0], tmp_path / "run", method=method, openness=0.25)
    X, truth = domain(2, 1)
    adapted = adapt(run, X, tmp_path / "adapted", openness=0.25)
    assert adapted.folder.settings["method"] == method
    assert right(adapted, truth) > 0.8


def test_settings_are_those_of_the_run_but_the_share_is_estimated(source, tmp_path):
    own = {"settings": {"steps": 3}, "openness": 0.4, "unknown_label": "other"}
    run = fit(source, domain(1)[0], tmp_path / "run", **MEANS, **own)
    adapted = adapt(run, domain(2)[0], tmp_path / "adapted").folder
    assert adapted.settings["settings"]["steps"] == 3
    assert adapted.settings["scaling"] == "none"
    assert adapted.unknown_label == "other"
    assert adapted.estimates()["openness"]["source"] == "estimated"


def test_marks_of_a_run_are_labelled_rows_of_the_next(base, source, tmp_path):
    X, truth = domain(1, 1)
    run = fit(source, X, tmp_path / "run", **MEANS)
    marked = np.flatnonzero(truth == "sun")[:10]
    lines = ["id,label", *(f"{row + 1},sun" for row in marked), "1,cup", "2,unknown"]
    (run.path / "corrections.csv").write_text("\n".join(lines) + "\n")
    later, truth = domain(2, 1)
    adapted = adapt(run, later, tmp_path / "adapted", openness=0.0)
    assert "sun" in adapted.folder.settings["classes"]
    assert (adapted.folder.labels()[truth == "sun"] == "sun").mean() > 0.9
    # And stay, once this run is adapted.
    assert adapted.folder.kept().n_marked == 11
    assert adapt(adapted, later, tmp_path / "again").folder.kept().n_marked == 11
    assert (tmp_path / "run" / "corrections.csv").exists()


def test_a_target_that_is_marked_again_counts_once(base, source, tmp_path):
    X, truth = domain(1, 1)
    lines = ["id,label", *(f"{row + 1},{truth[row]}" for row in range(12))]
    first = tmp_path / "first.csv"
    first.write_text("\n".join(lines) + "\n")
    run = fit(source, X, tmp_path / "run", corrections=first, **MEANS)
    assert run.folder.kept().n_marked == 12
    # A review that goes on in the new run has all marks; two of them are other ones now.
    lines[1] = "1,pen"
    lines[2] = "2,unknown"
    (run.path / "corrections.csv").write_text("\n".join(lines) + "\n")
    kept = with_marks(run.folder, run.folder.kept(), RunListener())
    assert kept.n_marked == 11
    place = np.flatnonzero((kept.rows == X[0]).all(axis=1))
    assert [kept.classes[kept.y[p]] for p in place] == ["pen"]
    assert not (kept.rows == X[1]).all(axis=1).any()


def test_an_adapted_run_predicts_and_exports(base, tmp_path):
    pytest.importorskip("onnxruntime")
    X, _ = domain(2, 2)
    adapted = adapt(base, X, tmp_path / "adapted")
    assert predict(adapted, X).labels.tolist() == adapted.folder.labels().tolist()
    assert export(adapted, tmp_path / "model.onnx").n_checked > 0


def test_columns_are_prepared_as_in_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, seed in (("source", 0), ("first", 1), ("second", 2)):
        X, y = domain(seed)
        known = y != "sun" if name == "source" else y == y
        cells = ",".join(f"f{column}" for column in range(12))
        rows = [f"id,kind,colour,{cells}"]
        for number in np.flatnonzero(known):
            values = ",".join(f"{value:.4f}" for value in X[number])
            gap = values if name == "source" or number else "," + values.partition(",")[2]
            rows.append(f"{name}{number},{y[number]},{'red' if number % 2 else 'blue'},{gap}")
        (tmp_path / f"{name}.csv").write_text("\n".join(rows) + "\n")
    columns = TableOptions(label="kind", id="id", one_hot=("colour",), impute="median")
    run = fit("source.csv", "first.csv", "run", tables=columns, **MEANS)
    adapted = adapt(run, "second.csv", "adapted").folder
    assert adapted.predictions().ids[0] == "second0"
    assert adapted.feature_names() == run.folder.feature_names()
    assert predict("adapted", "second.csv").labels.tolist() == adapted.labels().tolist()
    with pytest.raises(InputError, match=r"missing\.csv"):
        adapt(run, "missing.csv", "other")


def test_what_is_damaged_is_named(base, source, tmp_path):
    run = fit(source, domain(1)[0], tmp_path / "run", **MEANS)
    place = run.path / "kept.safetensors"
    place.write_bytes(place.read_bytes()[:-8])
    with pytest.raises(InputError, match=r"kept\.safetensors: damaged"):
        adapt(run, domain(2)[0], tmp_path / "second")
    with pytest.raises(InputError, match="not a run folder"):
        adapt(tmp_path, domain(2)[0], tmp_path / "second")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


@pytest.mark.usefixtures("stepper")
def test_an_interrupted_run_goes_on_to_the_same_bytes(source, tmp_path):
    class Interrupting(RunListener):
        def training(self, method):
            from contextlib import nullcontext

            def listen(event):
                if event.step > 1:
                    raise KeyboardInterrupt

            return nullcontext(listen)

    steps = {"method": "stepper", "openness": 0.25, "settings": {"steps": 3}}
    run = fit(source, domain(1)[0], tmp_path / "run", **steps)
    X, _ = domain(2)
    whole = adapt(run, X, tmp_path / "whole", openness=0.25)
    with pytest.raises(RunPausedError):
        adapt(run, X, tmp_path / "again", openness=0.25, listener=Interrupting())
    resumed = resume(tmp_path / "again", target=X)
    assert resumed.resumed
    for name in ("predictions.csv", "model.safetensors", "kept.safetensors"):
        assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes()


def test_drawn_rows_have_the_statistics_that_they_are_drawn_from():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 4000)
    spread = np.array([1.0, 0.1, 3.0, 0.5])
    rows = (10 * np.eye(3, 4)[y] + rng.normal(size=(4000, 4)) * spread).astype(np.float32)
    drawn, classes = drawn_rows(class_statistics(rows, y, 3), seed=1)
    np.testing.assert_array_equal(np.bincount(classes), np.bincount(y))
    of_both = zip((rows[y == 1], drawn[classes == 1]), strict=False)
    first, second = (part[0] for part in of_both)
    np.testing.assert_allclose(first.mean(axis=0), second.mean(axis=0), atol=0.4)
    np.testing.assert_allclose(first.std(axis=0), second.std(axis=0), rtol=0.15)


def test_a_chain_without_new_labels_is_told(base, tmp_path):
    lines = []

    class Listening(RunListener):
        def warn(self, message):
            lines.append(message)

    run = base
    for step in range(3):
        run = adapt(run, domain(step + 5, step)[0], tmp_path / str(step), listener=Listening())
    assert any("adapted 3 times without a new label" in line for line in lines)
    chain = json.loads((run.path / "settings.json").read_text())["chain"]
    assert [link["run"] for link in chain][1:] == [str(tmp_path / "0"), str(tmp_path / "1")]
    assert RunFolder.open(run.path).chain == chain
