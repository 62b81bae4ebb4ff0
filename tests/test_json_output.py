"""`--json` and `--quiet`, of every command: what is on stdout, and what is on stderr."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from benchmark_helpers import write_domains
from cli_helpers import FEW_STEPS, FIT, OPENNESS, image_fit, run_fit
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
    page = Path(__file__).parent.parent / "docs" / "commands.md"
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


def test_resume_of_a_complete_run(workplace, told):
    run_fit()
    result, _ = told("resume", "run")
    assert result == {"run": str(workplace / "run"), "resumed": False, "warnings": []}


def test_predict(workplace, told):
    run_fit()
    result, _ = told("predict", "run", "target.csv", "--out", "labels.csv", "--drop", "file_name")
    assert result["samples"] == 60
    assert sum(result["labels"].values()) + result["unknown"] == 60
    assert result["broken"] == 0
    assert result["files"] == {"labels": str(workplace / "labels.csv"), "broken": None}


def test_predict_images(pictures, tmp_path, told):
    bad = tmp_path / "broken.png"
    bad.write_text("no image")
    out = tmp_path / "labels.json"
    arguments = [str(pictures / "run"), str(pictures / "street"), str(bad)]
    result, _ = told("predict", *arguments, "--out", str(out))
    assert (result["samples"], result["broken"]) == (30, 1)
    assert result["files"] == {"labels": str(out), "broken": f"{out}.broken.csv"}
    assert "1 image cannot be read" in result["warnings"][0]


def test_evaluate(workplace, told):
    run_fit("--id-column", "file_name")
    result, _ = told("evaluate", "run", "--labels", "truth.csv")
    written = json.loads((workplace / "run" / "metrics.json").read_text())
    for name in ("true_openness", "final", "steps"):
        assert result[name] == written[name]
    assert result["openness"]["share"] == 0.333
    assert result["ignored"] == 0
    assert Path(result["files"]["metrics"]).is_file()


def test_numbers_that_are_none_are_null(workplace, told):
    run_fit()
    (workplace / "known.csv").write_text("y\n" + "cat\n" * 60)
    result, _ = told("evaluate", "run", "--labels", "known.csv")
    assert result["final"]["unk"] is None


def test_features(pictures, tmp_path, told):
    out = tmp_path / "x.npz"
    size = ("--image-size", "32", "--cache", str(pictures / "cache"))
    result, _ = told("features", str(pictures / "street"), "--out", str(out), *size)
    assert (result["images"], result["cached"], result["broken"]) == (30, 30, 0)
    assert result["features"] == 1280
    assert result["files"]["features"] == str(out)


def test_fit_to_images(pictures, tmp_path, told):
    run = tmp_path / "run"
    result, _ = told(*image_fit(pictures, run, "--method", "class-means", *FEW_STEPS))
    assert result["targets"] == 30
    assert result["broken"] == 0


def test_benchmark(tmp_path, monkeypatch, told):
    monkeypatch.chdir(tmp_path)
    write_domains(tmp_path / "data")
    grid = ["--task", "usps-mnist", "--jobs", "1", "--method", "class-means"]
    result, err = told("benchmark", "digits", "--data", "data", *grid, "--out", "out")
    assert [row["openness"] for row in result["rows"]] == ["true", "auto"]
    assert all(0 <= row["hos"] <= 1 for row in result["rows"])
    assert result["failed"] == 0
    assert result["files"]["runs"] == str(tmp_path / "out" / "results.parquet")
    assert [Path(path).name for path in result["files"]["table"]] == [*("table.md", "table.csv")]
    assert "1 method, 1 task, 2 runs" in err


def test_analyse(tmp_path, told):
    write_domains(tmp_path / "data")
    choice = ["--task", "usps-mnist", "--method", "moving-means", "--set", "steps=2"]
    data = ["--data", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    result, _ = told("analyse", "steps", "digits", *data, *choice)
    assert result["analysis"] == "steps"
    assert len(result["rows"]) == 2
    assert all(isinstance(row["hos"], float) for row in result["rows"])
    for path in (*result["files"]["table"], *result["files"]["figure"]):
        assert Path(path).is_file()


def test_data_list(told):
    result, _ = told("data", "list")
    by_name = {spec["name"]: spec for spec in result["benchmarks"]}
    assert by_name["office31"]["domains"]["amazon"] == 2817
    assert len(by_name["office31"]["known"]) == 10


def test_data_digits(workplace, told):
    result, _ = told("data", "digits", "d", "--every", "200")
    assert result["source"] == str(workplace / "d" / "mnist")
    assert Path(result["target"]).is_dir()


# errors, and quiet ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["fit", "missing.npz", "target.npz", "--out", "run"], 2),
        (["fit", "--nonsense"], 2),
        (["evaluate", "nowhere", "--labels", "truth.csv"], 2),
    ],
)
def test_an_error_leaves_stdout_empty(workplace, capsys, arguments, code):
    assert main([*arguments, "--json"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("error:")


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


def test_quiet_json_is_the_object_alone(workplace, told):
    _, err = told(*FIT, *FEW_STEPS, *OPENNESS, "--quiet")
    assert err == ""


def test_what_one_command_line_asks_for_is_not_for_the_next(workplace, told, capsys):
    told(*FIT, *FEW_STEPS, "--openness", "0.9", "--quiet")
    run_fit("--overwrite")
    out, err = capsys.readouterr()
    assert "Labels given" in out
    assert "source: 40 rows" in err
    result, _ = told("evaluate", "run", "--labels", "truth.npz")
    assert result["warnings"] == []


def test_a_result_is_ascii_whatever_files_are_called(capsys):
    with console.command_line():
        console.speak_json(True)
        console.result(
            {"labels": {"caf\u00e9 \udcff": 1}, "share": float("nan"), "file": Path("x")}
        )
    result = json.loads(capsys.readouterr().out)
    assert result["labels"] == {"caf\u00e9 \udcff": 1}
    assert result["share"] is None
    assert result["file"] == str(Path.cwd() / "x")


def test_nothing_of_it_without_json(capsys):
    with console.command_line():
        console.result({"share": 1})
    assert capsys.readouterr() == ("", "")
