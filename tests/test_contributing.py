"""A new method is one file: the one in CONTRIBUTING.md, word for word."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from test_docs import ROOT, blocks

USE = """
import warnings
from sklearn.exceptions import SkipTestWarning
from sklearn.utils.estimator_checks import check_estimator
from opensetda.cli.main import main
from opensetda.runs.registry import METHODS, method_class

assert METHODS["nearest-row"] == "opensetda.methods.rivals.nearest_row"
warnings.simplefilter("ignore", SkipTestWarning)
by_name = {"check_dataframe_column_names_consistency": "columns are matched by their names"}
check_estimator(method_class("nearest-row")(), expected_failed_checks=by_name)
fit = ["fit", "source.npz", "target.npz", "--out", "run", "--no-report"]
assert main([*fit, "--method", "nearest-row"]) == 0
assert main(["predict", "run", "target.npz", "--out", "labels.csv"]) == 0
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package with the page's method in it."""
    copy = tmp_path / "package" / "opensetda"
    shutil.copytree(ROOT / "src" / "opensetda", copy, ignore=shutil.ignore_patterns("__pycache__"))
    written = [block for block in blocks(ROOT / "CONTRIBUTING.md") if block.language == "python"]
    assert len(written) == 1, "the page has one method"
    (copy / "methods" / "rivals" / "nearest_row.py").write_text(written[0].text)
    return copy.parent


def test_the_method_of_the_page_is_a_method_of_the_command(package, tmp_path):
    rng = np.random.default_rng(0)
    kinds = 4 * np.eye(4, 8)
    source = np.concatenate([kind + rng.normal(size=(20, 8)) for kind in kinds[:3]])
    target = np.concatenate([kind + rng.normal(size=(20, 8)) for kind in kinds])
    np.savez(tmp_path / "source.npz", X=source, y=np.repeat(["cat", "dog", "elk"], 20))
    np.savez(tmp_path / "target.npz", X=target)
    environment = {**os.environ, "PYTHONPATH": str(package)}
    command = [sys.executable, "-c", USE]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    with (tmp_path / "labels.csv").open(newline="") as file:
        labels = np.array([row["label"] for row in csv.DictReader(file)])
    expected = np.repeat(["cat", "dog", "elk", "unknown"], 20)
    assert np.mean(labels == expected) > 0.8
