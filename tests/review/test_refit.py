"""A fit from the page: started by a review, without a path from the browser."""

from __future__ import annotations

import time

import numpy as np
import pytest

from cli_helpers import FEW_STEPS, FIT, blobs
from opensetda.cli.main import main
from opensetda.errors import InputError
from opensetda.usecases.corrections import as_new_class, next_folder
from review_helpers import ask, corrections, make_run, reviewing, serving


def wait(session, state):
    stop = time.monotonic() + 120
    while session.refit.state != state:
        assert time.monotonic() < stop, session.refit.summary()
        time.sleep(0.05)


def mark(session, count):
    for _ in range(count):
        rows = session._lists["useful"].tolist()
        row = next(row for row in rows if row not in session.decisions)
        session.decide(row, "useful", session.table.labels[row])


def test_the_next_run_has_the_next_free_name(tmp_path):
    run = tmp_path / "shop"
    assert next_folder(run).name == "shop-2"
    (tmp_path / "shop-2").mkdir()
    assert next_folder(run).name == "shop-3"
    assert next_folder(tmp_path / "shop-2").name == "shop-3"
    assert next_folder(tmp_path / "2026-11").name == "2026-12"


def test_the_review_goes_on_with_the_new_run(workplace):
    assert main([word for word in [*FIT, *FEW_STEPS] if word != "--no-report"]) == 0
    with reviewing(workplace / "run") as session, serving(session) as server:
        assert "mark some samples first" in ask(server, "/api/refit", {})[2]["error"]
        mark(session, 4)
        status, _, answer = ask(server, "/api/refit", {})
        assert (status, answer["refit"]["state"]) == (200, "running")
        assert "still at work" in ask(server, "/api/refit", {})[2]["error"]
        # What is decided meanwhile is not lost, and neither is an undo.
        mark(session, 5)
        ask(server, "/api/undo", {})
        wait(session, "done")
        found = ask(server, "/api/start")[2]
        assert (found["run"], found["decided"], found["report"]) == ("run-2", 8, True)
        after = server.session
        assert after is not session
        after._grouping.join()
        ask(server, "/api/undo", {})
        assert len(corrections(workplace / "run-2")) == 7
        assert len(corrections(workplace / "run")) == 8
        status, headers, content = ask(server, f"/report/{server.token}/0", X_Review_Token=None)
        assert status == 200
        assert b"run-2" in content
        assert headers["Content-Security-Policy"].startswith("sandbox allow-scripts;")
        assert ask(server, "/report/wrong/0", X_Review_Token=None)[0] == 403
        after.close()
    # Both are free again.
    for name in ("run", "run-2"):
        with reviewing(workplace / name):
            pass


def test_a_fit_that_fails_is_said_and_leaves_the_review(workplace):
    assert main([*FIT, *FEW_STEPS]) == 0
    (workplace / "source.npz").unlink()
    with reviewing(workplace / "run") as session, serving(session) as server:
        mark(session, 2)
        ask(server, "/api/refit", {})
        wait(session, "failed")
        found = ask(server, "/api/summary")[2]
        assert "source.npz" in found["refit"]["line"]
        assert found["run"] == "run"
        mark(session, 2)
        commands = ask(server, "/api/finish")[2]["commands"]
        assert "osda predict" in " ".join(commands.values())
    assert not (workplace / "run-2").exists()


def test_only_runs_of_a_fit_from_files_are_fitted_again(tmp_path):
    run = make_run(tmp_path / "run", images=False).path
    with reviewing(run) as session, serving(session) as server:
        mark(session, 1)
        assert "was not made by 'osda fit'" in ask(server, "/api/refit", {})[2]["error"]
        assert ask(server, f"/report/{server.token}/0")[0] == 404
        # No name or path of the browser is taken.
        answer = ask(server, "/api/refit", {"out": "/tmp/x", "corrections": "/etc/passwd"})
        assert answer[0] == 400


def test_a_new_class_that_only_says_unknown_is_refused():
    in_use = ["cat", "other"]
    for name in ("*unknown*", "Unknown!", "unknown", "(other)"):
        with pytest.raises(InputError):
            as_new_class(name, in_use, "other")
    assert as_new_class("other", in_use, "other") == "other"
    assert as_new_class("unknown fruit", in_use, "other") == "unknown fruit"


def test_nobody_overwrites_what_was_not_seen(tmp_path):
    run = make_run(tmp_path / "run", images=False).path
    with reviewing(run) as session:
        seen = session.summary()["revision"]
        first, second = session._lists["useful"][:2].tolist()
        session.decide(first, "useful", "ant", seen)
        with pytest.raises(InputError, match="another tab"):
            session.decide(first, "useful", "bee", seen)
        with pytest.raises(InputError, match="another tab"):
            session.undo(seen)
        # Other samples are nobody's business.
        session.decide(second, "useful", "bee", seen)
        session.undo(session.summary()["revision"])
        assert session.decisions.label(first) == "ant"


def test_a_row_is_shown_beside_its_nearest_source_row(workplace):
    header = ["a", "b", "c", "d"]
    for name in ("source", "target"):
        with np.load(f"{name}.npz") as arrays:
            rows = [[*map(str, row)] for row in arrays["X"].tolist()]
            labels = arrays["y"].tolist() if "y" in arrays else [""] * len(rows)
        lines = [",".join([*row, label]) for row, label in zip(rows, labels, strict=True)]
        (workplace / f"{name}.csv").write_text("\n".join([",".join([*header, "label"]), *lines]))
    fit = [word.replace(".npz", ".csv") for word in FIT]
    assert main([*fit, *FEW_STEPS, "--label-column", "label"]) == 0
    _, truth = blobs(1)
    with reviewing(workplace / "run") as session:
        shown = session.page("find?order=row", 0, 60)["samples"]
    known = [sample for sample in shown if truth[sample["row"]] != "horse"]
    right = [sample["columns"][0]["class"] == truth[sample["row"]] for sample in known]
    assert np.mean(right) > 0.9
    column = known[0]["columns"][0]
    assert abs(column["near"] - column["mean"]) < 2
