"""`osda fit --tensorboard`: what is in the event files."""

from __future__ import annotations

import json

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cli_helpers import FIT_STEPS
from opensetda.cli.main import main

pytestmark = pytest.mark.usefixtures("stepper")


def test_the_event_files_hold_the_history_and_change_no_bit(workplace):
    assert main([*FIT_STEPS, "--tensorboard", "log"]) == 0
    written = EventAccumulator("log", size_guidance={"scalars": 0}).Reload()
    lines = (workplace / "run" / "history.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    for tag, values in {
        "step/mean_score": [entry["mean_score"] for entry in entries],
        "step/loss/some": [entry["loss"]["some"] for entry in entries],
    }.items():
        points = written.Scalars(tag)
        assert [point.step for point in points] == [entry["step"] for entry in entries]
        assert [point.value for point in points] == pytest.approx(values, rel=1e-6)
    assert main(["plain" if word == "run" else word for word in FIT_STEPS]) == 0
    for name in ("model.safetensors", "predictions.csv", "steps.parquet"):
        assert (workplace / "run" / name).read_bytes() == (workplace / "plain" / name).read_bytes()


def test_without_the_package_it_is_refused_before_anything_is_read(workplace, monkeypatch, capsys):
    monkeypatch.setattr("opensetda.runs.fit_and_resume.find_spec", lambda name: None)
    assert main(["fit", "missing.npz", "missing.npz", "--out", "run", "--tensorboard", "log"]) == 2
    assert "pip install 'opensetda[tensorboard]'" in capsys.readouterr().err
