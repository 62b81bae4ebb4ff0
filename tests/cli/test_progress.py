"""Progress of long work: how far, how fast, how long; a bar, lines, or nothing."""

from __future__ import annotations

import os
import pty
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow.parquet import read_table

from cli_helpers import run_fit
from opensetda import ClassMeans
from opensetda.cli import console
from opensetda.cli.bars import counting_progress, training_progress
from opensetda.cli.main import main
from opensetda.progress import ProgressEvent
from opensetda.usecases import predict_samples


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")


def drawn(capsys, *words):
    """Wait until the thread that draws has drawn these words; return all it has drawn since."""
    err, stop = "", time.perf_counter() + 3
    while not all(word in err for word in words):
        assert time.perf_counter() < stop, err
        time.sleep(0.01)
        err += capsys.readouterr().err
    return err


# numbers -------------------------------------------------------------------------------------


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


@given(st.booleans(), st.lists(st.tuples(ODD, ODD), max_size=5), EVENTS, st.sampled_from([0, 60]))
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
            for done, total in counts:
                now[0] += pause
                tell(done, total)


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


# counted work --------------------------------------------------------------------------------


def test_lines_are_sparse_and_have_total_rate_and_time_left(capsys, clock):
    with counting_progress("features") as tell:
        for done in range(3601):
            clock[0] = float(done)
            tell(done, 3600)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "features: 30/3,600 images, 1.0/s, 0:59:30 left"
    assert len(lines) == 119


def test_a_bar_has_total_rate_and_time_left_and_fits_the_terminal(
    terminal, monkeypatch, capsys, clock
):
    monkeypatch.setenv("COLUMNS", "80")
    with counting_progress("features") as tell:
        for done in range(1, 7):
            clock[0] += 2.0
            tell(170 * done, 12_345)
        err = drawn(capsys, "features", "1,020/12,345 images", "85.0/s", "0:02:14", "\x1b[")
    # A line that is drawn anew begins with the code that clears it.
    lines = [
        re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", line) for line in re.split(r"[\r\n]|\x1b\[2K", err)
    ]
    assert max(map(len, lines)) <= 80


def test_a_quiet_one_gets_nothing(terminal, capsys, clock):
    console.begin(quiet=True)
    with counting_progress("features") as tell, training_progress("pgl") as listen:
        for done in range(100):
            clock[0] = 60.0 * done
            tell(done, 100)
            listen(ProgressEvent(done + 1, 100, 1, 1))
    console.begin()
    assert capsys.readouterr() == ("", "")


def test_work_within_work_has_a_bar_below(terminal, capsys):
    with counting_progress("report", "page") as of_pages:
        of_pages(1, 2)
        with counting_progress("map", "dot") as of_dots:
            of_dots(3, 7)
            drawn(capsys, "1/2 pages", "3/7 dots")


# training ------------------------------------------------------------------------------------


def test_a_training_has_a_line_a_step(capsys, clock):
    with training_progress("pgl") as listen:
        for step in (1, 2):
            for iteration in range(1, 11):
                clock[0] += 0.5
                entry = {} if iteration == 10 else None
                listen(ProgressEvent(step, 2, iteration, 10, loss=0.5, entry=entry))
    assert capsys.readouterr().err.splitlines() == [
        "pgl: step 1/2, loss 0.500, 2.0/s, 0:00:05 left",
        "pgl: step 2/2, loss 0.500, 2.0/s",
    ]


# what methods and commands tell ---------------------------------------------------------------


def test_rows_are_labelled_part_by_part_to_the_same_bytes(workplace, monkeypatch, capsys, clock):
    run_fit()
    predict = ["predict", "run", "target.npz", "--id-column", "file_name", "--out"]
    assert main([*predict, "whole.parquet"]) == 0
    capsys.readouterr()

    def scored(model, X):
        clock[0] += 30.0
        return score(model, X)

    score = ClassMeans.open_set_scores
    monkeypatch.setattr(predict_samples, "PART_ROWS", 25)
    monkeypatch.setattr(ClassMeans, "open_set_scores", scored)
    assert main([*predict, "parts.parquet"]) == 0
    (line, *_) = capsys.readouterr().err.splitlines()
    assert line == "predict: 25/60 rows"
    assert read_table("parts.parquet") == read_table("whole.parquet")
