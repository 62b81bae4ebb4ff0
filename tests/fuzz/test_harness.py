"""The harness itself: planted misbehaviour is found and classed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import robustness_outcomes as outcomes
from opensetda.errors import InputError
from robustness_commands import Ended
from robustness_commands import classify as classify_command
from robustness_kinds import SPECIAL, build, kinds
from robustness_outcomes import classify
from robustness_scene import _pictures, _tables

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


def fail(error):
    raise error


@pytest.mark.parametrize(
    ("work", "result"),
    [
        (lambda: None, outcomes.OK),
        (lambda: fail(InputError("a.csv: empty")), outcomes.CLEAN),
        (lambda: fail(InputError("something is empty")), outcomes.UNNAMED),
        (lambda: fail(KeyError("label")), outcomes.FOREIGN),
        (lambda: fail(RecursionError()), outcomes.FOREIGN),
        (lambda: fail(MemoryError()), outcomes.MEMORY),
        (lambda: time.sleep(9), outcomes.HANG),
    ],
)
def test_what_a_reader_does_is_classed(work, result):
    assert classify(work, ("a.csv",), 0.05).result == result


def test_memory_over_the_limit_is_a_finding(monkeypatch):
    monkeypatch.setattr(outcomes, "MOST_MEGABYTES", 50.0)
    assert classify(lambda: np.ones(20_000_000).sum(), (), 9).result == outcomes.MEMORY


def test_writing_outside_is_refused_and_a_finding(monkeypatch, tmp_path):
    monkeypatch.setattr(outcomes, "_allowed", [str(tmp_path)])
    monkeypatch.setattr(outcomes, "outside", [])
    outcomes._watch("open", (str(tmp_path / "a"), "w", 0))
    outcomes._watch("open", ("/elsewhere", "r", 0))
    assert outcomes.outside == []
    for event in (
        ("open", ("/elsewhere", "w", 0)),
        ("open", ("/elsewhere", None, os.O_CREAT)),
        ("os.rename", (str(tmp_path / "a"), "/elsewhere", -1, -1)),
        ("socket.connect", (None, ("203.0.113.1", 80))),
    ):
        with pytest.raises(outcomes.OutsideError):
            outcomes._watch(*event)
    assert classify(lambda: None, (), 9).result == outcomes.OK
    assert classify(lambda: outcomes._watch("os.mkdir", ("/x",)), (), 9).result == outcomes.WRITE


DYING = """
import os, signal, time
import robustness_outcomes as o

def prepare(number):
    def work(case):
        if case == "dies":
            os.kill(os.getpid(), signal.SIGSEGV)
        if case == "sleeps":
            time.sleep(60)
        return o.Outcome(case, case, o.OK)
    return work

cases, blank = ["a", "dies", "b", "sleeps", "c"], lambda case: o.Outcome(case, case, o.OK)
found = o.run_cases(cases, prepare, blank, 1, -2)
print(*(f"{one.kind}:{one.result}" for one in found))
"""


def test_a_worker_that_dies_or_hangs_costs_one_case():
    benchmarks = Path(outcomes.__file__).parent
    path = os.pathsep.join([str(benchmarks), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", DYING],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.stdout.split() == ["a:ok", "dies:signal", "b:ok", "sleeps:hang", "c:ok"], done


@pytest.mark.parametrize(
    ("code", "errors", "result"),
    [
        (0, "", outcomes.OK),
        (2, "error: a.csv: empty\n", outcomes.CLEAN),
        (2, "error: empty\n", outcomes.UNNAMED),
        (2, "error: a.csv: \x1b[2J\n", outcomes.UNNAMED),
        (2, f"error: a.csv: {'x' * 9999}\n", outcomes.UNNAMED),
        (1, "error: KeyError: 'a' (run again with --debug for the traceback)\n", outcomes.FOREIGN),
        (1, "error: out of memory; give fewer rows\n", outcomes.MEMORY),
        (0, "/a/b.py:3: RuntimeWarning: overflow\n", outcomes.FOREIGN),
        (-11, "", outcomes.SIGNAL),
        (None, "", outcomes.HANG),
    ],
)
def test_how_a_command_ends_is_classed(code, errors, result):
    ended = Ended(("fit",), code, "", errors, 0.0, 0.0)
    assert classify_command(ended, ("a.csv",)).result == result


@pytest.fixture(scope="module")
def valid_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scene")
    _tables(folder / "tables")
    _pictures(folder / "images")
    (folder / "input").mkdir()
    return folder


def test_a_case_is_the_same_whenever_it_is_built(valid_files, monkeypatch):
    monkeypatch.chdir(valid_files)
    for kind in kinds(valid_files).values():
        changed, seeds = 0, {(valid_files / seed).read_bytes() for seed in kind.seeds}
        if kind.place in kind.seeds:
            continue
        for number in range(len(SPECIAL), len(SPECIAL) + 8):
            made = [(build(kind, number, valid_files), Path(kind.place).read_bytes()) for _ in "12"]
            assert made[0] == made[1]
            changed += made[0][1] not in seeds
        Path(kind.place).unlink()
        assert changed >= 4, kind.name
    assert random.Random("csv:1").random() == random.Random("csv:1").random()
