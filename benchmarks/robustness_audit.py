"""`audit`: the files that each command writes and the sockets it opens, native code included.

Every command runs in a real process with `faults.c` preloaded and an empty home. Allowed are the
output, the cache (``OSDA_CACHE``), the temporary folder, and the listener of the review.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from robustness_outcomes import OK, WRITE, Outcome
from robustness_preload import Control, build
from robustness_scene import QUICK, benchmark, copy_tree, fit_images

_ALLOWED = ("/dev/null", "/dev/tty", "/dev/shm/", "/proc/self/", "/dev/pts/")
_TINY = ("--finetune", "last", "--set", "finetune.rounds=1", "--set", "finetune.iterations=1")

COMMANDS: dict[str, list[str]] = {
    "help": ["--help"],
    "fit of tables": ["fit", "tables/source.csv", "tables/target.csv", "--out", "out/tables",
                      "--id-column", "id", *QUICK],
    "fit of images": [*fit_images("out/images")[:7], *QUICK],
    "fit --finetune": [*fit_images("out/tuned")[:7], *_TINY, "--no-report"],
    "resume": ["resume", "left"],
    "predict, tables": ["predict", "run", "tables/target.csv", "--out", "out/labels.csv"],
    "predict, images": ["predict", "pictures-run", "images/street", "--out", "out/labels.json"],
    "evaluate": ["evaluate", "run", "--labels", "tables/truth.csv", "--label-column", "y"],
    "export, tables": ["export", "run", "--to", "out/model.onnx"],
    "export, images": ["export", "pictures-run", "--to", "out/exported"],
    "report": ["report", "pictures-run", "--out", "out/report.html"],
    "review": ["review", "pictures-run", "--no-browser"],
    "features": ["features", "images/street", "--out", "out/f.npz"],
    "benchmark": benchmark("out/grid", "--jobs", "2"),
    "data list": ["data", "list"],
    "data digits": ["data", "digits", "out/digits", "--every", "200"],
    "demo": ["demo", "--out", "out/demo", "--quiet"],
}  # fmt: skip


def audit(scene: Path, place: Path, only: str | None = None) -> list[Outcome]:
    """Run every command, and return an outcome per command and per path outside."""
    library = build(place)
    if library is None:
        print("audit: skipped, there is no C compiler")
        return []
    copy_tree(scene, place / "scene")
    outcomes = []
    for number, (name, arguments) in enumerate(COMMANDS.items()):
        if only not in (None, name):
            continue
        found = _watched(arguments, place, library, number)
        outcomes += [Outcome(name, name, WRITE, " ".join(arguments), f"{name}: {path}", path)
                     for path in found] or [Outcome(name, name, OK)]  # fmt: skip
    return outcomes


def _watched(arguments: list[str], place: Path, library: Path, number: int) -> list[str]:
    """Run a command, and return what it wrote or connected to outside."""
    home, temporary, log = place / "home", place / "tmp", place / f"log-{number}"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    temporary.mkdir(exist_ok=True)
    control = Control(place / "control")
    control.set(log=1)
    # torch, imported here, has chosen a folder for itself and for all that it starts.
    inherited = {name: text for name, text in os.environ.items() if "INDUCTOR" not in name}
    environment = {
        **inherited, "HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"),
        "TMPDIR": str(temporary), "OSDA_CACHE": str(place / "cache"), "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1", **control.environment(library, log),
    }  # fmt: skip
    (place / "scene/out").mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "opensetda", *arguments], cwd=place / "scene", env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    if arguments[0] == "review":
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(2)  # groups are found meanwhile
        process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=600)
    if process.returncode and arguments[0] != "data":
        print(f"{arguments}: exit code {process.returncode}: {said[-500:]}")
    inside = [str(place / "scene"), str(temporary), str(place / "cache"), str(place / "control")]
    outside = dict.fromkeys(_outside(log.read_text(errors="replace"), inside))
    left = [str(path) for path in home.rglob("*") if path.is_file()]
    return [text.replace(str(home), "~") for text in dict.fromkeys([*outside, *left])]


def _outside(log: str, inside: list[str]) -> list[str]:
    found = []
    for line in log.splitlines():
        what, _, rest = line.partition(" ")
        if what == "connect":
            found.append(f"connects: {rest}")
        elif what == "open":
            path = os.path.normpath(rest)
            if not path.startswith((*inside, *_ALLOWED)) and f"{path}/" not in _ALLOWED:
                found.append(path)
    return found
