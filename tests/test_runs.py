from __future__ import annotations

import json
import os
import stat

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from opensetda import InputError, ProgressiveClassMeans, SourceOnly
from opensetda.data.tables import TruthTable
from opensetda.report.curves import draw_curves
from opensetda.runs import files, folder, methods
from opensetda.runs.evaluation import evaluate_run
from opensetda.runs.folder import RunFolder
from opensetda.runs.predictions import PredictionTable
from opensetda.runs.writing import RunRecord, check_destination, write_run


def blobs(seed=0, n=30):
    """Three classes in the source's space; the third is unknown to the source."""
    rng = np.random.default_rng(seed)
    centres = np.array([[4, 0, 0, 1], [0, 4, 0, 1], [0, 0, 4, 1]])
    which = np.arange(3 * n) % 3
    X = (centres[which] + rng.normal(0, 0.5, (3 * n, 4))).astype(np.float32)
    return X, which


def fitted(method=ProgressiveClassMeans, **parameters):
    source, which = blobs(0)
    known = which < 2
    target, _ = blobs(1)
    X = np.concatenate([source[known], target])
    labels = np.array(["cat", "dog"])[which[known]]
    y = np.concatenate([labels, np.full(len(target), "cat")])
    domain = np.repeat([0, -1], [known.sum(), len(target)])
    return method(openness=1 / 3, **parameters).fit(X, y, sample_domain=domain)


def names_in(path):
    return sorted(entry.name for entry in path.iterdir())


def record(**changes):
    values = {
        "method": "class-means",
        "openness": 1 / 3,
        "unknown_label": "unknown",
        "preset": "default",
        "settings": {"steps": 10},
        "seed": 0,
        "inputs": {},
        "columns": {"label": "y", "id": None},
    }
    return RunRecord(**{**values, **changes})


@pytest.fixture(scope="module")
def classifier():
    return fitted()


@pytest.fixture(scope="module")
def picture(classifier):
    return draw_curves(classifier.history_)


@pytest.fixture
def run(tmp_path, classifier, picture):
    with files.new_folder(tmp_path / "run") as aside:
        write_run(aside, classifier, record(), None, picture)
    return RunFolder.open(tmp_path / "run")


# state -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [ProgressiveClassMeans, SourceOnly])
def test_a_restored_classifier_predicts_the_same_bits(method):
    original = fitted(method)
    saved, arrays = original.get_state()
    restored = method.from_state(json.loads(json.dumps(saved, allow_nan=False)), arrays)
    X, _ = blobs(2)
    np.testing.assert_array_equal(restored.predict(X), original.predict(X))
    np.testing.assert_array_equal(restored.predict_proba(X), original.predict_proba(X))
    np.testing.assert_array_equal(restored.decision_function(X), original.decision_function(X))
    assert restored.get_params() == original.get_params()


def test_an_infinite_threshold_and_numbers_as_classes_survive(classifier):
    X, which = blobs()
    domain = np.repeat([0, -1], [60, 30])
    original = ProgressiveClassMeans(openness=np.float64(0), unknown_label=99)
    original.fit(X, which, sample_domain=domain)
    assert original.rejection_threshold_ == -np.inf
    saved, arrays = original.get_state()
    assert saved["rejection_threshold"] == "-inf"
    restored = ProgressiveClassMeans.from_state(json.loads(json.dumps(saved)), arrays)
    assert restored.classes_.dtype == original.classes_.dtype
    np.testing.assert_array_equal(restored.predict(X), original.predict(X))


def test_a_closed_set_classifier_can_be_saved():
    X, which = blobs()
    original = ProgressiveClassMeans().fit(X, which)
    restored = ProgressiveClassMeans.from_state(*original.get_state())
    np.testing.assert_array_equal(restored.predict(X), original.predict(X))


def test_names_of_features_survive():
    pandas = pytest.importorskip("pandas")
    X, which = blobs()
    frame = pandas.DataFrame(X, columns=list("abcd"))
    restored = ProgressiveClassMeans.from_state(
        *ProgressiveClassMeans().fit(frame, which).get_state()
    )
    assert restored.feature_names_in_.tolist() == list("abcd")


