"""Progress of long work: how far, how fast, how long; a bar, lines, or nothing."""

from __future__ import annotations

import hashlib
import os
import pty
import re
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow.parquet import read_table

from cli_helpers import run_fit
from opensetda import ClassMeans
from opensetda.cli import bars, console
from opensetda.cli.bars import counting_progress, training_progress
from opensetda.cli.main import main
from opensetda.context import FitContext
from opensetda.progress import ProgressEvent
from opensetda.runs import fit_data, predicting
from opensetda.runs.request import FitRequest, TableOptions
from opensetda.system import files


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")


@pytest.fixture
def quiet():
    with console.command_line():
        console.be_quiet(True)
        yield


def drawn(capsys, *words):
    """Wait until the thread that draws has drawn these words; return all it has drawn since."""
    err, stop = "", time.perf_counter() + 3
    while not all(word in err for word in words):
        assert time.perf_counter() < stop, err
        time.sleep(0.01)
        err += capsys.readouterr().err
    return err


# numbers -------------------------------------------------------------------------------------


def test_events_know_how_far_they_are():
    assert ProgressEvent(1, 10).fraction == 0.1
    assert ProgressEvent(1, 10, 0, 5).fraction == 0
    assert ProgressEvent(10, 10, 5, 5).fraction == 1


@pytest.mark.parametrize(
    ("count", "seconds", "noun", "text"),
    [
        (1234, 100.0, "it", "12.3 it/s"),
        (85, 1.0, "image", "85.0 images/s"),
        (4321, 1.0, "image", "4,321 images/s"),
        (1, 4.1, "step", "4.1 s/step"),
        (3102, 10.0, "MB", "310 MB/s"),
    ],
)
def test_rates_are_readable_whatever_they_are(capsys, clock, count, seconds, noun, text):
    with counting_progress("work", noun) as tell:
        tell(1, 10**6)
        clock[0] += seconds
        tell(1 + count, 10**6)
        clock[0] += 100.0
        tell(1 + count, 10**6)
    *_, line = capsys.readouterr().err.splitlines()
    assert f", {text}, 0:0" in line


ODD = st.sampled_from([0, 1, -1, 3, 10**30, float("nan"), float("inf"), -float("inf"), 0.5])
EVENTS = st.lists(
    st.builds(
        ProgressEvent,
        *(ODD, ODD, ODD, ODD),
        loss=st.none() | ODD,
        message=st.sampled_from(["", "[red]", "[/]", "100 %"]),
        entry=st.none() | st.just({}),
    ),
    max_size=5,
)


@pytest.mark.parametrize("is_bar", [True, False])
@given(
    counts=st.lists(st.tuples(ODD, ODD), max_size=5), events=EVENTS, pause=st.sampled_from([0, 60])
)
def test_no_number_ends_the_work(is_bar, counts, events, pause):
    with pytest.MonkeyPatch.context() as patch:
        now = [0.0]
        patch.setattr("time.monotonic", lambda: now[0])
        if is_bar:
            patch.setenv("FORCE_COLOR", "1")
            patch.setenv("TERM", "xterm")
        with training_progress("[bold]pgl") as listen, counting_progress("features") as tell:
            for event in events:
                now[0] += pause
                listen(event)
                bars._under_way.refresh()
            for done, total in counts:
                now[0] += pause
                tell(done, total)
                bars._under_way.refresh()


