"""Commands that several processes carry out together, as `torchrun` starts them."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cli_helpers import FIT, OPENNESS, blobs, make_images, names_in
from opensetda.cli.main import main
from opensetda.errors import InputError
from opensetda.system.launch import launch_identity
from team_helpers import Served, error_lines, osda

pytestmark = pytest.mark.usefixtures("quick_curves")

FIT_PGL = (
    *(*FIT[:-2], *OPENNESS),
    *("--set", "steps=3", "--set", "optimiser.iterations_per_epoch=3", "--set", "losses.edge=1"),
    *("--checkpoint-every", "0"),
)
SAME = (
    *("predictions.parquet", "predictions.csv", "model.safetensors", "steps.parquet"),
    *("estimates.json", "view.safetensors"),
)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Tables, and what one process makes of them."""
    folder = tmp_path_factory.mktemp("alone")
    X, y = blobs(0)
    np.savez(folder / "source.npz", X=X[y != "horse"], y=y[y != "horse"])
    np.savez(folder / "target.npz", X=blobs(1)[0])
    np.savez(folder / "many.npz", X=blobs(1, n=400)[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("opensetda.runs.fitting.draw_curves", lambda *_, **__: b"curves")
        assert main([*FIT_PGL]) == 0
        assert main(["predict", "run", "many.npz", "--out", "labels.csv"]) == 0
    return folder


@pytest.fixture
def place(alone, tmp_path, monkeypatch):
    folder = tmp_path / "work"
    folder.mkdir()
    for name in ("source.npz", "target.npz", "many.npz"):
        shutil.copy(alone / name, folder / name)
    monkeypatch.chdir(folder)
    return folder


def assert_same(run, expected, names=SAME):
    for name in names:
        assert (run / name).read_bytes() == (expected / name).read_bytes(), name


def by_two(place, *arguments, **options):
    """Return the exit codes of two processes, and what they printed."""
    served = Served(place, osda, *arguments, **options)
    codes = served.codes()
    return codes, served.output()


TABLES = ["many.npz", "source.npz", "target.npz"]


def test_two_processes_fit_as_one_does(place, alone):
    codes, text = by_two(place, *FIT_PGL)
    assert codes == [0, 0], text
    assert_same(place / "run", alone / "run")
    assert names_in(place) == sorted(["run", *TABLES])
    # One of them speaks.
    assert text.count("Labelled 60 rows") == 1
    assert text.count("source: 40 rows of 2 classes") == 1
    settings = [json.loads((run / "run" / "settings.json").read_text()) for run in (place, alone)]
    assert settings[0]["settings"] == settings[1]["settings"]


def test_two_processes_predict_as_one_does(place, alone):
    arguments = "predict", str(alone / "run"), "many.npz", "--out", "labels.csv", "--json"
    codes, text = by_two(place, *arguments)
    assert codes == [0, 0], text
    assert (place / "labels.csv").read_bytes() == (alone / "labels.csv").read_bytes()
    assert names_in(place) == sorted(["labels.csv", *TABLES])
    told = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    assert [entry["samples"] for entry in told] == [1200]


def test_two_processes_label_beyond_a_sample_as_one_does(place):
    command = [*FIT, *OPENNESS, "--sample", "1024"]
    command[2] = "many.npz"
    codes, text = by_two(place, *command)
    assert codes == [0, 0], text
    (place / "run").rename(place / "two")
    assert main(command) == 0
    assert_same(place / "run", place / "two")
    assert names_in(place) == sorted(["run", "two", *TABLES])


def test_two_processes_compute_features_as_one_does(place):
    make_images(place / "shop", ("red", "blue"), 3, seed=0)
    (place / "shop" / "red" / "1.png").write_bytes(b"torn")
    command = ["features", "shop", "--image-size", "32", "--no-cache", "--out"]
    codes, text = by_two(place, *command, "two.npz")
    assert codes == [0, 0], text
    assert main([*command, "one.npz"]) == 0
    with np.load("one.npz") as one, np.load("two.npz") as two:
        assert one.files == two.files
        assert one["X"].shape[0] == 5
        for name in one.files:
            np.testing.assert_array_equal(one[name], two[name])
    assert (place / "two-broken.csv").exists() == (place / "one-broken.csv").exists()
    assert text.count("5 images, ") == 1
    assert not [name for name in names_in(place) if name.startswith(".")]


def test_two_processes_label_images_as_one_does(place, pictures):
    shutil.copytree(pictures / "street", place / "street")
    torn = sorted((place / "street").iterdir())[-3]
    torn.write_bytes(b"torn")
    command = ["predict", str(pictures / "run"), "street", "--out"]
    codes, text = by_two(place, *command, "two.csv")
    assert codes == [0, 0], text
    assert main([*command, "one.csv"]) == 0
    assert (place / "one.csv").read_bytes() == (place / "two.csv").read_bytes()
    broken = [name for name in names_in(place) if "broken" in name]
    assert len(broken) == 2
    assert len({(place / name).read_bytes() for name in broken}) == 1
    assert torn.name in (place / broken[0]).read_text()
    codes, text = by_two(place, *command, "three.csv", "--strict")
    assert codes[1] == 2, text
    assert len(error_lines(text)) == 1
    assert torn.name in error_lines(text)[0]
    assert not [name for name in names_in(place) if name.startswith((".", "three"))]


# what goes wrong -----------------------------------------------------------------------------

WRONG = {
    "command": (["evaluate", "run"], "error: osda evaluate: one process does this; start it"),
    "file": ([*FIT[:2], "typo.npz", *FIT_PGL[3:]], "error: typo.npz: no such file"),
    "setting": ([*FIT_PGL, "--set", "stepz=1"], "error: "),
    "option": ([*FIT_PGL, "--colour", "red"], "error: No such option: --colour"),
    "run": (["resume", "nowhere"], "error: nowhere: no such run"),
    "model": (["predict", "nowhere", "many.npz", "--out", "l.csv"], "error: nowhere: "),
    "suffix": (["predict", "nowhere", "many.npz", "--out", "l.doc"], "error: --out l.doc: "),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_is_one_line_of_one_process(place, case):
    arguments, words = WRONG[case]
    codes, text = by_two(place, *arguments)
    # The other may find nothing but that the first is gone.
    assert codes[0] == 2, text
    assert codes[1] in (1, 2), text
    lines = error_lines(text)
    assert len(lines) == 1, text
    assert lines[0].startswith(words)
    assert "Traceback" not in text
    assert names_in(place) == TABLES


def stumble_over_the_end():
    """Have the second process come late, and the first take its time to speak."""
    from opensetda.runs.unfinished import UnfinishedRun

    scratch, undo = UnfinishedRun.scratch, UnfinishedRun.undo

    def late(self):
        if os.environ["RANK"] == "1":
            time.sleep(0.3)
        return scratch(self)

    def slowly(self):
        undo(self)
        time.sleep(1)

    UnfinishedRun.scratch, UnfinishedRun.undo = late, slowly


def test_whose_folder_was_taken_away_does_not_speak(place):
    """The first has found a mistake and cleaned up: that is what is to be said."""
    codes, text = by_two(place, *WRONG["file"][0], before=stumble_over_the_end)
    (line,) = error_lines(text)
    assert line.startswith("error: typo.npz: no such file"), text
    assert codes[0] == 2


def fail_while_labelling():
    """Have the second process fail, and only that one."""
    if os.environ["RANK"] == "1":
        from opensetda.runs import predictions

        def fail(*_):
            raise InputError("only here")

        predictions.PredictionWriter.write = fail


def test_the_word_of_whoever_fails_is_heard(place, alone):
    arguments = "predict", str(alone / "run"), "many.npz", "--out", "labels.csv"
    codes, text = by_two(place, *arguments, before=fail_while_labelling)
    assert codes[1] == 2, text
    assert codes[0] in (1, 2), text
    assert error_lines(text) == ["error: only here"]
    assert names_in(place) == TABLES


# one is gone ---------------------------------------------------------------------------------


def pause_after_a_checkpoint():
    """Have the first process wait a while after its third checkpoint, once."""
    if os.environ["RANK"] != "0" or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        return
    from opensetda.runs.unfinished import FolderCheckpoints

    write, written = FolderCheckpoints.write, []

    def write_and_wait(self, name, record):
        write(self, name, record)
        written.append(name)
        if len(written) == 3:
            Path("paused").touch()
            time.sleep(1.5)

    FolderCheckpoints.write = write_and_wait


def wait_for(path, is_alive, seconds=90):
    end = time.monotonic() + seconds
    while not path.exists():
        assert is_alive(), "ended before it was there"
        assert time.monotonic() < end, f"{path} does not come"
        time.sleep(0.01)
    path.unlink()


def start_and_pause(place):
    served = Served(place, osda, *FIT_PGL, before=pause_after_a_checkpoint)
    wait_for(place / "paused", lambda: all(process.is_alive() for process in served.processes))
    return served


@pytest.mark.parametrize("who", [0, 1])
def test_killed_one_the_other_ends_in_a_line_and_the_run_goes_on(place, alone, who):
    served = start_and_pause(place)
    served.kill(who)
    codes = served.codes(60)
    assert codes[who] == -signal.SIGKILL
    assert codes[1 - who] == 1, served.output()
    (line,) = error_lines(served.output())
    assert line.startswith("error: another of the 2 processes is gone; the training so far")
    assert line.endswith("; the training so far is kept, go on with 'osda resume run'")
    assert "Traceback" not in served.output()
    assert names_in(place) == sorted(["run.unfinished", *TABLES])
    if who == 0:
        assert main(["resume", "run"]) == 0
    else:
        codes, text = by_two(place, "resume", "run")
        assert codes == [0, 0], text
    assert_same(place / "run", alone / "run")
    assert names_in(place) == sorted(["run", *TABLES])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 1), (signal.SIGINT, 130)])