def test_parameters_that_json_cannot_hold_are_left_out():
    class Listening(ProgressiveClassMeans):
        def __init__(self, openness=0.5, steps=10, unknown_label="unknown", progress=None):
            super().__init__(openness, steps, unknown_label)
            self.progress = progress

    saved, arrays = fitted(Listening, progress=lambda event: None).get_state()
    assert saved["parameters_left_out"] == ["progress"]
    assert Listening.from_state(saved, arrays).progress is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state_version": 99}, "version 99"),
        ({"class": "SourceOnly"}, "it is a SourceOnly"),
        ({"classes_dtype": "|O"}, "not supported"),
        ({"values": None, "arrays": {}}, "'centre' is missing"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(classifier, change, words):
    saved, arrays = classifier.get_state()
    arrays = change.pop("arrays", arrays)
    with pytest.raises(InputError, match=words):
        ProgressiveClassMeans.from_state({**saved, **change}, arrays)


# files -----------------------------------------------------------------------------------


def test_a_new_file_replaces_the_old_one_only_when_complete(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("old")

    def interrupted():
        with files.new_file(path) as aside:
            assert aside.suffix == ".csv"
            aside.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    with files.new_file(path) as aside:
        aside.write_text("new")
    assert path.read_text() == "new"
    assert names_in(tmp_path) == ["labels.csv"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, SystemExit])
def test_a_new_folder_leaves_nothing_behind(tmp_path, error):
    def interrupted():
        with files.new_folder(tmp_path / "deep" / "er" / "run") as aside:
            (aside / "half").write_text("")
            raise error

    with pytest.raises(error):
        interrupted()
    assert names_in(tmp_path) == []


def test_an_old_folder_stays_until_the_new_one_is_complete(tmp_path):
    run = tmp_path / "run"
    for content in ("old", "new"):
        with files.new_folder(run) as aside:
            (aside / "content").write_text(content)
            if content == "new":
                assert (run / "content").read_text() == "old"
    assert (run / "content").read_text() == "new"
    assert names_in(tmp_path) == ["run"]


def test_an_old_folder_comes_back_if_the_new_one_cannot_be_moved(tmp_path, monkeypatch):
    run = tmp_path / "run"
    run.mkdir()
    (run / "content").write_text("old")
    rename = type(run).rename

    def fail_once(self, target):
        if target == run and "partial" in self.name and (self / "new").exists():
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(type(run), "rename", fail_once)

    def blocked():
        with files.new_folder(run) as aside:
            (aside / "new").write_text("")

    with pytest.raises(OSError, match="No space"):
        blocked()
    assert names_in(tmp_path) == ["run"]
    assert (run / "content").read_text() == "old"


def test_a_place_that_cannot_be_written_is_found_before_training(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file, not a folder"):
        files.check_writable(tmp_path / "file" / "run")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(InputError, match="no permission"):
        files.check_writable(tmp_path / "run")


def test_what_json_cannot_hold_is_made_plain():
    value = {"loss": {"node": np.float32(0.5), "edge": float("nan")}, 3: (np.int64(1), None, "x")}
    assert files.plain(value) == {"loss": {"node": 0.5, "edge": None}, "3": [1, None, "x"]}


# the folder ------------------------------------------------------------------------------


def test_a_run_folder_holds_what_the_docs_say(run, classifier):
    there = set(names_in(run.path))
    assert there == set(folder.FILES) - {folder.METRICS, folder.COMPARISON}
    assert run.history() == classifier.history_
    assert run.settings["classes"] == ["cat", "dog"]
    assert run.unknown_label == "unknown"
    assert run.column("label") == "y"
    assert not run.has_ids
    environment = json.loads((run.path / folder.ENVIRONMENT).read_text())
    assert environment["packages"]["opensetda"]
    assert (run.path / folder.CURVES).read_bytes().startswith(b"\x89PNG")


def test_files_can_be_read_by_others(run):
    for name in names_in(run.path):
        mode = stat.S_IMODE((run.path / name).stat().st_mode)
        assert mode == stat.S_IMODE((run.path / folder.SETTINGS).stat().st_mode), name


def test_predictions_come_back_as_they_were(run, classifier):
    table = run.predictions()
    assert table.ids[:3].tolist() == ["1", "2", "3"]
    np.testing.assert_array_equal(table.labels, classifier.transduction_)
    np.testing.assert_array_equal(table.nearest, classifier.transduction_nearest_)
    np.testing.assert_array_equal(table.proba, classifier.transduction_proba_)
    np.testing.assert_array_equal(table.known_scores, classifier.transduction_scores_)
    assert table.classes == ("cat", "dog")
    for_people = pyarrow.csv.read_csv(run.path / folder.PREDICTIONS_FOR_PEOPLE)
    assert for_people.column_names == [
        "id", "label", "p_unknown", "known_score", "nearest_class", "p:cat", "p:dog",
    ]  # fmt: skip
    np.testing.assert_allclose(for_people["p:cat"], table.proba[:, 0], atol=1e-6)


def test_a_class_called_unknown_does_not_collide(tmp_path, classifier):
    table = PredictionTable.of_targets(classifier, None)
    renamed = PredictionTable(
        table.ids, table.labels, table.known_scores, table.nearest, table.proba, ("unknown", "id")
    )
    renamed.write(tmp_path / "p.parquet")
    again = PredictionTable.read_parquet(tmp_path / "p.parquet")
    assert again.classes == ("unknown", "id")
    np.testing.assert_array_equal(again.proba, table.proba)


def test_the_model_predicts_as_the_classifier(run, classifier, monkeypatch):
    from opensetda.runs import predictions

    monkeypatch.setattr(predictions, "_PREDICTED_ROWS", 7)
    X, _ = blobs(3)
    table = PredictionTable.of_samples(run.model(), X, None)
    np.testing.assert_array_equal(table.labels, classifier.predict(X))
    np.testing.assert_allclose(table.proba, classifier.predict_proba(X), rtol=1e-12)
    scores = table.known_scores - classifier.rejection_threshold_
    np.testing.assert_allclose(scores, classifier.decision_function(X), rtol=1e-12)
    assert set(table.nearest.tolist()) == {"cat", "dog"}


def test_labels_of_every_step_are_kept(tmp_path):
    classifier = fitted()
    n_targets = len(classifier.transduction_)
    classifier.step_labels_ = np.stack([np.arange(n_targets) % 3, np.full(n_targets, 2)])
    with files.new_folder(tmp_path / "run") as aside:
        write_run(aside, classifier, record(), None, b"")
    steps = RunFolder.open(tmp_path / "run").steps()
    assert list(steps) == [1, 2]
    assert steps[1][:4].tolist() == ["cat", "dog", "unknown", "cat"]
    assert set(steps[2].tolist()) == {"unknown"}


def test_every_step_is_kept_and_the_last_is_the_answer(run, classifier):
    steps = run.steps()
    assert list(steps) == list(range(1, 11))
    np.testing.assert_array_equal(steps[10], classifier.transduction_)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        (folder.HISTORY, lambda run: run.history()),
        (folder.ESTIMATES, lambda run: run.estimates()),
        (folder.PREDICTIONS, lambda run: run.predictions()),
        (folder.STEPS, lambda run: run.steps()),
        (folder.WEIGHTS, lambda run: run.model()),
        (folder.MODEL, lambda run: run.model()),
        (folder.SETTINGS, lambda run: RunFolder.open(run.path)),
    ],
)
def test_missing_and_damaged_files_are_named(run, name, read):
    path = run.path / name
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 3])
    with pytest.raises(InputError, match=name):
        read(run)
    path.unlink()
    with pytest.raises(InputError, match=name):
        read(run)


