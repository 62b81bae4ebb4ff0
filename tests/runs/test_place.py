"""Runs that are replaced while others read, evaluate or review them."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from cli_helpers import blobs, names_in
from opensetda.cli.main import main
from opensetda.errors import InputError
from opensetda.report import write_report
from opensetda.review.session import ReviewSession
from opensetda.runs.integrity import Manifest
from opensetda.runs.place import ReplacedRunError, put_run_in_place
from opensetda.system.files import new_folder
from opensetda.system.locks import lock_folder
from opensetda.usecases import RunFolder, evaluate, export, fit, predict

MEANS = {"method": "class-means", "openness": 0.333, "settings": {"steps": 3}}


@pytest.fixture
def run(workplace):
    return fit("source.npz", "target.npz", "run", **MEANS).path.absolute()


@pytest.fixture
def replace(run):
    """Returns a function that puts another run, of two steps, in the place of the first."""
    fit("source.npz", "target.npz", "other", **MEANS | {"settings": {"steps": 2}})

    def replace_run():
        with new_folder(run, put_in_place=put_run_in_place) as aside:
            shutil.copytree(run.with_name("other"), aside, dirs_exist_ok=True)

    return replace_run


def decide(session, place, label):
    """Decide the sample at a place of a list that every run has."""
    row = session.page("unsure", place, 1)["samples"][0]["row"]
    return session.decide(row, "unsure", label)


def when_first(function, then):
    """Return `function`, after whose first call `then` is called."""
    calls = []

    def wrapped(*given, **named):
        answer = function(*given, **named)
        if not calls:
            calls.append(True)
            then()
        return answer

    return wrapped


def test_a_run_that_is_replaced_while_it_is_opened_is_opened_whole(run, replace, monkeypatch):
    monkeypatch.setattr(Manifest, "read", when_first(Manifest.read, replace))
    assert RunFolder.open(run).settings["settings"]["steps"] == 2


@pytest.mark.parametrize(
    "use",
    [
        lambda run: predict(run, "target.npz"),
        lambda run: predict(run, "target.npz", "labels.csv"),
        lambda run: evaluate(run, blobs(1)[1]),
        lambda run: export(run, "model.onnx"),
    ],
    ids=["predict", "predict to a file", "evaluate", "export"],
)
def test_a_run_that_is_replaced_while_it_is_used_is_read_again(run, replace, monkeypatch, use):
    content = Manifest.content

    def content_of_the_replaced(self, name):
        # Only settings and manifest of the first run have been read by now.
        if name not in ("settings.json", "manifest.json") and self.folder.name == "run":
            monkeypatch.setattr(Manifest, "content", content)
            replace()
        return content(self, name)

    monkeypatch.setattr(Manifest, "content", content_of_the_replaced)
    use(run)
    assert RunFolder.open(run).settings["settings"]["steps"] == 2


def test_metrics_of_a_replaced_run_do_not_reach_the_new_one(run, replace):
    before = RunFolder.open(run)
    replace()
    with pytest.raises(ReplacedRunError, match="another run took its place"):
        evaluate(before, blobs(1)[1])
    with pytest.raises(InputError):
        write_report(before)
    assert "metrics.json" not in Manifest.read(run).files
    assert not {"metrics.json", "report.html", "map.parquet"} & {*names_in(run)}


def test_a_use_case_on_an_opened_run_says_that_it_was_replaced(run, replace):
    before = RunFolder.open(run)
    replace()
    with pytest.raises(ReplacedRunError, match="open it again"):
        predict(before, "target.npz")


def test_two_writers_of_a_run_both_end_up_in_its_manifest(run):
    first, second = RunFolder.open(run), RunFolder.open(run)
    first.replace_files({"metrics.json": b"{}"})
    second.replace_files({"map.parquet": b"PAR1"})
    first.replace_files({"thumbnails.parquet": b"PAR1"})
    listed = Manifest.read(run).files
    assert {"metrics.json", "map.parquet", "thumbnails.parquet"} <= listed.keys()
    for name in listed:
        assert RunFolder.open(run).manifest.content(name)


def test_a_reviewed_run_is_kept_beside_the_one_that_replaces_it(run, replace):
    session = ReviewSession(run)
    decide(session, 0, "cat")
    session.close()
    decided = (run / "review.jsonl").read_bytes()
    replace()
    kept = run.with_name("run.reviewed")
    assert (kept / "review.jsonl").read_bytes() == decided
    assert RunFolder.open(kept).settings["settings"]["steps"] == 3
    assert RunFolder.open(run).settings["settings"]["steps"] == 2
    assert "review.jsonl" not in names_in(run)
    # The next one gets a name of its own.
    session = ReviewSession(run)
    decide(session, 0, "dog")
    session.close()
    replace()
    assert "dog" in (run.with_name("run.reviewed-2") / "review.jsonl").read_text()
    assert (kept / "review.jsonl").read_bytes() == decided


def test_an_open_review_follows_its_run_and_says_so(run, replace):
    session = ReviewSession(run)
    decide(session, 0, "cat")
    replace()
    answer = decide(session, 1, "dog")
    session.undo()
    decide(session, 2, "dog")
    session.close()
    kept = run.with_name("run.reviewed")
    assert answer["trouble"].startswith(f"a new run has taken the place of {run}; ")
    assert str(kept) in answer["trouble"]
    lines = [json.loads(line) for line in (kept / "review.jsonl").read_text().splitlines()[1:]]
    assert [(line["do"], line["label"]) for line in lines] == [
        ("decide", "cat"),
        ("decide", "dog"),
        ("undo", None),
        ("decide", "dog"),
    ]
    assert (kept / "corrections.csv").exists()
    assert not {"review.jsonl", "corrections.csv"} & {*names_in(run)}


def test_decisions_without_a_run_are_not_said_to_be_saved(run):
    session = ReviewSession(run)
    shutil.rmtree(run)
    with pytest.raises(ValueError, match=r"not saved: .*another run took its place"):
        decide(session, 0, "cat")
    session.close()


def test_a_run_nobody_reviewed_is_not_kept(run, replace):
    replace()
    assert [name for name in names_in(run.parent) if name.startswith((".run", "run."))] == []


def test_a_planted_link_gets_nothing_of_a_review(run, tmp_path):
    """The attack that was found: a link at the name that a table was written to first."""
    precious = tmp_path / "bashrc"
    precious.write_text("mine")
    session = ReviewSession(run)
    decide(session, 0, "cat")
    session.close()
    for name in ("corrections.csv", "report.html"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(precious)
    for name in (".corrections.partial.csv", ".report.partial.html", ".map.partial.parquet"):
        (run / name).symlink_to(precious)
    # The table is written as soon as the review begins.
    ReviewSession(run).close()
    write_report(RunFolder.open(run))
    assert not (run / "report.html").is_symlink()
    assert not (run / "corrections.csv").is_symlink()
    assert precious.read_text() == "mine"


def test_a_log_that_is_a_link_is_refused(run, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("one line without an end")
    (run / "review.jsonl").symlink_to(precious)
    with pytest.raises(InputError, match=r"review\.jsonl: a link"):
        ReviewSession(run)
    assert precious.read_text() == "one line without an end"
    # Also one that is planted once the review has begun.
    (run / "review.jsonl").unlink()
    session = ReviewSession(run)
    (run / "review.jsonl").symlink_to(precious)
    with pytest.raises(ValueError, match="not saved"):
        decide(session, 0, "cat")
    session.close()
    assert precious.read_text() == "one line without an end"


def test_an_unfinished_folder_that_is_a_link_is_not_followed(workplace, tmp_path, capsys):
    other = tmp_path / "other"
    other.mkdir()
    (other / "request.json").write_text("mine")
    (workplace / "run.unfinished").symlink_to(other)
    command = ["fit", "source.npz", "target.npz", "--out", "run", "--no-report", "--overwrite"]
    assert main([*command, "--method", "class-means"]) == 2
    assert "run.unfinished: a link" in capsys.readouterr().err
    assert (other / "request.json").read_text() == "mine"


def test_resume_writes_the_report_that_a_kill_prevented(workplace, capsys):
    command = ["fit", "source.npz", "target.npz", "--out", "run", "--method", "class-means"]
    assert main([*command, "--openness", "0.333"]) == 0
    report = workplace / "run" / "report.html"
    report.unlink()
    assert main(["resume", "run"]) == 0
    assert "its report was missing" in capsys.readouterr().out
    assert report.exists()
    assert main(["resume", "run"]) == 0
    assert "nothing to resume" in capsys.readouterr().out


def test_resume_writes_no_report_that_was_not_asked_for(run, workplace, capsys):
    assert main(["resume", "run"]) == 0
    assert "nothing to resume" in capsys.readouterr().out
    assert not (run / "report.html").exists()


def test_who_begins_a_run_that_another_has_just_begun_is_told(workplace, monkeypatch):
    from opensetda.runs import unfinished

    begin = unfinished.new_folder

    def slower(path, **how):
        path.mkdir()
        (path / "request.json").write_text("of the other")
        return begin(path, **how)

    monkeypatch.setattr(unfinished, "new_folder", slower)
    with pytest.raises(InputError, match="another process has just begun this run"):
        fit("source.npz", "target.npz", "run", **MEANS)
    assert (workplace / "run.unfinished" / "request.json").read_text() == "of the other"


def test_a_run_that_others_work_on_is_left_alone(workplace):
    folder = workplace / "run.unfinished"
    folder.mkdir()
    lock = lock_folder(folder)
    with pytest.raises(InputError, match="another process is at work on it"):
        fit("source.npz", "target.npz", "run", overwrite=True, **MEANS)
    lock.release()
    assert np.array_equal(names_in(folder), [])
