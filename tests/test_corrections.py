"""What a person said: read from a file, learned from, new classes included, and kept."""

from __future__ import annotations

import csv
import json
import os
import time
from dataclasses import replace

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from cli_helpers import FEW_STEPS, FIT, NAMES, blobs, image_fit, names_in
from opensetda.cli.main import main
from opensetda.errors import InputError
from opensetda.report.run_parts import RunParts
from opensetda.runs.corrections import Corrections, check_corrections, read_corrections
from opensetda.runs.fit_data import FitData
from opensetda.runs.folder import RunFolder
from opensetda.runs.predictions import PredictionTable


def data(ids=("a.png", "b.png", "c.png", "d.png"), paths=()):
    return FitData(
        source=np.eye(3, 4, dtype=np.float32),
        labels=np.array(["cat", "dog", "cat"]),
        target=np.arange(16, dtype=np.float32).reshape(4, 4),
        ids=None if ids is None else np.array(ids),
        inputs={"source": {"rows": 3}, "target": {"rows": 4}},
        columns={},
        feature_names=None,
        summary="",
        source_ids=np.array(["s1", "s2", "s3"]),
        image_paths=tuple(paths),
    )


def corrections_file(folder, *lines, header="path,label"):
    path = folder / "corrections.csv"
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def test_rows_are_found_by_name(tmp_path):
    path = corrections_file(tmp_path, "c.png,giraffe", "a.png,unknown", "b.png,dog")
    told = read_corrections(path, data(), "unknown")
    assert told.rows.tolist() == [0, 1, 2]
    assert told.labels.tolist() == ["unknown", "dog", "giraffe"]
    assert told.names_class.tolist() == [False, True, True]
    assert told.new == ("giraffe",)


def test_samples_without_names_go_by_their_number(tmp_path):
    path = corrections_file(tmp_path, "4,dog", "1,cat", header="id,label")
    told = read_corrections(path, data(ids=None), "unknown")
    assert told.rows.tolist() == [0, 3]
    assert told.labels.tolist() == ["cat", "dog"]


def test_further_columns_and_a_byte_order_mark_are_fine(tmp_path):
    path = tmp_path / "excel.csv"
    content = 'label,before,path\r\n"a, ""quoted"" class",cat,b.png\r\n'
    path.write_text(content, encoding="utf-8-sig", newline="")
    told = read_corrections(path, data(), "unknown")
    assert told.labels.tolist() == ['a, "quoted" class']