def test_tampered_files_are_named(run):
    model = json.loads((run.path / folder.MODEL).read_text())
    for broken in ({}, {"state": {**model["state"], "state_version": 3}}):
        files.write_json(run.path / folder.MODEL, broken)
        with pytest.raises(InputError, match=r"model\.json"):
            run.model()
    table = pyarrow.parquet.read_table(run.path / folder.PREDICTIONS)
    pyarrow.parquet.write_table(table.drop(["label"]), run.path / folder.PREDICTIONS)
    with pytest.raises(InputError, match="damaged"):
        run.predictions()


def test_what_is_no_run_folder_is_refused(tmp_path, run):
    for path, words in [
        (tmp_path / "no", "no such run folder"),
        (run.path / folder.SETTINGS, "a file, not a run folder"),
        (tmp_path, "not a run folder"),
    ]:
        with pytest.raises(InputError, match=words):
            RunFolder.open(path)
    for settings, words in [
        ([], "not the settings"),
        ({"format": "x"}, "not the settings"),
        ({**run.settings, "version": 99}, "version 99"),
    ]:
        files.write_json(run.path / folder.SETTINGS, settings)
        with pytest.raises(InputError, match=words):
            RunFolder.open(run.path)


def test_only_runs_are_overwritten(tmp_path, run):
    check_destination(tmp_path / "new", overwrite=False)
    with pytest.raises(InputError, match="exists already"):
        check_destination(run.path, overwrite=False)
    check_destination(run.path, overwrite=True)
    (tmp_path / "empty").mkdir()
    check_destination(tmp_path / "empty", overwrite=True)
    with pytest.raises(InputError, match="a file is in the way"):
        check_destination(run.path / folder.MODEL, overwrite=True)
    (run.path / "thesis.docx").write_text("")
    with pytest.raises(InputError, match=r"thesis\.docx"):
        check_destination(run.path, overwrite=True)
    (tmp_path / "empty" / folder.SETTINGS).write_text("{}")
    with pytest.raises(InputError, match="not a run folder that can be read"):
        check_destination(tmp_path / "empty", overwrite=True)


# evaluation ------------------------------------------------------------------------------


