"""Two commands at once on one output or one run: every file is whole, and every exit code true.

What is found afterwards must be what some order of the two gives, one after the other, with the
exit codes that they had: if both succeeded, the output of the last one, or of both; if one ended
with an error, that of the other.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

from commands import Ended, Running, decide, run
from scene import FIT, FIT_REPORT, PGL, SHOP, STREET, copy

REVIEW = "review run --no-browser"
_LABELS = "--out out/labels.csv --overwrite"
_PARTS = "--out out/labels.parquet --overwrite"
_EVALUATE = "evaluate run --labels tables/truth.csv --label-column y"
_EVALUATE_OTHER = _EVALUATE.replace("truth", "other-truth")
_FIT, _FIT_OTHER = f"{FIT} run --overwrite", f"{FIT} run --overwrite --openness 0.5"
_FEATURES = "--out out/f.npz --image-size 32 --cache out/cache --overwrite"
_SMALL = {
    "predict, predict": (
        f"predict run tables/target.csv {_LABELS}",
        f"predict other tables/target.csv {_LABELS}",
    ),
    "report, evaluate": ("report run", _EVALUATE_OTHER),
    "fit, evaluate": (_FIT_OTHER, _EVALUATE),
}
_OTHERS = {
    "predict, predict to parquet": (
        f"predict run tables/target.csv {_PARTS}",
        f"predict other tables/target.csv {_PARTS}",
    ),
    "predict, fit": (f"predict run tables/target.csv {_LABELS}", _FIT_OTHER),
    "fit, fit": (_FIT, _FIT_OTHER),
    "fit, fit with reports": (
        f"{FIT_REPORT} run --overwrite",
        f"{FIT_REPORT} run --overwrite --openness 0.5",
    ),
    "fit, fit of a new run": (f"{FIT} out/new", f"{FIT} out/new --openness 0.5"),
    "fit, report": (_FIT_OTHER, "report run"),
    "fit, review": (_FIT_OTHER, REVIEW),
    "fit, export": (_FIT_OTHER, "export run --to out/model.onnx --overwrite"),
    "report, report": ("report run", "report run"),
    "report, report --out": (
        "report run --out out/report.html --overwrite",
        "report other --out out/report.html --overwrite",
    ),
    "report, review": ("report run", REVIEW),
    "evaluate, evaluate": (_EVALUATE, _EVALUATE_OTHER),
    "evaluate, review": (_EVALUATE_OTHER, REVIEW),
    "review, review": (REVIEW, REVIEW),
    "resume, resume": ("resume left --quiet", "resume left --quiet"),
    "resume, fit": ("resume left --quiet", f"{FIT} left --overwrite {PGL}"),
    "features, features": (f"features {STREET} {_FEATURES}", f"features {SHOP} {_FEATURES}"),
    "export, export": (
        "export run --to out/model.onnx --overwrite",
        "export other --to out/model.onnx --overwrite",
    ),
    "export, export to a folder": (
        "export run --to out/model --overwrite",
        "export other --to out/model --overwrite",
    ),
}
PAIRS = {**_SMALL, **_OTHERS}
SMALL = tuple(_SMALL)
# Files that are written into a run later, each of them alone; they belong to its predictions.
_LATER = ("report.html", "map.parquet", "review.jsonl", "corrections.csv", "manifest.json")
_NOT_LISTED = ("report.html", "review.jsonl", "corrections.csv", "manifest.json")
_KEPT_RUN = "run.reviewed/"
_TEXTS = (".html", ".json", ".jsonl", ".csv", ".md", ".py")
# Times, seconds, memory, names drawn at random, and command lines.
_VARYING = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?([+-]\d\d:?\d\d|Z)?"
    r'|[0-9a-f]{16,}|"\w*seconds": ?[\d.e-]+|[\d.]+ s\b|"command": ?(\[[^\]]*\]|"[^"]*")'
    r"|<dt>[^<]*(?:MB|[Mm]emory)[^<]*</dt>\s*<dd>\s*[\d.]+"
)
State = dict[str, str]


class Order(NamedTuple):
    """Which of two commands succeeded, and the files afterwards."""

    succeeded: tuple[bool, bool]
    state: State


def at_once(scene: Path, place: Path, name: str, number: int) -> str:
    """Start two commands at once, or the second while the first runs; compare with all orders."""
    orders, seconds = one_after_the_other(scene, place, name)
    rng = random.Random(f"{name}:{number}")
    _prepare(scene, place)
    wait = rng.uniform(0, seconds) if number % 2 else 0.0
    ends = _carried_out(PAIRS[name], (0, 1), place, wait)
    faults = [ended.fault() for ended, _ in ends]
    found, succeeded = state(place), (ends[0][1], ends[1][1])
    damaged = [ended.errors for ended, _ in ends if "damaged" in ended.errors]
    if any(faults):
        fault = " and ".join(filter(None, faults))
    elif damaged:
        fault = f"a whole run is called damaged: {damaged[0][-300:]!r}"
    else:
        fault = broken_manifest(place) or left_behind(place, scene)
        fault = fault or unlike(found, succeeded, orders)
    tell = "; ".join(f"{ended.command}: exit code {ended.code}" for ended, _ in ends)
    return fault and f"{tell}, the second after {wait:.2f} s: {fault}"


def unlike(found: State, succeeded: tuple[bool, bool], orders: list[Order]) -> str:
    """Return what no order of two commands gives, or ""."""
    fitting = [order for order in orders if order.succeeded == succeeded]
    others = _without_kept_run(found, orders[0].state)
    if len(others) < len(found):
        # The review went on in the kept run: beside it there is what the other command gives alone.
        found = others
        fitting = orders
    now = _at_once_written(found)
    same = [order for order in fitting if _at_once_written(order.state) == now]
    if not same:
        near = min(fitting or orders, key=lambda order: len(_different(now, order.state)))
        which = _different(now, _at_once_written(near.state))
        return f"no order with success {succeeded} gives these files: {which[:9]} differ"
    for path in found:
        if Path(path).name in _LATER and Path(path).name != "manifest.json":
            # Such a file may be of another moment, but not of another run.
            beside = str(Path(path).with_name("predictions.csv"))
            runs = [order.state for order in orders if order.state.get(beside) == found.get(beside)]
            if found[path] not in {known.get(path) for known in runs}:
                return f"{path}: not whole, or of another run than the one that it is in"
    if found.keys() not in [order.state.keys() for order in same]:
        which = sorted(found.keys() ^ same[0].state.keys())
        return f"no order with success {succeeded} gives these files: {which} more or less"
    return ""


def _without_kept_run(found: State, before: State) -> State:
    """Leave out the run that was there before, if it is kept because it was under review."""
    kept = {path: digest for path, digest in found.items() if path.startswith(_KEPT_RUN)}
    own = {path.removeprefix(_KEPT_RUN): digest for path, digest in kept.items()}
    earlier = {path[4:]: digest for path, digest in before.items() if path.startswith("run/")}
    if not kept or _at_once_written(own) != _at_once_written(earlier):
        return found
    return {path: digest for path, digest in found.items() if path not in kept}


def _at_once_written(files: State) -> State:
    return {path: digest for path, digest in files.items() if Path(path).name not in _LATER}


def _different(one: State, other: State) -> list[str]:
    return sorted(path for path in one | other if one.get(path) != other.get(path))


def broken_manifest(place: Path) -> str:
    """Return which file of a run its manifest does not list, or lists wrongly, or ""."""
    for manifest in place.rglob("manifest.json"):
        if ".unfinished" in str(manifest):
            continue
        listed = json.loads(manifest.read_text())["files"]
        there = {path.name: path for path in manifest.parent.iterdir() if path.is_file()}
        for name in sorted((there.keys() | listed) - set(_NOT_LISTED)):
            if name.startswith("."):
                continue
            content = there[name].read_bytes() if name in there else b""
            right = f"{len(content)}:{hashlib.sha256(content).hexdigest()}"
            if name not in there or listed.get(name) != right:
                path = manifest.with_name(name).relative_to(place)
                return f"{path}: listed {listed.get(name)}, is {name in there and right}"
    return ""


def left_behind(place: Path, scene: Path) -> str:
    """Return what a writer left behind, or ""; the scene itself has some of a killed one."""
    marks = (".partial", ".replaced", ".scratch")
    paths = (path for path in place.rglob(".*") if any(mark in path.name for mark in marks))
    names = [path.relative_to(place) for path in paths]
    left = sorted(str(name) for name in names if not (scene / name).exists())
    return f"left behind {left[:5]}" if left else ""


@cache
def one_after_the_other(scene: Path, place: Path, name: str) -> tuple[list[Order], float]:
    """Run two commands in both orders, each alone, and none; and the seconds of the first."""
    pair, orders, seconds = PAIRS[name], list[Order](), 0.0
    for places in ((), (0,), (1,), (0, 1), (1, 0)):
        _prepare(scene, place)
        succeeded = [False, False]
        for which in places:
            began = time.monotonic()
            ((ended, is_done),) = _carried_out(pair, (which,), place, 0)
            seconds = seconds or time.monotonic() - began
            if fault := ended.fault():
                raise RuntimeError(f"{ended.command}, alone: {fault}")
            succeeded[which] = is_done
        orders.append(Order((succeeded[0], succeeded[1]), state(place)))
    return orders, seconds


def state(place: Path) -> State:
    """Return digests of all files but inputs, without what is never the same twice."""
    found = {}
    for path in sorted(place.rglob("*")):
        name = str(path.relative_to(place))
        is_input = name.startswith(("tables/", "images/", "out/cache/", "cache/", "grid/"))
        if not path.is_file() or is_input or "lock" in path.name or ".unfinished/" in name:
            continue
        content = path.read_bytes()
        if path.suffix in _TEXTS:
            content = _VARYING.sub("#", content.decode("utf-8", "replace")).encode()
        if path.name == "manifest.json":
            content = json.dumps(sorted(json.loads(path.read_bytes())["files"])).encode()
        if path.name in ("environment.json", "history.jsonl"):
            content = b""  # Memory and times.
        found[name] = hashlib.sha256(content).hexdigest()
    return found


def _carried_out(
    pair: tuple[str, str], which: tuple[int, ...], place: Path, wait: float
) -> list[tuple[Ended, bool]]:
    """Run one or both beside each other; of a review, success is a decision that was saved."""
    running, saved, decided = dict[int, Running](), set[int](), set[int]()
    started = time.monotonic()
    while time.monotonic() < started + 120:
        if len(running) < len(which) and time.monotonic() >= started + wait * len(running):
            number = which[len(running)]
            running[number] = Running(pair[number], place, name=f"-{number}")
        for number, process in running.items():
            if process.is_served and number not in decided and process.is_alive:
                decided.add(number)
                if decide(process.out, 3 + number, "newt"):
                    saved.add(number)
                process.interrupt()
        if len(running) == len(which) and not any(p.is_alive for p in running.values()):
            break
        time.sleep(0.005)
    ends = []
    for number, process in running.items():
        ended = process.ended(1)
        is_saved = number in saved or not ended.command.startswith("review")
        ends.append((ended, ended.code == 0 and is_saved))
    return ends


def _prepare(scene: Path, place: Path) -> None:
    """Copy the scene, with another run and other true labels."""
    copy(scene, place)
    truth = (place / "tables/truth.csv").read_text()
    (place / "tables/other-truth.csv").write_text(truth.replace("target-0,ant", "target-0,dog"))
    shutil.copytree(_other_run(scene, place), place / "other")


@cache
def _other_run(scene: Path, place: Path) -> Path:
    workshop = place.with_name("workshop")
    copy(scene, workshop)
    ended = run(f"{FIT} out/other --openness 0.5", workshop, 120)
    if ended.code:
        raise RuntimeError(f"{ended}")
    return workshop / "out/other"
