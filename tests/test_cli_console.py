"""What a person sees: tables."""

from __future__ import annotations

from opensetda.cli import console


def test_many_classes_are_summed_up(workplace, capsys):
    table = console.label_counts([str(number) for number in range(20)] * 2, "unknown", most=3)
    console.show(table)
    assert "17 more classes" in capsys.readouterr().out


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