def truth(labels, ids=None):
    from pathlib import Path

    return TruthTable(
        np.asarray(labels), None if ids is None else np.asarray(ids), Path("truth.csv")
    )


def test_a_good_run_is_called_good(run):
    _, which = blobs(1)
    evaluation = evaluate_run(run, truth(np.array(["cat", "dog", "horse"])[which]))
    assert evaluation.final.hos == 1
    assert evaluation.steps[10].hos == 1
    # All labels are right, so what is missing of confidence is the error.
    confidence = run.predictions().proba.max(axis=1)
    assert evaluation.final.ece == pytest.approx(1 - confidence.mean())
    assert 0 < evaluation.final.unknown_ece < 1
    assert evaluation.steps[10].ece is None
    values = evaluation.to_dict()
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    assert values["steps"][-1]["step"] == 10
    assert evaluation.n_ignored == 0


def test_ids_decide_which_label_belongs_where(tmp_path, classifier):
    ids = np.array([f"image_{number}" for number in range(90)])
    with files.new_folder(tmp_path / "run") as aside:
        write_run(aside, classifier, record(has_ids=True), ids, b"")
    run = RunFolder.open(tmp_path / "run")
    _, which = blobs(1)
    labels = np.array(["cat", "dog", "horse"])[which]
    order = np.random.default_rng(0).permutation(90)
    more = truth([*labels[order], "cow"], [*ids[order], "other"])
    evaluation = evaluate_run(run, more)
    assert evaluation.final.hos == 1
    assert evaluation.n_ignored == 1
    with pytest.raises(InputError, match=r"no label for 1 of 90 samples of .* 'image_0'"):
        evaluate_run(run, truth(labels[1:], ids[1:]))


def test_truth_that_cannot_fit_is_refused(run):
    with pytest.raises(InputError, match="3 labels for 90 predictions"):
        evaluate_run(run, truth(["cat"] * 3))
    with pytest.raises(InputError, match=r"none of its labels .*'Cat'.* is a known class"):
        evaluate_run(run, truth(["Cat"] * 90))


def test_an_evaluation_replaces_an_earlier_one(run):
    for value in (1, 2):
        run.write_metrics({"value": value}, b"png")
        assert json.loads((run.path / folder.METRICS).read_text()) == {"value": value}
    assert (run.path / folder.CURVES).read_bytes() == b"png"


# methods ---------------------------------------------------------------------------------


def test_methods_are_built_by_name():
    built = methods.build_method("class-means", openness=0.2, changes={"steps": "3"})
    assert built.get_params() == {"openness": 0.2, "steps": 3, "unknown_label": "unknown"}
    assert methods.full_settings("class-means", "default", {}) == {"steps": 10}
    assert methods.full_settings("source-only", "default", {"C": "2"}) == {"C": 2.0}
    assert methods.full_settings("pgl", "default", {"steps": "7"})["steps"] == 7


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"method": "magic"}, "choose one of pgl"),
        ({"preset": "paper-visda"}, "only the method pgl has presets"),
        ({"changes": {"stepz": "3"}}, "class-means has steps"),
        ({"changes": {"steps": "0"}}, "steps=0: give a whole number above 0"),
        ({"changes": {"steps": "2.5"}}, "steps=2.5: give a whole number"),
        ({"method": "source-only", "changes": {"C": "nan"}}, "C=nan: give a number above 0"),
    ],
)
def test_wrong_settings_are_refused(arguments, words):
    values = {"method": "class-means", "openness": 0.5, **arguments}
    with pytest.raises(InputError, match=words):
        methods.build_method(**values)


# curves ----------------------------------------------------------------------------------


def test_the_same_curves_give_the_same_bytes(run):
    history = [
        {"step": 1, "loss": {"node": 1.0, "edge": 0.5}, "mean_score": 0.3, "changed": None},
        {"step": 2, "loss": {"node": 0.8, "edge": float("nan")}, "changed": 0.1},
    ]
    _, which = blobs(1)
    steps = evaluate_run(run, truth(np.array(["cat", "dog", "horse"])[which])).steps
    picture = draw_curves(history, steps, "title")
    assert picture == draw_curves(history, steps, "title")
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > len(draw_curves(history))


def test_a_run_without_curves_has_a_picture_too():
    assert draw_curves([]).startswith(b"\x89PNG")


@pytest.mark.parametrize("key", ["unknown_label", "has_ids", "columns"])
def test_settings_without_what_a_run_needs_are_refused(run, key):
    path = run.path / folder.SETTINGS
    settings = json.loads(path.read_text())
    del settings[key]
    path.write_text(json.dumps(settings))
    with pytest.raises(InputError, match=key):
        RunFolder.open(run.path)
