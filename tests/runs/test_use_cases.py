"""Whole runs from Python: the same bytes as the commands, arrays as well as files."""

from __future__ import annotations

import json
import logging

import numpy as np
import pyarrow.parquet
import pytest

from cli_helpers import FEW_STEPS, FIT, FIT_STEPS, OPENNESS, blobs, names_in
from opensetda.cli.main import main
from opensetda.errors import InputError, RunPausedError
from opensetda.runs import (
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


@pytest.mark.parametrize(
    ("command", "options"), [(FIT + FEW_STEPS + OPENNESS, MEANS), (FIT_STEPS, STEPS)]
)
def test_paths_give_the_bytes_of_the_command(workplace, command, options):
    assert main(command) == 0
    run = fit("source.npz", "target.npz", "again", **options)
    assert_same(workplace / "again", workplace / "run")
    assert run.path.name == "again"
    assert run.training.labels.total() == 60
    assert run.folder.labels().tolist() == run.training.classifier.transduction_.tolist()
    assert names_in(workplace).count("again.unfinished") == 0


def test_arrays_give_the_predictions_of_a_file_of_them(arrays, workplace):
    (X, y), target, _ = arrays
    before = target.copy()
    fit("source.npz", "target.npz", "files", **MEANS)
    fit((X, y), target, "pair", **MEANS)
    fit((X.astype(np.float64), y), target.tolist(), "apart", **MEANS)
    for name in ("pair", "apart"):
        assert_same(workplace / name, workplace / "files")
    np.testing.assert_array_equal(target, before)
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
    assert written.counts.total() == 60
    assert written.broken_list is None
    assert pyarrow.parquet.read_table(written.path)["label"].to_pylist() == table.labels.tolist()
    from_file = predict(RunFolder.open("run"), workplace / "target.npz")
    np.testing.assert_array_equal(from_file.proba, table.proba)
    with pytest.raises(InputError, match="exists already"):
        predict(fitted, target, "labels.parquet")
    predict(fitted, target, "array.parquet")
    assert (workplace / "array.parquet").read_bytes() == written.path.read_bytes()


def test_images_are_labelled_in_memory(pictures, tmp_path):
    (tmp_path / "torn.png").write_bytes(b"torn")
    with pytest.warns(UserWarning, match="1 image cannot be read"):
        table = predict(pictures / "run", [pictures / "street", tmp_path / "torn.png"])
    assert len(table) == 30
    assert table.id_name == "path"
    done = extract_features(pictures / "street", tmp_path / "street.npz")
    assert (done.n_images, done.n_features, done.n_broken) == (30, 1280, 0)


def test_evaluate_returns_what_it_writes(fitted, arrays, workplace):
    evaluation = evaluate(fitted, arrays[2])
    assert evaluation.final.hos == 1
    written = json.loads((workplace / "run" / "metrics.json").read_text())
    assert written["truth"].keys() == {"path", "rows", "sha256"}
    assert written["final"]["hos"] == 1
    assert evaluate("run", "truth.npz").final == evaluation.final
    with pytest.raises(InputError, match="3 labels for 60 predictions"):
        evaluate(fitted, ["cat", "dog", "cat"])


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
    "width": (lambda s, t: {"target": t[:, :3]}, "target: 3 features, but the source has 4"),
    "one row": (lambda s, t: {"target": t[0]}, "two dimensions, one row per sample"),
    "text": (lambda s, t: {"target": [["a"]]}, "features need numbers"),
    "no labels": (lambda s, t: {"source": s[0]}, "labels are missing"),
    "few labels": (lambda s, t: {"source": (s[0], s[1][:3])}, "3 entries for 40 rows"),
    "one class": (lambda s, t: {"source": (s[0][:1], ["cat"])}, "one class only ('cat')"),
    "empty label": (lambda s, t: {"source": (s[0], ["", *s[1][1:]])}, "row 1: empty"),
    "mixed": (lambda s, t: {"source": "source.npz"}, "one is a path, one an array"),
    "tables": (lambda s, t: {"tables": TableOptions(label="z")}, "source and target are arrays"),
    "setting": (lambda s, t: {"settings": {"stepz": 1}}, "'stepz' does not exist"),
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


def test_notes_are_logged_and_warnings_warned(arrays, workplace, caplog):
    source, target, _ = arrays
    with caplog.at_level(logging.INFO, "opensetda"), pytest.warns(UserWarning, match="0.90"):
        fit(source, target, "run", **{**MEANS, "openness": 0.9})
    assert "source: 40 rows of 2 classes, target: 60 rows, 4 features" in caplog.text
