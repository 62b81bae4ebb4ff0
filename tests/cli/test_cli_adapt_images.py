"""Images: adapt, drift and compare with the backbone of the run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cli_helpers import KNOWN_COLOURS, UNKNOWN_COLOURS, make_images
from opensetda.cli.main import main
from opensetda.runs.folder import RunFolder


@pytest.fixture
def later(pictures, tmp_path, monkeypatch):
    """Images of a later month, beside the folder of the pictures."""
    monkeypatch.chdir(tmp_path)
    make_images(tmp_path / "later", (*KNOWN_COLOURS, *UNKNOWN_COLOURS), 4, seed=7, flat=True)
    (tmp_path / "later" / "torn.png").write_bytes(b"torn")
    return tmp_path


def test_images_get_the_backbone_of_the_run(pictures, later, capsys):
    run = str(pictures / "run")
    cache = ["--cache", str(later / "cache")]
    assert main(["adapt", run, "later", "--out", "run2", *cache]) == 0
    adapted = RunFolder.open("run2")
    before = RunFolder.open(run)
    assert adapted.recipe() == before.recipe()
    assert (adapted.path / "report.html").exists()
    assert (adapted.path / "broken.csv").read_text().count("torn.png") == 1
    assert adapted.predictions().id_name == "path"
    # Kept rows of the source pass on; the features come from the cache the second time.
    np.testing.assert_array_equal(adapted.kept().rows, before.kept().rows)
    capsys.readouterr()
    assert main(["adapt", run, "later", "--out", "run3", "--json", *cache]) == 0
    assert json.loads(capsys.readouterr().out)["broken"] == 1
    np.testing.assert_array_equal(RunFolder.open("run3").labels(), adapted.labels())
    assert main(["adapt", run, "later", "--out", "run4", "--strict", *cache]) == 2
    assert "torn.png" in capsys.readouterr().err


def test_pictures_are_shown_of_changed_samples(pictures, later, capsys):
    run = str(pictures / "run")
    assert main(["adapt", run, "later", "--out", "run2", "--openness", "0", "--no-report"]) == 0
    assert main(["compare", run, "run2", "--page", "changes.html"]) == 0
    assert "data:image/webp" in (later / "changes.html").read_text()


def test_drift_of_images_reads_folders_one_after_another(pictures, later, capsys):
    run = str(pictures / "run")
    files = [str(path) for path in sorted((pictures / "street").iterdir())[:3]]
    assert main(["drift", run, "later", str(pictures / "street"), *files, "--json"]) == 0
    batches = json.loads(capsys.readouterr().out)["batches"]
    # The images of the target itself are no drift, and three files say nothing.
    assert [one["compared"] for one in batches] == [24, 30, 3]
    assert not batches[1]["drift"]
    assert batches[2]["p_features"] is None


def test_images_and_tables_are_not_mixed_up(pictures, later, capsys):
    np.savez(later / "rows.npz", X=np.zeros((5, 1280), np.float32))
    assert main(["adapt", str(pictures / "run"), "rows.npz", "--out", "run2"]) == 2
    assert "give images" in capsys.readouterr().err
