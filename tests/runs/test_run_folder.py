"""The run folder: written, read back, evaluated."""

from __future__ import annotations

import json
import stat

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from safetensors.numpy import load_file, save_file

from opensetda import InputError
from opensetda.data.tables.loading import TruthTable
from opensetda.runs import folder, manifest
from opensetda.runs.evaluation import evaluate_run
from opensetda.runs.fitting import write_run
from opensetda.runs.folder import RunFolder, check_destination
from opensetda.runs.manifest import MANIFEST, Manifest, reseal
from opensetda.runs.predictions import PredictionTable
from opensetda.system import files
from runs_helpers import blobs, fitted, names_in


def record(**changes):
    values = {
        "method": "class-means",
        "openness": 1 / 3,
        "unknown_label": "unknown",
        "settings": {"steps": 10},
        "seed": 0,
        "inputs": {"source": {"rows": 60}, "target": {"rows": 90}},
        "columns": {"label": "y", "id": None},
    }
    return {**values, **changes}


def resealed(run):
    reseal(run.path)
    return RunFolder.open(run.path)


def nested(levels):
    return {"a": nested(levels - 1)} if levels else {}


def without(content, part, key):
    del content[part][key]
    return content


@pytest.fixture(scope="module")
def classifier():
    return fitted()


@pytest.fixture
def run(tmp_path, classifier):
    with files.new_folder(tmp_path / "run") as aside:
        write_run(aside, classifier, record(), None)
    return RunFolder.open(tmp_path / "run")


def test_a_run_folder_holds_what_the_docs_say(run, classifier):
    there = set(names_in(run.path))
    assert there == set(folder.FILES) - {
        # Others write these: demo, evaluate, report; nothing of samples was to be shown.
        folder.METRICS, folder.COMPARISON, folder.BACKBONE, folder.BROKEN, folder.TRUTH,
        folder.VIEW, folder.IMAGES, folder.THUMBNAILS, folder.MAP, folder.REPORT,
    }  # fmt: skip
    assert run.history() == classifier.history_
    assert run.settings["classes"] == ["cat", "dog"]
    assert run.unknown_label == "unknown"
    assert run.column("label") == "y"
    assert not run.has_ids
    environment = json.loads((run.path / folder.ENVIRONMENT).read_text())
    assert environment["packages"]["opensetda"]


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
        "id", "label", "confidence", "p_unknown", "known_score", "nearest_class", "p:cat", "p:dog",
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
        write_run(aside, classifier, record(), None)
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
        with pytest.raises(InputError, match=r"model\.json: damaged \(its checksum"):
            run.model()
        with pytest.raises(InputError, match=r"model\.json"):
            resealed(run).model()


@pytest.mark.parametrize(
    ("name", "field", "change", "read"),
    [
        (folder.SETTINGS, "classes", lambda s: {**s, "classes": None}, lambda run: run),
        (folder.SETTINGS, "inputs", lambda s: {**s, "inputs": None}, lambda run: run),
        (folder.SETTINGS, "nested", lambda s: {**s, "settings": nested(40)}, lambda run: run),
        (folder.ESTIMATES, "openness.share", lambda s: {**s, "openness": {}}, RunFolder.estimates),
        (folder.ENVIRONMENT, "packages", lambda s: {**s, "packages": 3}, RunFolder.environment),
        (folder.MODEL, "state", lambda s: {"feature_names": None, "state": []}, RunFolder.model),
        (folder.MODEL, "classes", lambda s: without(s, "state", "classes"), RunFolder.model),
    ],
)
def test_a_wrong_field_is_named_where_the_checksums_are_right(run, name, field, change, read):
    path = run.path / name
    files.write_json(path, change(json.loads(path.read_text())))
    with pytest.raises(InputError, match=rf"{name}.*{field}"):
        read(resealed(run))


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (folder.PREDICTIONS, lambda t: t.drop(["label"]), "no column 'label'"),
        (folder.PREDICTIONS, lambda t: t.set_column(1, "label", [[3] * 90]), "is not text"),
        (folder.PREDICTIONS, lambda t: t.set_column(3, "p_unknown", [[2.0] * 90]), "cannot be"),
        (folder.STEPS, lambda t: t.slice(1), "89 rows for 90 targets"),
        (folder.STEPS, lambda t: t.rename_columns(["id", "step_x", *t.column_names[2:]]), "'x'"),
    ],
)
def test_a_wrong_column_is_named_where_the_checksums_are_right(run, name, change, words):
    table = pyarrow.parquet.read_table(run.path / name)
    pyarrow.parquet.write_table(change(table), run.path / name)
    again = resealed(run)
    with pytest.raises(InputError, match=f"{name}: damaged .*{words}"):
        (again.predictions(), again.steps())


