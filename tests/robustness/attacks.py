"""The attacks: each does one case in a copy of the scene, and returns what is wrong, or ""."""

from __future__ import annotations

import ctypes
import http.client
import json
import random
import re
import shutil
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from commands import Command, run
from mutations import damage
from scene import PGL, SMALL, benchmark, fit_images, fit_tables

Whole = tuple[dict[str, bytes], set[str], float]
FUZZ, KILLS, DISK, REVIEW = "fuzz", "kills", "disk", "review"
_LABELS, _FEATURES = ("--out", "out/labels.csv"), ("--out", "out/f.npz")
_TUNE = ("--finetune", "last", "--set", "finetune.rounds=2", "--set", "finetune.iterations=2")
INTERRUPTED: dict[str, Command] = {
    "fit of tables": [*fit_tables("out/run"), *PGL],
    "predict": ["predict", "run", "tables/target.csv", *_LABELS],
    "fit of images": [*fit_images("out/run"), *PGL],
    "fit --finetune": [*fit_images("out/run"), *_TUNE],
    "features": ["features", "images/street", *_FEATURES, *SMALL[:2], "--cache", "out/cache"],
    "benchmark": benchmark("out/grid"),
}
OF_TABLES = ("fit of tables", "predict")
# Pages for people and locks: nothing reads them.
_UNREAD = (".html", "lock")
# Names that are drawn at random; and files that say when or in which order they were written.
_RANDOM, _TIMED = re.compile(r"[0-9a-f]{8,}"), (".html", "history.jsonl", "table.md", ".sqlite3")


