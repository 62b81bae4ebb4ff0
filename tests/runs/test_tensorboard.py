"""`osda fit --tensorboard`: what is in the event files, and who may not write them."""

from __future__ import annotations

import json

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cli_helpers import FIT, FIT_STEPS, names_in
from cli_processes import Osda
from opensetda.cli.main import main

LOG = ["--tensorboard", "log"]
pytestmark = pytest.mark.usefixtures("stepper")


def curves(folder):
    """Return all curves of the event files in a folder: {tag: {step: value}}."""
    written = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    tags = written.Tags()["scalars"]
    return {tag: {point.step: point.value for point in written.Scalars(tag)} for tag in tags}


def test_the_event_files_hold_the_history_and_change_no_bit(workplace):
    assert main([*FIT_STEPS, *LOG]) == 0
    found = curves("log")
    lines = (workplace / "run" / "history.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    scores = {entry["step"]: entry["mean_score"] for entry in entries}
    assert found["step/mean_score"] == pytest.approx(scores, rel=1e-6)
    of_steps = {entry["step"]: entry["loss"]["some"] for entry in entries}
    assert found["step/loss/some"] == pytest.approx(of_steps, rel=1e-6)
    assert not {"step/step", "step/steps", "step/progress"} & found.keys()
    losses = found["iteration/loss"]
    assert list(losses) == list(range(1, len(losses) + 1))
    assert main(["plain" if word == "run" else word for word in FIT_STEPS]) == 0
    for name in ("model.safetensors", "predictions.csv", "steps.parquet"):
        assert (workplace / "run" / name).read_bytes() == (workplace / "plain" / name).read_bytes()


def test_a_run_that_goes_on_leaves_no_gap(workplace):
    whole = ["never-cut" if word == "run" else word for word in FIT_STEPS]
    assert main([*whole, "--tensorboard", "whole"]) == 0
    Osda(workplace, *FIT_STEPS, *LOG, moment=2, before=True).send()
    assert main(["resume", "run"]) == 0
    cut, never_cut = curves("log"), curves("whole")
    # Losses that were not on the disk yet when it was killed are missing, and nothing else.
    losses = never_cut.pop("iteration/loss")
    assert cut.pop("iteration/loss").items() <= losses.items()
    assert cut == never_cut


def test_another_runs_curves_are_not_mixed_in(workplace, capsys):
    assert main([*FIT, *LOG]) == 0
    assert main([*["other" if word == "run" else word for word in FIT], *LOG]) == 2
    assert "--tensorboard log: holds the event files of another run" in capsys.readouterr().err
    assert "other" not in names_in(workplace)
    (workplace / "log" / "mine.txt").touch()
    assert main([*FIT, *LOG, "--set", "steps=4", "--overwrite"]) == 0
    assert list(curves("log")["step/mean_score"]) == [1, 2, 3, 4]
    assert (workplace / "log" / "mine.txt").exists()


def test_what_cannot_be_written_is_refused_before_anything_is_read(workplace, monkeypatch, capsys):
    missing = ["fit", "missing.npz", "missing.npz", "--out", "run", *LOG]
    (workplace / "log").touch()
    assert main(missing) == 2
    assert (
        "log/events: cannot be written (Not a directory); choose another place"
        in capsys.readouterr().err
    )
    monkeypatch.setattr("opensetda.runs.tensorboard.find_spec", lambda name: None)
    assert main(missing) == 2
    assert "needs the package tensorboard; pip install" in capsys.readouterr().err