@pytest.mark.parametrize(
    ("lines", "header", "words"),
    [
        (["x.png,cat"], "path,label", "row 2: 'x.png' is no sample of the target"),
        (["a.png,"], "path,label", "row 2: no label"),
        (["a.png,cat", "a.png,dog"], "path,label", "row 3: 'a.png' is 'dog' here and 'cat' in"),
        (["a.png"], "path,label", "row 2: not as many cells"),
        (["a.png,cat,more"], "path,label", "row 2: not as many cells"),
        (["a.png,Unknown"], "path,label", "row 2: 'Unknown' is too like 'unknown'"),
        (["a.png,CAT"], "path,label", "row 2: 'CAT' is too like the class 'cat'"),
        (["b.png,owl", "a.png,Owl"], "path,label", "row 3: 'Owl' is too like the class 'owl'"),
        (['a.png,"two\nlines"'], "path,label", "row 3: the name has U+000A in it"),
        ([f"a.png,{'x' * 201}"], "path,label", "row 2: the name has 201 characters"),
        (["a.png,,"], "path,label,audit", "row 2: no label"),
        (["a.png,,maybe"], "path,label,audit", "row 2: audit 'maybe'; write known or unknown"),
        (["a.png,cat,unknown"], "path,label,audit", "'unknown', but the label is the class 'cat'"),
        (["a.png,unknown,known"], "path,label,audit", "'known', but the label is 'unknown'"),
        (
            ["a.png,,known", "a.png,,unknown"],
            "path,label,audit",
            "row 3: 'a.png' is audit 'unknown' here and audit 'known' in row 2",
        ),
        (["a.png,,known,"], "path,label,audit,audit", "two columns audit"),
        (["a.png,cat"], "name,label", "no column id or path"),
        (["a.png,cat"], "path,class", "no column label"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, lines, header, words):
    path = corrections_file(tmp_path, *lines, header=header)
    with pytest.raises(InputError) as caught:
        read_corrections(path, data(), "unknown")
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_names_in_use_are_taken_as_they_are(tmp_path):
    odd = np.array(["unknown ", " two\nlines", "CAT", "cat"])
    lines = ["a.png,unknown ", 'b.png," two\nlines"', "c.png,CAT", "d.png, unknown"]
    told = read_corrections(
        corrections_file(tmp_path, *lines), replace(data(), labels=odd), "unknown"
    )
    assert told.labels.tolist() == [*odd[:3].tolist(), "unknown"]
    assert told.new == ()


def test_the_word_for_unknowns_of_another_run_is_no_class(tmp_path):
    path = corrections_file(tmp_path, "a.png,cat", "b.png,unknown")
    with pytest.raises(InputError, match="row 3: 'unknown' is no class of the source"):
        read_corrections(path, data(), "odd")
    # Unless the source has such a class.
    named = replace(data(), labels=np.array(["cat", "dog", "unknown"]))
    assert read_corrections(path, named, "odd").names_class.all()


def test_of_many_new_classes_some_are_named(tmp_path):
    names = [f"new {number}" for number in range(7)]
    path = corrections_file(tmp_path, "a.png,cat")
    told = Corrections(path, np.arange(1), np.array(["unknown"]), "unknown")
    assert told.joined_to(data()).notes == ("corrections: 1 target, 0 of a class, 1 unknown",)
    before = data(ids=[str(row) for row in range(7)])
    before = replace(before, target=np.zeros((7, 4), dtype=np.float32))
    told = Corrections(path, np.arange(7), np.array(names), "unknown", tuple(names))
    (note,) = told.joined_to(before).notes
    assert note.endswith("'new 3', 'new 4', ...")


def test_a_file_that_cannot_be_used_is_found_before_data_is_read(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        check_corrections(tmp_path / "nowhere.csv")
    with pytest.raises(InputError, match="no correction in it"):
        check_corrections(corrections_file(tmp_path))
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a CSV file"):
        check_corrections(tmp_path / "binary.csv")


def test_a_pipe_or_a_device_is_no_file_of_corrections(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "device.csv").symlink_to("/dev/zero")
    for name, what in (("pipe.csv", "a pipe"), ("device.csv", "a device"), ("", "a folder")):
        with pytest.raises(InputError, match=f"{what}, not a file"):
            check_corrections(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"path,label\na.png,caf\xe9\n", "not a CSV file that can be read ('utf-8' codec"),
        (b"path,label\na.png," + b"x" * 200_000, "(field larger than field limit (131072))"),
        (b'path,label\n"' + b"a.png,cat\n" * 20_000, "(field larger than field limit (131072))"),
        (b"path,label\n" + b"a.png,cat," * 200_000, "(a line of more than 1,048,576 characters)"),
        (b"\0" * 5000, "no column id or path"),
        (b"path,label,label\na.png,cat,dog\n", "two columns label; keep one of them"),
        (b"path,label\na.png,c\0at\n", "row 2: the name has U+0000 in it"),
        (b"path,label\na.png\0,cat\n", "row 2: 'a.png\\x00' is no sample"),
        (b"path,label\n\xef\xbb\xbfa.png,cat\n", "row 2: '\\ufeffa.png' is no sample"),
        (b"path,label\n" + b"x" * 9999 + b",cat\n", "xxx...' is no sample of the target"),
        ("path,label\na.png,\u200b\n".encode(), "row 2: the name has U+200B ZERO WIDTH SPACE in"),
        (
            "path,label\na.png,c\u200dat\n".encode(),
            "row 2: 'c\\u200dat' is too like the class 'cat'",
        ),
        (
            "path,label\na.png,U\u200dnknown\n".encode(),
            "is too like 'unknown', which means no class",
        ),
    ],
)
def test_a_hostile_file_is_one_line(tmp_path, content, words):
    path = tmp_path / "corrections.csv"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_corrections(path, data(), "unknown")
    assert words in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


def test_a_file_larger_than_any_is_not_read(tmp_path):
    with (tmp_path / "corrections.csv").open("wb") as stream:
        stream.truncate((1 << 28) + 1)
    with pytest.raises(InputError, match="larger than 256 MiB"):
        check_corrections(tmp_path / "corrections.csv")


def test_many_new_names_take_no_time(tmp_path):
    """Each is compared with all others, in a few milliseconds."""
    count = 20_000
    ids = [str(row) for row in range(count)]
    many = replace(data(ids), target=np.zeros((count, 1), dtype=np.float32))
    path = corrections_file(tmp_path, *(f"{row},new {row}" for row in ids))
    begun = time.process_time()
    assert len(read_corrections(path, many, "unknown").rows) == count
    assert time.process_time() - begun < 5


AUDIT = "path,label,audit"


def test_an_audit_needs_no_labels(tmp_path):
    path = corrections_file(
        tmp_path, "c.png,, Unknown", "a.png,,known", "b.png,dog,known", "d.png,cat,", header=AUDIT
    )
    check_corrections(path)
    told = read_corrections(path, data(), "unknown")
    # An audited unknown is unknown; a known one has no label yet.
    assert told.rows.tolist() == [1, 2, 3]
    assert told.labels.tolist() == ["dog", "unknown", "cat"]
    assert told.audit.rows.tolist() == [0, 1, 2]
    assert told.audit.unknown.tolist() == [False, False, True]
    assert (told.checked.n_known, told.checked.n_unknown) == (3, 1)
    joined = told.joined_to(data())
    assert joined.notes[0].endswith("; audit: 1 of 3 targets drawn at random are unknown")
    record = joined.inputs["corrections"]["audit"]
    assert (record["targets"], record["unknown"], record["share"]) == (3, 1, 1 / 3)


def test_audited_targets_of_a_named_class_are_known_from_now_on(tmp_path):
    lines = ["a.png,owl,unknown", "b.png,,unknown", "c.png,unknown,unknown", "d.png,,known"]
    told = read_corrections(corrections_file(tmp_path, *lines, header=AUDIT), data(), "unknown")
    assert told.audit.unknown.tolist() == [False, False, True, False]
    # No class of the source: unknown still, or an owl.
    assert told.audit.unsettled.tolist() == [False, True, False, False]
    assert told.labels.tolist() == ["owl", "unknown"]
    assert (
        "1 of 4 targets drawn at random are unknown, and 1 unknown or of a new class"
        in (told.joined_to(data()).notes[0])
    )


def test_an_audited_target_gets_no_label_that_it_cannot_have(tmp_path):
    lines = ["a.png,owl,unknown", "b.png,,unknown", "c.png,,known", "d.png,,unknown"]
    told = read_corrections(corrections_file(tmp_path, *lines, header=AUDIT), data(), "unknown")
    table = PredictionTable(
        ids=data().ids,
        labels=np.array(["cat", "cat", "unknown", "dog"]),
        known_scores=np.zeros(4),
        nearest=np.array(["cat", "cat", "owl", "dog"]),
        proba=np.array(
            [[0.7, 0.1, 0.1, 0.1], [0.8, 0.0, 0.15, 0.05], [0.0, 0.0, 0.0, 1.0], [0, 0.9, 0, 0.1]]
        ),
        classes=("cat", "dog", "owl"),
    )
    after = told.applied_to(table)
    # Named; of the two that are left the likelier; known, if only just; no owl.
    assert after.labels.tolist() == ["owl", "owl", "cat", "unknown"]
    np.testing.assert_allclose(after.proba[1], [0, 0, 0.75, 0.25])
    np.testing.assert_allclose(after.proba[2], [0.5, 0.5, 0, 0])
    assert after.corrected.tolist() == [True, False, False, False]
    np.testing.assert_allclose(after.proba.sum(axis=1), 1)


def told_of(path, **labels):
    rows = sorted(int(name[1:]) for name in labels)
    names = np.array([labels[f"r{row}"] for row in rows])
    return Corrections(path, np.array(rows), names, "unknown")


def test_who_was_named_joins_the_source_and_stays_in_the_target(tmp_path):
    path = corrections_file(tmp_path, "a.png,cat")
    told = told_of(path, r0="unknown", r2="giraffe", r3="cat")
    before = data(paths=("s1", "s2", "s3", "t0", "t1", "t2", "t3"))
    after = replace(told, new=("giraffe",)).joined_to(before)
    assert after.labels.tolist() == ["cat", "dog", "cat", "giraffe", "cat"]
    np.testing.assert_array_equal(after.source[3:], before.target[[2, 3]])
    np.testing.assert_array_equal(after.target, before.target)
    assert after.source_ids.tolist() == ["s1", "s2", "s3", "c.png", "d.png"]
    # The images of the rows, in the order of the rows: FineTunedImages counts on it.
    assert after.image_paths == ("s1", "s2", "s3", "t2", "t3", "t0", "t1", "t2", "t3")
    assert after.inputs["corrections"]["rows"] == 3
    assert after.notes == ("corrections: 3 targets, 2 of a class, 1 unknown; new: 'giraffe'",)


def test_what_was_told_counts(tmp_path):
    table = PredictionTable(
        ids=np.array(["a", "b", "c"]),
        labels=np.array(["cat", "unknown", "dog"]),
        known_scores=np.array([0.5, 0.1, 0.9]),
        nearest=np.array(["cat", "dog", "dog"]),
        proba=np.array([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7], [0.0, 0.9, 0.1]]),
        classes=("cat", "dog"),
    )
    told = told_of(tmp_path, r0="unknown", r1="cat").applied_to(table)
    assert told.labels.tolist() == ["unknown", "cat", "dog"]
    assert told.nearest.tolist() == ["cat", "cat", "dog"]
    assert told.confidence.tolist() == [1.0, 1.0, 0.9]
    assert told.corrected.tolist() == [True, True, False]
    assert table.labels.tolist() == ["cat", "unknown", "dog"]
    told.write(tmp_path / "p.parquet")
    again = PredictionTable.read_parquet(tmp_path / "p.parquet")
    assert again.corrected.tolist() == [
        True,
        True,
        False,
    ]


