"""Kill -9 at any moment, and a disk that is full; then the command goes on, or runs again."""

from __future__ import annotations

import ctypes
import mmap
import random
import re
import time
from functools import cache, partial
from pathlib import Path

from commands import decide, run
from scene import FIT_IMAGES_REPORT, FIT_REPORT, GRID, PGL, STREET, copy

REVIEW = "review run --no-browser"
_FEATURES = "--out out/f.npz --image-size 32 --cache"
_TUNE = "--finetune last --set finetune.rounds=2 --set finetune.iterations=2"
# Those that make a run write its report, too.
INTERRUPTED = {
    "fit of tables": f"{FIT_REPORT} out/run {PGL}",
    "predict": "predict run tables/target.csv --out out/labels.csv",
    "adapt": "adapt run tables/target.csv --out out/run",
    "compare": "compare run run --out out/changes.csv --page out/changes.html",
    "report": "report run --out out/report.html",
    "export": "export run --to out/model",
    "fit of images": f"{FIT_IMAGES_REPORT} out/run {PGL}",
    "fit --finetune": f"{FIT_IMAGES_REPORT} out/run {_TUNE}",
    "fit --finetune of pgl": f"{FIT_IMAGES_REPORT} out/run --finetune last {PGL}",
    "features": f"features {STREET} {_FEATURES} out/cache",
    "benchmark": f"{GRID} out/grid",
}
SMALL = ("fit of tables", "predict")
# Names that are drawn at random; and files that say when or in which order they were written.
_RANDOM, _TIMED = re.compile(r"[0-9a-f]{8,}"), (".html", "history.jsonl", "table.md")
Whole = tuple[dict[str, bytes], set[str], float]


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
    """Kill a command at a random moment, while it writes a file, or its report; then continue."""
    if name == REVIEW:
        return killed_review(scene, place, number)
    whole, rng = undisturbed(scene, place, name), random.Random(f"{name}:{number}")
    copy(scene, place)
    partial_files, complete = partial((place / "out").rglob, "*.partial*"), place / "out/run"
    began = list[float]()

    def is_writing(_: str) -> bool:
        return any(partial_files()) and rng.random() < 0.3

    def is_reporting(_: str) -> bool:
        if (complete / "manifest.json").exists() and not began:
            began.append(time.monotonic() + rng.uniform(0, whole[2] / 3))
        return bool(began) and time.monotonic() > began[0]

    if number % 2 and "fit" in name and number % 4 == 1:
        run(INTERRUPTED[name], place, 300, is_reporting)
    elif number % 2:
        run(INTERRUPTED[name], place, 300, is_writing)
    else:
        run(INTERRUPTED[name], place, rng.uniform(0, whole[2]))
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
    is_begun = (place / "out/run.unfinished/request.json").exists()
    is_complete = (place / "out/run/manifest.json").exists()
    if is_begun or is_complete:
        # Of a complete run, the report may be missing.
        again = "resume out/run --quiet"
    ended, found = run(again, place, 300), _files(place)
    differ = [path for path, data in whole[0].items() if found.get(path) != data]
    names = {_RANDOM.sub("#", path): path for path in found}
    missing, left = sorted(whole[1] - names.keys()), sorted(names.keys() - whole[1])
    if ended.code != 0:
        return f"{again} fails afterwards: {ended.code} {ended.errors[-300:]}"
    if differ or missing or left:
        return f"after {again}: other bytes {differ}, missing {missing}, left behind {left}"
    return ""


def killed_review(scene: Path, place: Path, n_kills: int) -> str:
    """Kill the server again and again while decisions are made: none that was saved is lost."""
    copy(scene, place)
    saved, rng = [""], random.Random(0)

    def is_time(out: str) -> bool:
        if "token=" not in out:
            return False
        for _ in range(rng.randrange(20)):
            label = f"class {rng.random()}"
            saved.extend([label] * decide(out, rng.randrange(31), label))
        # Not waited for: the server is killed while it saves.
        decide(out, 31, "the last", waits=False)
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
