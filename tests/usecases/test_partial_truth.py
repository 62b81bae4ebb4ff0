"""`osda evaluate` with the truth of some samples, of later ones, and as a column."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from cli_helpers import FEW_STEPS, FIT, OPENNESS, blobs, main, run_fit, write_csv
from opensetda.errors import InputError
from opensetda.report.collect import collect
from opensetda.report.run_parts import NO_TRUTH
from opensetda.usecases import RunFolder, evaluate, predict

IDS = ["--id-column", "file_name"]


@pytest.fixture
def named(workplace):
    """A run whose targets have names."""
    assert main([*FIT, *FEW_STEPS, *OPENNESS, *IDS]) == 0
    return workplace


def result_of(capsys, *arguments):
    capsys.readouterr()
    assert main(["evaluate", *arguments, "--json", "--quiet"]) == 0
    return json.loads(capsys.readouterr().out)


def test_some_labels_give_figures_with_intervals(named, capsys):
    lines = (named / "truth.csv").read_text().splitlines()[:21]
    (named / "some.csv").write_text("\n".join([*lines, "image_x.jpg,cat"]) + "\n")
    assert main(["evaluate", "run", "--labels", "some.csv"]) == 0
    out = capsys.readouterr().out
    assert "True labels of 20 of 60 samples; none of 'image_" in out
    assert "True labels of other samples, ignored: 1, such as 'image_x.jpg'" in out
    assert "The intervals hold if the samples with a true label were drawn at random" in out
    written = json.loads((named / "run" / "metrics.json").read_text())
    assert (written["samples"], written["labelled"]) == (60, 20)
    low, high = written["intervals"]["hos"]
    assert 0.3 < low < written["final"]["hos"] <= high
    # So few labels say nothing about calibration.
    assert written["final"]["ece"] is None
    assert "ECE and UNK ECE need 150 true labels" in out
    first = written["final"]["per_class"][0]
    assert first["interval"][0] <= first["accuracy"] <= first["interval"][1]


def test_what_the_labels_cannot_say_is_not_said(named, capsys):
    (named / "few.csv").write_text("file_name,y\nimage_0.jpg,cat\nimage_3.jpg,cat\n")
    result = result_of(capsys, "run", "--labels", "few.csv")
    assert [result["final"][name] for name in ("unk", "hos", "auroc", "oscr")] == [None] * 4
    assert result["final"]["os_star"] == 1
    assert result["intervals"]["os_star"][0] < 0.2
    (named / "few.csv").write_text("file_name,y\nimage_2.jpg,unknown\n")
    assert result_of(capsys, "run", "--labels", "few.csv")["final"]["unk"] == 1


def test_empty_labels_are_no_truth(workplace, capsys):
    run_fit()
    y = blobs(1)[1]
    labels = [name if row % 3 else "" for row, name in enumerate(y)]
    write_csv(workplace / "gaps.csv", np.zeros((60, 1)), y=labels)
    assert result_of(capsys, "run", "--labels", "gaps.csv")["labelled"] == 40
    assert RunFolder.open("run").truth().tolist() == labels
    evaluation = evaluate("run", np.array([name or None for name in labels], dtype=object))
    assert evaluation.n_labelled == 40
    with pytest.raises(InputError, match="labels: no label in 'y'"):
        evaluate("run", [None] * 60)
    # Without ids, the row numbers of predictions.csv may stand for them.
    (workplace / "rows.csv").write_text(f"id,y\n2,{y[1]}\n6,{y[5]}\n")
    assert result_of(capsys, "run", "--labels", "rows.csv", "--id-column", "id")["labelled"] == 2
    with pytest.raises(InputError, match="2 labels for 60 predictions; give one per row"):
        evaluate("run", "rows.csv")


def test_predictions_are_not_taken_for_the_truth(named, capsys):
    labels = ["--labels", "run/predictions.csv", "--label-column", "label", "--id-column", "id"]
    assert main(["evaluate", "run", *labels]) == 2
    assert "its column 'label' holds predictions, not the truth" in capsys.readouterr().err


def test_later_samples_are_evaluated_from_their_file(named, capsys):
    X, y = blobs(7)
    ids = [f"new_{row}" for row in range(60)]
    write_csv(named / "later.csv", X, file_name=ids)
    write_csv(named / "known.csv", np.zeros((60, 0)), file_name=ids, y=y)
    assert main(["predict", "run", "later.csv", "--out", "labels.parquet"]) == 0
    result = result_of(capsys, "labels.parquet", "--labels", "known.csv", "--run", "run")
    assert (result["labelled"], result["steps"]) == (60, [])
    assert result["final"]["hos"] > 0.9
    assert result["intervals"]["hos"][0] < result["final"]["hos"]
    # What predict returned is the same as its file.
    table = predict("run", "later.csv")
    assert evaluate(table, y).final.hos == pytest.approx(result["final"]["hos"])


def test_wrong_files_of_labels(named, capsys):
    write_csv(named / "later.csv", blobs(7)[0])
    assert main(["predict", "run", "later.csv", "--out", "labels.csv"]) == 0
    text = (named / "labels.csv").read_text()
    (named / "torn.csv").write_text(text[: len(text) // 2])
    (named / "other.csv").write_text(text.replace("dog", "cow"))
    of_run = ["--run", "run"]
    for arguments, words in [
        (["labels.csv"], "for a file of 'osda predict' add --run RUN"),
        (["truth.csv", *of_run], "truth.csv: damaged (not one column 'p_unknown')"),
        (["other.csv", *of_run], "its classes are not those of run"),
        (["torn.csv", *of_run], "write it again with 'osda predict'"),
        (["run", *of_run], "run: a folder, a device or a pipe, not a file"),
    ]:
        capsys.readouterr()
        assert main(["evaluate", *arguments, "--labels", "truth.npz"]) == 2, arguments
        assert words in capsys.readouterr().err, arguments


def test_the_report_shows_partial_truth_as_such(pictures, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(pictures / "run", tmp_path / "run")
    some = dict(line.split() for line in (pictures / "truth.txt").read_text().splitlines()[:12])
    (tmp_path / "some.txt").write_text("".join(f"{p} {name}\n" for p, name in some.items()))
    evaluation = evaluate("run", "some.txt")
    run = RunFolder.open("run")
    report = collect(run)
    assert report.n_truth == report.confusion.counts.sum() == 12
    assert report.metrics["ALL"] == evaluation.final.all
    shown, names = report.map, run.predictions().ids
    truth = shown.truth[shown.is_target]
    for row, index in zip(run.view().target.tolist(), truth.tolist(), strict=True):
        assert shown.true_classes[index] == some.get(names[row], NO_TRUTH)
