"""Attack the commands: mutated files, kill -9, full disks, planted links, others at the same time.

    python tests/robustness/run.py --count 20000 --kills 10 --every 10    # hours on two cores
    python tests/robustness/run.py --attacks fuzz --only tables/source.csv:17

Every command ends with success or with one line that names the file; nothing hangs, and nothing is
lost, half-written or left behind; nothing is written through a link. Progress and findings are
shown on stderr. Needs Linux, and a C compiler for full disks and links.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from functools import partial
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # Before torch is imported: what is forked has no threads.

import fuzzing
import interrupting
import links
import overwrites
import pairs
from commands import FORK
from scene import make_scene

Case = tuple[str, str, int]
Finding = tuple[Case, str]
# Each returns what is wrong, or ""; that of links None once there are no more.
ATTACKS: dict[str, Callable[[Path, Path, str, int], str | None]] = {
    "fuzz": fuzzing.mutated,
    "kills": interrupting.killed,
    "disk": interrupting.full_disk,
    "links": links.planted,
    "pairs": pairs.at_once,
    "overwrites": overwrites.overwritten,
}
_NEEDS_LIBRARY = ("disk", "links")
# Shared with the workers, which are forked: cases that are done, and findings.
_N_DONE, _N_FOUND = FORK.Value("q", 0), FORK.Value("q", 0)


def start(folder: Path) -> None:
    """Give a worker folders of its own."""
    for name in ("HOME", "TMPDIR", "OSDA_CACHE", "XDG_CACHE_HOME"):
        place = folder / str(os.getpid()) / name
        place.mkdir(parents=True)
        os.environ[name] = str(place)
    tempfile.tempdir = os.environ["TMPDIR"]


def attack(scene: Path, given: argparse.Namespace, case: Case) -> list[Finding]:
    """Do a case in a worker; of full disks and links also the later ones, until there are none."""
    done, (attacked, name, number) = list[Finding](), case
    place = scene.parent / str(os.getpid()) / "scene"
    while True:
        is_broken = False
        try:
            fault = ATTACKS[attacked](scene, place, name, number)
        except Exception as error:
            # The others go on; this one has to be looked at.
            is_broken, fault = True, f"the harness itself: {type(error).__name__}: {error}"[:2000]
        if fault is None:
            return done
        done.append(((attacked, name, number), fault))
        with _N_DONE.get_lock():
            _N_DONE.value += 1
        if fault:
            with _N_FOUND.get_lock():
                _N_FOUND.value += 1
            tell(f"\n--attacks {attacked} --only '{name}:{number}'\n  {fault}")
        if given.only or is_broken or attacked not in _NEEDS_LIBRARY:
            return done
        if attacked == "disk":
            if not given.every or interrupting.n_writes().value < number:
                return done
            number += given.every
        else:
            number += given.step


def cases(given: argparse.Namespace, scene: Path) -> Iterator[Case]:
    """Yield attack, file or command, and number."""
    if given.only:
        name, _, number = given.only.rpartition(":")
        yield given.attacks[0], name, int(number)
        return
    small, asked = given.small, given.attacks
    if "LD_PRELOAD" not in os.environ:
        asked = [name for name in asked if name not in _NEEDS_LIBRARY]
    commands = interrupting.SMALL if small else tuple(interrupting.INTERRUPTED)
    linked = links.SMALL if small else (links.STRANGER, *links.COMMANDS)
    paired = pairs.SMALL if small else tuple(pairs.PAIRS)
    if "links" in asked:
        # Those that take longest come last in the list, and first to the workers.
        yield from (("links", name, 0) for name in reversed(linked))
    if "pairs" in asked:
        for number in range(given.pairs):
            yield "pairs", paired[number % len(paired)], number // len(paired)
    if "overwrites" in asked:
        yield from (("overwrites", overwrites.OVERWRITE, n) for n in range(given.overwrites))
    if "kills" in asked:
        yield "kills", interrupting.REVIEW, 4 * given.kills
        yield from (("kills", name, number) for name in commands for number in range(given.kills))
    if "disk" in asked:
        yield from (("disk", name, 1) for name in commands)
    if "fuzz" in asked:
        yield from (("fuzz", *mutation) for mutation in fuzzing.mutations(scene, given.count))


def tell(text: str) -> None:
    """Write to stderr at once, in one piece: several processes do."""
    os.write(2, f"{text}\n".encode(errors="backslashreplace"))


def carry_out(folder: Path, given: argparse.Namespace) -> list[Finding]:
    """Do all cases on two workers, and say every few seconds how far they are."""
    scene, began, told = folder / "scene", time.monotonic(), 0.0
    make_scene(scene, given.small)
    planned, done = list(cases(given, scene)), list[Finding]()
    # Those that end with a worker's last case are counted when they are done.
    at_least = len(planned)
    # Not a `Pool`, whose processes may have no children.
    with ProcessPoolExecutor(given.workers, FORK, start, [folder]) as pool:
        waiting = {pool.submit(partial(attack, scene, given), case) for case in planned}
        while waiting:
            ended, waiting = wait(waiting, timeout=given.seconds, return_when="FIRST_COMPLETED")
            done += [finding for future in ended for finding in future.result()]
            seconds = time.monotonic() - began
            if seconds - told >= given.seconds:
                told, n_done, n_found = seconds, _N_DONE.value, _N_FOUND.value
                rate = n_done / seconds
                more = f"at least {at_least:,}" if n_done > at_least else f"{at_least:,}"
                tell(f"{n_done:,} of {more} cases, {n_found} findings, {rate:.1f} per second")
    return done


def main() -> int:
    """Run the attacks asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--attacks", nargs="+", choices=ATTACKS, default=[*ATTACKS])
    add("--count", type=int, default=20_000, help="mutated files (default: 20000)")
    add("--kills", type=int, default=10, help="of each command (default: 10)")
    add("--every", type=int, default=10, help="n-th write of a command fails (default: 10)")
    add("--step", type=int, default=1, help="plant every n-th link only (default: 1)")
    add("--pairs", type=int, default=100, help="of commands at once (default: 100)")
    add("--overwrites", type=int, default=20, help="of a run under review (default: 20)")
    add("--workers", type=int, default=2, help="processes (default: 2)")
    add("--seconds", type=float, default=5, help="between two lines of progress (default: 5)")
    add("--small", action="store_true", help="tables only")
    add("--only", metavar="CASE", help="one case, as a finding names it")
    given = parser.parse_args()
    if (compiler := shutil.which("cc")) and "LD_PRELOAD" not in os.environ:
        # Start again, with a disk that can be full and a list of what is written.
        library, source = f"{tempfile.mkdtemp()}/faults.so", Path(__file__).with_name("faults.c")
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        os.environ["LD_PRELOAD"] = library
        os.execv(sys.executable, [sys.executable, *sys.argv])
    # Before processes are forked: it takes seconds.
    for home in ("runs", "pgl.estimator", "report.page", "review.session"):
        importlib.import_module(f"opensetda.{home}")
    importlib.import_module("opensetda.backbones.registry").import_timm()
    with tempfile.TemporaryDirectory() as name:
        done = carry_out(Path(name), given)
    findings = [line for line in done if line[1]]
    n_done, n_found = (Counter(case[0] for case, _ in lines) for lines in (done, findings))
    for attacked in given.attacks:
        print(f"{attacked}: {n_done[attacked]:,} cases, {n_found[attacked]} findings")
    for (attacked, name, number), fault in findings[:60]:
        print(f"\n--attacks {attacked} --only '{name}:{number}'\n  {fault}")
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
