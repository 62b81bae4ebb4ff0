"""`kills`: kill -9 at random moments, then resume or run again: the same bytes, and nothing left.

Half of the moments are uniform over the duration of an undisturbed command, imports not counted;
the others are while a file is being written. Of the review, 1,000 decisions come from two clients
at once while its process is killed 50 times.
"""

from __future__ import annotations

import csv
import http.client
import json
import os
import random
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from robustness_commands import in_scene, run
from robustness_outcomes import CLEAN, FOREIGN, OK, UNNAMED, Outcome, Work, run_cases
from robustness_scene import TRAINED, benchmark, copy_tree, fit_images

_TABLES = ("fit", "tables/source.csv", "tables/target.csv", "--id-column", "id", "--out", "out/run")
_TUNING = ("--finetune", "last", "--set", "finetune.rounds=2", "--set", "finetune.iterations=2",
           "--quiet", "--no-report")  # fmt: skip
# Decisions have the time of day, to the second.
_TIMED = (
    "report.html",
    "history.jsonl",
    "review.jsonl",
    "corrections.csv",
    "table.md",
)
RANDOM = re.compile(r"[0-9a-f]{8,}")


@dataclass(frozen=True)
class Killed:
    """A command that is killed; `begun` are folders that it finds in out/, `again` its rerun."""

    arguments: tuple[str, ...]
    begun: tuple[str, ...] = ()
    again: tuple[str, ...] = ("--overwrite",)
    can_resume: bool = False


def _images(*more: str) -> tuple[str, ...]:
    return (*fit_images("out/run")[:7], "--cache", "out/cache", *more)


COMMANDS: dict[str, Killed] = {
    "fit of tables": Killed((*_TABLES, *TRAINED, "--quiet"), can_resume=True),
    "fit of images": Killed(_images(*TRAINED, "--quiet"), can_resume=True),
    "fit --finetune": Killed(_images(*_TUNING), can_resume=True),
    "features": Killed(("features", "images/street", "--out", "out/f.npz", "--cache", "out/cache",
                        "--image-size", "32")),
    "predict": Killed(("predict", "out/run", "tables/target.csv", "--out", "out/p.csv"), ("run",)),
    "predict of images": Killed(("predict", "out/pictures-run", "images/street",
                                 "--out", "out/p.parquet"), ("pictures-run",)),
    "evaluate": Killed(("evaluate", "out/run", "--labels", "tables/truth.csv",
                        "--label-column", "y"), ("run",), ()),
    "benchmark": Killed(tuple(benchmark("out/grid")), (), ()),
    "report": Killed(("report", "out/pictures-run"), ("pictures-run",), ()),
}  # fmt: skip
REVIEW, DECISIONS, REVIEW_KILLS = "review", 1000, 50


def kills(
    scene: Path, place: Path, wanted: Sequence[str], count: int, only: str | None = None
) -> list[Outcome]:
    """Kill each command `count` times; two commands are at work at once."""
    names = [n for n in (*COMMANDS, REVIEW) if not wanted or n.startswith(tuple(wanted))]
    cases = [(name, number) for name in names for number in range(1 if name == REVIEW else count)]
    # A worker takes every other case: by command, so that it runs each undisturbed only once.
    cases.sort(key=lambda case: (case[1], names.index(case[0])))
    cases = [case for case in cases if only in (None, f"{case[0]}:{case[1]}")]
    undisturbed: dict[str, tuple[dict[str, bytes], set[str], float]] = {}

    def prepare(number: int) -> Work:
        here = in_scene(scene, place, number)

        def work(case: tuple[str, int]) -> Outcome:
            name = case[0]
            if name == REVIEW:
                return _killed_review(here)
            if name not in undisturbed:
                undisturbed[name] = _undisturbed(COMMANDS[name], here, scene)
            return _killed(name, case[1], here, scene, *undisturbed[name])

        return work

    def blank(case: tuple[str, int]) -> Outcome:
        return Outcome(case[0], f"{case[0]}:{case[1]}", OK)

    return run_cases(cases, prepare, blank, 2, 400)


def make_fresh(command: Killed, scene: Path) -> None:
    """Empty the output and the temporary folder, and put in what the command finds there."""
    for folder in ("out", os.environ["TMPDIR"]):
        shutil.rmtree(folder, ignore_errors=True)
        Path(folder).mkdir()
    for name in command.begun:
        copy_tree(scene / name, Path("out") / name)


def files_there() -> dict[str, bytes]:
    """Return all files of the output and the temporary folder.

    Not SQLite's: its bytes depend on the order of the inserts, and it recovers from its journal.
    """
    places = (Path("out"), Path(os.environ["TMPDIR"]))
    return {str(path): path.read_bytes() for place in places for path in place.rglob("*")
            if path.is_file() and ".sqlite3" not in path.name}  # fmt: skip


