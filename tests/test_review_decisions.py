"""Decisions of a review: kept in a log that survives everything, undone, exported."""

from __future__ import annotations

import json
import os
from io import FileIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opensetda.errors import InputError
from opensetda.review.decisions import DecisionLog, Decisions
from opensetda.runs.corrections import LONGEST_NAME, check_name
from review_helpers import corrections

CLASSES = ("ant", "bee")
GIVEN = ["ant", "bee", "unknown", "unknown", "ant", "unknown"]


def open_decisions(path, identity="one"):
    log = DecisionLog(path, identity, len(GIVEN))
    return Decisions(log, GIVEN, CLASSES, "unknown")


def labels(decisions):
    return {row: decisions.label(row) for row in range(len(GIVEN)) if row in decisions}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "review.jsonl"


def test_decisions_are_there_again(path):
    decisions = open_decisions(path)
    assert not path.exists()
    assert not decisions.can_undo
    decisions.decide([0], None)
    decisions.decide([1], "ant")
    decisions.decide([2, 3], "moth", group=1)
    for now in (decisions, open_decisions(path)):
        assert labels(now) == {0: "ant", 1: "ant", 2: "moth", 3: "moth"}
        assert [now.kind(row) for row in range(5)] == [
            *("kept", "corrected", "new class", "new class", None)
        ]
        assert now.new_names == ["moth"]
        assert len(now) == 4


def test_undo_gives_back_what_was_before_any_number_of_times(path):
    decisions = open_decisions(path)
    decisions.decide([2], "moth")
    decisions.decide([2, 3], "wasp", group=1)
    assert decisions.new_names == ["wasp"]
    assert decisions.undo().rows == (2, 3)
    assert labels(decisions) == labels(open_decisions(path)) == {2: "moth"}
    assert decisions.new_names == ["moth"]
    assert decisions.undo().label == "moth"
    assert decisions.undo() is None
    assert labels(open_decisions(path)) == {}
    # The log is never rewritten: what was undone can still be read.
    assert [json.loads(line).get("do") for line in path.read_text().splitlines()] == [
        *(None, "decide", "decide", "undo", "undo")
    ]


def test_a_line_torn_anywhere_is_passed_over_and_cut_off(path):
    decisions = open_decisions(path)
    decisions.decide([0], None)
    whole = path.read_bytes()
    decisions.decide([2, 3], "Motte ö", group=1)
    longer = path.read_bytes()
    for end in range(len(longer)):
        path.write_bytes(longer[:end])
        again = open_decisions(path)
        assert labels(again) == ({0: "ant"} if end >= len(whole) else {})
        # Who only looks changes nothing.
        assert path.read_bytes() == longer[:end]
        again.decide([1], "ant")
        expected = {1: "ant"} if end < len(whole) else {0: "ant", 1: "ant"}
        assert labels(open_decisions(path)) == expected
        assert all(json.loads(line) for line in path.read_bytes().splitlines())


def test_a_decision_is_on_the_disk_before_it_counts(path, monkeypatch):
    decisions, order = open_decisions(path), []
    fsync = os.fsync

    def look_and_sync(number):
        if order == []:
            # All of the line was handed to the system; nothing was told yet.
            assert path.read_bytes().endswith(b"\n")
            assert 0 not in decisions
        order.append(os.fstat(number).st_ino)
        fsync(number)

    monkeypatch.setattr(os, "fsync", look_and_sync)
    decisions.decide([0], None)
    assert order == [path.stat().st_ino, path.parent.stat().st_ino]
    assert 0 in decisions


def test_a_full_disk_loses_that_decision_only(path, monkeypatch):
    decisions = open_decisions(path)
    decisions.decide([0], None)

    def full(number):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            decisions.decide([1], "ant")
    assert labels(decisions) == labels(open_decisions(path)) == {0: "ant"}
    decisions.decide([2], "ant")
    assert labels(decisions) == labels(open_decisions(path)) == {0: "ant", 2: "ant"}


def test_what_could_not_be_written_does_not_come_back(path, monkeypatch):
    """Nor by the file's being closed, should there be room by then."""
    decisions = open_decisions(path)
    decisions.decide([0], None)
    before = path.read_bytes()

    class Full(FileIO):
        def write(self, text):
            if len(text) > 9:
                return super().write(text[:9])
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("opensetda.review.decisions.FileIO", Full)
        with pytest.raises(OSError, match="No space"):
            decisions.decide([1], "ant")
    assert path.read_bytes() == before


@pytest.mark.parametrize("size", [None, 0, 20])
def test_a_log_that_someone_takes_away_is_not_written_on(path, size):
    decisions = open_decisions(path)
    decisions.decide([0], None)
    whole = path.read_bytes()
    path.unlink() if size is None else path.write_bytes(whole[:size])
    for work in (lambda: decisions.decide([1], "ant"), decisions.undo):
        with pytest.raises(InputError, match=r"not saved: .*review\.jsonl was removed or cut"):
            work()
    assert labels(decisions) == {0: "ant"}
    assert (path.read_bytes() if path.exists() else None) == (
        None if size is None else whole[:size]
    )
    path.write_bytes(whole)
    decisions.decide([1], "ant")
    assert labels(open_decisions(path)) == {0: "ant", 1: "ant"}


