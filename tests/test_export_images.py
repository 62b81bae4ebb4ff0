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


@pytest.fixture(scope="module", params=["frozen", "fine-tuned"])
def image_run(request, pictures, tmp_path_factory):
    if request.param == "frozen":
        return pictures / "run"
    folder = tmp_path_factory.mktemp("image-run")
    assert main(image_fit(pictures, folder / "run", *TUNED)) == 0
    return folder / "run"


def test_an_exported_image_model_labels_files_as_predict_does(image_run, pictures, tmp_path):
    written = export(image_run, tmp_path / "model")
    assert written.n_own == 8
    assert written.n_checked == 11
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
