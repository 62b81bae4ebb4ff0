"""A small seeded part of `run.py`, and that the harness finds what is planted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from scene import Ended

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it forks, and reads /proc")


def test_damaged_files_kills_and_full_disks_end_in_one_line(tmp_path):
    # In a process of its own: it forks, which one with threads must not.
    options = ["--small", "--count", "45", "--kills", "1", "--every", "60"]
    command = [sys.executable, Path(__file__).with_name("run.py"), *options]
    own = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=own)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fuzz: 45 cases, 0 findings" in done.stdout


@pytest.mark.parametrize(
    ("code", "errors", "fault"),
    [
        (2, "error: a.csv: empty\n", ""),
        (2, "error: empty\n", "no file is named"),
        (2, "error: a.csv: \x1b[2J\n", "control characters"),
        (1, "error: KeyError: 'a' (run again with --debug for the traceback)\n", "foreign error"),
        (0, "/a/b.py:3: RuntimeWarning: overflow\n", "foreign warning"),
        (None, "", "hangs"),
    ],
)
def test_how_a_command_ends_is_judged(code, errors, fault):
    assert Ended("fit", code, "", errors).fault(("a.csv",)).partition(":")[0] == fault
