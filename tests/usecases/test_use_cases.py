"""Whole runs from Python: the same bytes as the commands, arrays as well as files."""

from __future__ import annotations

import json
import logging

import numpy as np
import pyarrow.parquet
import pytest

from cli_helpers import FIT_STEPS, blobs, names_in
from opensetda.cli.main import main
from opensetda.errors import InputError, RunPausedError
from opensetda.usecases import (
    FittedRun,
    RunFolder,
    RunListener,
    TableOptions,
    evaluate,
    extract_features,
    fit,
    predict,
    resume,
)

MEANS = {"method": "class-means", "openness": 0.333, "settings": {"steps": 3}}
STEPS = {"method": "stepper", "openness": 0.333, "settings": {"steps": 3}}
pytestmark = pytest.mark.usefixtures("stepper")
BYTES = ("predictions.csv", "model.safetensors", "steps.parquet")


def assert_same(run, expected, names=BYTES):
    for name in names:
        assert (run / name).read_bytes() == (expected / name).read_bytes(), name


@pytest.fixture
def arrays(workplace):
    """(X, y) of the source, X of the target and its true labels."""
    with np.load("source.npz") as source, np.load("target.npz") as target:
        return (source["X"], source["y"]), target["X"], blobs(1)[1]


@pytest.fixture
def fitted(arrays, workplace):
    source, target, _ = arrays
    return fit(source, target, "run", **MEANS)


def test_paths_give_the_bytes_of_the_command(workplace):
    assert main(FIT_STEPS) == 0
    run = fit("source.npz", "target.npz", "again", **STEPS)
    assert_same(workplace / "again", workplace / "run")
    assert run.path.name == "again"
    assert run.training.labels.total() == 60
    assert run.folder.labels().tolist() == run.training.classifier.transduction_.tolist()
    assert names_in(workplace).count("again.unfinished") == 0


def test_arrays_give_the_predictions_of_a_file_of_them(arrays, workplace):
    (X, y), target, _ = arrays
    fit("source.npz", "target.npz", "files", **MEANS)
    fit((np.asfortranarray(X, np.float64), y), target.tolist(), "pair", **MEANS)
    assert_same(workplace / "pair", workplace / "files")
    inputs = json.loads((workplace / "pair" / "settings.json").read_text())["inputs"]
    assert inputs["source"]["path"] == inputs["target"]["path"] == "array"
    assert inputs["source"]["classes"] == {"cat": 20, "dog": 20}
    assert len(inputs["target"]["sha256"]) == 64
    # The commands can use the run.
    assert main(["evaluate", "pair", "--labels", "truth.npz"]) == 0
    assert main(["predict", "pair", "target.npz", "--out", "labels.csv"]) == 0


def test_predict_returns_what_it_would_write(fitted, arrays, workplace):
    _, target, _ = arrays
    table = predict(fitted, target)
    written = predict("run", "target.npz", "labels.parquet")
    assert (written.counts.total(), written.broken_list) == (60, None)
    assert pyarrow.parquet.read_table(written.path)["label"].to_pylist() == table.labels.tolist()
    from_file = predict(RunFolder.open("run"), workplace / "target.npz")
    np.testing.assert_array_equal(from_file.proba, table.proba)
    with pytest.raises(InputError, match="exists already"):
        predict(fitted, target, "labels.parquet")


def test_images_are_labelled_in_memory(pictures, tmp_path):
    (tmp_path / "torn.png").write_bytes(b"torn")
    with pytest.warns(UserWarning, match="1 image cannot be read"):
        table = predict(pictures / "run", [pictures / "street", tmp_path / "torn.png"])
    assert len(table) == 30
    assert table.id_name == "path"
    done = extract_features(pictures / "street", tmp_path / "street.npz")
    assert (done.X.shape, done.broken) == ((30, 1280), [])


def test_evaluate_returns_what_it_writes(fitted, arrays, workplace):
    evaluation = evaluate(fitted, arrays[2])
    assert evaluation.final.hos == 1
    written = json.loads((workplace / "run" / "metrics.json").read_text())
    assert written["truth"].keys() == {"path", "rows", "sha256"}
    assert written["final"]["hos"] == 1
    assert evaluate("run", "truth.npz").final == evaluation.final


