"""A review without HTTP: its lists, the search, what is shown of samples, and decisions in them."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import numpy as np
import pytest

from opensetda.errors import InputError
from opensetda.review.hints import MOST_COLUMNS, open_columns
from opensetda.review.queues import near_threshold
from opensetda.review.session import LONGEST_PAGE, ReviewSession
from opensetda.runs.folder import MODEL, SETTINGS, VIEW, RunFolder, check_destination
from opensetda.runs.sample_map import unknown_groups
from opensetda.system.files import file_record, write_json
from review_helpers import CLASSES, corrections, make_run, reviewing, sign


@pytest.fixture
def folder(tmp_path):
    return make_run(tmp_path / "run", images=False).path


@pytest.fixture
def session(folder):
    with reviewing(folder) as session:
        yield session


def rows_of(session, key, count=60):
    return [sample["row"] for sample in session.page(key, 0, count)["samples"]]


def listed(session, key):
    return next(entry for entry in session.summary()["lists"] if entry["key"] == key)


def scored(folder, scores):
    """The table of a run with other scores; those below 0.5 are unknown."""
    table, n = RunFolder.open(folder).predictions(), len(scores)
    labels = np.where(np.asarray(scores) < 0.5, "unknown", "ant")
    parts = {"ids": table.ids[:n], "nearest": table.nearest[:n], "proba": table.proba[:n]}
    return replace(table, known_scores=np.asarray(scores, dtype=float), labels=labels, **parts)


def test_the_nearest_come_first_from_both_sides_in_turn(folder):
    # The threshold is half way between 0.47 and 0.52.
    table = scored(folder, [0.9, 0.52, 0.1, 0.47, 0.6, 0.45, 0.7])
    assert near_threshold(table, "unknown").tolist() == [1, 3, 4, 5, 6, 2, 0]
    # Unknowns alone start where the others would be.
    assert near_threshold(scored(folder, [0.3, 0.1, 0.2]), "unknown").tolist() == [0, 2, 1]
    assert near_threshold(scored(folder, []), "unknown").tolist() == []
    # Manually corrected ones are not asked again, and move no threshold.
    told = replace(table, corrected=np.arange(7) == 1)
    assert near_threshold(told, "unknown").tolist() == [4, 3, 6, 5, 0, 2]


def test_classes_to_check_have_a_list(folder):
    estimates = json.loads((folder / "estimates.json").read_text())
    estimates["alarms"] = [{"name": CLASSES[1]}]
    RunFolder.open(folder).replace_files({"estimates.json": json.dumps(estimates).encode()})
    with reviewing(folder) as session:
        keys = [entry["key"] for entry in session.summary()["lists"]]
        rows = rows_of(session, "alarmed")
        labels = session.table.labels[rows]
    assert keys.index("alarmed") < keys.index("border")
    n_own = (session.table.labels == CLASSES[1]).sum()
    assert set(labels[:n_own]) == {CLASSES[1]}
    # Then those that may be of this class.
    assert CLASSES[1] not in labels[n_own:]
    assert len(rows) > n_own


def test_lists_by_class_and_confidence(session):
    labels, confidence = session.table.labels, session.table.confidence
    keys = [entry["key"] for entry in session.summary()["lists"]]
    assert keys[:4] == ["useful", "audit", "border", "unsure"]
    classes = [key for key in keys if key.startswith("class-")]
    assert {CLASSES[int(key[6:])] for key in classes} == {*labels} - {"unknown"}
    for key in (*classes, "unsure"):
        rows = rows_of(session, key)
        assert (np.diff(confidence[rows]) >= 0).all()
        assert key == "unsure" or set(labels[rows]) == {CLASSES[int(key[6:])]}
    assert [listed(session, key)["size"] for key in "123"] == [10, 10, 10]
    assert "3 groups" in session.summary()["note"]
    assert len({row // 2 % 3 for row in rows_of(session, "2")}) == 1


def test_a_sample_is_shown_with_its_likely_classes(session, folder):
    for sample in session.page("border", 0, 5)["samples"]:
        shares = [share for _, share in sample["likely"]]
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) + sample["unknown"] == pytest.approx(1, abs=1e-3)
        assert {name for name, _ in sample["likely"]} == set(CLASSES)
        assert sample["label"] is sample["kind"] is None
        assert sample["picture"] is False
    session.close()
    write_json(folder / SETTINGS, {**json.loads((folder / SETTINGS).read_text()), "has_ids": False})
    sign(folder)
    with reviewing(folder) as unnamed:
        assert unnamed.page("border", 0, 1)["samples"][0]["name"].startswith("Row ")


def test_searching_by_name_label_state_and_order(session):
    assert rows_of(session, "find?order=row") == [*range(60)]
    assert rows_of(session, 'find?text=IT%27S+"7"') == [7]
    assert rows_of(session, "find?text=nothing+of+this+name") == []
    assert {row % 2 for row in rows_of(session, "find?label=unknown")} == {1}
    confidence = session.table.confidence[rows_of(session, "find?order=confidence")]
    assert (np.diff(confidence) >= 0).all()
    session.decide_group('find?text="7"', "moth", [])
    session.decide(8, "find?", None)
    audited = session._lists["audit"][:1].tolist()
    session.mark(audited[0], "known")
    states = {"new+class": [7], "kept": [8], "corrected": [], "decided": [7, 8], "audited": audited}
    for state, found in states.items():
        assert rows_of(session, f"find?state={state}&order=row") == found
    assert rows_of(session, "find?label=moth") == [7]
    key = "find?state=open&order=row"
    assert rows_of(session, key, 2) == [0, 1]
    session.decide(0, key, None)
    # What was found stays until it is searched again.
    assert rows_of(session, key, 2) == [0, 1]
    assert listed(session, key)["open"] == 1
    session.search(key)
    assert rows_of(session, key, 2) == [1, 2]


def test_decisions_change_what_is_shown_and_the_table(session, folder):
    check_destination(folder, overwrite=True)
    row = rows_of(session, "border")[0]
    answer = session.decide(row, "border", " Moth ")
    assert (answer["label"], answer["newClasses"]) == ("Moth", ["Moth"])
    shown = session.page("border", 0, 1)
    assert (shown["samples"][0]["label"], shown["samples"][0]["kind"]) == ("Moth", "new class")
    assert shown["marks"] == "n" + 59 * "."
    assert (listed(session, "border")["decided"], listed(session, "border")["open"]) == (1, 1)
    assert [row["label"] for row in corrections(folder)] == ["Moth"]
    with pytest.raises(InputError, match="so it is not overwritten"):
        check_destination(folder, overwrite=True)
    assert session.undo()["undone"] == {"list": "border", "place": 0, "count": 1}
    assert corrections(folder) == []
    assert session.undo()["undone"] is None


def test_a_group_is_named_but_for_members_taken_out(session, folder):
    members = rows_of(session, "1")
    out = members[2:4]
    assert session.decide_group("1", "moth", out)["count"] == 8
    assert listed(session, "1")["name"] == "moth"
    # Then those that are left are selected; a decided one can be put to them.
    assert session.decide_group("1", "wasp", [members[0]])["count"] == 3
    wasps = {row for row in members if session.decisions.label(row) == "wasp"}
    assert wasps == {*out, members[0]}
    assert {row["group"] for row in corrections(folder)} == {"1"}
    # All are decided: all are selected.
    assert session.decide_group("1", None, [])["count"] == 10
    assert {row["decision"] for row in corrections(folder)} == {"kept"}
    for _ in range(2):
        assert session.undo()["undone"]["list"] == "1"
    assert {row["label"] for row in corrections(folder)} == {"moth"}


def test_what_is_shown_of_a_class_is_kept_at_once(session):
    key = max(
        (key for key in session._lists if key.startswith("class-")),
        key=lambda key: len(session._lists[key]),
    )
    rows = rows_of(session, key)
    assert session.decide_group(key, None, [rows[1], rows[-1]], (0, 4))["count"] == 3
    assert {row for row in rows if row in session.decisions} == {rows[0], rows[2], rows[3]}
    # All of the window are selected again once they are decided.
    assert session.decide_group(key, None, [], (1, 2))["count"] == 1
    assert session.decide_group(key, "unknown", [], (0, 4))["count"] == 4
    assert session.undo()["undone"] == {"list": key, "place": 0, "count": 4}


def test_what_makes_no_sense_is_refused(session):
    first = rows_of(session, "1")
    for work in (
        lambda: session.page("9", 0, 1),
        lambda: session.decide(first[0], "2", None),
        lambda: session.decide(1000, "border", None),
        lambda: session.decide(first[0], "1", "UNKNOWN"),
        lambda: session.decide(rows_of(session, "audit")[0], "audit", None),
        lambda: session.decide_group("border", "x", []),
        lambda: session.decide_group("1", "x", first),
        lambda: session.mark(1000, "known"),
    ):
        with pytest.raises(InputError):
            work()
    assert not session.decisions.entries


def test_damaged_files_leave_the_rest_to_be_reviewed(folder):
    (folder / VIEW).write_bytes(b"no view")
    sign(folder)
    with reviewing(folder) as session:
        assert len(session._lists["border"]) == 60
        assert len(session._lists["useful"]) == 0
        assert session.summary()["note"].startswith("No groups: ")


def table_run(folder, path, X, names):
    """A run on a table at `path`."""
    make_run(folder, n=len(X), images=False)
    rows = [",".join(map(str, row)) for row in X.tolist()]
    path.write_text("\n".join([",".join(names), *rows]) + "\n")
    write_json(folder / MODEL, {"method": "", "feature_names": list(names), "state": {}})
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
    assert "constant" not in [column["name"] for column in of_group]
    mean = X[members, names.index(of_group[0]["name"])].mean()
    assert of_group[0]["value"] == pytest.approx(mean, rel=1e-3)


def test_a_table_that_is_gone_changed_or_large_is_said(tmp_path, monkeypatch):
    run = table_run(tmp_path / "run", tmp_path / "b.csv", np.ones((60, 1)), ["one"])
    table = run.predictions()
    assert open_columns(run, table).of(np.arange(3)) == []
    with monkeypatch.context() as patch:
        patch.setattr("opensetda.review.hints._MOST_CELLS", 10)
        assert "too large to show its columns" in open_columns(run, table).note
    (tmp_path / "b.csv").write_text("one\n2\n")
    with reviewing(run.path) as session:
        assert "b.csv: changed or gone since the run" in session.summary()["columnsNote"]


def test_many_targets_make_no_long_answers_and_no_long_wait(tmp_path, monkeypatch):
    make_run(tmp_path / "run", n=5000, images=False)
    may_group = threading.Event()
    monkeypatch.setattr(
        "opensetda.review.session.unknown_groups",
        lambda *given: may_group.wait(60) and unknown_groups(*given),
    )
    session = ReviewSession(tmp_path / "run")
    # All but what takes long is there at once.
    first, page = session.start(), session.page("border", 0, 20)
    assert session.decide(page["samples"][0]["row"], "border", None)["isGrouping"]
    assert session.undo()["undone"]["count"] == 1
    with pytest.raises(InputError, match="no such list"):
        session.page("1", 0, 1)
    may_group.set()
    session._grouping.join()
    group = session.page("1", 0, 10_000)
    assert len(group["samples"]) == LONGEST_PAGE
    assert group["marks"] == ""
    answer = session.decide_group("1", "moth", [])
    assert answer["count"] == listed(session, "1")["size"] > 500
    for content in (first, page, group, answer):
        assert len(json.dumps(content)) < 25_000
    session.close()