# the command ------------------------------------------------------------------------------


def csv_rows(path):
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_fit_learns_a_new_class(workplace):
    """Five horses are named; the others are then found, and later ones, too."""
    _, truth = blobs(1)
    horses = np.flatnonzero(truth == "horse")[:5]
    lines = [f"{row + 1},horse" for row in horses] + ["1,unknown"]
    corrections_file(workplace, *lines, header="id,label")
    assert main([*FIT, *FEW_STEPS, "--openness", "0", "--corrections", "corrections.csv"]) == 0
    rows = csv_rows(workplace / "run" / "predictions.csv")
    assert rows[0]["label"] == "unknown"
    assert all(rows[row]["corrected"] == "true" for row in horses)
    labels = np.array([row["label"] for row in rows])
    assert (labels[1:] == truth[1:]).mean() > 0.9
    settings = json.loads((workplace / "run" / "settings.json").read_text())
    assert settings["classes"] == sorted(NAMES)
    assert settings["inputs"]["corrections"]["rows"] == 6
    X, y = blobs(2)
    np.savez(workplace / "later.npz", X=X)
    assert main(["predict", "run", "later.npz", "--out", "later.csv"]) == 0
    later = np.array([row["label"] for row in csv_rows(workplace / "later.csv")])
    assert (later == y).mean() > 0.9


