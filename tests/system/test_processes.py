"""Two processes, as `accelerate launch` starts them: one result, cut and taken up again."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from cli_helpers import names_in

LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "opensetda"]
SMALL = ("edge_width=32", "node_width=32", "steps=3", "graph_rate=0.001")
TRUTH = np.repeat(["a", "b", "unknown"], 20)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    rng, centres = np.random.default_rng(0), 9 * np.eye(3, 8)
    rows = [centres[i] + rng.normal(size=(20, 8)) for i in (0, 1, 0, 1, 2)]
    np.savez("source.npz", X=np.concatenate(rows[:2]), y=np.repeat(["a", "b"], 20))
    np.savez("target.npz", X=np.concatenate(rows[2:]))
    return tmp_path


def test_two_processes_learn_together_and_resume(place):
    command = ["fit", "source.npz", "target.npz", "--out", "run", "--method", "pgl", "--no-report"]
    command += ["--openness", "0.33", *(word for name in SMALL for word in ("--set", name))]
    with subprocess.Popen([*LAUNCH, *command], stderr=subprocess.DEVNULL) as process:
        checkpoint = place / "run.unfinished" / "checkpoint"
        while not checkpoint.exists() and process.poll() is None:
            time.sleep(0.05)
        family = psutil.Process(process.pid)
        for member in (*family.children(recursive=True), family):
            member.kill()
    assert [name for name in names_in(place) if name.startswith("run")] == ["run.unfinished"]
    done = subprocess.run([*LAUNCH, "resume", "run"], capture_output=True, text=True, check=True)
    assert done.stdout.count("Labelled 60 rows") == 1, "one of them speaks"
    assert [name for name in names_in(place) if name.startswith("run")] == ["run"]
    labels = np.genfromtxt("run/predictions.csv", str, delimiter=",", skip_header=1, usecols=1)
    assert np.mean(np.char.strip(labels, chr(34)) == TRUTH) > 0.9
    left = list((place / "temporary").rglob("*.unfinished"))
    assert len(left) <= 1, "of the process that was killed"
