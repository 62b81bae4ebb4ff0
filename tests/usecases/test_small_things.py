"""Small things that a user meets: advice, messages, and runs that nothing can be written into."""

from __future__ import annotations

import errno
import json
import os
import shlex

import numpy as np
import pytest

from cli_helpers import FIT, FIT_STEPS, run_fit
from opensetda.cli.benchmark import fit_command
from opensetda.cli.main import main
from opensetda.errors import cut
from opensetda.runs.folder import RunFolder
from opensetda.system.files import new_file
from opensetda.usecases.compare_methods import ComparedMethod, clear_winner


def test_the_probability_of_unknown_is_the_largest_of_unknowns(workplace):
    assert main([*FIT[:-1], "committee"]) == 0
    table = RunFolder.open("run").predictions()
    unknown = table.labels == "unknown"
    assert unknown.any()
    assert (table.proba[unknown, -1] >= table.proba[unknown, :-1].max(axis=1)).all()


def test_an_interrupted_run_is_to_be_resumed(workplace, capsys):
    (workplace / "cc.unfinished").mkdir()
    assert main(["predict", "cc", "target.npz", "--out", "labels.csv"]) == 2
    assert "osda resume cc" in capsys.readouterr().err


def test_an_address_keeps_its_slashes(workplace, capsys):
    assert main(["fit", "https://example.org/a.csv", "target.npz", "--out", "run"]) == 2
    assert "https://example.org/a.csv" in capsys.readouterr().err


def test_messages_are_cut_between_words():
    text = " ".join(["word"] * 50)
    assert cut(text, 500) == text
    shorter = cut(text, 43)
    assert len(shorter) <= 43
    assert set(shorter.removesuffix(" ...").split()) == {"word"}
    assert len(cut("x" * 100, 43)) <= 43


def test_a_run_that_cannot_be_written_to_is_reported_elsewhere(workplace, monkeypatch, capsys):
    run_fit()

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied", ".map.partial-0123")

    monkeypatch.setattr(RunFolder, "replace_files", refuse)
    can = os.access

    def asked(path, mode, **how):
        return not mode & os.W_OK and can(path, mode, **how)

    monkeypatch.setattr("os.access", asked)
    assert main(["report", "run"]) == 2
    err = capsys.readouterr().err
    assert "--out" in err
    assert "partial" not in err
    assert main(["report", "run", "--out", "page.html"]) == 0
    assert (workplace / "page.html").stat().st_size > 10_000
    assert main(["predict", "run", "target.npz", "--out", "labels.csv"]) == 0


def test_errors_of_writing_name_the_file_that_is_wanted(tmp_path):
    with pytest.raises(OSError, match="cannot be written") as caught, new_file(tmp_path / "a.csv"):
        raise PermissionError(errno.EACCES, "Permission denied", "x.partial-0123")
    assert caught.value.filename == str(tmp_path / "a.csv")


def test_steps_are_shown_to_those_who_ask(workplace, stepper, capsys):
    assert main(FIT_STEPS) == 0
    assert "changed %" not in capsys.readouterr().out
    assert main([*FIT_STEPS, "--overwrite", "--verbose"]) == 0
    assert "changed %" in capsys.readouterr().out


def test_warnings_name_the_run_that_they_are_about(workplace, capsys):
    assert main([*FIT[:4], "my run", *FIT[5:]]) == 0
    found = RunFolder.open("my run").estimates()["openness"]["warnings"]
    assert any("osda review 'my run'" in line for line in found)
    assert "osda review RUN" not in capsys.readouterr().err


def compared(method, *scores):
    return ComparedMethod(method, "ranks", 0.3, 0.8, float(np.mean(scores)), 0.0, scores)


def test_a_winner_beats_every_other_method_by_more_than_the_noise():
    default = compared("committee", 0.60, 0.70, 0.80)
    assert clear_winner([default, compared("daod", 0.64, 0.75, 0.83)]).method == "daod"
    assert clear_winner([default, compared("daod", 0.90, 0.69, 0.90)]) is None
    assert clear_winner([default, compared("daod", 0.60, 0.70, 0.81)]) is None
    assert clear_winner([default, compared("daod")]) is None


def test_the_advice_of_a_comparison_can_be_pasted(workplace):
    typed = ["osda", "benchmark", "a b.csv", "c.csv", "--out", "x", "--unlabelled"]
    typed += ["--label-column", "gas"]
    words = shlex.split(fit_command(typed, ["--method", "daod", "--scaling", "none"]))
    assert words[:4] == ["osda", "fit", "a b.csv", "c.csv"]
    assert not {"--unlabelled", "x"} & {*words}
    assert words[-2:] == ["--out", "run"]
    npz = fit_command(["osda", "benchmark", "source.npz", "target.npz", "--unlabelled"], [])
    assert main([*shlex.split(npz)[1:], "--no-report", "--method", "class-means"]) == 0


def test_alarms_and_the_range_are_part_of_the_result(workplace, capsys):
    assert main([*FIT[:-1], "committee", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    estimates = RunFolder.open("run").estimates()
    low, high = estimates["right"]
    assert 0 <= low < high <= 1
    assert result["alarms"] == estimates["alarms"]
    assert set(estimates["separation"]) == {"accuracy", "mixing", "agreement", "sentence"}