def test_told_to_end_they_say_so_once(place, alone, number, code):
    served = start_and_pause(place)
    for process in served.processes:
        os.kill(process.pid, number)
    # Who does not come to read its own signal finds the other gone.
    codes = served.codes(60)
    assert code in codes, served.output()
    assert {*codes} <= {code, 1}, served.output()
    (line,) = error_lines(served.output())
    assert line.endswith("the training so far is kept, go on with 'osda resume run'")
    assert "Traceback" not in served.output()
    assert main(["resume", "run"]) == 0
    assert_same(place / "run", alone / "run")


def test_started_anew_when_all_is_done_there_is_nothing_to_do(place, alone):
    """The launcher restarts all of them, even if the run was complete already."""
    shutil.copytree(alone / "run", place / "run")
    settings = json.loads((place / "run" / "settings.json").read_text())
    before = (place / "run" / "predictions.parquet").stat().st_mtime_ns
    launch_id = {"TORCHELASTIC_RUN_ID": "0123"}
    again = {**launch_id, "TORCHELASTIC_RESTART_COUNT": 1}
    # Of another launch it is in the way, as always.
    codes, text = by_two(place, *FIT_PGL, **again)
    assert codes == [2, 2], text
    assert len(error_lines(text)) == 1
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"RANK": "0", "WORLD_SIZE": "2", **launch_id}.items():
            patch.setenv(name, value)
        settings["identity"] = launch_identity(str((place / "run").absolute()))
    (place / "run" / "settings.json").write_text(json.dumps(settings))
    codes, text = by_two(place, *FIT_PGL, **again)
    assert codes == [0, 0], text
    assert "run is complete." in text
    assert (place / "run" / "predictions.parquet").stat().st_mtime_ns == before


