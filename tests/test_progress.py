"""Progress of long work: how far, how fast, how long; a bar, lines, or nothing."""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import replace

import pytest
from pyarrow.parquet import read_table

from cli_helpers import make_images, run_fit
from opensetda import ProgressiveClassMeans
from opensetda.cli import console
from opensetda.cli.counting import (
    counting_progress,
    duration,
    rate_text,
    size,
    training_progress,
)
from opensetda.cli.main import main
from opensetda.context import FitContext
from opensetda.progress import ProgressEvent
from opensetda.runs import fit_data, predicting
from opensetda.runs.request import FitRequest, TableOptions
from opensetda.system import files


@pytest.fixture
def memory(monkeypatch):
    monkeypatch.setattr("opensetda.cli.counting.peak_megabytes", lambda: 1830.0)


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
    err, stop = "", time.perf_counter() + 20
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


def test_events_know_how_far_it_was_before_them():
    assert ProgressEvent(1, 10).fraction_before == 0
    assert ProgressEvent(4, 10).fraction_before == 0.3
    assert ProgressEvent(6, 10, 1, 5).fraction_before == 0.5


@pytest.mark.parametrize(
    ("rate", "noun", "text"),
    [
        (None, "it", ""),
        (12.34, "it", "12.3 it/s"),
        (85.0, "image", "85.0 images/s"),
        (4321.0, "image", "4,321 images/s"),
        (1 / 4.1, "step", "4.1 s/step"),
        (1 / 150, "run", "2.5 min/run"),
        (310.2, "MB", "310 MB/s"),
    ],
)
def test_rates_are_readable_whatever_they_are(rate, noun, text):
    assert rate_text(rate, noun) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (42, "42 s"), (720, "12 min"), (12000, "3 h 20 min")],
)
def test_durations_are_readable_whatever_they_are(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("megabytes", "text"),
    [(640.2, "640 MB of memory"), (1830, "1.8 GB of memory"), (float("nan"), "")],
)
def test_memory_is_readable_however_much(megabytes, text):
    assert size(megabytes) == text


# counted work --------------------------------------------------------------------------------


def test_lines_are_sparse_and_have_total_rate_and_time_left(capsys, clock, memory):
    with counting_progress("features") as tell:
        for done in range(3601):
            clock[0] = float(done)
            tell(done, 3600)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "features: about 60 min, 1.8 GB of memory"
    assert lines[1] == "features: 10/3,600 images, 1.0 images/s, 10 s, about 60 min left"
    assert 5 < len(lines) < 25


def test_what_was_found_at_once_does_not_count_as_speed(capsys, clock):
    with counting_progress("features") as tell:
        clock[0] = 1.0
        tell(900, 1000)  # from the cache
        for done in (905, 915, 925, 935):
            clock[0] += 20.0
            tell(done, 1000)
    lines = capsys.readouterr().err.splitlines()
    # The first batch has all that is done once, and the next ones alone do not promise anything.
    assert lines[0] == "features: 905/1,000 images, 21 s"
    assert lines[1] == "features: 915/1,000 images, 2.0 s/image, 41 s"
    assert lines[2] == "features: 935/1,000 images, 2.0 s/image, 81 s, about 2 min left"


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
    assert line == "features: 5/50 images, 1.0 images/s, 10 s, about 45 s left"


def test_a_terminal_gets_a_bar_with_total_rate_and_time_left(terminal, capsys, clock):
    with counting_progress("features") as tell:
        for done in range(0, 681, 170):
            tell(done, 1000)
            clock[0] += 2.0
        clock[0] -= 1.0
        # A second has passed since the last report.
        drawn(capsys, "features", "680/1,000 images", "85.0 images/s", "3 s left")


