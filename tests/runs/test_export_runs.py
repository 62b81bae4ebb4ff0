"""`osda export`: the model of a run as a file that is compared with `predict` first."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cli_helpers import image_fit
from export_helpers import LATER, SOURCE, TARGET, Y, run_script, session_of
from opensetda import InputError
from opensetda.backbones.model import resize_image
from opensetda.cli.main import main
from opensetda.data.images.decoding import decode_image
from opensetda.runs import TableOptions, export, fit, predict
from opensetda.runs.exporting import Exported
from opensetda.runs.folder import RunFolder

TUNED = (
    *("--finetune", "--set", "steps=2", "--set", "finetune.rounds=2"),
    *("--set", "finetune.iterations=2", "--set", "finetune.views=2"),
    *("--set", "finetune.averaged=1"),
)


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


def test_places_that_are_refused_and_overwritten(table_run, tmp_path):
    (tmp_path / "there.onnx").write_text("mine")
    for place, problem in (
        ("model.pb", "the name must end in .onnx"),
        ("there.onnx", "exists already; choose another name or add --overwrite"),
    ):
        with pytest.raises(InputError, match=problem):
            export(table_run / "run", tmp_path / place)
    assert (tmp_path / "there.onnx").read_text() == "mine"
    for _ in range(2):
        export(table_run / "run", tmp_path / "model", overwrite=True)
    (tmp_path / "model" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"notes\.txt"):
        export(table_run / "run", tmp_path / "model", overwrite=True)


def test_a_file_that_differs_from_predict_is_not_written(table_run, tmp_path, monkeypatch):
    original = Exported.forward

    def wrong(self, x):
        return original(self, x + 0.05)

    monkeypatch.setattr(Exported, "forward", wrong)
    with pytest.raises(InputError, match="differs from 'osda predict'"):
        export(table_run / "run", tmp_path / "model.onnx")
    monkeypatch.setattr("opensetda.runs.exporting.find_spec", lambda name: None)
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
