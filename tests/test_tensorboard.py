"""`osda fit --tensorboard`: what is in the event files, and who may not write them."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cli_helpers import FIT, FIT_STEPS, names_in
from cli_processes import Osda
from opensetda.cli.main import main
from opensetda.runs.tensorboard import numbers

LOG = ["--tensorboard", "log"]
pytestmark = pytest.mark.usefixtures("stepper")


def curves(folder):
    """Return all curves of the event files in a folder: {tag: {step: value}}."""
    written = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    tags = written.Tags()["scalars"]
    return {tag: {point.step: point.value for point in written.Scalars(tag)} for tag in tags}


def history(run):
    return [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]


def test_the_event_files_hold_the_history_and_the_loss(workplace):
    assert main([*FIT_STEPS, *LOG]) == 0
    found = curves("log")
    entries = history(workplace / "run")
    assert len(entries) == 3
    scores = {entry["step"]: entry["mean_score"] for entry in entries}
    assert found["step/mean_score"] == pytest.approx(scores, rel=1e-6)
    of_steps = {entry["step"]: entry["loss"]["some"] for entry in entries}
    assert found["step/loss/some"] == pytest.approx(of_steps, rel=1e-6)
    losses = found["iteration/loss"]
    assert list(losses) == list(range(1, len(losses) + 1))
    # The mean of a step's iterations is what its history says.
    per_step = len(losses) // 3
    first = np.mean([losses[number] for number in range(1, per_step + 1)])
    assert first == pytest.approx(sum(entries[0]["loss"].values()), rel=1e-5)


def test_it_changes_no_bit_of_the_run(workplace):
    assert main([*FIT_STEPS, *LOG]) == 0
    again = [*FIT_STEPS]
    again[again.index("run")] = "plain"
    assert main(again) == 0
    for name in ("model.safetensors", "predictions.csv", "steps.parquet"):
        assert (workplace / "run" / name).read_bytes() == (workplace / "plain" / name).read_bytes()


def test_a_run_that_goes_on_leaves_no_gap(workplace, capsys):
    whole = [*FIT_STEPS, "--tensorboard", "whole"]
    whole[whole.index("run")] = "never-cut"
    assert main(whole) == 0
    Osda(workplace, *FIT_STEPS, *LOG, moment=2, before=True).send()
    capsys.readouterr()
    assert main(["resume", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tensorboard"] == str(workplace / "log")
    cut, never_cut = curves("log"), curves("whole")
    assert cut.keys() == never_cut.keys()
    for tag, points in never_cut.items():
        if tag != "iteration/loss":
            assert cut[tag] == points
        else:
            # What was not on the disk yet when it was killed is lost, and nothing else.
            assert cut[tag].items() <= points.items()
            assert max(cut[tag]) == max(points)


def test_methods_without_a_loss_have_their_steps(workplace):
    assert main([*FIT, *LOG]) == 0
    found = curves("log")
    assert list(found["step/mean_score"]) == list(range(1, 11))
    assert "iteration/loss" not in found


def test_another_runs_curves_are_not_mixed_in(workplace, capsys):
    assert main([*FIT, *LOG]) == 0
    other = [*FIT]
    other[other.index("run")] = "other"
    capsys.readouterr()
    assert main([*other, *LOG]) == 2
    assert "--tensorboard log: holds the event files of another run" in capsys.readouterr().err
    assert names_in(workplace).count("other") == 0
    (workplace / "log" / "mine.txt").touch()
    assert main([*FIT, *LOG, "--set", "steps=4", "--overwrite"]) == 0
    assert list(curves("log")["step/mean_score"]) == [1, 2, 3, 4]
    assert (workplace / "log" / "mine.txt").exists()


def test_without_the_package_nothing_is_read(workplace, monkeypatch, capsys):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "opensetda.runs.tensorboard.find_spec",
        lambda name: None if name == "tensorboard" else find_spec(name),
    )
    missing = ["fit", "missing.npz", "missing.npz", "--out", "run", *LOG]
    assert main(missing) == 2
    assert capsys.readouterr().err == (
        "error: --tensorboard: needs the package tensorboard; "
        "pip install 'opensetda[tensorboard]'\n"
    )


def test_a_file_in_the_way(workplace, capsys):
    (workplace / "log").touch()
    assert main([*FIT, *LOG]) == 2
    assert "--tensorboard log: a file is in the way" in capsys.readouterr().err


def test_only_numbers_of_an_entry_are_curves():
    entry = {"step": 2, "loss": {"node": 0.5}, "changed": None, "n_known": 3, "why": "text"}
    assert dict(numbers(entry)) == {"loss/node": 0.5, "n_known": 3}
