"""Attack the commands: mutated files of every kind, kill -9 at any moment, a disk that is full.

    python tests/robustness/run.py --count 20000 --kills 5 --every 10    # hours on two cores
    python tests/robustness/run.py --attacks fuzz --only tables/source.csv:17

Every command ends with success or with one line that names the file; nothing hangs, and nothing is
lost, half-written or left behind. Needs Linux, and a C compiler for full disks.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # Before torch is imported: what is forked has no threads.

from attacks import ATTACKS, DISK, FUZZ, INTERRUPTED, KILLS, OF_TABLES, REVIEW, count_writes, kinds
from commands import import_everything
from scene import make_scene

Case = tuple[str, str, int]


def load_faults() -> None:
    """Start this program again with the library of full disks, if there is a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler and "LD_PRELOAD" not in os.environ:
        library = Path(tempfile.mkdtemp()) / "faults.so"
        source = Path(__file__).parent / "faults.c"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        os.environ["LD_PRELOAD"] = str(library)
        os.execv(sys.executable, [sys.executable, *sys.argv])


def start(folder: Path) -> None:
    """Give a worker folders of its own."""
    for name in ("HOME", "TMPDIR", "OSDA_CACHE", "XDG_CACHE_HOME"):
        place = folder / str(os.getpid()) / name
        place.mkdir(parents=True)
        os.environ[name] = str(place)
    tempfile.tempdir = os.environ["TMPDIR"]


def attack(scene: Path, case: Case) -> tuple[Case, str]:
    """Do one case in a worker, and return its finding."""
    place = scene.parent / str(os.getpid()) / "scene"
    return case, ATTACKS[case[0]](scene, place, *case[1:])


def cases(given: argparse.Namespace, scene: Path, pool: Any) -> Iterator[Case]:
    """Yield attack, file or command, and number."""
    names = OF_TABLES if given.small else tuple(INTERRUPTED)
    if given.only:
        name, _, number = given.only.rpartition(":")
        yield given.attacks[0], name, int(number)
        return
    if FUZZ in given.attacks:
        files = list(kinds(scene))
        yield from ((FUZZ, files[n % len(files)], n // len(files)) for n in range(given.count))
    if KILLS in given.attacks:
        yield KILLS, REVIEW, 4 * given.kills
        yield from ((KILLS, name, number) for name in names for number in range(given.kills))
    for name in names if DISK in given.attacks and "LD_PRELOAD" in os.environ else ():
        n_writes = pool.apply(count_writes, (scene, scene.with_name("counted"), name))
        yield from ((DISK, name, number) for number in range(1, n_writes + 1, given.every))


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
    load_faults()
    import_everything()
    with tempfile.TemporaryDirectory() as name:
        scene = Path(name) / "scene"
        fork = multiprocessing.get_context("fork")
        made = fork.Process(target=make_scene, args=(scene, given.small))
        made.start()
        made.join()
        with fork.Pool(2, start, [Path(name)]) as pool:
            jobs = [pool.apply_async(attack, (scene, case)) for case in cases(given, scene, pool)]
            done = [job.get() for job in jobs]
    counts = Counter(case[0] for case, fault in done if fault)
    for attacked, n in Counter(case[0] for case, _ in done).items():
        print(f"{attacked}: {n:,} cases, {counts[attacked]} findings")
    for (attacked, name, number), fault in [line for line in done if line[1]][:60]:
        print(f"\n--attacks {attacked} --only '{name}:{number}'\n  {fault}")
    return int(bool(counts) or made.exitcode != 0)


if __name__ == "__main__":
    sys.exit(main())
