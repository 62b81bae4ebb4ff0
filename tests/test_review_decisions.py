"""Decisions of a review: kept in a log that survives everything, undone, exported."""

from __future__ import annotations

import json
import os
from io import FileIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opensetda.data.limits import LONGEST_LABEL
from opensetda.errors import InputError
from opensetda.review.decisions import Decisions
from opensetda.review.log import LARGEST_LOG, DecisionLog, NotSavedError
from opensetda.review.session import ReviewSession
from opensetda.runs.corrections import Names
from review_helpers import corrections, make_run

CLASSES = ("ant", "bee")
GIVEN = ["ant", "bee", "unknown", "unknown", "ant", "unknown"]


def open_decisions(path, identity="one"):
    log = DecisionLog(path, identity, len(GIVEN))
    return Decisions(log, GIVEN, CLASSES, "unknown")


def check_name(name, in_use, unknown):
    return Names(in_use, unknown).checked(name)


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
        with pytest.raises(NotSavedError, match="no space left on device"):
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
        patch.setattr("opensetda.review.log.FileIO", Full)
        with pytest.raises(NotSavedError, match="no space left on device"):
            decisions.decide([1], "ant")
    assert path.read_bytes() == before


@pytest.mark.parametrize("size", [None, 0, 20])
def test_a_log_that_someone_takes_away_is_not_written_on(path, size):
    decisions = open_decisions(path)
    decisions.decide([0], None)
    whole = path.read_bytes()
    path.unlink() if size is None else path.write_bytes(whole[:size])
    for work in (lambda: decisions.decide([1], "ant"), decisions.undo):
        with pytest.raises(InputError, match=r"not saved: .*review\.jsonl was removed or changed"):
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


TIME = '"time": "2026-11-17T07:00:00+00:00"'
DECIDED = f'{{"do": "decide", "rows": [1], "label": "x", "group": null, {TIME}}}'


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("no json", "Expecting value"),
        ("[]", "no JSON object"),
        ("{}", "do: neither a decision, a mark nor an undo"),
        ('{"do": ["undo"]}', "do: neither"),
        ('{"do": "dance"}', "do: neither"),
        (f'{{"do": "undo", {TIME}}}', "nothing to undo"),
        ('{"do": "undo"}', "time: Field required"),
        ('{"do": "decide"}', "rows: Field required"),
        (DECIDED.replace("[1]", "[6]"), "rows: the run has 6 targets only"),
        (DECIDED.replace("[1]", "[1, -1]"), "rows.1: Input should be greater"),
        (DECIDED.replace("[1]", "[true]"), "rows.0: Input should be a valid integer"),
        (DECIDED.replace("[1]", "[1.0]"), "rows.0: Input should be a valid integer"),
        (DECIDED.replace("[1]", "[]"), "rows: Tuple should have at least 1 item"),
        (DECIDED.replace("[1]", "1"), "rows: Input should be a valid tuple"),
        (DECIDED.replace("[1]", f"[{'1' * 5000}]"), "integer string conversion"),
        (DECIDED.replace("[1]", f"[{'1' * 4000}]"), "rows.0: Input should be less"),
        (DECIDED.replace("[1]", "[" * 100_000), "nested too deeply"),
        (DECIDED.replace('"x"', "3"), "label: Input should be a valid string"),
        (DECIDED.replace('"x"', r'"\ud800"'), "label: Input should be a valid string"),
        (DECIDED.replace("null", '"g"'), "group: Input should be a valid integer"),
        (DECIDED.replace("2026", r"\u001b[2J"), "time: String should match"),
        (DECIDED.replace("{", '{"rows": [0], '), "a key is there twice"),
        (DECIDED.replace("{", '{"more": 1, '), "more: Unexpected keyword"),
        (DECIDED.replace("x", "y" * (1 << 21)), "no line of a review"),
    ],
)
def test_a_damaged_line_is_named_with_its_field(path, line, words):
    open_decisions(path).decide([0], None)
    head = path.read_text().splitlines()[0]
    first = "" if "undo" in line else DECIDED + "\n"
    path.write_text(f"{head}\n{first}{line}\n")
    number = 3 if first else 2
    with pytest.raises(InputError, match=rf"review\.jsonl: line {number} is damaged \(") as caught:
        open_decisions(path)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


