"""The audit of a review: targets drawn at random, marked known or unknown."""

from __future__ import annotations

import json

import numpy as np
import pytest

from opensetda.cli.main import main
from opensetda.review.queues import audit_order
from opensetda.runs.folder import SETTINGS
from review_helpers import make_run, reviewing, sign


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


def test_the_share_grows_with_its_interval(folder):
    with reviewing(folder) as session:
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
        audit = next(entry for entry in session.summary()["lists"] if entry["key"] == "audit")
        assert (audit["decided"], audit["open"]) == (29, 4)
        assert session.page("audit", 0, 5)["marks"].startswith("ukku.")
        assert session.undo()["undone"] == {"list": "audit", "place": 29, "count": 1}
        # A mark is no label: what was audited can still be decided in other lists.
        assert not any(row in session.decisions for row in rows)


def test_the_same_sample_goes_on_and_a_larger_one_extends_it(folder):
    with reviewing(folder, audit=5) as session:
        rows = session._lists["audit"].tolist()
        # A decision elsewhere changes nothing about who is drawn.
        session.decide(int(session._lists["border"][0]), "border", None)
        session.mark(rows[3], "known")
    for audit, size in ((5, 5), (12, 12), (0, 0), (1000, 60)):
        with reviewing(folder, audit=audit) as session:
            drawn = session._lists.get("audit", np.arange(0)).tolist()
            assert (len(drawn), drawn[:5]) == (size, rows[:size])
            assert session.audit()["marked"] == 1


def test_a_class_can_be_said_in_the_audit(folder):
    with reviewing(folder) as session:
        first, second = session._lists["audit"][:2].tolist()
        session.decide(first, "audit", "ant")
        session.decide(second, "audit", "moth")
        assert session.decisions.audited() == {first: "known", second: "unknown"}
        # A later decision about a marked sample takes its mark along.
        session.decide_group("find?state=audited", "unknown", [])
        assert session.decisions.audited() == {first: "unknown", second: "unknown"}


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
        "audited share of unknowns: 30% (18% to 45%), by 9 of 30 and the scores of all "
        "targets; the run used 50%"
    )
    refit = "osda fit a.csv 'my b.csv' --seed 3 --out run-2 --corrections run/corrections.csv"
    assert lines[3].removeprefix("  learn    ") == refit
