"""`--json` and `--quiet`, of every command: what is on stdout, and what is on stderr."""

from __future__ import annotations

import json
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

    def run(*arguments, code=0):
        capsys.readouterr()
        assert main([*arguments, "--json"]) == code
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


@pytest.mark.parametrize(("name", "command"), list(all_commands()))
def test_every_command_has_both_options(name, command):
    options = {flag for parameter in command.params for flag in parameter.opts}
    # A review is a talk with a person: it ends when they end it, and has no result.
    wanted = {"--quiet", "--debug"} | ({"--json"} if name != "review" else set())
    assert wanted <= options


def test_the_fields_of_every_command_are_in_the_documentation():
    page = Path(__file__).parents[2] / "docs" / "commands.md"
    _, _, section = page.read_text().partition("## Results as JSON")
    table = section.partition("\n## ")[0]
    for name, _ in all_commands():
        assert name == "review" or f"`{name}`" in table or f"`data {name}`" in table, name


# the objects ---------------------------------------------------------------------------------


def test_fit(workplace, told):
    result, err = told(*FIT, *FEW_STEPS, *OPENNESS, "--id-column", "file_name")
    assert result["run"] == str(workplace / "run")
    assert result["method"] == "class-means"
    assert result["targets"] == 60
    assert sum(result["labels"].values()) + result["unknown"] == 60
    assert set(result["labels"]) == {"cat", "dog"}
    assert result["unknown"] == 20
    openness = result["openness"]
    assert (openness["share"], openness["told"]) == (0.333, True)
    assert openness["low"] <= openness["high"]
    assert result["scaling"] == "none"
    assert result["seconds"] > 0
    assert not result["resumed"]
    assert result["files"]["predictions.csv"] == str(workplace / "run" / "predictions.csv")
    assert all(Path(path).is_file() for path in result["files"].values())
    assert "source: 40 rows" in err


def test_fit_tells_its_warnings(workplace, told):
    # With two known classes the estimate is uncertain, and the run says so.
    result, err = told(*FIT[:-2], *FEW_STEPS)
    warnings = [line.removeprefix("warning: ") for line in err.splitlines() if "warning:" in line]
    assert warnings
    assert result["warnings"] == warnings


def test_predict(workplace, told):
    run_fit()
    result, _ = told("predict", "run", "target.csv", "--out", "labels.csv", "--drop", "file_name")
    assert result["samples"] == 60
    assert sum(result["labels"].values()) + result["unknown"] == 60
    assert result["broken"] == 0
    assert result["files"] == {"labels": str(workplace / "labels.csv"), "broken": None}


def test_evaluate(workplace, told):
    run_fit("--id-column", "file_name")
    result, _ = told("evaluate", "run", "--labels", "truth.csv")
    written = json.loads((workplace / "run" / "metrics.json").read_text())
    for name in ("true_openness", "final", "steps"):
        assert result[name] == written[name]
    assert result["openness"]["share"] == 0.333
    assert Path(result["files"]["metrics"]).is_file()


def test_benchmark(tmp_path, monkeypatch, told):
    monkeypatch.chdir(tmp_path)
    write_domains(tmp_path / "data")
    grid = ["--task", "usps-mnist", "--jobs", "1", "--method", "class-means"]
    result, err = told("benchmark", "digits", "--data", "data", *grid, "--out", "out")
    assert [row["openness"] for row in result["rows"]] == ["true", "auto"]
    assert all(0 <= row["hos"] <= 1 for row in result["rows"])
    assert result["failed"] == 0
    assert result["files"]["runs"] == str(tmp_path / "out" / "results.csv")
    assert Path(result["files"]["table"]).name == "table.md"
    assert "1 method, 1 task, 2 runs" in err


# errors, and quiet ---------------------------------------------------------------------------


def test_quiet_leaves_the_results_without_tables(workplace, capsys):
    run_fit("--quiet")
    out, err = capsys.readouterr()
    assert err == ""
    assert "Labels given" not in out
    assert "Labelled 60 rows of target.npz" in out


def test_quiet_leaves_warnings_and_errors(workplace, capsys):
    assert main([*FIT, *FEW_STEPS, "--openness", "auto", "--quiet"]) == 0
    err = capsys.readouterr().err
    assert err
    assert all(line.startswith("warning:") for line in err.splitlines())
    assert main([*FIT, "--quiet"]) == 2
    assert capsys.readouterr().err.startswith("error: run: exists already")


def test_what_one_command_line_asks_for_is_not_for_the_next(workplace, told, capsys):
    told(*FIT, *FEW_STEPS, "--openness", "0.9", "--quiet")
    run_fit("--overwrite")
    out, err = capsys.readouterr()
    assert "Labels given" in out
    assert "source: 40 rows" in err
    result, _ = told("evaluate", "run", "--labels", "truth.npz")
    assert result["warnings"] == []


def test_a_result_is_ascii_whatever_files_are_called(capsys):
    console.begin(as_json=True)
    console.result({"labels": {"caf\u00e9 \udcff": 1}, "share": float("nan"), "file": Path("x")})
    console.begin()
    result = json.loads(capsys.readouterr().out)
    assert result["labels"] == {"caf\u00e9 \udcff": 1}
    assert result["share"] is None
    assert result["file"] == str(Path.cwd() / "x")
