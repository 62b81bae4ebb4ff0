"""A small seeded part of `benchmarks/robustness.py`: no mutated file surprises its reader."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROBUSTNESS = Path(__file__).parents[2] / "benchmarks" / "robustness.py"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


def test_mutated_files_of_every_kind_end_in_one_line_or_are_read(tmp_path):
    # In a process of its own: it forks, which one with threads must not.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, ROBUSTNESS, "small"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
