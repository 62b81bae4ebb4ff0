"""A run is replaced while it is reviewed: no decision that was saved is lost."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

from commands import Ended, Running, decide, review, run
from pairs import broken_manifest, left_behind
from scene import FIT, copy

OVERWRITE = "fit --overwrite under a review"
REVIEW = "review run --no-browser"


def overwritten(scene: Path, place: Path, name: str, number: int) -> str:
    """Decide while a run is replaced, in a review from before and in one that begins meanwhile."""
    copy(scene, place)
    rng, saved = random.Random(f"{name}:{number}"), list[str]()
    began = time.monotonic()
    if run(f"{FIT} out/timed", place).code:
        raise RuntimeError("no run to take the time of")
    seconds = time.monotonic() - began
    # Of three: reviewed before it began (then it ends with a line), from the start, from a moment.
    moments = (rng.uniform(0, 1.2 * seconds), -1.0, rng.uniform(0.3, 1.1) * seconds)
    moment, share = moments[number % 3], (number % 3) / 2
    reviews = [Running(REVIEW, place, name="-review")] if moment < 0 else []
    if reviews:
        _wait_for(reviews[0])
    command = f"{FIT} run --overwrite --openness 0.{3 + number % 4}"
    fit, started = Running(command, place, name="-fit"), time.monotonic()
    first = rng.uniform(0, seconds)
    # Some more decisions after it has ended, by the review that is still open.
    more = rng.randrange(1, 4)
    while fit.is_alive or more > 0:
        more -= not fit.is_alive
        passed = time.monotonic() - started
        if not reviews and passed >= moment:
            reviews.append(Running(REVIEW, place, name="-review"))
            _wait_for(reviews[0])
        if reviews and reviews[0].is_served and (passed >= first or not fit.is_alive):
            label = f"class {rng.random()}"
            saved.extend([label] * decide(reviews[0].out, rng.randrange(32), label))
            time.sleep(rng.uniform(0, 0.05))
            if rng.random() < 0.05 * share:
                _ended(reviews.pop())
                moment = passed + rng.uniform(0, 0.3)
        time.sleep(0.005)
    ends = [fit.ended(60), *map(_ended, reviews)]
    label = f"class {rng.random()}"
    last, is_saved = review(REVIEW, place, label)
    saved.extend([label] * is_saved)
    faults = [ended.fault() for ended in (*ends, last)]
    return next(filter(None, faults), "") or lost(place, scene, saved, fit.ended(1).code)


def _wait_for(process: Running) -> None:
    until = time.monotonic() + 20
    while process.is_alive and not process.is_served and time.monotonic() < until:
        time.sleep(0.005)


def _ended(process: Running) -> Ended:
    if process.is_served:
        process.interrupt()
    return process.ended(20)


def lost(place: Path, scene: Path, saved: list[str], code: int | None) -> str:
    """Return which decisions are nowhere, or in a folder of another run, or ""."""
    logs = [*place.glob("run/review.jsonl"), *place.glob("run.reviewed*/review.jsonl")]
    texts = {log: log.read_text() for log in logs}
    missing = [label for label in saved if not any(label in text for text in texts.values())]
    names = [str(log.relative_to(place)) for log in logs]
    if missing:
        return f"{len(missing)} of {len(saved)} saved decisions are in none of {names}; fit: {code}"
    for log, text in texts.items():
        identity = json.loads(text.split("\n")[0])["identity"]
        if json.loads((log.parent / "settings.json").read_text())["identity"] != identity:
            return f"{log.relative_to(place)}: decisions about another run; fit: {code}"
        # Kept decisions can be looked at, and are those of the table.
        again = run(f"review {log.parent.relative_to(place)} --no-browser", place)
        if again.code:
            return f"{again.command}: {again.errors[-300:]!r}"
    return broken_manifest(place) or left_behind(place, scene)
