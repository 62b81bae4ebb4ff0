"""Exported models: the labels and probabilities of `predict`, without torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from opensetda import InputError
from opensetda.backbones.model import resize_image
from opensetda.backbones.registry import BACKBONES
from opensetda.base import Scores
from opensetda.baselines.shared.rival import Rival, join_scores
from opensetda.cli.main import main
from opensetda.export.assembled import rows_input, to_onnx
from opensetda.export.onnx_graph import Graph
from opensetda.export.pixels import resized
from opensetda.runs import export, fit, predict
from opensetda.runs.folder import RunFolder
from opensetda.runs.manifest import reseal
from opensetda.runs.methods import METHODS, build_method

WITHOUT_TORCH = "import sys; sys.modules.update(torch=None, opensetda=None)\n"


class Unregistered(Rival):
    """A method that the exporter has never heard of."""

    def _adapt(self, domains, openness, context):
        return join_scores(self._score_rows(chunk) for _, chunk in domains.target.chunks())

    def _score_rows(self, X):
        return Scores(X[:, :3].astype(float), X[:, 0].astype(float), np.full(len(X), np.nan))


def rows_of(kinds, shift, seed, n=25, width=12):
    rng = np.random.default_rng(seed)
    centres = 4 * np.eye(5, width)[list(kinds)]
    return (
        np.repeat(centres, n, axis=0) + rng.normal(size=(n * len(kinds), width)) + shift
    ).astype(np.float32)


SOURCE, TARGET = rows_of((0, 1, 2), 0.0, 0), rows_of((0, 1, 2, 3), 0.7, 1)
LATER = np.concatenate([rows_of((0, 1, 2, 3, 4), 0.7, 2), TARGET[:20], np.zeros((1, 12))])
LATER = LATER.astype(np.float32)
X = np.concatenate([SOURCE, TARGET])
Y = np.repeat(["cup", "pen", "sun", ""], [25, 25, 25, 100])
DOMAIN = np.repeat([1, -1], [75, 100])
QUICK = {"pgl": {"steps": 2, "ranking.draws": 1}} | {
    name: {"iterations": 20} for name in ("dann", "mmd", "osbp", "ovanet", "sta", "uniot")
}


def session_of(content):
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])


def fitted(method, **options):
    changes = {**QUICK.get(method.partition("+")[0], {}), **options.pop("changes", {})}
    classifier = build_method(method, openness=0.25, changes=changes, **options)
    return classifier.fit(X * options.get("factor", 1), Y, sample_domain=DOMAIN)


def check(classifier, rows=LATER, tolerance=1e-6):
    outputs = session_of(to_onnx(classifier)).run(None, {"rows": rows})
    label, confidence, probabilities, known = outputs
    wanted = classifier.predict_proba(rows)
    np.testing.assert_array_equal(label, classifier.predict(rows).astype(str))
    np.testing.assert_allclose(probabilities, wanted, rtol=0, atol=tolerance)
    np.testing.assert_allclose(known, classifier.open_set_scores(rows).known, atol=1e-5)
    columns = [*classifier.classes_.tolist(), classifier.unknown_label]
    own = [columns.index(name) for name in label]
    np.testing.assert_allclose(confidence, wanted[np.arange(len(rows)), own], atol=tolerance)
    return label


@pytest.mark.parametrize("method", [*METHODS, "source-only+osnn", "dann+quantile"])
def test_every_method_labels_as_predict_does(method):
    labels = check(fitted(method))
    assert len(set(labels)) > 1


@pytest.mark.parametrize("scaling", ["standard", "ranks"])
def test_columns_are_scaled_in_the_graph(scaling):
    # With ties among the quantiles, and values beyond them.
    rough = np.round(X)
    classifier = build_method("class-means", openness=0.25, scaling=scaling)
    classifier.fit(rough, Y, sample_domain=DOMAIN)
    check(classifier, np.concatenate([np.round(LATER), LATER, 100 * LATER, rough]))


@pytest.mark.parametrize(
    "changes",
    [
        {"graph.form": "paper", "ranking.confidence": "softmax", "graph.projection": 4},
        {"graph.form": "paper", "ranking.confidence": "softmax", "graph.normalisation": "batch"},
        {"graph.layers": 2, "graph.neighbours": None},
        {"graph.enabled": False},
        {"alignment.normalise": False, "alignment.components": None},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_settings_of_pgl(changes):
    check(fitted("pgl", changes={"graph.edge_width": 8, **changes}))


def test_the_presets_of_the_paper():
    changes = {"steps": 1, "graph.edge_width": 8, "optimiser.iterations_per_epoch": 2}
    check(fitted("pgl", preset="paper-office-home", changes=changes))


@pytest.mark.parametrize(("factor", "offset"), [(1e-12, 0.0), (1e15, 0.0), (1.0, 1e7)])
def test_extreme_numbers(factor, offset):
    def strange(rows):
        return (rows * factor + offset).astype(np.float32)

    classifier = build_method("class-means", openness=0.25)
    classifier.fit(strange(X), Y, sample_domain=DOMAIN)
    check(classifier, strange(LATER))


def test_two_classes_and_no_targets():
    two = np.isin(Y, ["cup", "pen"])
    classifier = build_method("source-only", openness="auto").fit(X[two], Y[two])
    label, _, probabilities, _ = session_of(to_onnx(classifier)).run(None, {"rows": LATER})
    np.testing.assert_array_equal(label, classifier.predict(LATER))
    np.testing.assert_allclose(probabilities[:, :2], classifier.predict_proba(LATER), atol=1e-9)
    assert not probabilities[:, 2].any()


def test_a_sample_does_not_depend_on_the_others_and_nan_is_unknown():
    session = session_of(to_onnx(fitted("pgl")))
    together = session.run(["probabilities"], {"rows": LATER})[0]
    alone = [session.run(["probabilities"], {"rows": row[None]})[0][0] for row in LATER[:10]]
    np.testing.assert_allclose(together[:10], alone, atol=1e-12)
    strange = np.full((1, 12), np.nan, dtype=np.float32)
    assert session.run(["label"], {"rows": strange})[0].tolist() == ["unknown"]


@pytest.mark.parametrize("name", ["efficientnet-lite0", "resnet50", "dinov2-small"])
def test_images_are_resized_to_the_same_pixels(name):
    how = BACKBONES[name].preprocessing
    how = replace(how, size=50, shorter_side=50 if how.resize == "squash" else 57)
    graph = Graph()
    image = graph.input("image", np.uint8, ["height", "width", 3])
    graph.output("pixels", resized(image, how), [50, 50, 3])
    session = session_of(graph.model({}).SerializeToString())
    rng = np.random.default_rng(0)
    sizes = [
        (1, 1),
        (1, 300),
        (700, 20),
        (50, 50),
        (57, 57),
        (50, 80),
        *rng.integers(2, 400, (25, 2)),
    ]
    for height, width in sizes:
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        pixels[: height // 2] = np.where(pixels[: height // 2] > 128, 255, 0)
        wanted = resize_image(pixels, how).permute(1, 2, 0).numpy()
        np.testing.assert_array_equal(session.run(None, {"image": pixels})[0], wanted)


def test_empty_cells_are_filled_with_medians():
    classifier = fitted("class-means")
    names = [f"f{i}" for i in range(12)]
    rows = rows_input(classifier, names, {"f2": 0.5})
    rows.graph.output("filled", rows, ["n", 12])
    given = LATER[:2].copy()
    given[1, 2] = np.nan
    (filled,) = session_of(rows.graph.model({}).SerializeToString()).run(None, {"rows": given})
    assert filled[1, 2] == 0.5
    given[1, 2] = 0.5
    np.testing.assert_array_equal(filled, given)


# osda export ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table_run(tmp_path_factory):
    """A run on two CSV tables with named columns, and a table of later rows beside it."""
    folder = tmp_path_factory.mktemp("export")
    header = ",".join(f"f{i}" for i in range(12))
    for name, rows, labels in (("a", SOURCE, Y[:75]), ("b", TARGET, None), ("later", LATER, None)):
        lines = [",".join(map(str, row)) for row in rows.tolist()]
        if labels is not None:
            lines = [f"{line},{label}" for line, label in zip(lines, labels, strict=True)]
        first = header if labels is None else f"{header},y"
        (folder / f"{name}.csv").write_text("\n".join([first, *lines]) + "\n")
    fit(folder / "a.csv", folder / "b.csv", folder / "run", method="class-means", openness=0.25)
    return folder


def run_script(script, *arguments):
    """Run a script in a Python that cannot import torch or this package."""
    code = WITHOUT_TORCH + f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_export_of_a_table_run(table_run, tmp_path, capsys):
    assert main(["export", str(table_run / "run"), "--to", str(tmp_path / "model")]) == 0
    out = capsys.readouterr().out
    assert "164 rows, 100 of them of the run" in out
    assert {path.name for path in (tmp_path / "model").iterdir()} == {
        "model.onnx",
        "model.json",
        "use.py",
    }
    printed = run_script(tmp_path / "model" / "use.py", table_run / "later.csv").splitlines()
    wanted = predict(table_run / "run", table_run / "later.csv")
    assert [line.split()[1] for line in printed] == wanted.labels.tolist()
    shares = [float(line.split()[2]) for line in printed]
    np.testing.assert_allclose(shares, wanted.confidence, atol=6e-4)


def test_the_file_says_what_it_needs_and_returns(table_run, tmp_path):
    written = export(table_run / "run", tmp_path / "model.onnx")
    session = session_of(written.model.read_bytes())
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == ["cup", "pen", "sun"]
    assert json.loads(about["feature_names"]) == [f"f{i}" for i in range(12)]
    model = RunFolder.open(table_run / "run").model()
    assert float(about["threshold"]) == model.rejection_threshold_
    assert about["unknown_label"] == "unknown"
    assert about["method"] == "class-means"
    assert about["opensetda_version"]
    names = [value.name for value in session.get_outputs()]
    assert names == ["label", "confidence", "probabilities", "known_score"]
    assert written.difference < 1e-9


def test_export_without_the_table_of_the_run(tmp_path):
    run = fit((SOURCE, Y[:75]), TARGET, tmp_path / "run", method="smoothed-means", openness=0.25)
    written = export(run, tmp_path / "model")
    assert written.n_own == 0
    assert written.n_checked == 64
    np.save(tmp_path / "later.npy", LATER)
    printed = run_script(tmp_path / "model" / "use.py", tmp_path / "later.npy").splitlines()
    wanted = predict(run, LATER).labels.tolist()
    assert [line.split()[1] for line in printed] == wanted


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("model.pb", "a file must end in .onnx"),
        ("there.onnx", "exists already; choose another name or add --overwrite"),
        ("full", "exists already"),
        ("taken", "a file is in the way"),
    ],
)
def test_places_that_are_refused(table_run, tmp_path, capsys, place, problem):
    (tmp_path / "there.onnx").write_text("mine")
    (tmp_path / "taken").write_text("mine")
    (tmp_path / "full").mkdir()
    before = sorted(tmp_path.iterdir())
    assert main(["export", str(table_run / "run"), "--to", str(tmp_path / place)]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_overwrite_replaces_an_export_and_nothing_else(table_run, tmp_path):
    for _ in range(2):
        export(table_run / "run", tmp_path / "model", overwrite=True)
    (tmp_path / "model" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"notes\.txt"):
        export(table_run / "run", tmp_path / "model", overwrite=True)


def test_a_file_that_differs_from_predict_is_not_written(table_run, tmp_path, monkeypatch):
    from opensetda.export import method_scores

    original = method_scores.method_scores.dispatch(type(RunFolder.open(table_run / "run").model()))

    def wrong(classifier, x):
        scores = original(classifier, x)
        return scores._replace(known=scores.known + 0.01)

    monkeypatch.setattr("opensetda.export.assembled.method_scores", wrong)
    with pytest.raises(InputError, match="differs from 'osda predict'"):
        export(table_run / "run", tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_told(table_run, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="Unregistered cannot be exported"):
        to_onnx(Unregistered(openness=0.25).fit(X, Y, sample_domain=DOMAIN))
    run = shutil.copytree(table_run / "run", tmp_path / "run")
    settings = json.loads((run / "settings.json").read_text())
    settings["columns"]["logarithms"] = {"f1": 10}
    (run / "settings.json").write_text(json.dumps(settings))
    reseal(run)
    with pytest.raises(InputError, match="'logarithms', which cannot be exported"):
        export(run, tmp_path / "model.onnx")
    monkeypatch.setattr("opensetda.runs.exporting.find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install"):
        export(table_run / "run", tmp_path / "model.onnx")
    assert [path.name for path in Path(tmp_path).iterdir()] == ["run"]