def audited(truth, rows):
    """Lines of an audit by the truth, which knows cats and dogs."""
    marks = ["unknown" if truth[row] == "horse" else "known" for row in rows]
    return [f"{row + 1},,{mark}" for row, mark in zip(rows, marks, strict=True)]


def test_the_share_is_that_of_the_audit(workplace, capsys):
    _, truth = blobs(1)
    lines = audited(truth, range(0, 60, 2))
    corrections_file(workplace, *lines, header="id,label,audit")
    command = [*FIT, *FEW_STEPS, "--corrections", "corrections.csv"]
    assert main(command) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "share of unknowns: 0.33 (0.21 to 0.48), audited: 10 of 30 targets drawn at" in said
    found = json.loads((workplace / "run" / "estimates.json").read_text())["openness"]
    assert found["share"] == pytest.approx(1 / 3)
    assert found["estimates"]["audit"]["low"] == found["low"] == pytest.approx(0.21, abs=0.01)
    assert found["origin"].startswith("audited: 10 of 30 targets")
    assert not found["told"]
    rows = csv_rows(workplace / "run" / "predictions.csv")
    assert all((rows[row]["label"] == "unknown") == (truth[row] == "horse") for row in range(60))
    settings = json.loads((workplace / "run" / "settings.json").read_text())
    assert settings["openness"] == "auto"
    assert settings["inputs"]["corrections"]["audit"]["targets"] == 30
    assert RunParts(RunFolder.open("run")).openness().kind == "audited"
    # A share that is given wins.
    assert main([*command, "--openness", "0.5", "--overwrite", "--no-report"]) == 0
    found = json.loads((workplace / "run" / "estimates.json").read_text())["openness"]
    assert (found["share"], found["told"]) == (0.5, True)
    assert "audit" not in found["estimates"]