def stop_after(step):
    """Return a listener at which Ctrl-C comes after a step."""

    class Interrupting(RunListener):
        def training(self, method):
            from contextlib import nullcontext

            def listen(event):
                if event.step > step:
                    raise KeyboardInterrupt

            return nullcontext(listen)

    return Interrupting()


def test_a_run_of_arrays_is_resumed_with_the_same_arrays(arrays, workplace, capsys):
    source, target, _ = arrays
    fit(source, target, "whole", **STEPS)
    with pytest.raises(RunPausedError, match="osda resume run"):
        fit(source, target, "run", **STEPS, listener=stop_after(1))
    assert main(["resume", "run"]) == 2
    assert "begun from arrays, which it does not hold" in capsys.readouterr().err
    with pytest.raises(InputError, match="the target changed since the run began"):
        resume("run", source=source, target=target + 1)
    run = resume("run", source=source, target=target)
    assert run.resumed
    assert_same(workplace / "run", workplace / "whole")
    again = resume("run")
    assert isinstance(again, FittedRun)
    assert again.training is None


def nan(X):
    X = X.copy()
    X[6, 2] = np.nan
    return X


WRONG = {
    "nan": (lambda s, t: {"target": nan(t)}, "target: row 7, column 2: NaN"),
    "width": (lambda s, t: {"target": t[:, :3]}, "target: 3 features, but source has 4"),
    "one row": (lambda s, t: {"target": t[0]}, "features need numbers in two dimensions"),
    "no labels": (lambda s, t: {"source": s[0]}, "labels are missing"),
    "few labels": (lambda s, t: {"source": (s[0], s[1][:3])}, "3 entries in 'y' for 40 rows"),
    "mixed": (lambda s, t: {"source": "source.npz"}, "one is a path, one an array"),
    "tables": (lambda s, t: {"tables": TableOptions(label="z")}, "source and target are arrays"),
    "unknown": (lambda s, t: {"unknown_label": "cat"}, "is a class of the source"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_leaves_nothing_behind(arrays, workplace, case):
    source, target, _ = arrays
    change, words = WRONG[case]
    before = names_in(workplace)
    with pytest.raises(InputError) as caught:
        fit(**{"source": source, "target": target, "out": "run", **MEANS, **change(source, target)})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert names_in(workplace) == before


def test_a_fit_that_ends_between_check_and_lock_is_not_replaced(fitted, workplace, monkeypatch):
    def other_ends_meanwhile(request, out):
        (workplace / "run").rename(workplace / "new")

    monkeypatch.setattr("opensetda.usecases.fit_run.check_request", other_ends_meanwhile)
    before = (workplace / "run" / "settings.json").read_bytes()
    with pytest.raises(InputError, match="exists already"):
        fit("source.npz", "target.npz", "new", **MEANS)
    assert (workplace / "new" / "settings.json").read_bytes() == before
    assert "new.unfinished" not in names_in(workplace)


def test_notes_are_logged_and_warnings_warned(arrays, workplace, caplog):
    source, target, _ = arrays
    with caplog.at_level(logging.INFO, "opensetda"), pytest.warns(UserWarning, match="uncertain"):
        fit(source, target, "run", **{**MEANS, "openness": "auto"})
    assert "source: 40 rows of 2 classes, target: 60 rows, 4 features" in caplog.text


def test_the_event_files_hold_the_history_and_change_no_bit(workplace):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert main([*FIT_STEPS, "--tensorboard", "log"]) == 0
    written = EventAccumulator("log", size_guidance={"scalars": 0}).Reload()
    lines = (workplace / "run" / "history.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    for tag, values in {
        "step/mean_score": [entry["mean_score"] for entry in entries],
        "step/loss/some": [entry["loss"]["some"] for entry in entries],
    }.items():
        points = written.Scalars(tag)
        assert [point.step for point in points] == [entry["step"] for entry in entries]
        assert [point.value for point in points] == pytest.approx(values, rel=1e-6)
    assert main(["plain" if word == "run" else word for word in FIT_STEPS]) == 0
    assert_same(workplace / "run", workplace / "plain")
