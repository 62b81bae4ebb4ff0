"""`faults`: one of two processes is killed; the other ends soon, or torchrun starts both anew."""

from __future__ import annotations

import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from scaling_identical import same_files
from scaling_tools import (
    RESULTS,
    Options,
    draw_domains,
    environment,
    launcher,
    osda,
    print_bar,
    print_table,
    write_tables,
)

LIMIT = 60.0
# When it is killed: before the processes have found each other, before the first checkpoint,
# and after it.
MOMENTS = ("starting", "before a checkpoint", "after a checkpoint")
COMPARED = ("predictions.parquet", "predictions.csv", "model.safetensors", "steps.parquet")


def measure(options: Options) -> dict[str, Any]:
    """Kill, many times without a restart and many times with one."""
    place = options.folder
    write_tables(place, *draw_domains(1000, 3000, 10, 64, 10, noise=1.5))
    osda(place, *_fit("undisturbed", options), processes=2)
    times = options.choose(options.times, min(options.times, 3))
    rng = np.random.default_rng(0)
    killed = [_kill_once(place, number, 0, rng, options) for number in range(times)]
    again = [_kill_once(place, number, 1, rng, options) for number in range(times)]
    _print(killed, again)
    seconds = [row["seconds"] for row in killed]
    met = all(row["good"] for row in killed + again)
    print_bar(
        f"the other process and torchrun end within {LIMIT:.0f} s, exit code not 0, one line "
        "'error:' (torchrun's own while Python starts); with a restart the run completes, with "
        "the bytes of an undisturbed run",
        met,
    )
    return {
        "seconds": {
            "min": min(seconds),
            "median": statistics.median(seconds),
            "max": max(seconds),
        },
        "failures": sum(not row["good"] for row in killed + again),
        "without_restart": killed,
        "with_restart": again,
        "met": met,
    }


def _fit(out: str, options: Options) -> list[str]:
    return [
        *("fit", "source.npz", "target.npz", "--out", out, "--no-report", "--quiet"),
        *("--checkpoint-every", "1", "--set", f"steps={options.choose(5, 3)}"),
        *("--set", f"optimiser.iterations_per_epoch={options.choose(400, 200)}"),
        *("--set", "losses.edge=1"),
    ]


def _kill_once(
    place: Path, number: int, restarts: int, rng: np.random.Generator, options: Options
) -> dict[str, Any]:
    """Start, kill rank 0 or 1 at a random moment, and see what becomes of the rest."""
    out, moment, rank = "run", MOMENTS[number % len(MOMENTS)], number // len(MOMENTS) % 2
    for left in (place / out, place / f"{out}.unfinished"):
        shutil.rmtree(left, ignore_errors=True)
    errors = place / "stderr"
    command = [*launcher(2, restarts), "-m", "opensetda", *_fit(out, options)]
    with errors.open("w") as stderr, (place / "stdout").open("w") as stdout:
        launched = subprocess.Popen(
            command, cwd=place, env=environment(), stdout=stdout, stderr=stderr
        )
        waited = _wait_for(moment, launched, place / f"{out}.unfinished", rng)
        ranks = _ranks(launched.pid)
        hit = rank in ranks
        if hit:
            ranks[rank].send_signal(signal.SIGKILL)
        started = time.perf_counter()
        code = _ended(launched, 600.0)
        while any(_lives(process) for process in ranks.values()):
            time.sleep(0.01)
        seconds = time.perf_counter() - started
    text = errors.read_text(errors="replace")
    lines = [line for line in text.splitlines() if line.startswith("error:")]
    row = {
        "restarts": restarts,
        "moment": moment,
        "rank": rank,
        "waited": waited,
        "hit": hit,
        "code": code,
        "seconds": seconds,
        "error_lines": lines,
    }
    if restarts:
        row["same"] = [same_files(place / "undisturbed" / n, place / out / n) for n in COMPARED]
        row["good"] = hit and code == 0 and set(row["same"]) == {"bytes"}
    else:
        # While Python starts, nothing of ours runs that could say a line: torchrun speaks.
        spoke = len(lines) == 1 or (moment == "starting" and not lines)
        row["good"] = hit and code != 0 and seconds < LIMIT and spoke
    if not row["good"]:
        RESULTS.mkdir(exist_ok=True)
        saved = RESULTS / f"scaling-fault-{restarts}-{number:02d}.txt"
        saved.write_text(text)
        row["stderr"] = saved.name
    return row


def _wait_for(
    moment: str, launched: subprocess.Popen[bytes], unfinished: Path, rng: np.random.Generator
) -> float:
    """Wait for the moment, and some more at random; returns the seconds since both were there."""
    _until(launched, lambda: len(_ranks(launched.pid)) == 2)
    started = time.perf_counter()
    if moment == "starting":
        time.sleep(rng.uniform(0, 1.0))
    elif moment == "before a checkpoint":
        # Data are read next; in the first step there is no training.
        _until(launched, lambda: (unfinished / "request.json").exists())
        time.sleep(rng.uniform(0, 0.3))
    else:
        _until(launched, lambda: any((unfinished / "checkpoints").glob("*")))
        time.sleep(rng.uniform(0, 3.0))
    return time.perf_counter() - started


def _until(launched: subprocess.Popen[bytes], done: Callable[[], bool]) -> None:
    while launched.poll() is None and not done():
        time.sleep(0.005)


def _ranks(launcher_pid: int) -> dict[int, psutil.Process]:
    """Return torchrun's children by rank, as their environment has it."""
    found = {}
    try:
        for process in psutil.Process(launcher_pid).children():
            try:
                if "opensetda" in process.cmdline():
                    found[int(process.environ()["RANK"])] = process
            except (psutil.Error, KeyError):
                continue
    except psutil.Error:
        pass
    return found


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _ended(launched: subprocess.Popen[bytes], patience: float) -> int | None:
    """Wait for the end; None if it does not come, then all are killed."""
    try:
        return launched.wait(patience)
    except subprocess.TimeoutExpired:
        for process in _ranks(launched.pid).values():
            process.kill()
        launched.kill()
        launched.wait()
        return None


def _print(killed: list[dict[str, Any]], again: list[dict[str, Any]]) -> None:
    rows = []
    for runs, what in ((killed, "none"), (again, "one")):
        for moment in MOMENTS:
            some = [row for row in runs if row["moment"] == moment]
            if some:
                seconds = [row["seconds"] for row in some]
                rows.append(
                    [
                        what,
                        moment,
                        len(some),
                        *(min(seconds), statistics.median(seconds), max(seconds)),
                        sum(not row["good"] for row in some),
                    ]
                )
    print_table(("restarts", "killed", "times", "min, s", "median, s", "max, s", "failures"), rows)
    for row in killed + again:
        if not row["good"]:
            print(f"  failure: {row}")
