"""What is wrong with a command line is answered before anything heavy is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from opensetda.cli.main import main
codes = [main(line.split()) for line in sys.stdin]
heavy = [name for name in ("torch", "sklearn", "scipy", "timm") if name in sys.modules]
print(codes, heavy)
"""
WRONG = (
    "fit nosuch x --out run",
    "fit source.csv nosuch.csv --out run",
    "fit source.csv target.csv --out run --method nosuch",
    "fit source.csv target.csv --out run --label-column nosuch",
    "fit source.csv target.csv --out run --label-column y --id-column nosuch",
    "fit source.csv target.csv --out run --label-column y --backbone resnet50",
    "predict nosuch target.csv --out labels.csv",
    "drift nosuch target.csv",
    "adapt nosuch target.csv --out run",
    "compare nosuch other",
    "review nosuch",
    "report nosuch",
    "resume nosuch",
    "export nosuch --to model.onnx",
)


@pytest.fixture
def tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "source.csv").write_text("a,b,y\n1.5,2,c\n2,3.5,d\n")
    (tmp_path / "target.csv").write_text("a,b\n1.5,2\n2,3.5\n")


def test_nothing_heavy_is_imported_for_what_is_wrong(tables):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input="\n".join(WRONG),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n")[-2] == f"{[2] * len(WRONG)} []", done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == len(WRONG)