def test_a_line_in_another_encoding_is_named(path):
    open_decisions(path).decide([0], None)
    for line in (DECIDED.encode("utf-16"), DECIDED.replace("x", "ü").encode("latin-1")):
        path.write_bytes(path.read_bytes().splitlines(keepends=True)[0] + line + b"\n")
        with pytest.raises(InputError, match="line 2 is damaged"):
            open_decisions(path)


def test_a_log_larger_than_any_is_not_read(path):
    with path.open("wb") as stream:
        stream.truncate(LARGEST_LOG + 1)
    with pytest.raises(InputError, match="larger than 256 MiB; move it away"):
        open_decisions(path)


def test_what_could_not_be_read_again_is_not_written(path):
    decisions = open_decisions(path)
    decisions.decide([0], None)
    for label, words in (("x" * (1 << 21), "too long for"), ("a\ud800", "half of a character")):
        with pytest.raises(NotSavedError, match=words):
            decisions.decide([1], label)
    assert labels(open_decisions(path)) == {0: "ant"}


@pytest.mark.parametrize(
    "content",
    [
        b"a note without a newline",
        b"a note\nof two lines",
        b"\n",
        b"{}",
        b"\0" * 50,
        b'{"do": "decide", "rows": [',
        b'{"format": "opensetda-review", "version": 2',
        b'{"format": "opensetda-review", "version": 1, "identity": "two',
        b'{"format": "opensetda-review", "version": 1, "identity": "one"} ',
        b"[" * 100_000,
    ],
)
def test_a_file_that_is_no_log_stays_as_it_is(path, content):
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"not the log of a review by this release; move it away"):
        open_decisions(path)
    assert path.read_bytes() == content


def test_an_empty_file_and_another_name_of_it_are_fine(path, tmp_path):
    path.touch()
    (tmp_path / "other").hardlink_to(path)
    open_decisions(path).decide([0], None)
    assert labels(open_decisions(tmp_path / "other")) == {0: "ant"}


