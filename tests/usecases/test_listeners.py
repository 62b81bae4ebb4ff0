"""Trackers get the settings, the numbers of every step and the folder: their own local stores."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from opensetda.errors import InputError
from opensetda.listeners import MLflowListener, TrackingListener, WandbListener, step_numbers
from opensetda.progress import RunListener
from opensetda.usecases import fit

STEPS = 3


def tracked(out, listener):
    rng = np.random.default_rng(0)
    which = np.arange(90) % 3
    X = 5 * np.eye(3, 6)[which] + rng.normal(size=(90, 6))
    source = X[which < 2], np.array(["cup", "pen"])[which[which < 2]]
    how = {"method": "moving-means", "settings": {"steps": STEPS}, "openness": 1 / 3}
    return fit(source, X + 0.2, out, listener=listener, **how)


class Recorder(TrackingListener):
    def __init__(self, behind=None):
        super().__init__(behind)
        self.said = []

    def started(self, settings):
        self.said.append(("started", settings["method"]))

    def log(self, numbers, step):
        self.said.append((step, numbers["mean_score"]))

    def finished(self, folder):
        self.said.append(("finished", folder))


def test_a_listener_hears_the_run_from_start_to_end(tmp_path):
    class Behind(RunListener):
        notes, steps = [], []

        def note(self, line):
            self.notes.append(line)

        @contextmanager
        def training(self, method):
            yield lambda event: self.steps.append(event.step)

    recorder = Recorder(Behind())
    run = tracked(tmp_path / "run", recorder)
    history = run.folder.history()
    assert recorder.said == [
        ("started", "moving-means"),
        *((entry["step"], entry["mean_score"]) for entry in history),
        ("finished", tmp_path / "run"),
    ]
    assert Behind.notes
    assert set(Behind.steps) == {entry["step"] for entry in history}


def test_numbers_of_a_step_are_flat():
    entry = {"step": 1, "loss": {"class": 0.5}, "changed": None, "name": "x"}
    assert step_numbers(entry) == {"step": 1, "loss/class": 0.5}


def test_a_tracker_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(InputError, match=r"pip install 'opensetda\[mlflow\]'"):
        tracked(tmp_path / "run", MLflowListener())


@pytest.mark.skipif(find_spec("mlflow") is None, reason="MLflow is not installed (extra mlflow)")
def test_mlflows_file_store(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    import mlflow

    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    with mlflow.start_run() as active:
        run = tracked(tmp_path / "run", MLflowListener())
    client = mlflow.MlflowClient()
    stored = client.get_run(active.info.run_id).data
    assert stored.params["method"] == "moving-means"
    assert stored.params["steps"] == str(STEPS)
    scores = client.get_metric_history(active.info.run_id, "mean_score")
    assert [m.value for m in scores] == [entry["mean_score"] for entry in run.folder.history()]
    there = [file.path for file in client.list_artifacts(active.info.run_id, "run")]
    assert "run/predictions.csv" in there


@pytest.mark.skipif(find_spec("wandb") is None, reason="W&B is not installed (extra wandb)")
def test_weights_and_biases_offline(tmp_path):
    import wandb

    with pytest.raises(InputError, match=r"wandb.init\(\)"):
        tracked(tmp_path / "early", WandbListener())
    with wandb.init(mode="offline", dir=tmp_path) as active:
        run = tracked(tmp_path / "run", WandbListener())
        config, place = dict(active.config), active.settings.sync_file
    assert config["method"] == "moving-means"
    wandb.teardown()  # ends the process that writes
    # Blocks of records whose values are JSON.
    content = Path(place).read_bytes()
    for entry in run.folder.history():
        assert json.dumps(entry["mean_score"]).encode() in content
    assert b"predictions.csv" in content or b"opensetda-run" in content