def test_a_class_that_loses_targets_is_named(workplace, capsys):
    """Corrections with a share that is far too high, beside the run that was reviewed."""
    _, truth = blobs(1)
    assert main([*FIT, *FEW_STEPS, "--openness", "0.33", "--no-report"]) == 0
    dogs = np.flatnonzero(truth == "dog")[:6]
    lines = [f"{row + 1},dog" for row in dogs]
    corrections_file(workplace / "run", *lines, header="id,label")
    capsys.readouterr()
    again = ["again" if word == "run" else word for word in [*FIT, *FEW_STEPS]]
    again += ["--corrections", "run/corrections.csv"]
    assert main([*again, "--openness", "0.8"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "unknown now, but not in run: " in said
    assert "the share of unknowns is 0.80 (0.33 there)" in said
    warnings = json.loads((workplace / "again" / "estimates.json").read_text())["openness"]
    assert any("unknown now" in warning for warning in warnings["warnings"])
    # With the audit there is nothing to warn of, and the scores of the run play a part.
    lines = audited(truth, range(0, 60, 2))
    corrections_file(workplace / "run", *lines, header="id,label,audit")
    assert main([*again, "--overwrite"]) == 0
    assert "unknown now" not in " ".join(capsys.readouterr().err.split())
    found = json.loads((workplace / "again" / "estimates.json").read_text())["openness"]
    assert found["share"] == pytest.approx(1 / 3, abs=0.05)
    assert found["high"] - found["low"] < 0.25


def test_wrong_corrections_leave_nothing_behind(workplace, capsys):
    before = names_in(workplace)
    assert main([*FIT, "--corrections", "nowhere.csv"]) == 2
    assert "nowhere.csv: no such file" in capsys.readouterr().err
    path = corrections_file(workplace, "999,cat", header="id,label")
    assert main([*FIT, "--corrections", str(path)]) == 2
    assert "row 2: '999' is no sample of the target" in capsys.readouterr().err
    assert names_in(workplace) == sorted([*before, "corrections.csv"])


def test_images_are_corrected_by_their_paths(pictures, tmp_path):
    names = pyarrow.csv.read_csv(pictures / "run" / "predictions.csv")["path"].to_pylist()
    path = corrections_file(tmp_path, f"{names[0]},brand new", f"{names[1]},brand new")
    again = tmp_path / "again"
    more = ("--method", "class-means", *FEW_STEPS, "--corrections", str(path))
    assert main(image_fit(pictures, again, *more)) == 0
    labels = pyarrow.csv.read_csv(again / "predictions.csv")["label"].to_pylist()
    assert labels[:2] == ["brand new", "brand new"]