@pytest.mark.parametrize("tail", [b"a note", b"\0\0", b'{"do": "dance', b"{'do'", b"{}"])
def test_an_end_that_no_crash_left_is_not_cut_off(path, tail):
    decisions = open_decisions(path)
    decisions.decide([0], None)
    with path.open("ab") as stream:
        stream.write(tail)
    content = path.read_bytes()
    with pytest.raises(NotSavedError, match="was removed or changed by another program"):
        decisions.decide([1], "ant")
    with pytest.raises(InputError, match="line 3 is damaged"):
        open_decisions(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("is_first", [True, False])
def test_what_another_program_wrote_meanwhile_is_not_cut_off(path, is_first):
    """As two reviews do, where the system has no locks."""
    one, other = open_decisions(path), None
    if not is_first:
        one.decide([0], None)
    other = open_decisions(path)
    other.decide([1], "ant")
    content = path.read_bytes()
    with pytest.raises(NotSavedError, match="was removed or changed by another program"):
        one.decide([2], "ant")
    assert path.read_bytes() == content
    # A file of the same length, too.
    path.write_bytes(content.replace(b"ant", b"bee"))
    with pytest.raises(NotSavedError, match="was removed or changed by another program"):
        other.decide([2], "ant")


def put_link(path, target):
    target.write_bytes(b"")
    path.symlink_to(target)


NO_FILES = {
    "link": lambda path: put_link(path, path.with_name("target")),
    "dangling": lambda path: path.symlink_to(path.with_name("nowhere")),
    "folder": lambda path: path.mkdir(),
    "pipe": lambda path: os.mkfifo(path),
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("name", ["review.jsonl", "corrections.csv"])
def test_links_pipes_and_folders_are_refused(tmp_path, kind, name):
    make_run(tmp_path / "run", n=6, images=False)
    path = tmp_path / "run" / name
    NO_FILES[kind](path)
    before = sorted(path.parent.iterdir())
    what = "not a file" if kind in ("folder", "pipe") else "a link"
    with pytest.raises(InputError, match=f"{name}: {what}; move it away, and start"):
        ReviewSession(tmp_path / "run")
    assert sorted(path.parent.iterdir()) == before
    assert kind != "link" or (path.is_symlink() and path.read_bytes() == b"")


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("name", ["review.jsonl", "corrections.csv"])
def test_they_are_refused_when_they_come_later(tmp_path, kind, name):
    make_run(tmp_path / "run", n=6, images=False)
    path, session = tmp_path / "run" / name, ReviewSession(tmp_path / "run")
    rows = session._lists["border"]
    session.decide(rows[0], "border", None)
    path.rename(tmp_path / name)
    NO_FILES[kind](path)
    for work in (lambda: session.decide(rows[1], "border", "ant"), session.undo):
        with pytest.raises(NotSavedError, match="not saved: ") as caught:
            work()
        assert str(path) in str(caught.value)
    assert len(session.decisions) == 1
    path.rmdir() if kind == "folder" else path.unlink()
    (tmp_path / name).rename(path)
    session.decide(rows[1], "border", "ant")
    assert len(corrections(path.parent)) == 2
    session.close()


@pytest.mark.parametrize(
    "content", [b"", b"a note", b"id,label\n1,ant\n", b"\xef\xbb\xbfid,label,before"]
)
def test_a_table_of_others_stays_as_it_is(tmp_path, content):
    make_run(tmp_path / "run", n=6, images=False)
    path = tmp_path / "run" / "corrections.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"corrections\.csv: not a table of this review; move"):
        ReviewSession(tmp_path / "run")
    assert path.read_bytes() == content


def test_a_table_whose_log_is_gone_stays_as_it_is(tmp_path):
    make_run(tmp_path / "run", n=6, images=False)
    session = ReviewSession(tmp_path / "run")
    session.decide(session._lists["border"][0], "border", "moth")
    session.close()
    (tmp_path / "run" / "review.jsonl").unlink()
    with pytest.raises(InputError, match=r"decisions that are not in review\.jsonl; move it away"):
        ReviewSession(tmp_path / "run")
    assert [row["label"] for row in corrections(tmp_path / "run")] == ["moth"]


def test_the_table_is_brought_up_to_date_after_a_crash(tmp_path, monkeypatch):
    make_run(tmp_path / "run", n=6, images=False)
    session = ReviewSession(tmp_path / "run")
    session.decide(session._lists["border"][0], "border", "moth")
    with monkeypatch.context() as patch:
        patch.setattr(session, "_export", lambda: None)
        session.undo()
    session.close()
    assert len(corrections(tmp_path / "run")) == 1
    ReviewSession(tmp_path / "run").close()
    # Of what was undone nothing is left.
    assert corrections(tmp_path / "run") == []


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
    assert list(rows[0]) == ["path", "label", "before", "decision", "group", "time", "audit"]
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
    assert check_name("x" * LONGEST_LABEL, CLASSES, "unknown") == "x" * LONGEST_LABEL
    assert check_name("<script>alert(1)</script>", CLASSES, "unknown")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "empty"),
        (" \t\u2003", "empty"),
        ("x" * (LONGEST_LABEL + 1), "201 characters; 200 are allowed"),
        ("a\nb", "which cannot be seen"),
        ("a\0b", "which cannot be seen"),
        ("a\x7f", "which cannot be seen"),
        ("a\ud800", "which cannot be seen"),
        ("a\u2028b", "which cannot be seen"),
        ("a\u202eb", "which cannot be seen"),
        ("Unknown", "'Unknown' is too like 'unknown', which means no class"),
        (" UNKNOWN ", "means no class"),
        ("Ant", "'Ant' is too like the class 'ant'"),
        ("\uff21\uff2e\uff34", "is too like the class 'ant'"),
        ("a\u200cnt", r"'a\\u200cnt' is too like the class 'ant'"),
        ("un\u200dknown", "means no class"),
        ("UN\u212aNOWN", "means no class"),
        ("be\u00ad\u1d49", "which cannot be seen"),
        ("be\u1d49", "is too like the class 'bee'"),
        ("\u200b", "has U\\+200B ZERO WIDTH SPACE in it, which cannot be seen; type it by hand"),
        ("moth\u2060", "U\\+2060"),
        ("\ufeff", "U\\+FEFF"),
        ("mo\u00adth", "U\\+00AD"),
        ("\u3164", "U\\+3164"),
        ("\u0301\u0302", "nothing in it that can be seen"),
    ],
)
def test_names_that_are_refused_in_one_line(name, words):
    with pytest.raises(InputError, match=words):
        check_name(name, CLASSES, "unknown")
