"""`osda --help` answers at once because nothing heavy is imported: counted, not timed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {"torch", "sklearn", "scipy", "matplotlib", "pyarrow", "pandas", "numpy", "accelerate"}

_HELP = """
import sys
from opensetda.cli.main import main
assert main({arguments!r}) == 0
"""


def modules_after(code: str) -> set[str]:
    report = "\nimport json, sys\nsys.stderr.write(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code + report], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in json.loads(done.stderr.splitlines()[-1])}


@pytest.mark.parametrize(
    "code",
    [
        "import opensetda",
        _HELP.format(arguments=["--help"]),
        _HELP.format(arguments=["fit", "--help"]),
        _HELP.format(arguments=["--version"]),
    ],
    ids=["import", "help", "fit-help", "version"],
)
def test_nothing_heavy_is_imported(code):
    assert not modules_after(code) & HEAVY


def test_settings_do_not_import_torch():
    assert "torch" not in modules_after("import opensetda.pgl.settings")


def test_the_embedded_digits_do_not_import_torch():
    code = "from opensetda.data.benchmarks.digits import load_digits_task"
    assert not modules_after(code) & {"torch", "matplotlib", "pyarrow"}


def test_public_names_are_listed_and_unknown_ones_refused():
    import opensetda

    assert "PGLClassifier" in dir(opensetda)
    assert opensetda.InputError.__name__ == "InputError"
    with pytest.raises(AttributeError, match="nonsense"):
        _ = opensetda.nonsense
