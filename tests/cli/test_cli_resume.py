"""A run that is broken off anywhere: what stays, and that `osda resume` ends in the same bits."""

from __future__ import annotations

import json
import shutil
import signal

import numpy as np
import pytest

from cli_helpers import FIT_STEPS, QUICK_IMAGES, blobs, image_fit, names_in
from cli_processes import READING, Osda
from opensetda.cli.main import main

SAME = (
    *("predictions.csv", "model.safetensors", "steps.parquet", "estimates.json"),
    "view.safetensors",
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, stepper):
    """Tables, and the run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    X, y = blobs(0)
    known = y != "horse"
    np.savez(folder / "source.npz", X=X[known], y=y[known])
    np.savez(folder / "target.npz", X=blobs(1)[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main([*FIT_STEPS]) == 0
    return folder


@pytest.fixture
def place(undisturbed, tmp_path, monkeypatch):
    folder = tmp_path / "work"
    folder.mkdir()
    for name in ("source.npz", "target.npz"):
        shutil.copy(undisturbed / name, folder / name)
    monkeypatch.chdir(folder)
    return folder


def assert_same(run, expected):
    for name in SAME:
        assert (run / name).read_bytes() == (expected / name).read_bytes(), name


def test_killed_it_ends_in_the_same_bits(place, undisturbed, capsys):
    at_work = Osda(place, *FIT_STEPS, moment=2)
    # Two at a time are one too many.
    for arguments in (["resume", "run"], [*FIT_STEPS, "--overwrite"]):
        assert main(arguments) == 2
        assert "run.unfinished: another process is at work on it" in error_of(capsys)
    assert at_work.send()[0] == -signal.SIGKILL
    assert names_in(place) == ["run.unfinished", "source.npz", "target.npz"]
    assert main(["resume", "run"]) == 0
    assert "continuing" in capsys.readouterr().err
    assert_same(place / "run", undisturbed / "run")
    assert names_in(place) == ["run", "source.npz", "target.npz"]


def test_the_training_is_kept_after_a_signal(place, undisturbed):
    got, text = Osda(place, *FIT_STEPS, moment=2).send(signal.SIGINT)
    assert got == 130, text
    last = text.splitlines()[-1]
    assert "he training so far is kept, go on with 'osda resume run'" in last
    assert last.startswith("error: interrupted; the training so far")
    assert "Traceback" not in text
    assert names_in(place) == ["run.unfinished", "source.npz", "target.npz"]
    assert main(["resume", "run"]) == 0
    assert_same(place / "run", undisturbed / "run")


# what cannot go on, and what need not ---------------------------------------------------------


def error_of(capsys):
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert err.count("error:") == 1
    return err.splitlines()[-1]


@pytest.fixture
def interrupted(place, capsys):
    """An unfinished run with all steps trained: writing the run failed."""

    def fail(*_):
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("opensetda.usecases.fit_rows.environment", fail)
        assert main([*FIT_STEPS]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2] == "The training so far is kept, go on with 'osda resume run'"
    assert "no space left on device" in lines[-1]
    assert names_in(place) == ["run.unfinished", "source.npz", "target.npz"]
    return place


def test_a_changed_input_is_named_and_nothing_lost(interrupted, undisturbed, capsys):
    place, whole = interrupted, (interrupted / "source.npz").read_bytes()
    kept = (place / "run.unfinished" / "checkpoint").read_bytes()
    (place / "source.npz").rename(place / "away.npz")
    assert main(["resume", "run"]) == 2
    assert error_of(capsys).startswith("error: source.npz: no such file")
    with np.load("away.npz") as arrays:
        np.savez("source.npz", X=arrays["X"] + 1, y=arrays["y"])
    (place / "away.npz").unlink()
    assert main(["resume", "run"]) == 2
    error = error_of(capsys)
    assert error.startswith("error: source.npz: the source changed since the run began")
    assert "osda fit ... --overwrite" in error
    # It was a mistake, or a disk that was not there: all is well again.
    assert (place / "run.unfinished" / "checkpoint").read_bytes() == kept
    (place / "source.npz").write_bytes(whole)
    assert main(["resume", "run"]) == 0
    assert_same(place / "run", undisturbed / "run")


def test_fit_does_not_start_over_unless_told(interrupted, capsys):
    assert main([*FIT_STEPS]) == 2
    error = error_of(capsys)
    assert "run.unfinished: a run that was interrupted" in error
    assert "go on with 'osda resume run', or add --overwrite" in error
    assert main([*FIT_STEPS, "--overwrite", "--seed", "1"]) == 0
    assert names_in(interrupted) == ["run", "source.npz", "target.npz"]
    settings = json.loads((interrupted / "run" / "settings.json").read_text())
    assert settings["seed"] == 1


def test_a_complete_run_needs_no_resume(interrupted, capsys):
    place = interrupted
    # Killed after the run came to its place, before the unfinished one was removed.
    shutil.copytree(place / "run.unfinished", place / "copy")
    assert main(["resume", "run"]) == 0
    shutil.move(place / "copy", place / "run.unfinished")
    before = (place / "run" / "environment.json").read_bytes()
    for _ in range(2):
        capsys.readouterr()
        assert main(["resume", "run"]) == 0
        assert capsys.readouterr().out == "run is complete: nothing to resume.\n"
        assert names_in(place) == ["run", "source.npz", "target.npz"]
    assert (place / "run" / "environment.json").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "words"), [("request.json", "("), ("checkpoint", "(its checksum")]
)
def test_damaged_files_are_named(interrupted, capsys, name, words):
    content = bytearray((interrupted / "run.unfinished" / name).read_bytes())
    content[-20] ^= 1
    (interrupted / "run.unfinished" / name).write_bytes(content)
    assert main(["resume", "run"]) == 2
    assert f"{name}: damaged {words}" in error_of(capsys)
    assert (interrupted / "run.unfinished").is_dir()
    assert "run" not in names_in(interrupted)


# images ------------------------------------------------------------------------------------


def test_killed_while_it_read_images(pictures, tmp_path, monkeypatch):
    """What is computed with other images, or found in the cache, is the same to the last bit."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    arguments = image_fit(pictures, "run", *QUICK_IMAGES, "--cache", "cache")
    code, text = Osda(folder, *arguments, moment=READING).send()
    assert code == -signal.SIGKILL, text
    assert names_in(folder) == ["cache", "run.unfinished"]
    assert main(["resume", "run"]) == 0
    resumed = (folder / "run" / "predictions.csv").read_bytes()
    assert resumed == (pictures / "run" / "predictions.csv").read_bytes()
