"""Attack the commands: mutated files of every kind, kill -9 at any moment, a disk that is full.

    python tests/robustness/run.py --count 20000 --kills 5 --every 10    # hours on two cores
    python tests/robustness/run.py --attacks fuzz --only tables/source.csv:17

Every command ends with success or with one line that names the file; nothing hangs, and nothing is
lost, half-written or left behind. Needs Linux, and a C compiler for full disks.
"""

from __future__ import annotations

import argparse
import ctypes
import http.client
import importlib
import json
import mmap
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from fnmatch import fnmatch
from functools import cache, partial
from pathlib import Path
from urllib.parse import urlsplit

os.environ["OMP_NUM_THREADS"] = "1"  # Before torch is imported: what is forked has no threads.

from mutations import damage
from scene import FIT, FIT_IMAGES, FORK, GRID, PGL, SHOP, STREET, make_scene, run

Case = tuple[str, str, int]
Whole = tuple[dict[str, bytes], set[str], float]
REVIEW = "review run --no-browser"
_FEATURES = "--out out/f.npz --image-size 32 --cache"
_TO_LABELS = "{file} --out out/labels.csv"
_TUNE = "--finetune last --set finetune.rounds=2 --set finetune.iterations=2"
INTERRUPTED = {
    "fit of tables": f"{FIT} out/run {PGL}",
    "predict": "predict run tables/target.csv --out out/labels.csv",
    "fit of images": f"{FIT_IMAGES} out/run {PGL}",
    "fit --finetune": f"{FIT_IMAGES} out/run {_TUNE}",
    "fit --finetune of pgl": f"{FIT_IMAGES} out/run --finetune last {PGL}",
    "features": f"features {STREET} {_FEATURES} out/cache",
    "benchmark": f"{GRID} out/grid",
}
# Files, the first pattern that fits, and the commands that read them.
READERS = {
    "tables/truth.csv": ["evaluate run --labels {file}"],
    "tables/corrections.csv": [f"{FIT} out/run --corrections {{file}}"],
    "tables/*.npy": ["fit tables/source.npz {file} --out out/run", f"predict run {_TO_LABELS}"],
    "tables/*": [f"{FIT} out/run".replace("csv", "{form}"), f"predict run {_TO_LABELS}"],
    "images/*/*": [f"features {{folder}} {_FEATURES} cache"],
    "images/*": [f"features {{file}} {_FEATURES} cache", f"predict pictures-run {_TO_LABELS}",
                 f"{FIT_IMAGES} out/run".replace(SHOP, "{file}")],
    "cache/*": [f"features {STREET} {_FEATURES} cache"],
    "grid/*": [f"{GRID} grid"],
    "*.unfinished/*": ["resume {run} --quiet"],
    "*": ["predict {run} {samples} --out out/labels.csv", "review {run} --no-browser",
          "report {run} --out out/report.html", "export {run} --to out/model.onnx"],
}  # fmt: skip
# Names that are drawn at random; and files that say when or in which order they were written.
_RANDOM, _TIMED = re.compile(r"[0-9a-f]{8,}"), (".html", "history.jsonl", "table.md")


