"""Lists by class, by confidence and by disagreement, the search, and columns that stand out."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from opensetda.review.columns import MOST_COLUMNS, open_columns
from opensetda.review.disagreement import doubts_of
from opensetda.runs.folder import MODEL, SETTINGS, STEPS, VIEW, RunFolder, parquet_bytes
from opensetda.runs.predictions import PredictionTable
from opensetda.runs.view import RunView
from opensetda.system.files import file_record, write_json
from review_helpers import corrections, make_run, reviewing, sign


@pytest.fixture
def folder(tmp_path):
    return make_run(tmp_path / "run", images=False).path


@pytest.fixture
def session(folder):
    with reviewing(folder) as session:
        yield session


def rows_of(session, key, count=60):
    return [sample["row"] for sample in session.page(key, 0, count)["samples"]]


def test_each_class_has_a_list_of_what_got_it(session):
    lists = [entry for entry in session.summary()["lists"] if entry["kind"] == "class"]
    labels = session.table.labels
    assert {entry["title"]: entry["size"] for entry in lists} == {
        name: int((labels == name).sum()) for name in session.table.classes if name in labels
    }
    for entry in lists:
        rows = rows_of(session, entry["key"])
        assert set(labels[rows]) == {entry["title"]}
        assert (np.diff(session.table.confidence[rows]) >= 0).all()
    assert [entry["kind"] for entry in session.summary()["lists"]][:4] == [
        *("audit", "check", "check", "check")
    ]


def test_what_is_shown_of_a_class_is_kept_at_once(session, folder):
    key = max(
        (e for e in session.summary()["lists"] if e["kind"] == "class"), key=lambda e: e["size"]
    )["key"]
    rows = rows_of(session, key)
    assert len(rows) > 4
    answer = session.decide_group(key, None, [rows[1], rows[-1]], slice(0, 4))
    assert answer["count"] == 3
    assert {row for row in rows if row in session.decisions} == {rows[0], rows[2], rows[3]}
    # All of the window are selected again once they are decided.
    assert session.decide_group(key, None, [], slice(1, 2))["count"] == 1
    assert session.decide_group(key, "unknown", [], slice(0, 4))["count"] == 4
    assert {row["decision"] for row in corrections(folder)} == {"corrected"}
    undone = session.undo(key)["undone"]
    assert undone == {"list": key, "place": 0, "count": 4}
    # From a list that does not have it, undoing leads to one that has.
    assert session.undo("1")["undone"]["list"] != "1"


def test_the_least_confident_come_first(session):
    confidence = session.table.confidence[rows_of(session, "unsure")]
    assert (np.diff(confidence) >= 0).all()
    assert confidence[0] == session.table.confidence.min()


def test_searching_by_name_label_state_and_order(session):
    rows = rows_of(session, "find?order=row")
    assert rows == [*range(60)]
    assert rows_of(session, 'find?text=IT%27S+"7"') == [7]
    assert rows_of(session, "find?text=nothing+of+this+name") == []
    assert {row % 2 for row in rows_of(session, "find?label=unknown")} == {1}
    confidence = session.table.confidence[rows_of(session, "find?order=confidence")]
    assert (np.diff(confidence) >= 0).all()
    session.decide_group('find?text="7"', "moth", [])
    session.decide(8, "find?", None)
    session.mark(int(session._lists["audit"][0]), "known")
    for state, found in {
        "new+class": [7],
        "kept": [8],
        "corrected": [],
        "decided": [7, 8],
        "audited": session._lists["audit"][:1].tolist(),
    }.items():
        assert rows_of(session, f"find?state={state}&order=row") == found
    assert len(session.search("find?state=open")["lists"]) > 5
    assert rows_of(session, "find?label=moth") == [7]


def test_what_was_found_stays_until_it_is_searched_again(session):
    key = "find?state=open&order=row"
    assert rows_of(session, key, 2) == [0, 1]
    session.decide(0, key, None)
    assert rows_of(session, key, 2) == [0, 1]
    session.search(key)
    assert rows_of(session, key, 2) == [1, 2]
    # Few are kept; one that is gone is searched again.
    for number in range(6):
        session.search(f"find?text={number}")
    assert sum(entry["kind"] == "find" for entry in session.summary()["lists"]) == 4
    assert rows_of(session, key, 1) == [1]


def odd_run(folder):
    """Two clusters, ants and bees; the last target lies among the bees and is called an ant."""
    make_run(folder, n=60, images=False)
    rng = np.random.default_rng(0)
    is_bee = np.arange(60) >= 30
    places = np.where(is_bee[:, None], [0.0, 5.0], [5.0, 0.0]) + rng.normal(0, 0.2, (60, 2))
    labels = np.where(is_bee, "bee", "ant").astype("U9")
    labels[59] = "ant"
    table = RunFolder.open(folder).predictions()
    proba = np.zeros((60, 6))
    proba[np.arange(60), (labels == "bee").astype(int)] = 0.99
    proba[:, -1] = 0.01
    PredictionTable(table.ids, labels, np.ones(60), labels, proba, table.classes, "unknown").write(
        folder / "predictions.csv"
    )
    view = RunView(np.arange(0), np.arange(60), np.arange(0), (), places.astype(np.float16))
    view.write(folder / VIEW)
    return labels, places


def test_a_confident_label_that_its_neighbours_disagree_with_comes_first(tmp_path):
    labels, _ = odd_run(tmp_path / "run")
    steps = {f"step_{n}": pa.array(labels.tolist()) for n in (1, 2)}
    steps["step_1"] = pa.array([*labels.tolist()[:3], "unknown", *labels.tolist()[4:]])
    (tmp_path / "run" / STEPS).write_bytes(parquet_bytes(pa.table(steps)))
    sign(tmp_path / "run")
    with reviewing(tmp_path / "run") as session:
        shown = session.page("doubt", 0, 60)["samples"]
    assert [sample["row"] for sample in shown[:2]] == [59, 3]
    assert shown[0]["reasons"] == ["20 of the 20 nearest samples are labelled bee"]
    assert shown[1]["reasons"] == ["after 1 of 2 steps it was labelled unknown"]


def test_damaged_files_disagree_with_nothing(folder):
    (folder / VIEW).write_bytes(b"no view")
    sign(folder)
    run = RunFolder.open(folder)
    doubts = doubts_of(run, run.predictions())
    assert not doubts.against.any()
    assert len(doubts.most_doubtful()) == 0


def table_run(folder, path, X, names):
    """A run on a table at `path`."""
    make_run(folder, n=len(X), images=False)
    rows = [",".join(map(str, row)) for row in X.tolist()]
    path.write_text("\n".join([",".join(names), *rows]) + "\n")
    write_json(folder / MODEL, {"feature_names": list(names), "state": {}})
    settings = json.loads((folder / SETTINGS).read_text())
    settings["inputs"]["target"] = {**file_record(path), "rows": len(X)}
    (folder / SETTINGS).write_text(json.dumps(settings))
    sign(folder)
    return RunFolder.open(folder)


def test_columns_that_stand_out_come_with_samples_and_groups(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(0, 1, (60, 9)).round(3) * 10.0 ** np.arange(-4, 5)
    names = [f"sensor {number}" for number in range(8)] + ["constant"]
    X[:, 8], X[1, 3] = 7, 1.5
    run = table_run(tmp_path / "run", tmp_path / "b.csv", X, names)
    with reviewing(run.path) as session:
        found, of_group = session.page("find?order=row", 0, 2), session.page("1", 0, 1)["columns"]
        members = rows_of(session, "1")
    assert found["columns"] == []
    columns = found["samples"][1]["columns"]
    assert len(columns) == MOST_COLUMNS
    assert (columns[0]["name"], columns[0]["value"]) == ("sensor 3", 1.5)
    deviations = (1.5 - X[:, 3].mean()) / X[:, 3].std()
    assert columns[0]["apart"] == pytest.approx(deviations, abs=0.06)
    assert columns[0]["nearest"] == found["samples"][1]["nearest"]
    assert "constant" not in [column["name"] for column in of_group]
    # Compared with a label that is not their own.
    assert of_group[0]["nearest"] not in (None, "unknown")
    place = names.index(of_group[0]["name"])
    mean = X[members, place].mean()
    assert of_group[0]["value"] == pytest.approx(mean, rel=1e-3)


def test_a_table_that_is_gone_or_changed_is_said(tmp_path, monkeypatch):
    run = table_run(tmp_path / "run", tmp_path / "b.csv", np.ones((60, 1)), ["one"])
    table = run.predictions()
    assert open_columns(run, table).of(np.arange(3)) == []
    with monkeypatch.context() as patch:
        patch.setattr("opensetda.review.columns._MOST_CELLS", 10)
        assert "too large to show its columns" in open_columns(run, table).note
    (tmp_path / "b.csv").write_text("one\n2\n")
    assert "changed or gone since the run" in open_columns(run, table).note
    (tmp_path / "b.csv").unlink()
    with reviewing(run.path) as session:
        assert "b.csv: changed or gone since the run" in session.summary()["columnsNote"]
