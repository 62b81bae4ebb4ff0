"""The run folder: written, read back, damaged, evaluated."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cli_helpers import names_in
from opensetda import ClassMeans, InputError
from opensetda.runs import folder, integrity
from opensetda.runs.folder import RunFolder, check_destination
from opensetda.runs.integrity import MANIFEST, Manifest
from opensetda.system import files
from opensetda.usecases.evaluate_run import evaluate
from opensetda.usecases.fit_rows import FittedMethod, write_run
from runs_helpers import blobs, fitted

NAMES = np.array(["cat", "dog", "horse"])


RECORD = {
    "method": "class-means",
    "unknown_label": "unknown",
    "settings": {"steps": 10},
    "inputs": {"source": {"rows": 60}, "target": {"rows": 90}},
    "columns": {"label": "y", "id": None},
}


def written(path, classifier, ids=None, **changes):
    fitted_method = FittedMethod(
        classifier=classifier,
        report=classifier.openness_report_,
        history=classifier.history_,
        step_labels=classifier.step_labels_,
        seconds=1.0,
    )
    with files.new_folder(path) as aside:
        write_run(aside, fitted_method, {**RECORD, **changes}, ids)
    return RunFolder.open(path)


@pytest.fixture(scope="module")
def classifier():
    return fitted()


@pytest.fixture
def run(tmp_path, classifier):
    return written(tmp_path / "run", classifier)


def test_a_run_folder_holds_what_the_docs_say(run, classifier):
    there = set(names_in(run.path))
    assert there <= set(folder.FILES)
    assert run.history() == classifier.history_
    assert run.environment()["packages"]["opensetda"]
    # Others may read all files, if they may read one.
    assert len({stat.S_IMODE((run.path / name).stat().st_mode) for name in there}) == 1
    np.testing.assert_array_equal(run.steps()[10], classifier.transduction_)


@pytest.mark.parametrize("most", [10**6, 89])
def test_predictions_come_back_as_they_were(tmp_path, classifier, monkeypatch, most):
    monkeypatch.setattr(folder, "MOST_ROWS_AS_TEXT", most)
    run = written(tmp_path / "run", classifier)
    is_large = most < 90
    assert (folder.LARGE_PREDICTIONS in run.manifest.files) is is_large
    table = run.predictions()
    assert table.ids[:3].tolist() == ["1", "2", "3"]
    np.testing.assert_array_equal(table.labels, classifier.transduction_)
    np.testing.assert_array_equal(run.labels(), classifier.transduction_)
    np.testing.assert_array_equal(table.nearest, classifier.transduction_nearest_)
    np.testing.assert_array_equal(table.known_scores, classifier.transduction_scores_)
    np.testing.assert_allclose(
        table.proba, classifier.transduction_proba_, rtol=0, atol=0 if is_large else 6e-7
    )
    assert table.classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("name", "read"),
    [
        (folder.HISTORY, RunFolder.history),
        (folder.PREDICTIONS, RunFolder.predictions),
        (folder.WEIGHTS, RunFolder.model),
        (folder.SETTINGS, lambda run: RunFolder.open(run.path)),
        (MANIFEST, lambda run: RunFolder.open(run.path)),
    ],
)
def test_missing_and_damaged_files_are_named(run, name, read):
    path = run.path / name
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for content in (bytes(flipped), whole[: len(whole) // 3]):
        path.write_bytes(content)
        with pytest.raises(InputError, match=rf"{name}: damaged \(.*\); fit again"):
            read(run)
    path.unlink()
    with pytest.raises(InputError, match=name):
        read(run)


@pytest.mark.parametrize(
    ("name", "old", "new", "read"),
    [
        (folder.SETTINGS, '"classes": [', '"classes": 3, "other": [', RunFolder.labels),
        (folder.MODEL, '"classes"', '"other"', RunFolder.model),
        (folder.PREDICTIONS, '"label"', '"lable"', RunFolder.predictions),
        (folder.HISTORY, "{", "", RunFolder.history),
    ],
)
def test_wrong_content_is_named_where_the_checksums_are_right(run, name, old, new, read):
    path = run.path / name
    path.write_text(path.read_text().replace(old, new, 1))
    Manifest.of(run.path).write()
    with pytest.raises(InputError, match=name):
        read(RunFolder.open(run.path))


@pytest.mark.parametrize("moment", [0, 1, 2, 3])
def test_a_crash_while_files_are_replaced_leaves_a_run_that_can_be_read(run, monkeypatch, moment):
    run.write_metrics({}, np.full(90, "dog"))
    left, replace = [moment], Path.replace

    def fail(self, target):
        # Of the manifest, two files, and the manifest.
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return replace(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", fail)
        with pytest.raises(KeyboardInterrupt):
            run.write_metrics({}, np.full(90, "cat"))
    again = RunFolder.open(run.path)
    assert (again.truth() is None) is (moment > 0)
    assert len(again.predictions()) == 90
    again.write_metrics({}, np.full(90, "cat"))
    assert RunFolder.open(run.path).truth().tolist() == ["cat"] * 90
    assert Manifest.read(run.path).files == Manifest.of(run.path).files


def test_a_run_that_is_evaluated_again_while_it_is_open_is_not_damaged(run):
    run.write_metrics({}, np.full(90, "dog"))
    opened = RunFolder.open(run.path)
    run.write_metrics({}, np.full(90, "cat"))
    assert opened.truth().tolist() == ["cat"] * 90
    (run.path / folder.TRUTH).write_bytes(b"no table")
    with pytest.raises(InputError, match="damaged"):
        opened.truth()


def test_a_full_disk_leaves_the_earlier_evaluation(run, monkeypatch):
    run.write_metrics({}, np.full(90, "dog"))
    monkeypatch.setattr(integrity.ExitStack, "enter_context", lambda *_: Path("/dev/full"))
    with pytest.raises(OSError, match="No space left"):
        run.write_metrics({}, np.full(90, "cat"))
    assert RunFolder.open(run.path).truth().tolist() == ["dog"] * 90


def test_what_is_no_run_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such run folder"):
        RunFolder.open(tmp_path / "no")
    with pytest.raises(InputError, match="not a run folder"):
        RunFolder.open(tmp_path)


def test_only_runs_are_overwritten(tmp_path, run):
    with pytest.raises(InputError, match="exists already"):
        check_destination(run.path, overwrite=False)
    # What a report left behind that was killed.
    (run.path / ".report.html.partial-0").mkdir()
    check_destination(run.path, overwrite=True)
    with pytest.raises(InputError, match="a file is in the way"):
        check_destination(run.path / folder.MODEL, overwrite=True)
    (run.path / folder.REVIEW).write_text("")
    with pytest.raises(InputError, match=r"holds 'review\.jsonl', so it is not overwritten"):
        check_destination(run.path, overwrite=True)
    mine = tmp_path / "mine"
    mine.mkdir()
    check_destination(mine, overwrite=True)
    (mine / folder.PREDICTIONS).write_text("mine")
    with pytest.raises(InputError, match="not a run folder, so it is not overwritten"):
        check_destination(mine, overwrite=True)


def test_ids_decide_which_label_belongs_where(tmp_path, classifier):
    ids = np.array([f"image_{number}" for number in range(90)])
    run = written(tmp_path / "run", classifier, ids, has_ids=True)
    labels = NAMES[blobs(1)[1]]

    def of(labels, ids):
        rows = [f"{name},{label}\n" for name, label in zip(ids, labels, strict=True)]
        (tmp_path / "truth.csv").write_text("id,y\n" + "".join(rows))
        return evaluate(run, tmp_path / "truth.csv")

    order = np.random.default_rng(0).permutation(90)
    assert of(labels[order], ids[order]).final.hos == 1
    with pytest.raises(InputError, match=r"none of its labels .*'Cat'.* is a known class"):
        of(["Cat"] * 90, ids)
    with pytest.raises(InputError, match=r"none of its 1 ids \(such as 'img_0'\).*'image_0'"):
        of(["cat"], ["img_0"])


# fitted classifiers as JSON and arrays ------------------------------------------------------


def test_an_infinite_threshold_and_numbers_as_classes_survive():
    X, which = blobs()
    original = ClassMeans(openness=np.float64(0), unknown_label=99)
    original.fit(X, which, sample_domain=np.repeat([0, -1], [60, 30]))
    saved, arrays = original.get_state()
    assert saved["rejection"]["threshold"] == "-inf"
    restored = ClassMeans.from_state(json.loads(json.dumps(saved)), arrays)
    assert restored.classes_.dtype == original.classes_.dtype
    np.testing.assert_array_equal(restored.predict(X), original.predict(X))


def test_names_of_columns_survive_and_classes_that_are_objects_are_refused():
    X, which = blobs()
    frame = pd.DataFrame(X).add_prefix("column ")
    saved, arrays = ClassMeans().fit(frame, NAMES[which]).get_state()
    restored = ClassMeans.from_state(saved, arrays)
    assert restored.feature_names_in_.tolist() == frame.columns.tolist()
    with pytest.raises(InputError, match="not supported"):
        ClassMeans.from_state({**saved, "classes_dtype": "|O"}, arrays)
