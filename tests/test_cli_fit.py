"""`osda fit` on feature tables, and what the other commands make of the run."""

from __future__ import annotations

import json
import os
import re

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from cli_helpers import (
    FEW_STEPS,
    FIT,
    FIT_CSV,
    FIT_PGL,
    OPENNESS,
    blobs,
    names_in,
    run_fit,
    write_csv,
)
from opensetda.cli.main import main
from opensetda.cli.options import with_optional_values


def test_fit_evaluate_predict_on_tables_with_ids(workplace, capsys):
    arguments = [*FIT_CSV, *OPENNESS, "--id-column", "file_name", "--set", "steps=4", "--seed", "7"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert "source: 40 rows of 2 classes, target: 60 rows, 4 features" in err
    assert "run/predictions.csv" in out
    settings = json.loads((workplace / "run" / "settings.json").read_text())
    assert settings["command"] == ["osda", *arguments]
    assert settings["method"] == "class-means"
    assert settings["settings"]["steps"] == 4
    assert (settings["preset"], settings["scaling"]) == (None, "none")
    assert settings["seed"] == 7
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


@pytest.mark.parametrize("method", ["class-means", "source-only"])
def test_fit_evaluate_predict_on_arrays_without_ids(workplace, capsys, method):
    few = FEW_STEPS if method == "class-means" else []
    assert main([*FIT[:-1], method, *few, *OPENNESS]) == 0
    assert main(["evaluate", "run", "--labels", "truth.npz"]) == 0
    assert main(["predict", "run", "target.npz", "--out", "labels.parquet"]) == 0
    again = pyarrow.parquet.read_table("labels.parquet")
    first = pyarrow.csv.read_csv("run/predictions.csv")
    assert again["label"] == first["label"]
    assert first["id"][0].as_py() == 1
    assert json.loads((workplace / "run" / "metrics.json").read_text())["final"]["hos"] > 0.7


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


def test_the_same_command_gives_the_same_files(workplace):
    names = ["predictions.csv", "steps.parquet", "model.safetensors", "model.json"]
    names += ["history.jsonl", "estimates.json"]
    run_fit()
    first = {name: (workplace / "run" / name).read_bytes() for name in names}
    run_fit("--overwrite")
    assert {name: (workplace / "run" / name).read_bytes() for name in names} == first


def test_unknowns_can_have_another_name(workplace, capsys):
    run_fit("--unknown-label", "none of them")
    labels = pyarrow.csv.read_csv("run/predictions.csv")["label"].to_pylist()
    assert set(labels) == {"cat", "dog", "none of them"}
    assert main(["evaluate", "run", "--labels", "truth.npz"]) == 0


def test_a_class_with_one_sample_works(workplace):
    with np.load("source.npz") as arrays:
        X, y = arrays["X"], arrays["y"]
    keep = (y == "cat") | (np.arange(len(y)) == np.flatnonzero(y == "dog")[0])
    np.savez("source.npz", X=X[keep], y=y[keep])
    run_fit()


def test_the_default_is_moving_means(workplace, capsys):
    assert main([*FIT[:-2], *OPENNESS, "--set", "ridge=none"]) == 0
    out, err = capsys.readouterr()
    assert "moving-means: step 10/10" in err
    assert "columns: as ranks within each domain" in out
    settings = json.loads((workplace / "run" / "settings.json").read_text())
    assert (settings["method"], settings["scaling"]) == ("moving-means", "ranks")
    assert settings["settings"] == {
        **{"steps": 10, "components": 64, "whitening": 0.5, "neighbours": 10, "message": 0.5},
        **{"ridge": None, "move": 0.5, "class_balance": 0.5, "evidence": 0.5},
    }
    assert {*json.loads((workplace / "run" / "estimates.json").read_text())} == {
        *("openness", "rejection")
    }
    assert not [word for word in ("learn", "network", "train") if word in (out + err).lower()]


# the method itself --------------------------------------------------------------------------


def test_settings_of_pgl_are_checked_before_files_are_read(workplace, capsys):
    arguments = ["fit", "no.npz", "no.npz", "--out", "run", *OPENNESS, "--method", "pgl"]
    for change, words in [
        (["--set", "edge_wieght=1"], "did you mean 'edge_weight'?"),
        (["--set", "steps=0"], "steps='0'"),
        (["--preset", "papers"], "office-home"),
    ]:
        assert main([*arguments, *change]) == 2
        assert words in capsys.readouterr().err


def test_fit_evaluate_predict_with_pgl(workplace, capsys):
    assert main(FIT_PGL) == 0
    err = capsys.readouterr().err
    assert "pgl: step 2/2" in err
    settings = json.loads((workplace / "run" / "settings.json").read_text())
    assert settings["preset"] == "office-home"
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
    outcomes = []
    for _ in range(2):
        assert main([*FIT_PGL, "--overwrite", "--seed", "5"]) == 0
        assert main(["predict", "run", "target.npz", "--out", "p.csv", "--overwrite"]) == 0
        outcomes.append(
            [
                (workplace / name).read_bytes()
                for name in ("run/predictions.csv", "run/model.safetensors", "p.csv")
            ]
        )
    assert outcomes[0] == outcomes[1]


# wrong use: one line, exit code 2, nothing left behind --------------------------------------


def nan_target():
    X, _ = blobs(1)
    X[6, 2] = np.nan
    np.savez("target.npz", X=X)


def infinite_source():
    X, y = blobs(0)
    X[0, 0] = np.inf
    np.savez("source.npz", X=X, y=y)


def wide_target():
    np.savez("target.npz", X=np.ones((3, 9)))


def one_class():
    np.savez("source.npz", X=np.ones((3, 4)), y=["cat"] * 3)


def no_target_rows():
    np.savez("target.npz", X=np.ones((0, 4)))


def truncated():
    whole = open("source.npz", "rb").read()  # noqa: PTH123, SIM115
    with open("source.npz", "wb") as stream:  # noqa: PTH123
        stream.write(whole[: len(whole) // 2])


def out_exists():
    os.mkdir("run")  # noqa: PTH102


def nothing():
    pass


WRONG_FITS = {
    "nan": (nan_target, OPENNESS, "target.npz: row 7, column 2: NaN or empty"),
    "infinite": (infinite_source, OPENNESS, "source.npz: row 1, column 0: infinite"),
    "widths": (wide_target, OPENNESS, "9 features, but source.npz has 4"),
    "one-class": (one_class, OPENNESS, "one class only ('cat'"),
    "no-rows": (no_target_rows, OPENNESS, "target.npz: the table is empty"),
    "truncated": (truncated, OPENNESS, "source.npz: cannot read an .npz file"),
    "out-exists": (out_exists, OPENNESS, "run: exists already"),
    "openness-1": (nothing, ["--openness", "1"], "a number in [0, 1)"),
    "openness-negative": (nothing, ["--openness=-0.1"], "a number in [0, 1)"),
    "openness-nan": (nothing, ["--openness", "nan"], "a number in [0, 1)"),
    "openness-text": (nothing, ["--openness", "some"], "--openness some: give the share"),
    "openness-case": (nothing, ["--openness", "Auto"], "or 'auto' to have it estimated"),
    "openness-empty": (nothing, ["--openness", ""], "or 'auto' to have it estimated"),
    "label-column": (nothing, [*OPENNESS, "--label-column", "z"], "no array 'z'"),
    "id-column": (nothing, [*OPENNESS, "--id-column", "z"], "no array 'z'"),
    "features-key": (nothing, [*OPENNESS, "--features-key", "Z"], "no array 'Z'"),
    "drop": (nothing, [*OPENNESS, "--drop", "z"], "no array 'z'"),
    "seed": (nothing, [*OPENNESS, "--seed", "x"], "Invalid value for '--seed'"),
    "seed-negative": (nothing, [*OPENNESS, "--seed=-1"], "Invalid value for '--seed'"),
    "set": (nothing, [*OPENNESS, "--set", "steps"], "write NAME=VALUE"),
    "set-name": (nothing, [*OPENNESS, "--set", "stepz=1"], "'stepz' does not exist"),
    "set-value": (nothing, [*OPENNESS, "--set", "steps=x"], "setting steps=x: give a number"),
    "set-range": (nothing, [*OPENNESS, "--set", "steps=0"], "an int in the range [1, inf)"),
    "set-finetune": (nothing, [*OPENNESS, "--set", "finetune.flip=0"], "add --finetune"),
    "preset": (nothing, [*OPENNESS, "--preset", "x"], "class-means has no presets"),
    "method": (nothing, [*OPENNESS, "--method", "x"], "method 'x' does not exist"),
    "option": (nothing, [*OPENNESS, "--magic"], "No such option"),
    "unknown-label": (nothing, [*OPENNESS, "--unknown-label", "cat"], "is a class of the source"),
    "no unknown-label": (nothing, [*OPENNESS, "--unknown-label", " "], "a word that can be seen"),
}


@pytest.mark.parametrize("case", WRONG_FITS)
def test_wrong_use_of_fit(workplace, capsys, case):
    prepare, arguments, words = WRONG_FITS[case]
    prepare()
    before = names_in(workplace)
    assert main([*FIT, *arguments]) == 2
    out, err = capsys.readouterr()
    last = err.splitlines()[-1]
    assert last.startswith("error: ")
    assert words in last
    assert "Traceback" not in err
    assert out == ""
    assert names_in(workplace) == before


def test_a_missing_file_is_wrong_use(workplace, capsys):
    assert main(["fit", "sorce.npz", *FIT[2:], *OPENNESS]) == 2
    assert "did you mean source.npz?" in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_not_overwritten(workplace, capsys):
    (workplace / "run").mkdir()
    (workplace / "run" / "thesis.docx").write_text("years of work")
    assert main([*FIT, *OPENNESS, "--overwrite"]) == 2
    assert "'thesis.docx'" in capsys.readouterr().err
    assert (workplace / "run" / "thesis.docx").read_text() == "years of work"


def test_a_failed_overwrite_keeps_the_old_run(workplace, capsys):
    run_fit()
    before = (workplace / "run" / "predictions.csv").read_bytes()
    nan_target()
    assert main([*FIT, *OPENNESS, "--overwrite"]) == 2
    assert (workplace / "run" / "predictions.csv").read_bytes() == before


def test_text_that_is_not_utf8_is_wrong_use(workplace, capsys):
    text = (workplace / "source.csv").read_text()
    (workplace / "source.csv").write_bytes(text.replace("f0", "größe", 1).encode("latin-1"))
    assert main([*FIT_CSV, *OPENNESS]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: source.csv")
    assert "UTF-8" in error


def test_labels_of_broken_bytes_are_wrong_use(workplace, capsys):
    with np.load("source.npz") as file:
        X = file["X"]
    np.savez("source.npz", X=X, y=np.array([b"\xff", b"a"])[np.arange(len(X)) % 2])
    assert main([*FIT, *OPENNESS]) == 2
    assert "UTF-8" in capsys.readouterr().err


def test_a_seed_beyond_32_bits_is_wrong_use(workplace):
    assert main([*FIT, *OPENNESS, "--seed", "99999999999"]) == 2
    assert not (workplace / "run").exists()


@pytest.mark.parametrize(
    "given", [["--unknown-share", "0.3"], ["--unknown-share=0.3"], ["--openness", "0.3"]]
)
def test_openness_has_a_second_name(given):
    assert with_optional_values(given) in (["--openness", "0.3"], ["--openness=0.3"])
    after_dashes = ["--", "--unknown-share"]
    assert with_optional_values(after_dashes) == after_dashes
