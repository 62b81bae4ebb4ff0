"""Exported models of image runs: from pixels of any size to the labels of `predict`."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime
import pytest

from cli_helpers import image_fit
from opensetda.cli.main import main
from opensetda.data.images.decoding import decode_image
from opensetda.runs import export, predict
from test_export import run_script

pytestmark = pytest.mark.usefixtures("quick_curves")

TUNED = (
    *("--finetune", "--set", "steps=2", "--set", "optimiser.iterations_per_epoch=1"),
    *("--set", "optimiser.first_step_epochs=1", "--set", "ranking.draws=1"),
)


def test_an_exported_image_model_labels_files_as_predict_does(pictures, tmp_path):
    image_run = pictures / "run"
    written = export(image_run, tmp_path / "model")
    assert (written.n_own, written.n_checked) == (8, 11)
    assert written.difference < 1e-4
    session = onnxruntime.InferenceSession(written.model, providers=["CPUExecutionProvider"])
    files = sorted((pictures / "street").rglob("*.png"))[::3]
    wanted = predict(image_run, files)
    for path, label, probabilities in zip(files, wanted.labels, wanted.proba, strict=True):
        found = session.run(["label", "probabilities"], {"image": decode_image(path)})
        assert found[0].tolist() == [label]
        np.testing.assert_allclose(found[1][0], probabilities, atol=1e-4)
    printed = run_script(tmp_path / "model" / "use.py", *files[:2]).splitlines()
    assert [line.split()[-2] for line in printed] == wanted.labels[:2].tolist()
    about = json.loads((tmp_path / "model" / "model.json").read_text())
    assert about["preprocessing"]["size"] == 32
    assert about["inputs"].keys() == {"image"}


def test_fine_tuned_weights_are_exported(pictures, tmp_path):
    assert main(image_fit(pictures, tmp_path / "run", *TUNED)) == 0
    # Other weights would give other probabilities, and the export would be refused.
    written = export(tmp_path / "run", tmp_path / "model.onnx")
    assert written.n_own == 8
    assert written.difference < 1e-4
