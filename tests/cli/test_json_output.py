"""`--json` and `--quiet`, of every command: what is on stdout, and what is on stderr."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer

from benchmark_helpers import write_domains
from cli_helpers import FEW_STEPS, FIT, OPENNESS, run_fit
from opensetda.cli import console
from opensetda.cli.main import app, main


@pytest.fixture
def told(capsys):
    """Run a command with --json; return its object, and whatever was on stderr."""

    def run(*arguments):
        capsys.readouterr()
        assert main([*arguments, "--json"]) == 0
        out, err = capsys.readouterr()
        assert out.count("\n") == 1
        return json.loads(out, parse_constant=_refuse), err

    return run


def _refuse(constant):
    raise AssertionError(f"{constant} is not JSON")


def all_commands():
    group = typer.main.get_command(app)
    names = [(name, group.commands[name]) for name in group.commands]
    for name, command in names:
        below = getattr(command, "commands", None)
        yield from (below or {name: command}).items()


def test_every_command_has_both_options_and_its_fields_are_documented():
    page = Path(__file__).parents[2] / "docs" / "commands.md"
    _, _, section = page.read_text().partition("## Results as JSON")
    table = section.partition("\n## ")[0]
    for name, command in all_commands():
        options = {flag for parameter in command.params for flag in parameter.opts}
        assert {"--quiet", "--debug"} <= options
        # A review is a talk with a person: it ends when they end it, and has no result.
        if name != "review":
            assert "--json" in options
            assert f"`{name}`" in table or f"`data {name}`" in table, name


def test_fit_predict_and_evaluate(workplace, told):
    result, err = told(*FIT, *FEW_STEPS, *OPENNESS, "--id-column", "file_name")
    assert result["run"] == str(workplace / "run")
    assert (result["method"], result["scaling"]) == ("class-means", "none")
    assert not result["resumed"]
    assert set(result["labels"]) == {"cat", "dog"}
    assert (result["targets"], sum(result["labels"].values()), result["unknown"]) == (60, 40, 20)
    assert (result["openness"]["share"], result["openness"]["source"]) == (0.333, "given")
    assert result["files"]["predictions.csv"] == str(workplace / "run" / "predictions.csv")
    assert all(Path(path).is_file() for path in result["files"].values())
    assert "source: 40 rows" in err

    result, _ = told("predict", "run", "target.csv", "--out", "labels.csv")
    assert sum(result["labels"].values()) + result["unknown"] == result["samples"] == 60
    assert result["files"] == {"labels": str(workplace / "labels.csv"), "broken": None}

    result, _ = told("evaluate", "run", "--labels", "truth.csv")
    written = json.loads((workplace / "run" / "metrics.json").read_text())
    for name in ("true_openness", "final", "steps"):
        assert result[name] == written[name]
    assert result["openness"]["share"] == 0.333
    assert result["warnings"] == []


def test_fit_tells_its_warnings(workplace, told):
    # With two known classes the estimate is uncertain, and the run says so.
    result, err = told(*FIT[:-2])
    warnings = [line.removeprefix("warning: ") for line in err.splitlines() if "warning:" in line]
    assert warnings
    assert result["warnings"] == warnings


def test_benchmark(tmp_path, monkeypatch, told):
    monkeypatch.chdir(tmp_path)
    write_domains(tmp_path / "data")
    grid = ["--task", "usps-mnist", "--jobs", "1", "--method", "class-means"]
    result, _ = told("benchmark", "digits", "--data", "data", *grid, "--out", "out")
    assert [row["openness"] for row in result["rows"]] == ["true", "auto"]
    assert all(0 <= row["hos"] <= 1 for row in result["rows"])
    assert result["files"]["runs"] == str(tmp_path / "out" / "results.csv")


def test_quiet_leaves_results_warnings_and_errors(workplace, capsys):
    assert main([*FIT, *FEW_STEPS, "--openness", "auto", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert "Labels given" not in out
    assert "Labelled 60 rows of target.npz" in out
    assert err
    assert all(line.startswith("warning:") for line in err.splitlines())
    assert main([*FIT, "--quiet"]) == 2
    assert capsys.readouterr().err.startswith("error: run: exists already")
    assert main(["evaluate", "run", "--labels", "truth.npz", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert re.match(r"HOS [\d.]+, OS\* [\d.]+, UNK [\d.]+ \(%\)\n", out)
    assert err == ""
    # It is not for the next command.
    run_fit("--overwrite")
    out, err = capsys.readouterr()
    assert "Labels given" in out
    assert "source: 40 rows" in err


def test_a_result_is_ascii_whatever_files_are_called(capsys):
    console.begin(as_json=True)
    console.result({"labels": {"caf\u00e9 \udcff": 1}, "share": float("nan"), "file": Path("x")})
    console.begin()
    result = json.loads(capsys.readouterr().out)
    assert result["labels"] == {"caf\u00e9 \udcff": 1}
    assert result["share"] is None
    assert result["file"] == str(Path.cwd() / "x")