def test_logs_of_others_are_refused(path):
    open_decisions(path).decide([0], None)
    with pytest.raises(InputError, match="decisions about another run that was here before"):
        open_decisions(path, identity="two")
    for head in ("{}", "[]", "no json", '{"format": "opensetda-review", "version": 99}'):
        path.write_text(head + "\n")
        with pytest.raises(InputError, match="not the log of a review"):
            open_decisions(path)


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "[]",
        "{}",
        '{"do": "dance"}',
        '{"do": "undo"}',
        '{"do": "decide"}',
        '{"do": "decide", "rows": [6], "label": null, "group": null, "time": ""}',
        '{"do": "decide", "rows": [-1], "label": null, "group": null, "time": ""}',
        '{"do": "decide", "rows": [true], "label": null, "group": null, "time": ""}',
        '{"do": "decide", "rows": 1, "label": null, "group": null, "time": ""}',
        '{"do": "decide", "rows": [1], "label": 3, "group": null, "time": ""}',
        '{"do": "decide", "rows": [1], "label": "x", "group": "g", "time": ""}',
    ],
)
def test_a_damaged_line_is_named(path, line):
    open_decisions(path).decide([0], None)
    head = path.read_text().splitlines()[0]
    path.write_text(f"{head}\n{line}\n")
    with pytest.raises(InputError, match=r"review\.jsonl: line 2 is damaged"):
        open_decisions(path)


_LABELS = st.sampled_from([None, "ant", "bee", "unknown", "moth", "ünï"])
_ROWS = st.lists(st.integers(0, len(GIVEN) - 1), min_size=1, max_size=4)
_ACTIONS = st.lists(st.one_of(st.just("undo"), st.just("reopen"), st.tuples(_ROWS, _LABELS)))


@given(_ACTIONS)
def test_the_log_replays_to_the_same_state(tmp_path_factory, actions):
    path = tmp_path_factory.mktemp("log") / "review.jsonl"
    decisions, plain = open_decisions(path), []
    for action in actions:
        if action == "reopen":
            decisions = open_decisions(path)
        elif action == "undo":
            decisions.undo()
            del plain[-1:]
        else:
            decisions.decide(*action)
            plain.append(action)
        expected = {}
        for rows, label in plain:
            expected |= {row: GIVEN[row] if label is None else label for row in rows}
        assert labels(decisions) == expected
        assert set(decisions.new_names) == {*expected.values()} - {*CLASSES, "unknown"}
        assert decisions.can_undo == bool(plain)
    assert labels(open_decisions(path)) == labels(decisions)


def test_the_table_says_what_was_decided(path, tmp_path):
    decisions = open_decisions(path)
    decisions.decide([4], "unknown")
    decisions.decide([3, 2], 'a "moth", <b>', group=7)
    decisions.decide([0], None)
    ids = [f"it's, {row}.png" for row in range(len(GIVEN))]
    decisions.write_csv(tmp_path / "corrections.csv", ids, "path")
    rows = corrections(tmp_path)
    assert list(rows[0]) == ["path", "label", "before", "decision", "group", "time"]
    assert [tuple(row.values())[:5] for row in rows] == [
        ("it's, 0.png", "ant", "ant", "kept", ""),
        ("it's, 2.png", 'a "moth", <b>', "unknown", "new class", "7"),
        ("it's, 3.png", 'a "moth", <b>', "unknown", "new class", "7"),
        ("it's, 4.png", "unknown", "ant", "corrected", ""),
    ]
    assert all(row["time"][:2] == "20" for row in rows)


def test_names_that_are_taken_as_they_are():
    assert check_name("ant", CLASSES, "unknown") == "ant"
    assert check_name("unknown", CLASSES, "unknown") == "unknown"
    assert check_name("  moth \n", CLASSES, "unknown") == "moth"
    assert check_name(" ant ", CLASSES, "unknown") == "ant"
    assert check_name("caf" + "e\u0301", CLASSES, "unknown") == "caf\u00e9"
    # A class that the run has is taken, odd as it may be.
    assert check_name(" Ant", [*CLASSES, " Ant"], "unknown") == " Ant"
    assert check_name("x" * LONGEST_NAME, CLASSES, "unknown") == "x" * LONGEST_NAME
    assert check_name("<script>alert(1)</script>", CLASSES, "unknown")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "empty"),
        (" \t\u2003", "empty"),
        ("x" * (LONGEST_NAME + 1), "201 characters; 200 are allowed"),
        ("a\nb", "control characters"),
        ("a\0b", "control characters"),
        ("a\x7f", "control characters"),
        ("a\ud800", "control characters"),
        ("a\u2028b", "control characters"),
        ("a\u202eb", "control characters"),
        ("Unknown", "'Unknown' is too like 'unknown', which means no class"),
        (" UNKNOWN ", "means no class"),
        ("Ant", "'Ant' is too like the class 'ant'"),
    ],
)
def test_names_that_are_refused_in_one_line(name, words):
    with pytest.raises(InputError, match=words):
        check_name(name, CLASSES, "unknown")
