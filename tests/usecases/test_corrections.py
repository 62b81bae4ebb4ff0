"""What a person said: read from a file, learned from, new classes included, and kept."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from cli_helpers import FEW_STEPS, FIT, NAMES, blobs
from opensetda.cli.main import main
from opensetda.errors import InputError
from opensetda.rows import KNOWN
from opensetda.runs.folder import RunFolder
from opensetda.runs.predictions import PredictionTable
from opensetda.usecases.corrections import Corrections, check_corrections, read_corrections
from opensetda.usecases.read_domains import FitData

AUDIT = "path,label,audit"


def data(paths=()):
    return FitData(
        source=np.eye(3, 4, dtype=np.float32),
        labels=np.array(["cat", "dog", "cat"]),
        target=np.arange(16, dtype=np.float32).reshape(4, 4),
        ids=np.array(["a.png", "b.png", "c.png", "d.png"]),
        inputs={"source": {"rows": 3}, "target": {"rows": 4}},
        columns={},
        feature_names=None,
        summary="",
        source_ids=np.array(["s1", "s2", "s3"]),
        image_paths=tuple(paths),
    )


def corrections_file(folder, *lines, header="path,label"):
    path = folder / "corrections.csv"
    # As Excel writes it, with a byte order mark.
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8-sig")
    return path


def read(folder, *lines, header="path,label"):
    return read_corrections(corrections_file(folder, *lines, header=header), data(), "unknown")


def test_rows_are_found_by_name(tmp_path):
    told = read(tmp_path, "c.png,giraffe", "a.png,unknown", "b.png,dog")
    assert told.rows.tolist() == [0, 1, 2]
    assert told.labels.tolist() == ["unknown", "dog", "giraffe"]
    assert told.names_class.tolist() == [False, True, True]
    assert told.new == ("giraffe",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("path,label\nx.png,cat", "row 2: 'x.png' is no sample of the target"),
        ("path,label\na.png,cat\na.png,dog", "row 3: 'a.png' is there twice"),
        ("path,label,audit\na.png,,maybe", "row 2: audit 'maybe'; write known or unknown"),
        (b"path,label\na.png,caf\xe9\n", "not a CSV file that can be read ('utf-8' codec"),
    ],
)
def test_what_does_not_fit_is_one_line(tmp_path, content, words):
    path = tmp_path / "corrections.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        read_corrections(path, data(), "unknown")
    assert words in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_a_file_that_cannot_be_used_is_found_before_data_is_read(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        check_corrections(tmp_path / "nowhere.csv")
    with pytest.raises(InputError, match="no correction in it"):
        check_corrections(corrections_file(tmp_path))
    with pytest.raises(InputError, match="needs a column id or path"):
        check_corrections(corrections_file(tmp_path, header="name,label"))


def test_an_audit_needs_no_labels(tmp_path):
    lines = ["c.png,, Unknown", "a.png,,known", "b.png,dog,known", "d.png,cat,"]
    told = read(tmp_path, *lines, header=AUDIT)
    # An audited unknown is unknown; a known one has no label yet.
    assert told.rows.tolist() == [1, 2, 3]
    assert told.labels.tolist() == ["dog", "unknown", "cat"]
    assert told.audit.rows.tolist() == [0, 1, 2]
    assert told.audit.unknown.tolist() == [False, False, True]
    assert (told.checked.n_known, told.checked.n_unknown) == (3, 1)
    # Of a known class that was not said.
    marks = told.marks(np.array(["cat", "dog"]))
    assert marks.rows.tolist() == [0, 1, 2, 3]
    assert marks.labels.tolist() == [KNOWN, 1, 2, 0]
    noted = told.noted_in(data())
    assert noted.notes[0].endswith("; audit: 1 of 3 random targets are unknown")
    assert noted.inputs["corrections"]["audit"]["share"] == 1 / 3


def table_of(labels, nearest, proba, classes=("cat", "dog", "owl")):
    given = np.array(labels), np.zeros(len(labels)), np.array(nearest), np.array(proba)
    return PredictionTable(data().ids[: len(labels)], *given, classes)


def test_an_audited_target_gets_no_label_that_it_cannot_have(tmp_path):
    lines = ["a.png,owl,unknown", "b.png,,unknown", "c.png,,known", "d.png,,unknown"]
    told = read(tmp_path, *lines, header=AUDIT)
    # Those of a named class are known from now on; the others are unknown still, or owls.
    assert told.audit.unknown.tolist() == [False, False, False, False]
    assert told.audit.unsettled.tolist() == [False, True, False, True]
    proba = [[0.7, 0.1, 0.1, 0.1], [0.8, 0.0, 0.15, 0.05], [0.0, 0.0, 0.0, 1.0], [0, 0.9, 0, 0.1]]
    table = table_of(["cat", "cat", "unknown", "dog"], ["cat", "cat", "owl", "dog"], proba)
    after = told.applied_to(table)
    # Named; of the two that are left the likelier; known, if only just; no owl.
    assert after.labels.tolist() == ["owl", "owl", "cat", "unknown"]
    np.testing.assert_allclose(after.proba[1], [0, 0, 0.75, 0.25])
    np.testing.assert_allclose(after.proba[2], [0.5, 0.5, 0, 0])
    assert after.corrected.tolist() == [True, False, False, False]
    np.testing.assert_allclose(after.proba.sum(axis=1), 1)


def test_who_was_named_is_marked_and_keeps_the_label(tmp_path):
    path = corrections_file(tmp_path, "a.png,cat")
    names = np.array(["unknown", "giraffe", "cat"])
    told = Corrections(path, np.array([0, 2, 3]), names, "unknown", ("giraffe",))
    marks = told.marks(np.array(["cat", "dog"]))
    assert marks.rows.tolist() == [0, 2, 3]
    assert marks.classes.tolist() == ["cat", "dog", "giraffe"]
    assert marks.labels.tolist() == [3, 2, 0]
    after = told.noted_in(data())
    assert after.notes == ("corrections: 2 of a class, 1 unknown; new: 'giraffe'",)
    proba = [[0.7, 0.2, 0.1], [0.1, 0.2, 0.7], [0.0, 0.9, 0.1], [0.0, 0.9, 0.1]]
    table = table_of(["cat", "unknown", "dog", "dog"], ["cat", "dog", "dog", "dog"], proba,
                     ("cat", "giraffe"))  # fmt: skip
    kept = told.applied_to(table)
    assert kept.labels.tolist() == ["unknown", "unknown", "giraffe", "cat"]
    assert kept.nearest.tolist() == ["cat", "dog", "giraffe", "cat"]
    assert kept.confidence.tolist() == [1.0, 0.7, 1.0, 1.0]
    assert table.labels.tolist() == ["cat", "unknown", "dog", "dog"]


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
    # The first target is marked wrongly; it takes some similar ones with it.
    assert (np.array([row["label"] for row in rows])[1:] == truth[1:]).mean() > 0.8
    assert RunFolder.open("run").settings["classes"] == sorted(NAMES)
    X, y = blobs(2)
    np.savez(workplace / "later.npz", X=X)
    assert main(["predict", "run", "later.npz", "--out", "later.csv"]) == 0
    later = np.array([row["label"] for row in csv_rows(workplace / "later.csv")])
    assert (later == y).mean() > 0.8


def audited(truth, rows):
    """Lines of an audit by the truth, which knows cats and dogs."""
    return [f"{row + 1},,{'unknown' if truth[row] == 'horse' else 'known'}" for row in rows]


def test_the_share_is_that_of_the_audit(workplace, capsys):
    _, truth = blobs(1)
    corrections_file(workplace, *audited(truth, range(0, 60, 2)), header="id,label,audit")
    assert main([*FIT, *FEW_STEPS, "--corrections", "corrections.csv"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "share of unknowns: 33% (21% to 48%), audited: 10 of 30 random targets" in said
    found = RunFolder.open("run").estimates()["openness"]
    assert found["share"] == pytest.approx(1 / 3)
    assert found["estimates"]["audit"]["low"] == found["low"] == pytest.approx(0.21, abs=0.01)
    rows = csv_rows(workplace / "run" / "predictions.csv")
    assert all((rows[row]["label"] == "unknown") == (truth[row] == "horse") for row in range(60))


def test_scores_of_the_reviewed_run_narrow_the_audited_share(workplace):
    _, truth = blobs(1)
    lines = audited(truth, range(0, 60, 2))
    assert main([*FIT, *FEW_STEPS, "--openness", "0.33"]) == 0
    widths = []
    for folder in (workplace, workplace / "run"):
        path = corrections_file(folder, *lines, header="id,label,audit")
        again = ["again" if word == "run" else word for word in [*FIT, *FEW_STEPS, "--overwrite"]]
        assert main([*again, "--corrections", str(path)]) == 0
        found = RunFolder.open("again").estimates()["openness"]
        assert found["share"] == pytest.approx(1 / 3, abs=0.05)
        widths.append(found["high"] - found["low"])
    assert widths[1] < 0.25 < widths[0]
