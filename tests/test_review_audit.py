"""The audit of a review: targets drawn at random, marked known or unknown."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opensetda.cli.main import main
from opensetda.errors import InputError
from opensetda.review.decisions import Decisions
from opensetda.review.log import DecisionLog
from opensetda.review.queues import audit_order
from opensetda.review.session import ReviewSession
from opensetda.runs.corrections import refit_command
from opensetda.runs.folder import ESTIMATES, SETTINGS
from review_helpers import corrections, make_run, sign

GIVEN = ["ant", "bee", "unknown", "unknown", "ant", "cat"]
CLASSES = ["ant", "bee", "cat"]


def open_decisions(path):
    return Decisions(DecisionLog(path, "one", len(GIVEN)), GIVEN, CLASSES, "unknown")


@pytest.fixture
def folder(tmp_path):
    return make_run(tmp_path / "run", images=False).path


def test_every_beginning_of_the_order_is_a_random_sample():
    assert sorted(audit_order("one", 50).tolist()) == [*range(50)]
    assert audit_order("one", 50).tolist() == audit_order("one", 50).tolist()
    assert audit_order("one", 50).tolist() != audit_order("two", 50).tolist()
    drawn = np.concatenate([audit_order(f"run {number}", 50)[:10] for number in range(500)])
    # Each target is expected 100 times, with a standard deviation of 9.
    assert np.abs(np.bincount(drawn, minlength=50) - 100).max() < 45


def test_a_mark_is_no_label(tmp_path):
    decisions = open_decisions(tmp_path / "review.jsonl")
    decisions.mark(0, "known")
    decisions.mark(1, "unknown")
    decisions.mark(2, "unknown", "moth")
    decisions.mark(3, "unknown", "cat")  # a class overrules the mark
    decisions.write_csv(tmp_path / "corrections.csv", [*"abcdef"], "id")
    rows = [
        (row["id"], row["label"], row["decision"], row["audit"]) for row in corrections(tmp_path)
    ]
    assert rows == [
        ("a", "", "audited", "known"),
        ("b", "", "audited", "unknown"),
        ("c", "moth", "new class", "unknown"),
        ("d", "cat", "corrected", "known"),
    ]
    # Not decided yet: a group that it is in can still be named.
    assert [row in decisions for row in range(4)] == [False, False, True, True]
    again = open_decisions(tmp_path / "review.jsonl")
    assert again.audited() == {0: "known", 1: "unknown", 2: "unknown", 3: "known"}
    assert again.new_names == ["moth"]


_ROW = st.integers(0, len(GIVEN) - 1)
_LABEL = st.sampled_from(["ant", "bee", "unknown", "moth"])
_MARK = st.tuples(_ROW, st.sampled_from(["known", "unknown"]), st.none() | _LABEL)
_DECISION = st.tuples(st.lists(_ROW, min_size=1, max_size=3), st.none() | _LABEL)
_ACTIONS = st.lists(st.one_of(st.just("undo"), _MARK, _DECISION), max_size=12)


@given(_ACTIONS)
def test_label_and_mark_of_a_row_never_contradict_each_other(tmp_path_factory, actions):
    path = tmp_path_factory.mktemp("log") / "review.jsonl"
    decisions, states = open_decisions(path), [[(None, None)] * len(GIVEN)]
    for action in actions:
        if action == "undo":
            decisions.undo()
            states = states[:-1] or states
        else:
            (decisions.mark if len(action) == 3 else decisions.decide)(*action)
        state = state_of(decisions)
        if action == "undo":
            assert state == states[-1]
        else:
            states.append(state)
        for label, mark in state:
            assert mark != "unknown" or label not in CLASSES
            assert mark != "known" or label is None or label in CLASSES
        assert decisions.has_label.tolist() == [label is not None for label, _ in state]
    again = open_decisions(path)
    assert [(again.label(row), again.audit(row)) for row in range(len(GIVEN))] == state_of(
        decisions
    )


def state_of(decisions):
    return [(decisions.label(row), decisions.audit(row)) for row in range(len(GIVEN))]


def test_a_log_and_a_table_of_before_the_audit_still_open(folder):
    session = ReviewSession(folder)
    session.decide(0, "border", "moth")
    session.close()
    table = folder / "corrections.csv"
    lines = [line.rpartition(",")[0] for line in table.read_text().splitlines()]
    assert lines[0].endswith("group,time")
    table.write_text("\n".join(lines) + "\n")
    again = ReviewSession(folder)
    again.mark(int(again._lists["audit"][0]), "known")
    again.close()
    assert "audit" in corrections(folder)[0]
    assert "moth" in [row["label"] for row in corrections(folder)]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"rows": [0, 1]}, "rows"),
        ({"rows": [99]}, "rows: the run has 60 targets only"),
        ({"mark": "perhaps"}, "mark: "),
        ({"label": 3}, "label: "),
        ({"more": 1}, "more: "),
    ],
)
def test_a_damaged_mark_is_named(folder, line, problem):
    session = ReviewSession(folder)
    session.mark(int(session._lists["audit"][0]), "known")
    session.close()
    log = folder / "review.jsonl"
    head, mark = log.read_text().splitlines()
    log.write_text(f"{head}\n{json.dumps({**json.loads(mark), **line})}\n")
    with pytest.raises(InputError, match=f"line 2 is damaged .*{problem}"):
        ReviewSession(folder)


def test_a_torn_mark_is_removed_by_the_next(folder):
    session = ReviewSession(folder)
    first, second = session._lists["audit"][:2].tolist()
    session.mark(first, "known")
    session.close()
    log = folder / "review.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole + whole.splitlines(keepends=True)[1][:30])
    again = ReviewSession(folder)
    again.mark(second, "unknown")
    again.close()
    assert len(log.read_bytes().splitlines()) == 3


def test_the_share_grows_with_its_interval(folder):
    session = ReviewSession(folder)
    nothing = session.audit()
    assert (nothing["marked"], nothing["low"], nothing["high"]) == (0, 0, 1)
    rows = session._lists["audit"].tolist()
    assert len(rows) == 30
    for place, row in enumerate(rows):
        if place != 4:
            session.mark(row, "unknown" if place % 3 == 0 else "known")
    found = session.summary()["audit"]
    assert (found["unknown"], found["marked"], found["skipped"]) == (10, 29, 1)
    # The scores of all targets move it a little.
    assert found["share"] == pytest.approx(10 / 29, abs=0.05)
    assert found["low"] < found["share"] < found["high"]
    assert (found["runShare"], found["origin"]) == (0.5, "estimated")
    assert session.first_open("audit") == 4
    assert session.page("audit", 0, 5)["marks"].startswith("ukku.")
    undone = session.undo("border")["undone"]
    assert undone == {"list": "audit", "place": 29, "count": 1}
    session.close()


def test_the_same_sample_goes_on_and_a_larger_one_extends_it(folder):
    first = ReviewSession(folder, audit=5)
    rows = first._lists["audit"].tolist()
    # A decision elsewhere changes nothing about who is drawn.
    first.decide(int(first._lists["border"][0]), "border", None)
    first.mark(rows[3], "known")
    first.close()
    for audit, size in ((5, 5), (12, 12), (2, 4), (0, 0), (1000, 60)):
        session = ReviewSession(folder, audit=audit)
        drawn = session._lists.get("audit", np.arange(0)).tolist()
        assert len(drawn) == size
        assert drawn[:5] == rows[:size]
        assert session.audit()["marked"] == 1
        session.close()


def test_a_class_can_be_said_in_the_audit(folder):
    session = ReviewSession(folder)
    first, second = session._lists["audit"][:2].tolist()
    session.decide(first, "audit", "ant")
    session.decide(second, "audit", "moth")
    assert session.decisions.audited() == {first: "known", second: "unknown"}
    # A later decision about a marked sample takes its mark along.
    session.decide_group("find?state=audited", "unknown", [])
    assert session.decisions.audited() == {first: "unknown", second: "unknown"}
    session.close()


def test_the_command_prints_share_and_refit(folder, monkeypatch, capsys):
    settings = json.loads((folder / SETTINGS).read_text())
    command = ["osda", "fit", "a.csv", "my b.csv", "--out", "run", "--overwrite", "--seed", "3"]
    (folder / SETTINGS).write_text(json.dumps({**settings, "command": command}))
    sign(folder)

    def serve(server):
        for place, row in enumerate(server.session._lists["audit"].tolist()):
            server.session.mark(row, "unknown" if place < 9 else "known")
        raise KeyboardInterrupt

    monkeypatch.setattr("opensetda.review.server.ReviewServer.serve_forever", serve)
    monkeypatch.chdir(folder.parent)
    assert main(["review", "run", "--no-browser"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "30 decisions saved: run/corrections.csv"
    assert lines[2] == (
        "audited share of unknowns: 0.30 (0.18 to 0.45), by 9 of 30 and the scores of all "
        "targets; the run estimated 0.50"
    )
    refit = "osda fit a.csv 'my b.csv' --seed 3 --out run-2 --corrections run/corrections.csv"
    assert lines[3].removeprefix("  learn    ") == refit
    # A run of something else than 'osda fit' has no command to repeat.
    session = ReviewSession(folder, audit=0)
    session.run.settings["command"] = ["osda", "demo"]
    assert refit_command(session.run, folder / "x.csv").startswith("osda fit SOURCE TARGET --out")
    session.close()
    assert main(["review", "run", "--audit", "-1"]) == 2


@pytest.mark.parametrize(
    ("entry", "origin"), [({"told": True}, "given"), ({"audit": "9 of 30"}, "audited")]
)
def test_where_the_share_of_the_run_is_from_is_said(folder, entry, origin):
    estimates = json.loads((folder / ESTIMATES).read_text())
    estimates["openness"] |= entry
    (folder / ESTIMATES).write_text(json.dumps(estimates))
    sign(folder)
    session = ReviewSession(folder)
    assert session.audit()["origin"] == origin
    session.close()