def test_a_model_with_a_damaged_number_is_not_used(run):
    arrays = load_file(run.path / folder.WEIGHTS)
    name = next(key for key, values in arrays.items() if values.dtype.kind == "f")
    arrays[name].reshape(-1)[0] = np.nan
    save_file(arrays, run.path / folder.WEIGHTS)
    with pytest.raises(InputError, match=r"model\.safetensors: damaged \(its checksum"):
        run.model()
    with pytest.raises(InputError, match="holds a number that is not finite"):
        resealed(run).model()


def test_arrays_of_another_model_are_refused(run):
    arrays = load_file(run.path / folder.WEIGHTS)
    save_file({name: values[..., :1] for name, values in arrays.items()}, run.path / folder.WEIGHTS)
    with pytest.raises(InputError, match=r"model\.json: damaged"):
        resealed(run).model()


def test_an_evaluation_meanwhile_is_no_damage(run):
    reader = RunFolder.open(run.path)
    run.write_metrics({}, np.full(90, "cat"))
    assert reader.truth().tolist() == ["cat"] * 90


def test_a_damaged_manifest_is_named(run):
    path = run.path / MANIFEST
    content = json.loads(path.read_text())
    content["files"].pop(folder.MODEL)
    files.write_json(path, content)
    with pytest.raises(InputError, match=r"manifest\.json: damaged"):
        RunFolder.open(run.path)
    path.unlink()
    with pytest.raises(InputError, match=r"manifest\.json: missing"):
        RunFolder.open(run.path)


def test_a_crash_between_manifest_and_files_leaves_a_run_that_can_be_read(run, monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    truth = np.full(90, "cat")
    with monkeypatch.context() as patched:
        patched.setattr(manifest.ExitStack, "enter_context", fail)
        with pytest.raises(KeyboardInterrupt):
            run.write_metrics({}, truth)
    again = RunFolder.open(run.path)
    assert again.truth() is None
    again.write_metrics({}, truth)
    assert again.truth().tolist() == truth.tolist()
    assert all(len(digests) == 1 for digests in Manifest.read(run.path).files.values())


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
    # What a report left behind that was killed.
    files.aside_of(run.path / folder.REPORT).write_text("<!doc")
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
        write_run(aside, classifier, record(has_ids=True), ids)
    run = RunFolder.open(tmp_path / "run")
    _, which = blobs(1)
    labels = np.array(["cat", "dog", "horse"])[which]
    order = np.random.default_rng(0).permutation(90)
    more = truth([*labels[order], "cow"], [*ids[order], "other"])
    evaluation = evaluate_run(run, more)
    assert evaluation.final.hos == 1
    assert evaluation.n_ignored == 1
    partial = evaluate_run(run, truth(labels[1:], ids[1:]))
    assert (partial.n_labelled, partial.truth[0]) == (89, "")
    assert partial.notes[0] == "True labels of 89 of 90 samples; none of 'image_0', for example."
    with pytest.raises(InputError, match=r"none of its 1 ids \(such as 'img_0'\).*'image_0'"):
        evaluate_run(run, truth(["cat"], ["img_0"]))


def test_truth_that_cannot_fit_is_refused(run):
    with pytest.raises(InputError, match="3 labels for 90 predictions"):
        evaluate_run(run, truth(["cat"] * 3))
    with pytest.raises(InputError, match=r"none of its labels .*'Cat'.* is a known class"):
        evaluate_run(run, truth(["Cat"] * 90))


def test_an_evaluation_replaces_an_earlier_one(run):
    assert run.truth() is None
    for value in (1, 2):
        labels = ["cat", f"mouse {value}"] * 45
        run.write_metrics({"value": value}, np.array(labels))
        assert json.loads((run.path / folder.METRICS).read_text()) == {"value": value}
        assert run.truth().tolist() == labels


@pytest.mark.parametrize("key", ["unknown_label", "has_ids", "columns"])
def test_settings_without_what_a_run_needs_are_refused(run, key):
    path = run.path / folder.SETTINGS
    settings = json.loads(path.read_text())
    del settings[key]
    path.write_text(json.dumps(settings))
    reseal(run.path)
    with pytest.raises(InputError, match=key):
        RunFolder.open(run.path)
