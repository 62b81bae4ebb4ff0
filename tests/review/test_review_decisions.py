"""Decisions of a review: in a log that survives a crash, undone, and exported as a table."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opensetda.errors import InputError
from opensetda.review.decisions import DecisionLog, Decisions, NotSavedError
from opensetda.review.session import ReviewSession
from opensetda.runs.folder import PREDICTIONS
from opensetda.usecases.corrections import class_name
from review_helpers import corrections, make_run, reviewing, sign

CLASSES = ("ant", "bee")
GIVEN = ["ant", "bee", "unknown", "unknown", "ant", "unknown"]


def open_decisions(path, identity="one"):
    return Decisions(DecisionLog(path, identity, len(GIVEN)), GIVEN, CLASSES, "unknown")


def labels(decisions):
    return {row: decisions.label(row) for row in range(len(GIVEN)) if row in decisions}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "review.jsonl"


def test_decisions_are_there_again_and_undone_one_by_one(path):
    decisions = open_decisions(path)
    assert not path.exists()
    decisions.decide([0], None)
    decisions.decide([1, 2], "moth", "1")
    decisions.decide([1], "ant")
    for now in (decisions, open_decisions(path)):
        assert labels(now) == {0: "ant", 1: "ant", 2: "moth"}
        assert [now.kind(row) for row in range(4)] == ["kept", "corrected", "new class", None]
        assert (now.new_names, len(now)) == (["moth"], 3)
    assert decisions.undo().label == "ant"
    assert labels(decisions) == labels(open_decisions(path)) == {0: "ant", 1: "moth", 2: "moth"}
    assert decisions.undo().rows == (1, 2)
    assert decisions.undo().rows == (0,)
    assert decisions.undo() is None
    assert labels(open_decisions(path)) == {}
    # The log is never rewritten: what was undone can still be read.
    said = [json.loads(line).get("do") for line in path.read_text().splitlines()]
    assert said == [None, *["decide"] * 3, *["undo"] * 3]


def test_a_line_torn_anywhere_is_skipped_and_overwritten(path):
    decisions = open_decisions(path)
    decisions.decide([0], None)
    whole = path.read_bytes()
    decisions.decide([2, 3], "Motte ö", "1")
    longer = path.read_bytes()
    for end in range(len(longer)):
        path.write_bytes(longer[:end])
        again = open_decisions(path)
        before = {0: "ant"} if end >= len(whole) else {}
        assert labels(again) == before
        # Who only looks changes nothing.
        assert path.read_bytes() == longer[:end]
        again.decide([1], "ant")
        assert labels(open_decisions(path)) == {**before, 1: "ant"}


def test_a_decision_is_on_the_disk_before_it_counts(path, monkeypatch):
    decisions, fsync, seen = open_decisions(path), os.fsync, []

    def look_and_sync(number):
        seen.append((path.read_bytes()[-1:], 0 in decisions))
        fsync(number)

    monkeypatch.setattr(os, "fsync", look_and_sync)
    decisions.decide([0], None)
    assert seen == [(b"\n", False)]
    assert 0 in decisions


def test_a_full_disk_loses_that_decision_only(path, monkeypatch):
    decisions = open_decisions(path)
    decisions.decide([0], None)
    before = path.read_bytes()

    def full(number):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(NotSavedError, match=r"not saved: .*no space left on device"):
            decisions.decide([1], "ant")
    assert path.read_bytes() == before
    decisions.decide([2], "ant")
    assert labels(decisions) == labels(open_decisions(path)) == {0: "ant", 2: "ant"}
    path.unlink()
    with pytest.raises(NotSavedError, match=r"not saved: .*no such file"):
        decisions.undo()
    assert labels(decisions) == {0: "ant", 2: "ant"}


DECIDED = '{"rows": [1], "label": "x", "time": "now"}'


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"[" * 100_000, "Invalid JSON"),
        (DECIDED.replace("[1]", "[6]").encode(), "rows: not of the 6 targets"),
        (DECIDED.replace("[1]", "[1, -1]").encode(), "rows.1 Input should be greater"),
        (DECIDED.replace("{", '{"mark": "perhaps", ').encode(), "mark"),
    ],
)
def test_a_damaged_line_is_named(path, line, words):
    open_decisions(path).decide([0], None)
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(InputError, match=r"review\.jsonl: line 3 is damaged \(") as caught:
        open_decisions(path)
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 500


def test_logs_of_others_are_refused(path):
    open_decisions(path).decide([0], None)
    with pytest.raises(InputError, match=r"review\.jsonl: not a review of this run; move"):
        open_decisions(path, identity="two")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match="a pipe, not a file"):
        open_decisions(path)


_ROW, _LABEL = st.integers(0, len(GIVEN) - 1), st.sampled_from(["ant", "unknown", "moth", "ünï"])
_MARK = st.tuples(_ROW, st.sampled_from(["known", "unknown"]), st.none() | _LABEL)
_DECISION = st.tuples(st.lists(_ROW, min_size=1, max_size=3), st.none() | _LABEL)


@given(st.lists(st.one_of(st.just("undo"), st.just("reopen"), _MARK, _DECISION), max_size=12))
def test_the_log_replays_to_the_same_state_without_contradictions(tmp_path_factory, actions):
    path = tmp_path_factory.mktemp("log") / "review.jsonl"
    decisions = open_decisions(path)
    states = [state_of(decisions)]
    for action in actions:
        if action == "reopen":
            decisions = open_decisions(path)
        elif action == "undo":
            decisions.undo()
            states = states[:-1] or states
        else:
            (decisions.mark if len(action) == 3 else decisions.decide)(*action)
            states.append(state_of(decisions))
        assert state_of(decisions) == states[-1]
        assert len(decisions.entries) == len(states) - 1
        for row, (label, mark) in enumerate(states[-1]):
            assert (row in decisions) == (label is not None)
            assert label is None or mark in (None, "known" if label in CLASSES else "unknown")
        used = {label for label, _ in states[-1]} - {None, *CLASSES, "unknown"}
        assert set(decisions.new_names) == used
    assert state_of(open_decisions(path)) == states[-1]


def state_of(decisions):
    return [(decisions.label(row), decisions.audit(row)) for row in range(len(GIVEN))]


def test_the_table_says_what_was_decided_and_audited(path, tmp_path):
    decisions = open_decisions(path)
    decisions.decide([4], "unknown", "border")
    decisions.decide([3, 2], 'a "moth", <b>', "7")
    decisions.mark(0, "known")
    decisions.mark(1, "unknown", "bee")  # a class overrules the mark
    ids = [f"it's, {row}.png" for row in range(len(GIVEN))]
    decisions.write_csv(tmp_path / "corrections.csv", ids, "path")
    rows = corrections(tmp_path)
    assert list(rows[0]) == ["path", "label", "before", "decision", "group", "time", "audit"]
    assert all(row.pop("time")[:2] == "20" for row in rows)
    assert [tuple(row.values()) for row in rows] == [
        ("it's, 0.png", "", "ant", "audited", "", "known"),
        ("it's, 1.png", "bee", "bee", "kept", "", "known"),
        ("it's, 2.png", 'a "moth", <b>', "unknown", "new class", "7", ""),
        ("it's, 3.png", 'a "moth", <b>', "unknown", "new class", "7", ""),
        ("it's, 4.png", "unknown", "ant", "corrected", "", ""),
    ]


def test_table_and_log_that_do_not_agree(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", n=6, images=False).path
    session = ReviewSession(run)
    session.decide(session._lists["border"][0], "border", "moth")
    with monkeypatch.context() as patch:
        patch.setattr(session, "_export", lambda: None)
        session.undo()
    session.close()
    assert len(corrections(run)) == 1
    # A crash came between log and table: the table is brought up to date.
    ReviewSession(run).close()
    assert corrections(run) == []
    # Without its log, a table may hold decisions that are nowhere else.
    (run / "review.jsonl").unlink()
    with pytest.raises(InputError, match=r"decisions that are not in review\.jsonl; move it away"):
        ReviewSession(run)
    assert (run / "corrections.csv").exists()


def test_names_that_are_taken_and_refused():
    names = [*CLASSES, " Ant", "unknown"]
    for name in (" \t\u2003", "x" * 201, "a\nb", " UNKNOWN ", "b\u200cee"):
        with pytest.raises(InputError):
            class_name(name, names)
    # A class that the run has is taken, odd as it may be.
    for name in ("ant", "unknown", " Ant", "<script>alert(1)</script>", "x" * 200):
        assert class_name(name, names) == name
    assert class_name("  moth \n", names) == "moth"
    assert class_name("caf" + "e\u0301", names) == "caf\u00e9"


def test_the_first_decision_takes_over_what_the_run_was_fitted_with(tmp_path):
    run = make_run(tmp_path / "run", n=12, images=False)
    table = run.predictions()
    replace(table, corrected=np.arange(12) < 3).write(run.path / PREDICTIONS)
    sign(run.path)
    with reviewing(run.path) as session:
        assert not (run.path / "review.jsonl").exists()
        row = next(row for row in session._lists["border"].tolist() if row > 2)
        session.decide(row, "border", "moth")
    expected = dict(zip(table.ids[:3].tolist(), table.labels[:3].tolist(), strict=True))
    expected |= {str(table.ids[row]): "moth"}
    assert {line["id"]: line["label"] for line in corrections(run.path)} == expected
    # What is undone there does not come back.
    with reviewing(run.path) as session:
        for _ in session.decisions.entries[:]:
            session.undo()
        session.decide(row, "border", "moth")
    assert len(corrections(run.path)) == 1


def test_a_review_ends_after_what_it_reads_in_the_background(tmp_path, monkeypatch):
    # A process that ends in the middle of it would hang.
    run = make_run(tmp_path / "run", n=12, images=False)
    may_read = threading.Event()
    monkeypatch.setattr("opensetda.review.session.open_columns", lambda *_: may_read.wait(20))
    session = ReviewSession(run.path)
    threading.Timer(0.2, may_read.set).start()
    session.close()
    assert not session._grouping.is_alive()