def copy(scene: Path, place: Path) -> None:
    """Make `place` a fresh copy of the scene, with an empty folder for outputs."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(scene, place, symlinks=True)
    (place / "out").mkdir()


def mutated(scene: Path, place: Path, path: str, number: int) -> str:
    """Let a command read mutation `number` of a file."""
    copy(scene, place)
    file, run_folder = Path(path), path.split("/")[0].removesuffix(".unfinished")
    samples = STREET if run_folder == "pictures-run" else "tables/target.csv"
    own = {"file": path, "folder": file.parent, "form": file.suffix[1:], "run": run_folder}
    commands = next(READERS[pattern] for pattern in READERS if fnmatch(path, pattern))
    command = commands[number % len(commands)].format(samples=samples, **own)
    ended = run(command, place, before=lambda: damage(file, number))
    # Of an unfinished run, an error may be about data that it no longer fits.
    return ended.fault((file.name, run_folder, "since the run began"))


def _files(place: Path) -> dict[str, bytes]:
    paths = (place / "out").rglob("*")
    files = [path for path in paths if path.is_file() and ".sqlite3" not in path.name]
    return {str(path.relative_to(place)): path.read_bytes() for path in files}


@cache
def undisturbed(scene: Path, place: Path, name: str) -> Whole:
    """Run a command twice; return the files that are equal, the names of all, and the seconds."""
    found = []
    for _ in range(2):
        copy(scene, place)
        began = time.monotonic()
        if (ended := run(INTERRUPTED[name], place, 300)).code:
            raise RuntimeError(f"{ended}")
        seconds = time.monotonic() - began
        found.append(_files(place))
    equal = {path for path in found[0] if found[0][path] == found[1].get(path)}
    same = {path: found[0][path] for path in equal if not path.endswith(_TIMED)}
    return same, {_RANDOM.sub("#", path) for files in found for path in files}, seconds


def killed(scene: Path, place: Path, name: str, number: int) -> str:
    """Kill a command at a random moment, or while it writes a file; then continue."""
    if name == REVIEW:
        return killed_review(scene, place, number)
    whole, rng = undisturbed(scene, place, name), random.Random(f"{name}:{number}")
    copy(scene, place)
    partial_files, seconds = partial((place / "out").rglob, "*.partial*"), rng.uniform(0, whole[2])
    if number % 2:
        run(INTERRUPTED[name], place, 300, lambda _: any(partial_files()) and rng.random() < 0.3)
    else:
        run(INTERRUPTED[name], place, seconds)
    return _continued(place, name, whole)


@cache
def n_writes() -> ctypes.c_long:
    """Return the number of writes of the last command with a full disk, which it counts itself."""
    return ctypes.c_long.from_buffer(mmap.mmap(-1, 8))


def full_disk(scene: Path, place: Path, name: str, number: int) -> str:
    """Let write `number` of a command and all later ones fail; then continue."""
    whole = undisturbed(scene, place, name)
    copy(scene, place)
    n_writes().value = 0
    fill = partial(ctypes.CDLL(None).faults_arm, ctypes.c_long(number), ctypes.byref(n_writes()))
    ended = run(INTERRUPTED[name], place, 300, before=fill)
    left = [path for path in _files(place) if ".partial" in path and ".unfinished" not in path]
    fault = ended.fault(("out/",)) or (f"left behind {left[:5]}" if left else "")
    return fault or _continued(place, name, whole)


def _continued(place: Path, name: str, whole: Whole) -> str:
    """Resume or run again; the files are those of an undisturbed run, and no others."""
    again = INTERRUPTED[name] + ("" if name == "benchmark" else " --overwrite")
    if (place / "out/run.unfinished/request.json").exists():
        again = "resume out/run --quiet"
    ended, found = run(again, place, 300), _files(place)
    differ = [path for path, data in whole[0].items() if found.get(path) != data]
    left = [path for path in found if _RANDOM.sub("#", path) not in whole[1]]
    if ended.code != 0:
        return f"{again} fails afterwards: {ended.code} {ended.errors[-300:]}"
    return f"after {again}: other bytes {differ}, left behind {left}" if differ or left else ""


def killed_review(scene: Path, place: Path, n_kills: int) -> str:
    """Kill the server again and again while decisions are made: none that was saved is lost."""
    copy(scene, place)
    saved, rng = [""], random.Random(0)

    def is_time(out: str) -> bool:
        if "token=" not in out:
            return False
        for _ in range(rng.randrange(20)):
            label = f"class {rng.random()}"
            saved.extend([label] * _decided(out, rng.randrange(31), label))
        # Not waited for: the server is killed while it saves.
        _decided(out, 31, "the last", waits=False)
        return True

    for _ in range(n_kills):
        run(REVIEW, place, is_time=is_time)
    run(REVIEW, place)
    names = ("review.jsonl", "corrections.csv")
    log, table = ((place / "run" / name).read_text() for name in names)
    lost = [label for label in saved if label not in log]
    left = [path.name for path in (place / "run").rglob("*.partial*")]
    is_whole = saved[1:] and saved[-1] in table and not lost + left
    return "" if is_whole else f"lost {lost} of {saved}, left behind {left}"


def _decided(out: str, row: int, label: str, waits: bool = True) -> bool:
    """Decide as the page does; return whether the server says that it is saved."""
    address = urlsplit(out.split()[-1])
    connection = http.client.HTTPConnection(address.netloc, timeout=1)
    headers = {"Origin": f"http://{address.netloc}", "Content-Type": "application/json"}
    headers["X-Review-Token"] = address.query.removeprefix("token=")
    body = json.dumps({"list": "border", "row": row, "label": label})
    with suppress(OSError, http.client.HTTPException):
        connection.request("POST", "/api/decide", body, headers)
        return waits and connection.getresponse().status == 200
    return False


ATTACKS = {"fuzz": mutated, "kills": killed, "disk": full_disk}


def start(folder: Path) -> None:
    """Give a worker folders of its own."""
    for name in ("HOME", "TMPDIR", "OSDA_CACHE", "XDG_CACHE_HOME"):
        place = folder / str(os.getpid()) / name
        place.mkdir(parents=True)
        os.environ[name] = str(place)
    tempfile.tempdir = os.environ["TMPDIR"]


def attack(scene: Path, every: int, case: Case) -> list[tuple[Case, str]]:
    """Do a case in a worker; of full disks also the later ones, until all writes succeed."""
    done, (attacked, name, number) = [], case
    place = scene.parent / str(os.getpid()) / "scene"
    while True:
        done.append(((attacked, name, number), ATTACKS[attacked](scene, place, name, number)))
        if attacked != "disk" or not every or n_writes().value < number:
            return done
        number += every


def cases(given: argparse.Namespace, scene: Path) -> Iterator[Case]:
    """Yield attack, file or command, and number."""
    names = [*INTERRUPTED][: 2 if given.small else None]
    if given.only:
        name, _, number = given.only.rpartition(":")
        yield given.attacks[0], name, int(number)
        return
    if "fuzz" in given.attacks:
        files = sorted(str(path.relative_to(scene)) for path in scene.rglob("*") if path.is_file())
        # Pages for people and locks: nothing reads them.
        files = [path for path in files if not path.endswith((".html", "lock"))]
        yield from (("fuzz", files[n % len(files)], n // len(files)) for n in range(given.count))
    if "kills" in given.attacks:
        yield "kills", REVIEW, 4 * given.kills
        yield from (("kills", name, number) for name in names for number in range(given.kills))
    if "disk" in given.attacks and "LD_PRELOAD" in os.environ:
        yield from (("disk", name, 1) for name in names)


def main() -> int:
    """Run the attacks asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--attacks", nargs="+", choices=ATTACKS, default=[*ATTACKS])
    add("--count", type=int, default=20_000, help="mutated files (default: 20000)")
    add("--kills", type=int, default=5, help="of each command (default: 5)")
    add("--every", type=int, default=10, help="n-th write of a command fails (default: 10)")
    add("--small", action="store_true", help="tables only")
    add("--only", metavar="CASE", help="one case, as a finding names it")
    given = parser.parse_args()
    if (compiler := shutil.which("cc")) and "LD_PRELOAD" not in os.environ:
        # Start again, with a disk that can be full.
        library, source = f"{tempfile.mkdtemp()}/faults.so", Path(__file__).with_name("faults.c")
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        os.environ["LD_PRELOAD"] = library
        os.execv(sys.executable, [sys.executable, *sys.argv])
    # Before processes are forked: it takes seconds.
    for home in ("runs", "pgl.estimator", "report.page", "review.session"):
        importlib.import_module(f"opensetda.{home}")
    importlib.import_module("opensetda.backbones.registry").import_timm()
    with tempfile.TemporaryDirectory() as name:
        scene, every = Path(name) / "scene", 0 if given.only else given.every
        make_scene(scene, given.small)
        # Not a `Pool`, whose processes may have no children.
        with ProcessPoolExecutor(2, FORK, start, [Path(name)]) as pool:
            lists = pool.map(partial(attack, scene, every), cases(given, scene))
            done = [line for lines in lists for line in lines]
    findings = [line for line in done if line[1]]
    for attacked in given.attacks:
        n, n_found = (sum(case[0] == attacked for case, _ in lines) for lines in (done, findings))
        print(f"{attacked}: {n:,} cases, {n_found} findings")
    for (attacked, name, number), fault in findings[:60]:
        print(f"\n--attacks {attacked} --only '{name}:{number}'\n  {fault}")
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
