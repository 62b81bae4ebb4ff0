"""What a person sees: progress and tables."""

from __future__ import annotations

import io
import time

from rich.console import Console

from opensetda.cli import console
from opensetda.progress import ProgressEvent


def test_many_classes_are_summed_up(workplace, capsys):
    table = console.label_counts([str(number) for number in range(20)] * 2, "unknown", most=3)
    console.show(table)
    assert "17 more classes" in capsys.readouterr().out


def test_events_know_how_far_they_are():
    assert ProgressEvent(1, 10).fraction == 0.1
    assert ProgressEvent(1, 10, 0, 5).fraction == 0
    assert ProgressEvent(10, 10, 5, 5).fraction == 1


def test_progress_is_one_line_a_step_where_there_is_no_terminal(capsys):
    with console.progress_listener("pgl") as listen:
        for step in (1, 2):
            for iteration in (1, 2, 3, 3):
                listen(ProgressEvent(step, 2, iteration, 3, loss=0.5))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("pgl: step 1/2  loss 0.500  0 s, about 0 s left")


def test_progress_is_a_bar_on_a_terminal(monkeypatch):
    screen = Console(file=io.StringIO(), force_terminal=True, width=120)
    with console._bar(screen, "pgl") as listen:
        listen(ProgressEvent(3, 10, 2, 5, loss=0.25, message="ranking"))
        time.sleep(0.15)
    shown = screen.file.getvalue()
    assert "step 3/10, iteration 2/5, loss 0.250, ranking" in shown


def test_a_terminal_gets_the_bar(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with console.progress_listener("pgl") as listen:
        listen(ProgressEvent(1, 1))
    assert "\x1b[" in capsys.readouterr().err


def test_steps_show_what_a_method_has(capsys):
    history = [
        {"n_known": 5, "n_unknown": 4, "changed": None, "loss": {"a": 1.0, "b": 2.0}, "seconds": 1},
        {"n_known": 9, "n_unknown": 8, "changed": 0.25, "loss": None, "seconds": 1.5},
    ]
    console.show(console.step_table(history))
    out = capsys.readouterr().out
    for cell in ("changed %", "25.0", "3.000", "1.5", " - "):
        assert cell in out
    assert "mean score" not in out
