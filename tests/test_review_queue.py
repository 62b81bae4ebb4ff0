"""What is to be looked at, in which order; and a review at work, without HTTP."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import numpy as np
import pytest

from opensetda.errors import InputError
from opensetda.review.queues import border_rows, rows_to_review
from opensetda.review.session import LONGEST_PAGE, ReviewSession
from opensetda.runs.folder import VIEW, RunFolder, check_destination
from opensetda.runs.groups import unknown_groups
from review_helpers import CLASSES, corrections, make_run, reviewing, sign


@pytest.fixture
def folder(tmp_path):
    make_run(tmp_path / "run", images=False)
    return tmp_path / "run"


@pytest.fixture
def session(folder):
    with reviewing(folder) as session:
        yield session


def listed(session, key):
    return next(entry for entry in session.summary()["lists"] if entry["key"] == key)


def test_the_nearest_come_first_from_both_sides_in_turn():
    scores = np.array([0.9, 0.52, 0.1, 0.47, 0.6, 0.45, 0.7])
    rows = border_rows(scores, scores < 0.5)
    # The cut is half way between 0.47 and 0.52.
    assert rows.tolist() == [1, 3, 4, 5, 6, 2, 0]
    assert border_rows(scores, scores < 0.5, most=3).tolist() == [1, 3, 4]


def test_one_side_alone_starts_where_the_other_would_be():
    scores = np.array([0.3, 0.1, 0.2])
    assert border_rows(scores, np.zeros(3, bool)).tolist() == [1, 2, 0]
    assert border_rows(scores, np.ones(3, bool)).tolist() == [0, 2, 1]
    assert border_rows(np.zeros(0), np.zeros(0, bool)).tolist() == []
    assert border_rows(np.arange(500.0), np.arange(500) < 3).size == 200


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1.7e308])
@pytest.mark.filterwarnings("error")
def test_scores_that_are_no_numbers_do_no_harm(value):
    is_unknown = np.arange(6) % 2 == 1
    assert sorted(border_rows(np.full(6, value), is_unknown)) == [*range(6)]
    scores = np.array([0.9, value, 0.6, 0.1, 0.7, -value])
    assert border_rows(scores, is_unknown)[0] == (0 if value == 1.7e308 else 2)


def test_a_sample_is_shown_with_its_likely_classes(session):
    shown = session.page("border", 0, 5)["samples"]
    assert len(shown) == 5
    for sample in shown:
        shares = [share for _, share in sample["likely"]]
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) + sample["unknown"] == pytest.approx(1, abs=1e-3)
        assert {name for name, _ in sample["likely"]} == set(CLASSES)
        assert sample["label"] is sample["kind"] is None
        assert sample["picture"] is False


def test_a_sample_without_a_name_is_a_row(folder):
    settings = folder / "settings.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "has_ids": False}))
    sign(folder)
    session = ReviewSession(folder)
    assert session.page("border", 0, 1)["samples"][0]["name"].startswith("Row ")
    session.close()


def test_groups_are_lists(session):
    lists = {e["key"]: e["size"] for e in session.summary()["lists"] if e["kind"] == "group"}
    assert lists == {"1": 10, "2": 10, "3": 10}
    assert "3 groups" in session.summary()["note"]
    rows = [sample["row"] for sample in session.page("2", 0, 60)["samples"]]
    assert len({row // 2 % 3 for row in rows}) == 1


def test_decisions_change_what_is_shown_and_the_table(session, folder):
    row = session.page("border", 0, 1)["samples"][0]["row"]
    answer = session.decide(row, "border", " Moth ")
    assert answer["label"] == "Moth"
    assert answer["newClasses"] == ["Moth"]
    shown = session.page("border", 0, 1)
    assert (shown["samples"][0]["label"], shown["samples"][0]["kind"]) == ("Moth", "new class")
    assert shown["marks"] == "n" + 59 * "."
    assert session.first_open("border") == 1
    assert [row["label"] for row in corrections(folder)] == ["Moth"]
    assert session.undo()["undone"] == {"list": "border", "place": 0, "count": 1}
    assert corrections(folder) == []
    assert session.undo()["undone"] is None


def test_a_group_is_named_but_for_members_taken_out(session, folder):
    members = [sample["row"] for sample in session.page("1", 0, 60)["samples"]]
    out = members[2:4]
    assert session.decide_group("1", "moth", out)["count"] == 8
    assert listed(session, "1")["name"] == "moth"
    # Then those that are left are selected; a decided one can be put to them.
    assert session.decide_group("1", "wasp", [members[0]])["count"] == 3
    labels = {row: session.decisions.label(row) for row in members}
    assert {row for row, label in labels.items() if label == "wasp"} == {*out, members[0]}
    assert {row["group"] for row in corrections(folder)} == {"1"}
    # All are decided: all are selected.
    assert session.decide_group("1", None, [])["count"] == 10
    assert {row["decision"] for row in corrections(folder)} == {"kept"}
    for _ in range(2):
        assert session.undo()["undone"]["list"] == "1"
    assert {row["label"] for row in corrections(folder)} == {"moth"}


def test_what_makes_no_sense_is_refused(session):
    in_first = session.page("1", 0, 60)["samples"]
    for work in (
        lambda: session.page("9", 0, 1),
        lambda: session.decide(in_first[0]["row"], "2", None),
        lambda: session.decide(1000, "border", None),
        lambda: session.decide(in_first[0]["row"], "1", "UNKNOWN"),
        lambda: session.decide_group("border", "x", []),
        lambda: session.decide_group("audit", "x", []),
        lambda: session.decide(in_first[0]["row"], "audit", None),
        lambda: session.mark(session.page("audit", 0, 1)["samples"][0]["row"], "perhaps"),
        lambda: session.mark(1000, "known"),
        lambda: session.search("audit"),
        lambda: session.search("find?state=dancing"),
        lambda: session.page("find?order=dancing", 0, 1),
        lambda: session.page("class-77", 0, 1),
        lambda: session.decide_group("1", "x", [sample["row"] for sample in in_first]),
        lambda: session.picture(60, small=True),
        lambda: session.picture(-1, small=True),
    ):
        with pytest.raises(InputError):
            work()
    assert not session.decisions.can_undo


def test_two_reviews_of_a_run_are_one_too_many(session, folder):
    with pytest.raises(InputError, match="another 'osda review' is running on it"):
        ReviewSession(folder)
    session.close()
    ReviewSession(folder).close()
    assert sorted(entry.name for entry in folder.iterdir()) == [
        *("estimates.json", "manifest.json", "predictions.csv", "settings.json"),
        "view.safetensors",
    ]


def test_a_review_that_has_ended_writes_nothing(session, folder):
    session.decide(0, "border", None)
    session.close()
    before = (folder / "review.jsonl").read_bytes()
    # A browser's connection outlives Ctrl-C by a moment, and another review may have begun.
    for work in (lambda: session.decide(1, "border", None), session.undo):
        with pytest.raises(InputError, match="this review has ended"):
            work()
    assert (folder / "review.jsonl").read_bytes() == before


def test_what_a_person_has_told_is_not_asked_again(folder):
    table = RunFolder.open(folder).predictions()
    told = np.zeros(len(table), dtype=bool)
    # Said to be unknown by a person, though it scores highest of all.
    told[[0, 2]] = True
    labels, scores = table.labels.copy(), table.known_scores.copy()
    labels[0], scores[0] = "unknown", 9
    corrected = replace(table, labels=labels, known_scores=scores, corrected=told)
    rows = rows_to_review(corrected, "unknown")
    before = [row for row in rows_to_review(table, "unknown") if row not in (0, 2)]
    # Known and unknown in turn; those of a side in their order as ever.
    for side in (0, 1):
        assert [row for row in rows if row % 2 == side] == [r for r in before if r % 2 == side]


def test_a_run_that_was_replaced_is_not_written_to(session, folder):
    settings = folder / "settings.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "identity": "two"}))
    sign(folder)
    with pytest.raises(InputError, match="replaced by another run meanwhile"):
        session.decide(0, "border", None)
    with pytest.raises(InputError, match="replaced by another run meanwhile"):
        session.undo()
    assert not (folder / "review.jsonl").exists()


def test_a_run_without_identity_is_told_by_its_predictions(tmp_path):
    for seed, name in [(0, "a"), (1, "b")]:
        make_run(tmp_path / name, identity=None, images=False, seed=seed)
    session = ReviewSession(tmp_path / "a")
    session.decide(0, "border", None)
    session.close()
    ReviewSession(tmp_path / "a").close()
    (tmp_path / "a" / "review.jsonl").rename(tmp_path / "b" / "review.jsonl")
    with pytest.raises(InputError, match="decisions about another run"):
        ReviewSession(tmp_path / "b")


def test_a_table_that_a_crash_left_behind_is_made_anew(session, folder):
    session.decide(0, "border", None)
    session.close()
    (folder / "corrections.csv").unlink()
    ReviewSession(folder).close()
    assert len(corrections(folder)) == 1


def test_a_table_with_a_cell_that_has_no_end_is_named(session, folder):
    session.decide(0, "border", None)
    session.close()
    table = folder / "corrections.csv"
    table.write_bytes(table.read_bytes() + b"x" * 200_000)
    with pytest.raises(InputError, match=r"corrections\.csv: damaged \(field larger"):
        ReviewSession(folder)


def test_a_log_that_was_cut_short_is_not_taken_for_all(session, folder):
    for row in range(3):
        session.decide(row, "border", None)
    session.close()
    log, table = folder / "review.jsonl", folder / "corrections.csv"
    whole, rows = log.read_bytes(), table.read_bytes()
    log.write_bytes(whole[:-20])
    with pytest.raises(InputError, match=r"review\.jsonl: cut short: 1 decisions in corrections"):
        ReviewSession(folder)
    assert (log.read_bytes(), table.read_bytes()) == (whole[:-20], rows)
    log.write_bytes(whole)
    again = ReviewSession(folder)
    again.undo()
    again.close()
    # A crash between the undo and the table leaves the undone decision in the table.
    table.write_bytes(rows)
    ReviewSession(folder).close()
    assert table.read_bytes().count(b"\n") == 3


def test_decisions_are_not_overwritten(session, folder):
    check_destination(folder, overwrite=True)
    session.decide(0, "border", None)
    for name in ("review.jsonl", "corrections.csv"):
        with pytest.raises(InputError, match=f"holds '{name}', decisions of a review"):
            check_destination(folder, overwrite=True)
        (folder / name).unlink()


def test_without_a_view_the_unknowns_are_one_group(folder):
    (folder / VIEW).unlink()
    with reviewing(folder) as session:
        summary = session.summary()
    assert [entry["size"] for entry in summary["lists"] if entry["kind"] == "group"] == [30]
    assert summary["note"].startswith("All in one group: ")


def test_many_targets_make_no_long_answers(tmp_path, monkeypatch):
    make_run(tmp_path / "run", n=5000, images=False)
    may_group = threading.Event()
    monkeypatch.setattr(
        "opensetda.review.session.unknown_groups",
        lambda run: may_group.wait(60) and unknown_groups(run),
    )
    session = ReviewSession(tmp_path / "run")
    # All but the groups is there before they are.
    first = session.start()
    page = session.page("border", 0, 20)
    assert session.decide(page["samples"][0]["row"], "border", None)["isGrouping"]
    assert session.undo()["undone"]["count"] == 1
    with pytest.raises(InputError, match="no such list"):
        session.page("1", 0, 1)
    may_group.set()
    session._grouping.join()
    assert not session.summary()["isGrouping"]
    group = session.page("1", 0, 10_000)
    assert len(group["samples"]) == LONGEST_PAGE
    assert group["marks"] == ""
    for answer in (first, page, group, session.summary()):
        assert len(json.dumps(answer)) < 25_000
    size = listed(session, "1")["size"]
    answer = session.decide_group("1", "moth", [])
    assert answer["count"] == size > 500
    assert len(json.dumps(answer)) < 4_000
    session.close()
