"""`osda fit --tensorboard`: what is in the event files, and who may not write them."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cli_helpers import FIT, FIT_PGL, names_in
from cli_processes import Osda
from opensetda.cli.main import main
from opensetda.pgl.checkpoints import LATEST, step_name
from opensetda.progress import ProgressEvent
from opensetda.runs.tensorboard import EventLog, numbers

STEPS = [
    *("--set", "steps=3", "--set", "optimiser.first_step_epochs=1"),
    *("--checkpoint-every", "0"),
]
LOG = ["--tensorboard", "log"]
NUMBERS = (
    *("openness", "openness_estimate", "n_known", "n_unknown"),
    *("mean_score", "changed", "seconds"),
)


def curves(folder):
    """Return all curves of the event files in a folder: {tag: {step: value}}; no point twice."""
    written = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    found = {}
    for tag in written.Tags()["scalars"]:
        points = [(point.step, point.value) for point in written.Scalars(tag)]
        assert len(dict(points)) == len(points), f"{tag}: a point twice"
        found[tag] = dict(points)
    return found


def history(run):
    return [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]


def test_the_event_files_hold_the_history_and_the_loss(workplace):
    assert main([*FIT_PGL, *STEPS, *LOG]) == 0
    found = curves("log")
    entries = history(workplace / "run")
    assert len(entries) == 3
    for name in NUMBERS:
        expected = {e["step"]: e[name] for e in entries if e[name] is not None}
        assert found[f"step/{name}"] == pytest.approx(expected, rel=1e-6)
    for name in entries[0]["loss"]:
        expected = {e["step"]: e["loss"][name] for e in entries}
        assert found[f"step/loss/{name}"] == pytest.approx(expected, rel=1e-6)
    losses = found["iteration/loss"]
    assert list(losses) == list(range(1, len(losses) + 1))
    # The mean of a step's iterations is what its history says.
    per_step = len(losses) // 3
    first = np.mean([losses[number] for number in range(1, per_step + 1)])
    assert first == pytest.approx(sum(entries[0]["loss"].values()), rel=1e-5)


def test_it_changes_no_bit_of_the_run(workplace):
    assert main([*FIT_PGL, *LOG]) == 0
    again = [*FIT_PGL]
    again[again.index("run")] = "plain"
    assert main(again) == 0
    for name in ("model.safetensors", "predictions.parquet", "steps.parquet"):
        assert (workplace / "run" / name).read_bytes() == (workplace / "plain" / name).read_bytes()


@pytest.mark.parametrize(
    ("moment", "before"),
    [(LATEST, False), (step_name(1), True)],
    ids=["in a step", "before a step is kept"],
)
def test_a_run_that_goes_on_leaves_no_gap_and_no_point_twice(workplace, capsys, moment, before):
    whole = [*FIT_PGL, *STEPS, "--tensorboard", "whole"]
    whole[whole.index("run")] = "never-cut"
    assert main(whole) == 0
    command = [*FIT_PGL, *STEPS, *LOG]
    Osda(workplace, *command, moment=moment, before=before).send()
    assert not (workplace / "run").exists()
    capsys.readouterr()
    assert main(["resume", "run", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["resumed"]
    assert result["tensorboard"] == str(workplace / "log")
    cut, never_cut = curves("log"), curves("whole")
    assert cut.keys() == never_cut.keys()
    for tag, points in never_cut.items():
        if tag == "step/seconds":
            assert cut[tag].keys() == points.keys()
        elif tag != "iteration/loss":
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


def test_a_log_that_goes_on_without_files_begins(tmp_path):
    with EventLog(tmp_path / "log", goes_on=True) as log:
        log(ProgressEvent(1, 1, 1, 1, loss=2.0, updates=1))
    assert curves(tmp_path / "log") == {"iteration/loss": {1: 2.0}}