def equal_files(first: dict[str, bytes], second: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files that are equal in two runs; times, rounded, may be so by chance."""
    return {name: data for name, data in first.items()
            if second.get(name) == data and not name.endswith(_TIMED)}  # fmt: skip


def _undisturbed(
    command: Killed, here: Path, scene: Path
) -> tuple[dict[str, bytes], set[str], float]:
    """Return the files that are equal in two runs, the names of all, and the seconds."""
    found, seconds = [], 0.0
    for _ in range(2):
        make_fresh(command, scene)
        ended = run(command.arguments, here, 300)
        if ended.code:
            raise RuntimeError(f"{command.arguments}: {ended.errors}")
        found.append(files_there())
        seconds = ended.seconds
    return (
        equal_files(*found),
        {RANDOM.sub("#", name) for files in found for name in files},
        seconds,
    )


def _nothing_yet() -> bool:
    return False


def _at_partial(n: int) -> Callable[[], bool]:
    """Return whether the n-th partial file has appeared."""
    seen: set[str] = set()

    def is_time() -> bool:
        for place, _, names in os.walk("out"):
            seen.update(f"{place}/{name}" for name in names if ".partial" in f"{place}/{name}")
        return len(seen) >= n

    return is_time


def _killed(
    name: str,
    number: int,
    here: Path,
    scene: Path,
    same: dict[str, bytes],
    names: set[str],
    seconds: float,
) -> Outcome:
    command, rng = COMMANDS[name], random.Random(f"{name}:{number}")
    make_fresh(command, scene)
    moment, is_time = rng.uniform(0, seconds), _nothing_yet
    said, next_one = f"killed after {moment:.2f} of {seconds:.2f} s", command.arguments
    if number % 2:
        # Files are written in a small part of the time.
        moment, is_time = 300.0, _at_partial(rng.randrange(1, 5))
        said = "killed while a file was being written"
    first = run(command.arguments, here, moment, is_time)
    if command.can_resume and Path("out/run.unfinished/request.json").exists():
        next_one = ("resume", "out/run", "--quiet")
    else:
        next_one = (*command.arguments, *command.again)
    second = run(next_one, here, 300)
    said += f", then {next_one[0]}{'' if first.code is None else ' (it was done before)'}"
    found = files_there()
    differ = [path for path, data in same.items() if found.get(path) != data]
    left = [path for path in found if RANDOM.sub("#", path) not in names]
    case = f"{name}:{number}"
    if second.code:
        line = " ".join(second.error_lines[-1:])
        return Outcome(name, case, FOREIGN, said, f"{name}: the next command fails", line)
    if differ:
        return Outcome(name, case, UNNAMED, said, f"{name}: other bytes", str(differ)[:300])
    if left:
        shown = RANDOM.sub("#", left[0])
        return Outcome(name, case, UNNAMED, said, f"{name}: left behind {shown}", str(left)[:300])
    return Outcome(name, case, CLEAN if first.code is None else OK, said)


# The review ------------------------------------------------------------------------------------


class Served:
    """`osda review` in a fork of this process."""

    def __init__(self, folder: Path) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.dup2(writing, 1)
                os.dup2(os.open("review-errors", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
                sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
                from opensetda.cli.main import main

                os._exit(main(["review", str(folder), "--no-browser"]))
            finally:
                os._exit(97)
        os.close(writing)
        with os.fdopen(reading) as stream:
            self.address = urlsplit(stream.readline().strip())
        self.token = parse_qs(self.address.query)["token"][0]

    def post(self, path: str, body: object) -> int:
        """Post as the page does; return the status."""
        assert self.address.port is not None
        connection = http.client.HTTPConnection("127.0.0.1", self.address.port, timeout=20)
        host = f"127.0.0.1:{self.address.port}"
        headers = {"Host": host, "Origin": f"http://{host}", "X-Review-Token": self.token,
                   "Content-Type": "application/json"}  # fmt: skip
        try:
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()

    def end(self, number: int = signal.SIGKILL) -> None:
        """Send a signal and wait."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)
        os.waitpid(self.pid, 0)


def _killed_review(here: Path) -> Outcome:
    folder, rng = here / "run", random.Random(0)
    for name in ("review.jsonl", "corrections.csv"):
        (folder / name).unlink(missing_ok=True)
    saved: list[str] = []
    numbers, n_kills = iter(range(10**9)), 0
    while n_kills < REVIEW_KILLS or len(saved) < DECISIONS:
        served = Served(folder)
        until = len(saved) + rng.randrange(1, 2 * DECISIONS // REVIEW_KILLS)
        tabs = [threading.Thread(target=_click, args=(served, numbers, saved)) for _ in range(2)]
        for tab in tabs:
            tab.start()
        while len(saved) < until and any(tab.is_alive() for tab in tabs):
            time.sleep(0.0005)
        time.sleep(rng.uniform(0, 0.01))
        served.end()
        n_kills += 1
        for tab in tabs:
            tab.join()
    served = Served(folder)
    served.end(signal.SIGINT)
    said = f"{len(saved)} decisions saved, {n_kills} kills, 2 clients"
    return _compare(folder, saved, said)


def _compare(folder: Path, saved: list[str], said: str) -> Outcome:
    lines = [json.loads(line) for line in (folder / "review.jsonl").read_text().splitlines()[1:]]
    written = {line["label"] for line in lines}
    lost = [label for label in saved if label not in written]
    if lost:
        return Outcome(REVIEW, "review:0", FOREIGN, said, "review: lost", f"{len(lost)} decisions")
    latest = {row: line["label"] for line in lines for row in line["rows"]}
    with (folder / "corrections.csv").open(newline="") as stream:
        table = sorted(row["label"] for row in csv.DictReader(stream))
    if table != sorted(latest.values()):
        return Outcome(REVIEW, "review:0", FOREIGN, said, "review: the table is out of date")
    left = [path.name for path in folder.iterdir() if ".partial" in path.name]
    if left:
        return Outcome(REVIEW, "review:0", UNNAMED, said, "review: left behind", str(left))
    return Outcome(REVIEW, "review:0", CLEAN, said)


def _click(served: Served, numbers: Iterator[int], saved: list[str]) -> None:
    """Decide as fast as answers come, until nobody answers."""
    rng = random.Random(id(served))
    with suppress(OSError, http.client.HTTPException):
        for number in numbers:
            label = f"class {number}"
            asked = {"list": "border", "row": rng.randrange(32), "label": label}
            if served.post("/api/decide", asked) == 200:
                saved.append(label)
