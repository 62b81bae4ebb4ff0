"""`osda fit` on feature tables, and what the other commands make of the run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from cli_helpers import FIT, FIT_PGL, OPENNESS, blobs, run_fit, write_csv
from opensetda.cli.main import main


def test_fit_evaluate_predict_on_tables_with_ids(workplace, capsys):
    arguments = ["fit", "source.csv", "target.csv", *FIT[3:], *OPENNESS]
    arguments += ["--id-column", "file_name", "--set", "steps=4", "--seed", "7"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert "source: 40 rows of 2 classes, target: 60 rows, 4 features" in err
    assert "run/predictions.csv" in out
    settings = json.loads((workplace / "run" / "settings.json").read_text())
    assert settings["command"] == ["osda", *arguments]
    assert settings["method"] == "class-means"
    assert (settings["settings"]["steps"], settings["seed"]) == (4, 7)
    assert settings["inputs"]["source"]["classes"] == {"cat": 20, "dog": 20}
    assert len(settings["inputs"]["target"]["sha256"]) == 64

    assert main(["evaluate", "run", "--labels", "truth.csv"]) == 0
    out, _ = capsys.readouterr()
    assert "100.0  harmonic mean of OS* and UNK" in out
    metrics = json.loads((workplace / "run" / "metrics.json").read_text())
    assert metrics["final"]["hos"] == 1
    for name, words in (("ece", "of the labels"), ("unknown_ece", "of the prob")):
        # There is no interval of a calibration error.
        assert re.search(rf"{100 * metrics['final'][name]:.1f} +- +calibration error {words}", out)
    assert metrics["truth"]["rows"] == 60

    # Later samples: other columns, another order, fewer rows.
    X, y = blobs(5)
    write_csv(workplace / "later.csv", X[:9, ::-1], note=list("abcdefghi"), file_name=range(9))
    later = (workplace / "later.csv").read_text().replace("f0,f1,f2,f3", "f3,f2,f1,f0")
    (workplace / "later.csv").write_text(later)
    assert main(["predict", "run", "later.csv", "--out", "labels.csv"]) == 0
    table = pyarrow.csv.read_csv("labels.csv")
    expected = np.where(y[:9] == "horse", "unknown", y[:9])
    assert table["label"].to_pylist() == expected.tolist()
    assert table["id"].to_pylist() == list(range(9))


def test_target_labels_change_nothing(workplace):
    X, y = blobs(1)
    outcomes = []
    for labels in (y, np.roll(y, 1)):
        np.savez("target.npz", X=X, y=labels)
        run_fit("--overwrite")
        outcomes.append((workplace / "run" / "predictions.csv").read_bytes())
        assert main(["predict", "run", "target.npz", "--out", "p.csv", "--overwrite"]) == 0
        outcomes[-1] += (workplace / "p.csv").read_bytes()
    assert outcomes[0] == outcomes[1]


def test_the_default_is_a_committee(workplace, capsys):
    assert main([*FIT[:-2], *OPENNESS]) == 0
    out, err = capsys.readouterr()
    assert "committee: step 5/5" in err
    assert "of these labels should be right" in out
    settings = json.loads((workplace / "run" / "settings.json").read_text())
    assert (settings["method"], settings["settings"]) == ("committee", {})


def test_settings_are_recorded_with_their_defaults(workplace):
    assert main([*FIT[:-1], "moving-means", *OPENNESS, "--set", "ridge=none"]) == 0
    settings = json.loads((workplace / "run" / "settings.json").read_text())
    assert (settings["method"], settings["scaling"]) == ("moving-means", "ranks")
    assert settings["settings"] == {
        **{"steps": 10, "components": 64, "whitening": 0.5, "neighbours": 10, "message": 0.5},
        **{"ridge": None, "move": 0.5, "class_balance": 0.5, "evidence": 0.5},
    }


# the method itself --------------------------------------------------------------------------


def test_fit_evaluate_predict_with_pgl(workplace, capsys):
    assert main(FIT_PGL) == 0
    err = capsys.readouterr().err
    assert "pgl: step 2/2" in err
    settings = json.loads((workplace / "run" / "settings.json").read_text())
    assert settings["preset"] == "default"
    assert settings["settings"]["steps"] == 2
    assert settings["settings"]["edge_width"] == 8
    assert main(["evaluate", "run", "--labels", "truth.npz"]) == 0
    metrics = json.loads((workplace / "run" / "metrics.json").read_text())
    assert [step["step"] for step in metrics["steps"]] == [1, 2]
    # A sample gets the same label regardless of the batch.
    assert main(["predict", "run", "target.npz", "--out", "all.parquet"]) == 0
    with np.load("target.npz") as arrays:
        np.savez("one.npz", X=arrays["X"][4:5])
    assert main(["predict", "run", "one.npz", "--out", "one.parquet"]) == 0
    company = pyarrow.parquet.read_table("all.parquet").slice(4, 1).to_pydict()
    alone = pyarrow.parquet.read_table("one.parquet").to_pydict()
    assert alone["label"] == company["label"]
    assert alone["known_score"] == pytest.approx(company["known_score"], abs=1e-5)


def test_pgl_gives_the_same_bits_again_and_after_loading(workplace):
    names = ["model.safetensors", "model.json", "predictions.csv", "steps.parquet"]
    names += ["estimates.json"]
    outcomes = []
    for _ in range(2):
        assert main([*FIT_PGL, "--overwrite", "--seed", "5"]) == 0
        assert main(["predict", "run", "target.npz", "--out", "p.csv", "--overwrite"]) == 0
        outcomes.append([Path("p.csv").read_bytes()])
        outcomes[-1] += [(workplace / "run" / name).read_bytes() for name in names]
    assert outcomes[0] == outcomes[1]


# what is there is not lost ------------------------------------------------------------------


def test_a_folder_that_is_no_run_is_not_overwritten(workplace, capsys):
    (workplace / "run").mkdir()
    (workplace / "run" / "thesis.docx").write_text("years of work")
    assert main([*FIT, *OPENNESS, "--overwrite"]) == 2
    assert "'thesis.docx'" in capsys.readouterr().err
    assert (workplace / "run" / "thesis.docx").read_text() == "years of work"


def test_a_failed_overwrite_keeps_the_old_run(workplace, capsys):
    run_fit()
    before = (workplace / "run" / "predictions.csv").read_bytes()
    X, _ = blobs(1)
    X[6, 2] = np.nan
    np.savez("target.npz", X=X)
    assert main([*FIT, *OPENNESS, "--overwrite"]) == 2
    assert (workplace / "run" / "predictions.csv").read_bytes() == before
