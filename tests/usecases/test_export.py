"""Exported models: the labels and probabilities of `predict`, without torch."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from cli_helpers import image_fit
from export_helpers import (
    DOMAIN,
    LATER,
    QUICK,
    SOURCE,
    TARGET,
    Stranger,
    X,
    Y,
    run_script,
    session_of,
)
from extraction_helpers import make_recipe
from opensetda import ClassMeans, InputError, MovingMeans
from opensetda.backbones.engines import FromPixels
from opensetda.backbones.model import load_backbone, resize_image
from opensetda.cli.main import main
from opensetda.data.images.decoding import decode_image
from opensetda.runs.folder import RunFolder
from opensetda.runs.registry import METHODS, build_method
from opensetda.usecases import TableOptions, export, fit, predict
from opensetda.usecases.export_model import Exported, describe, image_script, to_onnx

TUNED = (
    *("--method", "moving-means", "--set", "steps=2"),
    *("--finetune", "--set", "finetune.rounds=2"),
    *("--set", "finetune.iterations=2", "--set", "finetune.stored=2"),
    *("--views", "1"),
)


def check(classifier, rows=LATER, content=None, given=None, tolerance=1e-6):
    """Compare a file with `predict`; it gets `given` where the classifier gets `rows`."""
    session = session_of(content or to_onnx(classifier))
    feed = {session.get_inputs()[0].name: rows if given is None else given}
    label, confidence, probabilities, known = session.run(None, feed)
    wanted = classifier.predict_proba(rows)
    np.testing.assert_array_equal(label, classifier.predict(rows).astype(str))
    assert len({*label.tolist()}) > 1
    np.testing.assert_allclose(probabilities[:, : wanted.shape[1]], wanted, rtol=0, atol=tolerance)
    np.testing.assert_allclose(known, classifier.open_set_scores(rows).known, atol=1e-5)
    columns = [*map(str, classifier.classes_), str(classifier.unknown_label)]
    own = [columns.index(name) for name in label]
    np.testing.assert_allclose(confidence, wanted[np.arange(len(rows)), own], atol=tolerance)
    return probabilities


@pytest.mark.parametrize("method", [*METHODS, "source-only+osnn", "ati+quantile", "dann+quantile"])
def test_every_method_labels_as_predict_does(method):
    changes = QUICK.get(method.partition("+")[0])
    classifier = build_method(method, openness=0.25, changes=changes)
    check(classifier.fit(X, Y, sample_domain=DOMAIN))


@pytest.mark.parametrize("scaling", ["none", "standard", "ranks"])
def test_columns_are_scaled_in_the_graph(scaling):
    # With ties among the quantiles, and values beyond them.
    rough = np.round(X)
    classifier = MovingMeans(openness=0.25, scaling=scaling).fit(rough, Y, sample_domain=DOMAIN)
    check(classifier, np.concatenate([np.round(LATER), LATER, 100 * LATER, rough]))


@pytest.mark.parametrize("has_target", [False, True])
def test_nothing_is_unknown_without_targets_or_below_an_infinite_threshold(has_target):
    rows = slice(None) if has_target else slice(75)
    classifier = ClassMeans(openness=0.0).fit(X[rows], Y[rows], sample_domain=DOMAIN[rows])
    if has_target:
        assert np.isneginf(classifier.decision_.threshold)
    assert not check(classifier)[:, 3].any()


def test_a_sample_does_not_depend_on_the_others_and_nan_is_unknown():
    session = session_of(to_onnx(MovingMeans(openness=0.25).fit(X, Y, sample_domain=DOMAIN)))
    together = session.run(["probabilities"], {"rows": LATER})[0]
    alone = [session.run(["probabilities"], {"rows": row[None]})[0][0] for row in LATER[:10]]
    np.testing.assert_allclose(together[:10], alone, atol=1e-12)
    names = [value.name for value in session.get_outputs()]
    assert names == ["label", "confidence", "probabilities", "known_score"]
    strange = np.full((1, 12), np.nan, dtype=np.float32)
    assert session.run(["label"], {"rows": strange})[0].tolist() == ["unknown"]


def test_empty_cells_are_filled_with_medians():
    classifier = ClassMeans(openness=0.25).fit(X, Y, sample_domain=DOMAIN)
    names = [f"f{i}" for i in range(12)]
    about = {**describe(classifier), "feature_names": names, "medians": {"f2": 0.5, "f7": -1.0}}
    given, filled = LATER.copy(), LATER.copy()
    given[::2, [2, 7]], filled[::2, [2, 7]] = np.nan, (0.5, -1.0)
    check(classifier, filled, to_onnx(classifier, about), given)


def test_a_method_that_cannot_be_exported_is_named():
    classifier = Stranger(openness=0.25).fit(X, Y, sample_domain=DOMAIN)
    with pytest.raises(InputError, match=r"^Stranger cannot be exported to ONNX \(.*ndtri"):
        to_onnx(classifier)


@pytest.mark.parametrize(
    ("resize", "shorter_side", "interpolation"),
    [("crop", 36, "bilinear"), ("squash", 32, "bicubic")],
)
def test_images(resize, shorter_side, interpolation, tmp_path):
    how = {"resize": resize, "shorter_side": shorter_side, "interpolation": interpolation}
    recipe = make_recipe(tmp_path)
    recipe = replace(recipe, preprocessing=replace(recipe.preprocessing, **how))
    backbone = load_backbone(replace(recipe, views=3))
    rng, files = np.random.default_rng(0), []
    for number, side in enumerate([(40, 60), (32, 32), (300, 8), (9, 200), (90, 70), (64, 64)] * 4):
        colours = np.eye(4)[number % 4][:3] * 255
        pixels = np.clip(rng.normal(colours, 60, (*side, 3)), 0, 255).astype(np.uint8)
        files.append(tmp_path / f"{number}.png")
        Image.fromarray(pixels).save(files[-1])
    images = [resize_image(decode_image(path), recipe.preprocessing) for path in files]
    pixels = torch.stack(images).permute(0, 2, 3, 1).contiguous()
    with torch.no_grad():
        features = FromPixels(backbone).eval()(pixels).numpy()
    labels = np.array(["red", "green", "blue"])[np.arange(24) % 4 % 3]
    domain = np.where((np.arange(24) % 4 < 3) & (np.arange(24) < 12), 1, -1)
    classifier = ClassMeans(openness=0.25).fit(features, labels, sample_domain=domain)
    content = to_onnx(classifier, None, backbone)
    check(classifier, features, content, pixels.numpy(), tolerance=1e-4)
    (tmp_path / "model.onnx").write_bytes(content)
    (tmp_path / "use.py").write_text(image_script(recipe.preprocessing))
    printed = run_script(tmp_path / "use.py", *files).splitlines()
    assert [line.split()[-2] for line in printed] == classifier.predict(features).tolist()


# `osda export` ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table_run(tmp_path_factory):
    """A run on CSV tables, some cells of the target empty, and a table of later rows."""
    folder = tmp_path_factory.mktemp("export")
    header = ",".join(f"f{i}" for i in range(12))
    for name, rows, labels in (("a", SOURCE, Y[:75]), ("b", TARGET, None), ("later", LATER, None)):
        cells = [list(map(str, row)) for row in rows.tolist()]
        for row in range(0, len(cells) if labels is None else 0, 7):
            cells[row][2] = ""
        if labels is not None:
            cells = [[*row, label] for row, label in zip(cells, labels, strict=True)]
        first = header if labels is None else f"{header},y"
        (folder / f"{name}.csv").write_text("\n".join([first, *map(",".join, cells)]) + "\n")
    options = {"method": "class-means", "openness": 0.25, "tables": TableOptions(impute="median")}
    fit(folder / "a.csv", folder / "b.csv", folder / "run", **options)
    return folder


def test_export_of_a_table_run(table_run, tmp_path, capsys):
    assert main(["export", str(table_run / "run"), "--to", str(tmp_path / "model")]) == 0
    assert "for 100 rows; probabilities" in capsys.readouterr().out
    written = {path.name for path in (tmp_path / "model").iterdir()}
    assert written == {"model.onnx", "model.json", "use.py"}
    about = json.loads((tmp_path / "model" / "model.json").read_text())
    assert about["feature_names"] == [f"f{i}" for i in range(12)]
    assert (about["medians"].keys(), about["method"]) == ({*about["feature_names"]}, "class-means")
    printed = run_script(tmp_path / "model" / "use.py", table_run / "later.csv").splitlines()
    wanted = predict(table_run / "run", table_run / "later.csv")
    assert [line.split()[1] for line in printed] == wanted.labels.tolist()
    shares = [float(line.split()[2]) for line in printed]
    np.testing.assert_allclose(shares, wanted.confidence, atol=6e-4)


def test_export_without_the_table_of_the_run(tmp_path):
    run = fit((SOURCE, Y[:75]), TARGET, tmp_path / "run", method="moving-means", openness=0.25)
    written = export(run, tmp_path / "model")
    assert written.n_checked == 64
    assert written.difference < 1e-9
    np.save(tmp_path / "later.npy", LATER)
    printed = run_script(tmp_path / "model" / "use.py", tmp_path / "later.npy").splitlines()
    wanted = predict(run, LATER).labels.tolist()
    assert [line.split()[1] for line in printed] == wanted
    assert [int(line.split()[0]) for line in printed] == list(range(1, len(LATER) + 1))


def test_a_file_that_differs_from_predict_is_not_written(table_run, tmp_path, monkeypatch):
    original = Exported.forward

    def wrong(self, x):
        return original(self, x + 0.05)

    monkeypatch.setattr(Exported, "forward", wrong)
    with pytest.raises(InputError, match="differs from 'osda predict'"):
        export(table_run / "run", tmp_path / "model.onnx")
    monkeypatch.setattr("opensetda.usecases.export_model.find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install"):
        export(table_run / "run", tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


# images --------------------------------------------------------------------------------------


def check_images(run, pictures, model):
    written = export(run, model)
    assert written.n_checked == 8
    assert written.difference < 1e-4
    files, how = sorted((pictures / "street").rglob("*.png"))[::3], run.recipe().preprocessing
    pixels = np.stack([resize_image(decode_image(path), how).permute(1, 2, 0) for path in files])
    session, wanted = session_of(written.model.read_bytes()), predict(run, files)
    label, probabilities = session.run(["label", "probabilities"], {"pixels": pixels})
    assert label.tolist() == wanted.labels.tolist()
    np.testing.assert_allclose(probabilities, wanted.proba, atol=1e-4)
    return files, wanted


def test_an_exported_image_model_labels_files_as_predict_does(pictures, tmp_path):
    run, model = RunFolder.open(pictures / "run"), tmp_path / "model"
    files, wanted = check_images(run, pictures, model)
    printed = run_script(model / "use.py", *files[:2]).splitlines()
    assert [line.split()[-2] for line in printed] == wanted.labels[:2].tolist()
    about = json.loads((model / "model.json").read_text())
    assert about["preprocessing"]["size"] == 32
    assert about["inputs"].keys() == {"pixels"}


def test_fine_tuned_weights_are_exported(pictures, tmp_path):
    assert main(image_fit(pictures, tmp_path / "run", *TUNED)) == 0
    check_images(RunFolder.open(tmp_path / "run"), pictures, tmp_path / "model.onnx")