# the launchers themselves --------------------------------------------------------------------


def draw_nothing():
    """Leave out the curves, as the fixture `quick_curves` does in this process."""
    from opensetda.runs import fitting

    fitting.draw_curves = lambda *_, **__: b"curves"


def launch(place, *arguments, pause):
    """Start a launcher whose processes run the code `pause` first."""
    (place.parent / "sitecustomize.py").write_text(
        f"import os, time\nfrom pathlib import Path\n\n{pause}\n"
    )
    around = {
        **{key: value for key, value in os.environ.items() if not key.startswith("PYTEST")},
        "PYTHONPATH": os.pathsep.join([str(place.parent), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=place,
        env=around,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process):
    try:
        text, _ = process.communicate(timeout=100)
    finally:
        process.kill()
    return process.returncode, text


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes in /proc")
def test_torchrun_starts_anew_and_the_run_goes_on(place, alone):
    pause = inspect.getsource(pause_after_a_checkpoint)
    process = launch(
        place,
        *("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"),
        *("-m", "opensetda", *FIT_PGL),
        pause=f"{pause}\n{inspect.getsource(draw_nothing)}\n"
        'if "RANK" in os.environ:\n    draw_nothing()\n    pause_after_a_checkpoint()',
    )
    wait_for(place / "paused", lambda: process.poll() is None)
    os.kill(children(process.pid)[-1], signal.SIGKILL)
    code, text = ended(process)
    assert code == 0, text
    assert len(error_lines(text)) <= 1
    assert text.count("going on with") == 1
    assert text.count("Labelled 60 rows") == 1
    assert_same(place / "run", alone / "run")
    assert names_in(place) == sorted(["run", *TABLES])