@pytest.mark.parametrize("width", [60, 80, 100])
def test_bars_fit_the_terminal(terminal, monkeypatch, capsys, clock, width):
    monkeypatch.setenv("COLUMNS", str(width))
    with training_progress("pgl") as listen, counting_progress("reading features") as tell:
        for done in range(1, 7):
            clock[0] += 100.0
            listen(ProgressEvent(3, 10, done, 30, loss=0.25, message="ranking"))
            tell(10 * done, 12_345)
        err = drawn(capsys, "step 3/10", "60/12,345 images", "left")
    # A line that is drawn anew begins with the code that clears it.
    lines = [
        re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", line) for line in re.split(r"[\r\n]|\x1b\[2K", err)
    ]
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    assert ("loss" in err) == (width == 100)


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
                listen(ProgressEvent(step, 2, iteration, 10, loss=0.5))
    assert capsys.readouterr().err.splitlines() == [
        "pgl: step 1/2, loss 0.500, 2.0 it/s, 6 s, about 4 s left",
        "pgl: step 2/2, loss 0.500, 2.0 it/s, 10 s",
    ]


def test_a_long_step_has_lines_in_between(capsys, clock):
    with training_progress("osbp") as listen:
        for iteration in range(1, 101):
            clock[0] = float(iteration)
            listen(ProgressEvent(1, 1, iteration, 100, loss=2.0, message="dreaming"))
    lines = capsys.readouterr().err.splitlines()
    first = "osbp: step 1/1, iteration 10/100, loss 2.000, dreaming, 1.0 it/s, 10 s"
    assert lines[0].startswith("osbp: about 95 s, ")
    assert lines[1] == f"{first}, about 90 s left"
    assert lines[-1] == "osbp: step 1/1, loss 2.000, 1.0 it/s, 2 min"


def test_a_run_that_goes_on_counts_its_own_time_only(capsys, clock):
    with training_progress("pgl") as listen:
        for step in range(7, 13):
            clock[0] += 60
            listen(ProgressEvent(step, 12))
    assert "step 11/12, 60.0 s/step, 5 min, about 60 s left" in capsys.readouterr().err


def test_quick_steps_without_iterations_are_one_line(capsys, clock):
    with training_progress("class-means") as listen:
        for step in range(1, 11):
            clock[0] += 0.1
            listen(ProgressEvent(step, 10))
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "class-means: step 10/10, 10.0 steps/s, 1 s"


def test_a_training_on_a_terminal_is_a_bar(terminal, capsys, clock):
    with training_progress("pgl") as listen:
        for iteration in range(1, 6):
            clock[0] += 2.0
            listen(ProgressEvent(3, 10, iteration, 9, loss=0.25, message="ranking"))
        state = "step 3/10, iteration 5/9, loss 0.250, ranking"
        drawn(capsys, state, "2.0 s/it", "left", "\x1b[")


def test_nobody_promises_when_the_last_labels_are_there(terminal, capsys, clock):
    with training_progress("pgl") as listen:
        for step in (1, 2):
            clock[0] += 4.0
            listen(ProgressEvent(step, 2, 3, 3))
        drawn(capsys, "step 2/2, iteration 3/3, finishing")
        # The time left of the step before may stay for half a second, and then never comes back.
        stop = time.perf_counter() + 20
        while "left" in drawn(capsys, "finishing"):
            assert time.perf_counter() < stop


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


@pytest.mark.parametrize("method", ["pgl", "osbp"])
def test_updates_count_through_all_steps(make, method, task, quick):
    events: list[ProgressEvent] = []
    more = {"iterations": 6} if method == "osbp" else {}
    context = FitContext(progress=events.append)
    make(method, **more).fit(task.X, task.y, task.domain, context=context)
    updates = [event.updates for event in events if event.updates is not None]
    # Three steps of two iterations; the labelling at the end of each is none of them.
    assert updates == [1, 2, 3, 4, 5, 6]


def test_updates_count_epochs_of_unequal_steps(make, task, quick):
    events: list[ProgressEvent] = []
    settings = {**quick, "optimiser.first_step_epochs": 3, "optimiser.epochs_per_step": 2}
    context = FitContext(progress=events.append)
    make("pgl", settings=settings).fit(task.X, task.y, task.domain, context=context)
    updates = [event.updates for event in events if event.updates is not None]
    assert updates == list(range(1, 6 + 4 + 4 + 1))


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

    score = ProgressiveClassMeans.open_set_scores
    monkeypatch.setattr(predicting, "PART_ROWS", 25)
    monkeypatch.setattr(ProgressiveClassMeans, "open_set_scores", scored)
    assert main([*predict, "parts.parquet"]) == 0
    (line, *_) = capsys.readouterr().err.splitlines()
    assert line == "predict: 25/60 rows, 10 s"
    assert read_table("parts.parquet") == read_table("whole.parquet")


def test_a_download_is_counted_domain_by_domain(terminal, tmp_path, capsys):
    for domain in ("train", "validation"):
        make_images(tmp_path / domain, ("red",), 2, seed=0)
    assert main(["data", "check", "syn2real-o", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert "reading train" in err
    assert "reading validation" in err
    assert "2/2 images" in err


def test_digits_are_counted(terminal, tmp_path, capsys):
    assert main(["data", "digits", str(tmp_path / "d"), "--every", "100"]) == 0
    assert "1/43 images" in capsys.readouterr().err
