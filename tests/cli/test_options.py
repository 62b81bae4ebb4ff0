"""One declaration of every option: in the commands, in Python and in the stored request."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
import typer

from cli_helpers import blobs
from opensetda import InputError
from opensetda.cli import console
from opensetda.cli.main import app
from opensetda.runs.integrity import check_value
from opensetda.runs.options import FitRequest, declared
from opensetda.usecases import FitOptions, ImageOptions, TableOptions, fit

HEAVY = {"torch", "sklearn", "scipy", "matplotlib", "pyarrow", "pandas", "numpy", "accelerate"}


def test_the_command_has_every_option_and_the_request_can_be_read_again(tmp_path):
    (command,) = (c for c in typer.main.get_command(app).commands.values() if c.name == "fit")
    flags = {flag for parameter in command.params for flag in parameter.opts}
    for group in (FitOptions, TableOptions, ImageOptions):
        options = [option for _, option in declared(group).values() if option]
        assert {option.flag.split()[0] for option in options} <= flags
    tables, images = TableOptions(drop=("a", "b"), impute="median"), ImageOptions(finetune="last")
    own = {"identity": "x", "source": "s", "target": "t", "settings": {"steps": 3}}
    request = FitRequest(**own, tables=tables, images=images)
    written = json.loads(json.dumps(dataclasses.asdict(request)))
    assert check_value(written, FitRequest, tmp_path) == request


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"metod": "pgl"}, "no option 'metod'; did you mean 'method'?"),
        ({"seed": "x"}, "seed='x': Input should be a valid integer"),
        ({"unknown_label": ""}, "unknown label '': give a word"),
    ],
)
def test_wrong_options_in_python(tmp_path, options, words):
    X, y = blobs(0)
    with pytest.raises(InputError) as caught:
        fit((X, y), X, tmp_path / "run", **options)
    assert words in str(caught.value)
    assert not list(tmp_path.iterdir())


HELP = """
import json, sys
import opensetda, opensetda.runs.options
from opensetda.cli.main import main
codes = [main(line) for line in (["--help"], ["fit", "--help"], ["benchmark", "--help"])]
names = {name.partition(".")[0] for name in sys.modules}
sys.stderr.write(json.dumps([codes, sorted(names)]))
"""


def test_help_imports_nothing_heavy():
    """Counted, not timed: so it answers at once."""
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    codes, names = json.loads(done.stderr.splitlines()[-1])
    assert codes == [0, 0, 0]
    assert not HEAVY.intersection(names)


def test_tables_show_what_there_is(capsys):
    counts = {str(number): 2 for number in range(20)}
    assert console.show_labels(counts, "unknown", most=3) == {"labels": counts, "unknown": 0}
    history = [
        {"n_known": 5, "n_unknown": 4, "changed": None, "seconds": 1},
        {"n_known": 9, "n_unknown": 8, "changed": 0.25, "seconds": 1.5},
    ]
    console.show_steps(history, {})
    out = capsys.readouterr().out
    for cell in ("17 more classes", "changed %", "25.0", "1.5", " - "):
        assert cell in out
    assert "HOS" not in out
