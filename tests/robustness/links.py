"""Links planted at every name that a command writes: none is followed.

A command first runs alone, and all names that it opens to write, makes or moves to are listed
(faults.c, also those of C and C++). Then it runs with a link at one of them, which leads to
something outside: that must not change. It is replaced, or the command ends with one line.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from commands import Ended, review, run
from scene import FIT, FIT_IMAGES, FIT_REPORT, PGL, SHOP, STREET, copy

STRANGER = "the review of a stranger's run"
_SMALL = {
    "predict": "predict run tables/target.csv --out out/labels.csv --overwrite",
    "review": "review run --no-browser",
}
_OTHERS = {
    "predict to parquet": "predict run tables/target.csv --out out/labels.parquet --overwrite",
    "predict in parts": "predict run tables/target.parquet --out out/parts --scheduler local:1 "
    "--overwrite",
    "report": "report run",
    "report --out": "report run --out out/report.html --overwrite",
    "evaluate": "evaluate run --labels tables/truth.csv --label-column y",
    "fit": f"{FIT_REPORT} out/run --overwrite --tensorboard out/logs",
    "fit of pgl": f"{FIT} out/run --overwrite {PGL}",
    "fit of images": f"{FIT_IMAGES} out/run --overwrite",
    "fit --finetune": f"{FIT_IMAGES} out/run --overwrite --finetune last {PGL}",
    "resume": "resume left --quiet",
    "features": f"features {STREET} --out out/f.npz --image-size 32 --cache out/cache --overwrite",
    "predict of images": f"predict pictures-run {STREET} --out out/labels.csv --overwrite",
    "export": "export run --to out/model.onnx --overwrite",
    "export to a folder": "export run --to out/model --overwrite",
    "benchmark": "benchmark tables/source.csv tables/labelled.csv --id-column id --seeds 1 "
    "--jobs 1 --method moving-means --method source-only --out out/grid",
    "data digits": "data digits out/digits --every 150",
    "demo": "demo --quick --out out/demo --overwrite",
    "analyse": "analyse edges demo --out out/figures --set steps=1 --set epochs=1",
}
COMMANDS = {**_SMALL, **_OTHERS}
SMALL = (STRANGER, *_SMALL)
# These take long: links are planted at many of their names at once.
_SLOW = ("demo", "analyse", "fit --finetune", "fit of images", "predict of images")
KINDS = ("file", "folder", "nothing", "same")
_SHELL = "$(touch${IFS}pwned)"


class Planting(NamedTuple):
    """Links at some names, from the folder of the command; a `kind` says where they lead to.

    A `guess` makes names of those of an earlier process, which hold its number or the time.
    """

    names: tuple[str, ...]
    kind: str
    guess: Callable[[str], list[str]] | None = None


class Written(NamedTuple):
    """What a command writes: its names, those that are never the same, and the files at its end."""

    names: tuple[str, ...]
    guessable: tuple[Planting, ...]
    after: Path


def planted(scene: Path, place: Path, name: str, number: int) -> str | None:
    """Run a command with links planted; None if there are fewer plantings than `number`."""
    if name == STRANGER:
        return strangers_review(scene, place) if number == 0 else None
    written = names_written(scene, place, name)
    found = plantings(name, written)
    if number >= len(found):
        return None
    planting, outside = found[number], place.with_name("outside")
    _prepare(scene, place)
    shutil.rmtree(outside, ignore_errors=True)
    outside.mkdir()
    noted = place.with_name("noted")

    def plant_all() -> None:
        # In the process of the command, whose number is part of some names.
        is_planted = []
        for path in planting.names:
            for guess in planting.guess(path) if planting.guess else (path,):
                if plant(place, guess, planting.kind, outside, written.after):
                    is_planted.append(guess)
        noted.write_text(json.dumps([is_planted, contents(outside)]))

    ended, is_done = _carried_out(COMMANDS[name], place, plant_all)
    is_planted, before = json.loads(noted.read_text())
    now = contents(outside)
    changed = {path for path in before | now if before.get(path) != now.get(path)}
    # Each link leads to a folder of its own, which has the number of the link.
    followed = sorted({is_planted[int(path.partition("/")[0])] for path in changed})
    kept = [path for path in is_planted if is_done and (place / path).is_symlink()]
    # Of a name that is used no more, the link stays; one to the same may have been read.
    kept = [path for path in kept if (written.after / path).exists() and planting.kind != "same"]
    fault = ended.fault()
    if followed:
        what = [(path, before.get(path), now.get(path)) for path in sorted(changed)]
        fault = f"followed at {followed[:9]}: outside, {what[:3]} has changed"
    elif kept:
        fault = f"succeeded, and a link is in the place of its output {kept[:5]}"
    elif (place / "pwned").exists():
        fault = "a name was run as a command"
    many = f"{planting.names[0]} and {len(planting.names) - 1} others"
    where = many if planting.names[1:] else planting.names[0]
    return fault and f"{COMMANDS[name]}, a link to {planting.kind!r} at {where}: {fault}"


def strangers_review(scene: Path, place: Path) -> str:
    """Review a run whose folder has a link to a file of the user, and decisions of a stranger."""
    _prepare(scene, place)
    target = place / "tables/target.csv"
    target.write_text(target.read_text().replace("target-3,", f"{_SHELL},"))
    evil, home = place / "downloads/evil", place / "bashrc"
    evil.parent.mkdir()
    home.write_text("# the user's own\n")
    command = f"review {evil.relative_to(place)} --no-browser"
    if run(f"{FIT} {evil}", place).code:
        raise RuntimeError("no run of a stranger")
    ended, is_saved = review(command, place, "a stranger's")
    if not is_saved or not (evil / "review.jsonl").exists():
        raise RuntimeError(f"no decision of a stranger: {ended}")
    (evil / "corrections.csv").unlink()
    for old in (".corrections.partial.csv", "corrections.csv"):
        (evil / old).symlink_to("../../bashrc")
    ended = run(command, place)
    if home.read_text() != "# the user's own\n":
        return f"{command}: the file of the user is now {home.read_text()[:300]!r}"
    return ended.fault(("corrections.csv", "evil"))


@cache
def names_written(scene: Path, place: Path, name: str) -> Written:
    """Run a command twice, and list what it writes; random names are not the same again."""
    lists, after = [], place.with_name(f"after-{name.replace(' ', '-')}")
    for _ in range(2):
        _prepare(scene, place)
        before = _paths(place)
        listed, numbers = _listed(name, place)
        lists.append(listed | (_paths(place) - before))
    shutil.rmtree(after, ignore_errors=True)
    shutil.copytree(place, after, symlinks=True)
    steady, own = lists[0] & lists[1], lists[1] - lists[0]
    guessable = []
    for path in sorted(own):
        if any(re.search(rf"(?<!\d){number}(?!\d)", Path(path).name) for number in numbers):
            guess = partial(_guesses, numbers=numbers)
            guessable.append(Planting((path,), "nothing", guess))
    given = set(COMMANDS[name].split())
    made = {word for option in ("--out ", "--to ") for word in _after(option, COMMANDS[name])}
    parents = {str(parent) for path in steady for parent in Path(path).parents}
    parents = {path for path in parents if _is_within(place, path)}
    # A folder that the user names may be a link; what a command makes there must not be.
    names = ((steady | parents) - given - {".", "out"}) | made
    names |= {f"{path}{end}" for path in names for end in _sides(path)}
    return Written(tuple(sorted(names)), tuple(guessable), after)


def _after(option: str, command: str) -> list[str]:
    return [part.split()[0] for part in command.split(option)[1:]]


def _sides(path: str) -> tuple[str, ...]:
    return ("-wal", "-shm", "-journal") if path.endswith(".sqlite3") else ()


def plantings(name: str, written: Written) -> list[Planting]:
    """Return where links are planted: at each name alone, and at all that were used once."""
    old = tuple(sorted({path for new in written.names for path in _old_names(new)}))
    found = [Planting(old, kind) for kind in KINDS[:3]]
    if name in _SLOW:
        inner = {str(parent) for path in written.names for parent in Path(path).parents}
        leaves = tuple(path for path in written.names if path not in inner)
        folders = tuple(path for path in written.names if path in inner)
        found += [Planting(some, kind) for some in (leaves, folders) if some for kind in KINDS]
    else:
        found += [Planting((path,), kind) for path in written.names for kind in KINDS]
    return [*found, *written.guessable]


def _old_names(path: str) -> Iterator[str]:
    """Yield the names that files had while they were written, when those were always the same."""
    new = Path(path)
    if not new.name.startswith("."):
        for kind in ("partial", "replaced", "scratch.partial"):
            yield str(new.with_name(f".{new.stem}.{kind}{new.suffix}"))


def plant(place: Path, path: str, kind: str, outside: Path, after: Path) -> bool:
    """Plant a link that leads to a file, a folder or nothing outside, or to the same as there."""
    link = place / path
    if any(parent.is_symlink() for parent in link.parents if place in parent.parents):
        return False
    if kind == "same" and not (after / path).exists():
        return False
    own = outside / str(len(list(outside.iterdir())))
    own.mkdir()
    leads_to = own / kind
    if kind == "file":
        leads_to.write_bytes(b"kept\n" * 100)
    elif kind == "folder":
        leads_to.mkdir()
        (leads_to / "kept").write_bytes(b"kept\n")
    elif kind == "same":
        copies = shutil.copytree if (after / path).is_dir() else shutil.copyfile
        copies(after / path, leads_to)
    if link.is_dir() and not link.is_symlink():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(leads_to)
    return True


def _guesses(path: str, numbers: tuple[int, int]) -> list[str]:
    """Return what a name may be in this process, within the next minute."""
    began, pid = numbers
    now, name = int(time.time()), Path(path).name.replace(str(pid), str(os.getpid()))
    times = re.findall(r"(?<!\d)\d{10}(?!\d)", name)
    names = {name}
    if times and abs(int(times[0]) - began) < 300:
        names = {name.replace(times[0], str(second)) for second in range(now, now + 60)}
    return [str(Path(path).with_name(guess)) for guess in names]


def _prepare(scene: Path, place: Path) -> None:
    copy(scene, place)
    # That of the worker, beside it: links have been planted there, too.
    shutil.rmtree(place.with_name("TMPDIR"), ignore_errors=True)
    place.with_name("TMPDIR").mkdir()
    # A target with labels, for a benchmark, and an image that cannot be read.
    lines = (place / "tables/target.csv").read_text().split("\n")
    truth = (place / "tables/truth.csv").read_text().split("\n")
    labels = [line.partition(",")[2] for line in truth]
    labelled = [f"{line},{label}" for line, label in zip(lines, labels, strict=True) if line]
    (place / "tables/labelled.csv").write_text("\n".join(labelled) + "\n")
    if (place / SHOP).exists():
        for folder in (SHOP, STREET):
            first = sorted(path for path in (place / folder).iterdir() if path.is_dir())[0]
            (first / "broken.png").write_bytes(b"\x89PNG broken")


def _carried_out(
    command: str, place: Path, before: Callable[[], object], seconds: float = 300
) -> tuple[Ended, bool]:
    """Carry out a command; return also whether it succeeded: a review, if a decision was saved."""
    if command.startswith("review"):
        ended, is_saved = review(command, place, "newt", before)
        return ended, is_saved
    ended = run(command, place, seconds, before=before)
    return ended, ended.code == 0


def _listed(name: str, place: Path) -> tuple[set[str], tuple[int, int]]:
    """Run a command; return the names that it writes, and when and as which process it ran."""
    listing, pid = place.with_name("listing"), place.with_name("pid")
    listing.write_bytes(b"")

    def list_names() -> None:
        pid.write_text(str(os.getpid()))
        ctypes.CDLL(None).faults_list(os.open(listing, os.O_WRONLY | os.O_APPEND))

    began = int(time.time())
    ended, is_done = _carried_out(COMMANDS[name], place, list_names)
    if not is_done:
        raise RuntimeError(f"{ended}")
    lines = listing.read_bytes().split(b"\n")
    found = {os.path.relpath(os.fsdecode(line), place) for line in lines if line}
    return {path for path in found if _is_within(place, path)}, (began, int(pid.read_text()))


def _is_within(place: Path, path: str) -> bool:
    """Return whether a name is below the folder of the command, or that for temporary files."""
    whole = Path(os.path.normpath(place / path))
    return any(root in whole.parents for root in (place, place.with_name("TMPDIR")))


def _paths(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*")}


def contents(folder: Path) -> dict[str, str]:
    """Return mode, time and digest of everything in a folder: the same bytes may be written."""
    found = {}
    for path in sorted(folder.rglob("*")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        about = path.lstat()
        found[str(path.relative_to(folder))] = f"{about.st_mode:o} {about.st_mtime_ns} {digest}"
    return found
