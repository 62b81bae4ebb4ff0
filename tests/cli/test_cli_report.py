"""`osda report`: a page of a run that is there; anything else in one clear line."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from cli_helpers import FIT, OPENNESS, make_images, names_in, run_fit
from opensetda.cli.main import main
from opensetda.runs.folder import MAP, REPORT, THUMBNAILS

pytestmark = pytest.mark.usefixtures("quick_maps")


@pytest.fixture
def run(pictures, tmp_path, monkeypatch):
    """A run on images in an empty folder, made current."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(pictures / "run", "run")
    return tmp_path / "run"


@pytest.fixture
def answer(capsys):
    """Run a command; return what it said."""

    def run(*arguments):
        capsys.readouterr()
        assert main(arguments) == 0
        return capsys.readouterr().out

    return run


def page_of(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    return text


def test_by_default_the_report_is_in_the_run_folder(run, pictures, answer):
    before = names_in(run)
    assert answer("report", "run") == f"  report   {run / REPORT}\n"
    assert set(names_in(run)) - set(before) == {REPORT, MAP, THUMBNAILS}
    first = page_of(run / REPORT)
    assert 'id="map-data"' in first
    assert "Against the true labels" not in first
    # Its own file it may always replace, and the same run gives the same page.
    expected = {"run": str(run), "report": str(run / REPORT), "warnings": []}
    assert json.loads(answer("report", "run", "--json")) == expected
    assert page_of(run / REPORT) == first
    # With the true labels, the report that is there is made anew.
    answer("evaluate", "run", "--labels", str(pictures / "truth.txt"))
    page = page_of(run / REPORT)
    assert "Against the true labels" in page
    assert 'id="confusion"' in page


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Feature tables whose ids are paths of images below the folder `photos`."""
    monkeypatch.chdir(tmp_path)
    rng, names = np.random.default_rng(0), ("red", "green", "blue")
    for side, chosen in (("source", names[:2]), ("target", names)):
        made = make_images(tmp_path / "photos" / side, chosen, 8, seed=1)
        which = np.array([names.index(name) for _, name in made])
        X = (np.eye(3, 6)[which] * 4 + rng.normal(0, 0.3, (len(made), 6))).astype(np.float32)
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


def test_a_report_that_fails_at_the_end_costs_nothing(workplace, capsys, monkeypatch):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("opensetda.cli.report.make_report", fail)
    command = [part for part in FIT if part != "--no-report"]
    command[command.index("run")] = "my run"
    assert main([*command, *OPENNESS]) == 0
    out, err = capsys.readouterr()
    assert "warning: no report (" in err
    assert "the run is complete; make its report with 'osda report 'my run''" in err
    assert "  report   osda report 'my run'\n" in out
    assert "  check    osda review 'my run'\n" in out