def copy(scene: Path, place: Path) -> None:
    """Make `place` a fresh copy of the scene, with an empty folder for outputs."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(scene, place, symlinks=True)
    (place / "out").mkdir()


# Mutated files ------------------------------------------------------------------------------


@cache
def kinds(scene: Path) -> dict[str, list[Command]]:
    """Return the files of the scene, and the commands that read each of them."""
    files = sorted(path.relative_to(scene) for path in scene.rglob("*") if path.is_file())
    has_images = (scene / "pictures-run").exists()
    found = {str(path): _commands(path) for path in files if not path.name.endswith(_UNREAD)}
    return {path: own for path, own in found.items() if own and (has_images or path[0] != "i")}


def _commands(path: Path) -> list[Command]:
    folder, name = path.parts[0], str(path)
    if folder == "tables":
        told = [*fit_tables("out/run"), "--corrections", name]
        others = {"truth": ["evaluate", "run", "--labels", name], "corrections": told}
        predict = ["predict", "run", name, *_LABELS]
        usual = [fit_tables("out/run", path.suffix[1:]), predict]
        return [others[path.stem]] if path.stem in others else usual
    if folder.endswith(".unfinished"):
        return [["resume", folder.removesuffix(".unfinished"), "--quiet"]]
    if folder.endswith("run"):
        samples = "images/street" if folder == "pictures-run" else "tables/target.csv"
        return [["predict", folder, samples, *_LABELS], ["review", folder, "--no-browser"],
                ["report", folder, "--out", "out/report.html"],
                ["export", folder, "--to", "out/model.onnx"]]  # fmt: skip
    if folder == "grid":
        return [benchmark("grid")]
    of_street = ["features", "images/street", *_FEATURES, *SMALL]
    if folder == "images" and len(path.parts) == 2:
        predict = ["predict", "pictures-run", name, *_LABELS]
        return [["features", name, *of_street[2:]], fit_images("out/run", name), predict]
    return [["features", str(path.parent), *of_street[2:]] if folder == "images" else of_street]


def mutated(scene: Path, place: Path, path: str, number: int) -> str:
    """Let a command read mutation `number` of a file."""
    copy(scene, place)
    commands, file = kinds(scene)[path], Path(path)
    ended = run(commands[number % len(commands)], place, before=lambda: damage(file, number))
    # Of an unfinished run, an error may be about data that it no longer fits.
    return ended.fault((file.name, file.parts[0].partition(".")[0], "since the run began"))


# Kills and full disks -----------------------------------------------------------------------


def _files(place: Path) -> dict[str, bytes]:
    files = [path for path in (place / "out").rglob("*") if path.is_file()]
    return {str(path.relative_to(place)): path.read_bytes() for path in files}


@cache
def undisturbed(scene: Path, place: Path, name: str) -> Whole:
    """Run a command twice; return equal files, the names of all, and the seconds."""
    found = []
    for _ in range(2):
        copy(scene, place)
        began = time.monotonic()
        ended = run(INTERRUPTED[name], place, 300)
        seconds = time.monotonic() - began
        if ended.code:
            raise RuntimeError(f"{ended}")
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
    n_partial, seen = rng.randrange(1, 5), set()

    def is_writing() -> bool:
        seen.update(path for path in (place / "out").rglob("*.partial*"))
        return len(seen) >= n_partial

    if number % 2:
        run(INTERRUPTED[name], place, 300, is_writing)
    else:
        run(INTERRUPTED[name], place, rng.uniform(0, whole[2]))
    return _continued(place, name, whole)


def full_disk(scene: Path, place: Path, name: str, number: int) -> str:
    """Let write `number` of a command and all later ones fail; then continue."""
    whole = undisturbed(scene, place, name)
    copy(scene, place)
    fault = run(INTERRUPTED[name], place, 300, before=lambda: arm(place, number)).fault(("out/",))
    partial = [path for path in _files(place) if ".partial" in path and ".unfinished" not in path]
    if fault or partial:
        return fault or f"left behind {partial[:5]}"
    return _continued(place, name, whole)


def _continued(place: Path, name: str, whole: Whole) -> str:
    """Resume or run again; the files are those of an undisturbed run, and no others."""
    again = [*INTERRUPTED[name], *(() if name == "benchmark" else ("--overwrite",))]
    if (place / "out/run.unfinished/request.json").exists():
        again = ["resume", "out/run", "--quiet"]
    ended, found = run(again, place, 300), _files(place)
    differ = [path for path, data in whole[0].items() if found.get(path) != data]
    left = [path for path in found if _RANDOM.sub("#", path) not in whole[1]]
    left = [path for path in left if ".sqlite3" not in path]
    if ended.code != 0:
        return f"{again[0]} fails afterwards: {ended.code} {ended.errors[-300:]}"
    return f"after {again[0]}: other bytes {differ}, left behind {left}" if differ or left else ""


def arm(place: Path, number: int) -> None:
    """Count writes below the output folder, and let them fail from `number` on; 0: never."""
    ctypes.CDLL(None).faults_arm(str(place / "out").encode(), ctypes.c_long(number))


def count_writes(scene: Path, place: Path, name: str) -> int:
    """Return how many calls of a command write to its output folder."""
    library = ctypes.CDLL(None)
    library.faults_start()
    copy(scene, place)
    run(INTERRUPTED[name], place, 300, before=lambda: arm(place, 0))
    return library.faults_count()


def killed_review(scene: Path, place: Path, n_kills: int) -> str:
    """Kill the server again and again while decisions are made: none that was saved is lost."""
    copy(scene, place)
    saved: list[str] = []
    rng = random.Random(0)
    for turn in range(n_kills):
        last = len(saved) + rng.randrange(20)

        def is_time(out: str, turn: int = turn, last: int = last) -> bool:
            if "token=" not in out:
                return False
            label, is_last = f"class {turn} {len(saved)}", len(saved) >= last
            with suppress(OSError, http.client.HTTPException):
                # The last one is not waited for: the server is killed while it saves.
                saved.extend([label] * _decided(out, rng.randrange(32), label, not is_last))
            return is_last

        run(["review", "run", "--no-browser"], place, is_time=is_time)
    run(["review", "run", "--no-browser"], place)
    log, table = (
        (place / "run" / name).read_text() for name in ("review.jsonl", "corrections.csv")
    )
    lost = [label for label in saved if json.dumps(label) not in log]
    left = [path.name for path in (place / "run").rglob("*.partial*")]
    if lost or left or not saved or saved[-1] not in table:
        return f"lost {lost} of {len(saved)} decisions, left behind {left}"
    return ""


def _decided(out: str, row: int, label: str, waits: bool) -> bool:
    """Decide as the page does; return whether the server says that it is saved."""
    address = urlsplit(out.split()[-1])
    host = f"127.0.0.1:{address.port}"
    connection = http.client.HTTPConnection(host, timeout=1)
    headers = {"Host": host, "Origin": f"http://{host}", "Content-Type": "application/json"}
    headers["X-Review-Token"] = parse_qs(address.query)["token"][0]
    body = json.dumps({"list": "border", "row": row, "label": label})
    connection.request("POST", "/api/decide", body, headers)
    return waits and connection.getresponse().status == 200


ATTACKS = {FUZZ: mutated, KILLS: killed, DISK: full_disk}
