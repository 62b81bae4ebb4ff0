"""`osda report`: a page of a run that is there; anything else in one clear line."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from cli_helpers import (
    FIT,
    KNOWN_COLOURS,
    OPENNESS,
    UNKNOWN_COLOURS,
    make_images,
    names_in,
    run_fit,
)
from opensetda.cli.main import main
from opensetda.cli.report import report_at_end
from opensetda.runs.folder import IMAGES, MAP, PREDICTIONS, REPORT, THUMBNAILS
from opensetda.runs.manifest import Manifest

pytestmark = pytest.mark.usefixtures("quick_maps")


@pytest.fixture
def run(pictures, tmp_path, monkeypatch):
    """A run on images in an empty folder, made current."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(pictures / "run", "run")
    return tmp_path / "run"


@pytest.fixture
def answer(capsys):
    """Run a command; return what it said, on stdout or, if it failed, on stderr."""

    def run(*arguments, code=0):
        capsys.readouterr()
        assert main(arguments) == code
        out, err = capsys.readouterr()
        return err if code else out

    return run


def refusal(answer, *arguments):
    said = answer(*arguments, code=2)
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    return said


def page_of(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    return text


def test_by_default_the_report_is_in_the_run_folder(run, answer):
    before = names_in(run)
    said = answer("report", "run")
    assert said == f"  report   {run / REPORT}\n"
    assert set(names_in(run)) - set(before) == {REPORT, MAP, THUMBNAILS}
    first = page_of(run / REPORT)
    assert 'id="map-data"' in first
    # Its own file it may always replace, and the same run gives the same page.
    answer("report", "run")
    assert page_of(run / REPORT) == first
    assert json.loads(answer("report", "run", "--json")) == {
        **{"run": str(run), "report": str(run / REPORT), "warnings": []}
    }


def test_another_place_and_what_lies_there(run, answer):
    (run.parent / "mine.HTML").write_text("mine")
    said = refusal(answer, "report", "run", "--out", "mine.HTML")
    assert "--out mine.HTML: exists already" in said
    assert (run.parent / "mine.HTML").read_text() == "mine"
    answer("report", "run", "--out", "mine.HTML", "--overwrite")
    page_of(run.parent / "mine.HTML")
    assert not (run / REPORT).exists()


def test_wrong_use_of_report(run, answer):
    (run.parent / "empty").mkdir()
    (run.parent / "file").write_text("")
    for arguments, words in [
        (["run", "--out", "report.pdf"], "the name must end in .html or .htm"),
        (["run", "--out", "no/report.html"], "there is no folder no"),
        (["gone"], "gone: no such run folder"),
        (["empty"], "empty: not a run folder"),
        (["file"], "file: a file, not a run folder"),
        (["run", "--images", "gone"], "--images gone: no such folder"),
        (["run", "--images", "empty"], "--images empty: none of the ids is an image in it"),
    ]:
        assert words in refusal(answer, "report", *arguments)
    assert not (run / REPORT).exists()
    assert names_in(run.parent / "empty") == []


def test_truth_shows_once_it_was_told(run, pictures, answer):
    answer("report", "run")
    assert "Against the true labels" not in page_of(run / REPORT)
    # The report that is there is made anew.
    answer("evaluate", "run", "--labels", str(pictures / "truth.txt"))
    page = page_of(run / REPORT)
    assert "Against the true labels" in page
    assert 'id="confusion"' in page


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Feature tables whose ids are paths of images below the folder `photos`."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    names = [*KNOWN_COLOURS, *UNKNOWN_COLOURS]
    for side, chosen in (("source", KNOWN_COLOURS), ("target", tuple(names))):
        made = make_images(tmp_path / "photos" / side, chosen, 4, seed=1)
        which = np.array([names.index(name) for _, name in made])
        X = (np.eye(6)[which] * 4 + rng.normal(0, 0.3, (len(made), 6))).astype(np.float32)
        ids = np.array([f"{side}/{path}" for path, _ in made])
        np.savez(f"{side}.npz", X=X, y=np.array([name for _, name in made]), path=ids)
    run_fit("--id-column", "path")
    return tmp_path


def test_images_of_a_feature_table(table, answer):
    answer("report", "run")
    page = page_of(table / "run" / REPORT)
    assert "data:image/webp" not in page
    assert "24 rows" in page
    answer("report", "run", "--images", "photos")
    page = page_of(table / "run" / REPORT)
    assert page.count("data:image/webp") >= 24 + 16
    assert "24 images" in page
    # They stay with the run: the next report needs no folder.
    shutil.rmtree(table / "photos")
    answer("report", "run")
    assert "data:image/webp" in page_of(table / "run" / REPORT)


def test_images_from_the_wrong_folder(table, answer):
    said = refusal(answer, "report", "run", "--images", "photos/target")
    assert "none of the ids is an image in it (the first is 'target/black/0.png')" in said
    assert not (table / "run" / REPORT).exists()
    # Nothing outside of the folder is ever shown.
    file = table / "run" / PREDICTIONS
    found = pyarrow.csv.read_csv(file)
    name = found.column_names[0]
    above = [[f"../{path}" for path in found[name].to_pylist()]]
    pyarrow.csv.write_csv(found.set_column(0, name, above), file)
    (table / "photos" / "below").mkdir()
    refusal(answer, "report", "run", "--images", "photos/below")


def test_a_report_that_fails_at_the_end_costs_nothing(workplace, capsys, monkeypatch):
    error = OSError(28, "No space left on device")

    def fail(*arguments):
        raise error

    monkeypatch.setattr("opensetda.cli.report.make_report", fail)
    command = [part for part in FIT if part != "--no-report"]
    command[command.index("run")] = "my run"
    assert main([*command, *OPENNESS]) == 0
    out, err = capsys.readouterr()
    assert "warning: no report (" in err
    assert "the run is complete; make its report with 'osda report 'my run''" in err
    assert "  report   osda report 'my run'\n" in out
    assert "  check    osda review 'my run'\n" in out
    error = MemoryError()
    assert report_at_end(workplace / "my run") is None
    assert "warning: no report (out of memory)" in capsys.readouterr().err
    # An unexpected error is still raised, but the user learns that the run is complete.
    error = ValueError("a bug")
    with pytest.raises(ValueError, match="a bug"):
        report_at_end(workplace / "my run")
    assert "The run is complete; make its report" in capsys.readouterr().err


def test_images_that_are_gone_are_told(run, pictures, answer):
    table = pyarrow.parquet.read_table(run / IMAGES)
    paths = [b"/gone/" + path for path in table["path"].to_pylist()]
    moved = table.set_column(table.schema.get_field_index("path"), "path", [paths])
    pyarrow.parquet.write_table(moved, run / IMAGES)
    manifest = Manifest.of(run)
    manifest.sign_images(IMAGES)
    manifest.write()
    answer("report", "run")
    page = page_of(run / REPORT)
    assert f"{len(paths)} images cannot be read any more, the first is /gone/" in page
    assert "with --images" in re.sub("<.*?>", "", page)


def test_the_command_on_the_page_can_be_pasted(run, answer):
    run.rename(run.with_name("my run"))
    answer("report", "my run")
    assert "osda review &#39;my run&#39;</code>" in page_of(run.with_name("my run") / REPORT)


def test_an_evaluation_is_told_even_if_there_is_no_room_for_its_report(
    run, pictures, monkeypatch, capsys
):
    (run / REPORT).write_text("of a time when nothing was known of the truth")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("opensetda.report.page.write_report", fail)
    assert main(["evaluate", str(run), "--labels", str(pictures / "truth.txt"), "--json"]) == 0
    out, errors = capsys.readouterr()
    assert json.loads(out)["files"]["report"] is None
    assert "warning: no report" in errors
    assert "No space left" in errors