def test_a_window_that_is_closed_ends_nothing(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    window, stream = pty.openpty()
    with os.fdopen(stream, "w") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        with counting_progress("features") as tell:
            tell(1, 9)
            os.close(window)
            tell(2, 9)
            console.note("half of it")
            with training_progress("pgl") as listen:
                listen(ProgressEvent(1, 2))
                tell(0, 9)
    assert bars._under_way is None


# counted work --------------------------------------------------------------------------------


def test_lines_are_sparse_and_have_total_rate_and_time_left(capsys, clock):
    with counting_progress("features") as tell:
        for done in range(3601):
            clock[0] = float(done)
            tell(done, 3600)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "features: 10/3,600 images, 1.0 images/s, 0:00:10 so far, 0:59:50 left"
    assert 5 < len(lines) < 25


def test_what_was_found_at_once_does_not_count_as_speed(capsys, clock):
    with counting_progress("features") as tell:
        clock[0] = 1.0
        tell(900, 1000)  # from the cache
        for done in (905, 915, 925, 935):
            clock[0] += 20.0
            tell(done, 1000)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "features: 905/1,000 images, 4.0 s/image, 0:00:21 so far, 0:06:20 left"
    assert lines[-1] == "features: 935/1,000 images, 2.3 s/image, 0:01:21 so far, 0:02:29 left"


def test_the_next_lot_is_counted_from_its_own_beginning(capsys, clock):
    with counting_progress("features") as tell:
        tell(0, 100)
        clock[0] = 5.0
        tell(100, 100)
        tell(0, 50)
        for done in range(1, 11):
            clock[0] += 1.0
            tell(done, 50)
    *_, line = capsys.readouterr().err.splitlines()
    assert line == "features: 5/50 images, 1.0 images/s, 0:00:05 so far, 0:00:45 left"


def test_quick_work_leaves_no_line(capsys):
    with counting_progress("features") as tell:
        for done in range(10):
            tell(done, 9)
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar_with_total_rate_and_time_left(terminal, capsys, clock):
    with counting_progress("features") as tell:
        for done in range(0, 681, 170):
            tell(done, 1000)
            clock[0] += 2.0
        drawn(capsys, "features", "680/1,000 images", "85.0 images/s", "0:00:04", "\x1b[")


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(terminal, monkeypatch, capsys, clock):
    monkeypatch.setenv("TERM", "dumb")
    with counting_progress("features") as tell:
        tell(0, 9)
        clock[0] += 20.0
        tell(1, 9)
    assert capsys.readouterr().err == "features: 1/9 images, 0:00:20 so far\n"


@pytest.mark.parametrize("width", [60, 80, 100])
def test_bars_fit_the_terminal(terminal, monkeypatch, capsys, clock, width):
    monkeypatch.setenv("COLUMNS", str(width))
    with training_progress("pgl") as listen, counting_progress("reading features") as tell:
        for done in range(1, 7):
            clock[0] += 100.0
            listen(ProgressEvent(3, 10, done, 30, loss=0.25, message="ranking"))
            tell(10 * done, 12_345)
        err = drawn(capsys, "step 3", "60/12", "4:07:30")
    # A line that is drawn anew begins with the code that clears it.
    lines = [
        re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", line) for line in re.split(r"[\r\n]|\x1b\[2K", err)
    ]
    assert max(map(len, lines)) <= width
    assert lines[-1].rstrip().endswith("34:07:30")


def test_a_quiet_one_gets_nothing(terminal, quiet, capsys, clock):
    with counting_progress("features") as tell, training_progress("pgl") as listen:
        for done in range(100):
            clock[0] = 60.0 * done
            tell(done, 100)
            listen(ProgressEvent(done + 1, 100, 1, 1))
    assert capsys.readouterr() == ("", "")


def test_a_bar_comes_with_the_first_sign_of_life(terminal, capsys):
    with counting_progress("features") as tell:
        assert capsys.readouterr().err == ""
        tell(0, 3)
        assert "0/3 images" in capsys.readouterr().err


def test_work_within_work_has_a_bar_below(terminal, capsys):
    with counting_progress("report", "page") as of_pages:
        of_pages(1, 2)
        with counting_progress("map", "dot") as of_dots:
            of_dots(3, 7)
            drawn(capsys, "1/2 pages", "3/7 dots")
        of_pages(2, 2)
    with counting_progress("next", "page") as tell:
        tell(1, 9)
    assert "1/9 pages" in capsys.readouterr().err


# training ------------------------------------------------------------------------------------


def test_a_training_has_a_line_a_step(capsys, clock):
    with training_progress("pgl") as listen:
        for step in (1, 2):
            for iteration in range(1, 11):
                clock[0] += 0.5
                entry = {} if iteration == 10 else None
                listen(ProgressEvent(step, 2, iteration, 10, loss=0.5, entry=entry))
    assert capsys.readouterr().err.splitlines() == [
        "pgl: step 1/2, loss 0.500, 2.0 it/s, 0:00:05 so far, 0:00:05 left",
        "pgl: step 2/2, loss 0.500, finishing, 2.0 it/s, 0:00:10 so far",
    ]


def test_a_long_step_has_lines_in_between(capsys, clock):
    with training_progress("osbp") as listen:
        for iteration in range(1, 101):
            clock[0] = float(iteration)
            listen(ProgressEvent(1, 1, iteration, 100, loss=2.0, message="dreaming"))
    lines = capsys.readouterr().err.splitlines()
    first = "osbp: step 1/1, iteration 10/100, loss 2.000, dreaming, 1.0 it/s, 0:00:10 so far"
    assert lines[0] == f"{first}, 0:01:30 left"


def test_a_first_step_without_iterations_says_nothing_about_the_others(capsys, clock):
    with training_progress("pgl") as listen:
        listen(ProgressEvent(1, 3, 1, 1, entry={}))
        for iteration in range(1, 31):
            clock[0] += 1.0
            listen(ProgressEvent(2, 3, iteration, 61, loss=float("nan")))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "pgl: step 1/3, 0:00:00 so far"
    state = "pgl: step 2/3, iteration 10/61, loss nan, 1.0 it/s, 0:00:10 so far"
    assert lines[1] == f"{state}, 0:01:52 left"


def test_a_run_that_goes_on_counts_its_own_time_only(capsys, clock):
    with training_progress("pgl") as listen:
        for step in range(7, 13):
            clock[0] += 60
            listen(ProgressEvent(step, 12, entry={}))
    assert "step 11/12, 60.0 s/step, 0:05:00 so far, 0:01:00 left" in capsys.readouterr().err


def test_quick_steps_without_iterations_are_one_line(capsys, clock):
    with training_progress("class-means") as listen:
        for step in range(1, 11):
            clock[0] += 0.125
            listen(ProgressEvent(step, 10, entry={}))
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "class-means: step 10/10, finishing, 8.0 steps/s, 0:00:01 so far"


def test_a_training_on_a_terminal_is_a_bar(terminal, capsys, clock):
    with training_progress("pgl") as listen:
        for iteration in range(1, 6):
            clock[0] += 2.0
            listen(ProgressEvent(3, 10, iteration, 9, loss=0.25, message="ranking"))
        state = "step 3/10, iteration 5/9, loss 0.250, ranking, 2.0 s/it"
        drawn(capsys, state, "\x1b[")


def test_the_final_labels_come_after_the_last_step(terminal, capsys, clock):
    with training_progress("pgl") as listen:
        for step in (1, 2):
            clock[0] += 4.0
            listen(ProgressEvent(step, 2, 3, 3))
        drawn(capsys, "step 2/2, iteration 3/3, finishing")


# what methods tell ---------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["pgl", "class-means", "oslpp", "daod", "ati", "osbp", "dann"])
def test_listeners_see_the_history_as_it_grows(make, method, task):
    events: list[ProgressEvent] = []
    more = {"iterations": 3} if method in ("osbp", "dann") else {}
    classifier = make(method, **more)
    classifier.fit(task.X, task.y, task.domain, context=FitContext(progress=events.append))
    told = [event.entry for event in events if event.entry is not None]
    assert told == classifier.history_
    ended = [event.step for event in events if event.entry is not None]
    assert ended == list(range(1, len(told) + 1))


def test_who_listens_changes_nothing(make, task):
    silent = make("pgl").fit(task.X, task.y, task.domain)
    context = FitContext(progress=lambda event: None)
    heard = make("pgl").fit(task.X, task.y, task.domain, context=context)
    assert (silent.transduction_scores_ == heard.transduction_scores_).all()


# long work that is not training --------------------------------------------------------------


def test_tables_are_read_and_hashed_byte_by_byte(workplace, monkeypatch):
    monkeypatch.setattr(fit_data, "_MEGABYTE", 1)
    monkeypatch.setattr(files, "_HASHED_BYTES", 100)
    told = []
    request = FitRequest("x", str(workplace / "source.npz"), str(workplace / "target.csv"))
    request = replace(request, tables=TableOptions(id="file_name"))
    data = fit_data.load_tables(request, lambda done, total: told.append((done, total)))
    size = sum(data.inputs[domain]["bytes"] for domain in ("source", "target"))
    assert told[0] == (0, 2 * size)
    assert told[-1] == (2 * size, 2 * size)
    assert told == sorted(told)
    assert len(told) > 2 * size / 2 / 100
    with (workplace / "source.npz").open("rb") as stream:
        expected = hashlib.file_digest(stream, "sha256").hexdigest()
    assert data.inputs["source"]["sha256"] == expected


def test_rows_are_labelled_part_by_part_to_the_same_bytes(workplace, monkeypatch, capsys, clock):
    run_fit()
    predict = ["predict", "run", "target.npz", "--id-column", "file_name", "--out"]
    assert main([*predict, "whole.parquet"]) == 0
    capsys.readouterr()

    def scored(model, X):
        clock[0] += 10.0
        return score(model, X)

    score = ClassMeans.open_set_scores
    monkeypatch.setattr(predicting, "PART_ROWS", 25)
    monkeypatch.setattr(ClassMeans, "open_set_scores", scored)
    assert main([*predict, "parts.parquet"]) == 0
    (line, *_) = capsys.readouterr().err.splitlines()
    assert line == "predict: 25/60 rows, 0:00:10 so far"
    assert read_table("parts.parquet") == read_table("whole.parquet")


def test_digits_are_counted(terminal, tmp_path, capsys):
    assert main(["data", "digits", str(tmp_path / "d"), "--every", "100"]) == 0
    assert "1/43 images" in capsys.readouterr().err
