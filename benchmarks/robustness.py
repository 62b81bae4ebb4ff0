"""Attack the program: fuzzed files, damaged runs, kills, failing disks, and what it writes where.

    python benchmarks/robustness.py fuzz                # 100,000 files, in process: 40 minutes
    python benchmarks/robustness.py fuzz --only csv:17  # one case again
    python benchmarks/robustness.py commands            # 2,000 files given to commands: 20 minutes
    python benchmarks/robustness.py folders             # every file of runs, damaged: 50 minutes
    python benchmarks/robustness.py folders --resealed  # ... with checksums that are right again
    python benchmarks/robustness.py kills               # kill -9, 20 moments a command: 30 minutes
    python benchmarks/robustness.py faults              # every write fails once: 40 minutes
    python benchmarks/robustness.py audit               # what is written where: 3 minutes
    python benchmarks/robustness.py small               # a part of 'fuzz', as in the tests
    python benchmarks/robustness.py all

Prints one row per kind of input or command and one column per class of outcome, then one example of
each finding and how to see it again. Exit code 1 if anything is found. Needs Linux; faults and
audit need a C compiler, a full disk needs root. Times are of two cores that do nothing else.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

# Before torch is imported: forked processes must find no threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import robustness_audit as of_audit
import robustness_commands as of_commands
import robustness_faults as of_faults
import robustness_folders as of_folders
import robustness_fuzz as of_fuzz
import robustness_kills as of_kills
from robustness_kinds import SPECIAL, kinds
from robustness_outcomes import HANG_SECONDS, Outcome, as_records, print_outcomes
from robustness_readers import SLOW
from robustness_scene import alone, make_scene

RESULTS = Path(__file__).parent / "results"

Given = argparse.Namespace
Part = Callable[[Given, Path, Path], list[Outcome]]


def _fuzz(given: Given, scene: Path, place: Path) -> list[Outcome]:
    wanted = of_fuzz.choose(scene, given.count or 100_000, given.kinds, given.first)
    cases = [of_fuzz.parse(given.only)] if given.only else wanted
    return of_fuzz.fuzz(scene, place, cases, seconds=given.seconds)


def _small(given: Given, scene: Path, place: Path) -> list[Outcome]:
    special = [list(SPECIAL).index(name) for name in ("missing", "folder", "fifo", "zero")]
    first, cases = len(SPECIAL), []
    for name, kind in kinds(scene).items():
        # The files of a run have several readers, which take longer.
        many = 6 if kind.folder in ("run", "left.unfinished") else 20
        cases += [(name, number) for number in (*special, *range(first, first + many))]
    cases += [(name, SLOW) for name in kinds(scene) if name.endswith(("s.json", "t.safetensors"))]
    cases = [of_fuzz.parse(given.only)] if given.only else cases
    return of_fuzz.fuzz(scene, place, cases, seconds=given.seconds)


def _commands(given: Given, scene: Path, place: Path) -> list[Outcome]:
    wanted = of_fuzz.choose(scene, given.count or 2_000, given.kinds, given.first)
    cases = [of_fuzz.parse(given.only)] if given.only else wanted
    return of_commands.commands(scene, place, cases, seconds=given.seconds)


def _folders(given: Given, scene: Path, place: Path) -> list[Outcome]:
    cases = of_folders.cases(scene, given.kinds or of_folders.FOLDERS, given.every)
    cases = [of_folders.parse(given.only)] if given.only else cases
    return of_folders.folders(scene, place, cases, given.resealed, seconds=given.seconds)


def _kills(given: Given, scene: Path, place: Path) -> list[Outcome]:
    return of_kills.kills(scene, place, given.kinds, given.count or 20, given.only)


def _faults(given: Given, scene: Path, place: Path) -> list[Outcome]:
    return of_faults.faults(scene, place, given.kinds, given.every, given.only)


def _audit(given: Given, scene: Path, place: Path) -> list[Outcome]:
    return of_audit.audit(scene, place, given.only)


PARTS: dict[str, Part] = {
    "small": _small,
    "fuzz": _fuzz,
    "commands": _commands,
    "folders": _folders,
    "kills": _kills,
    "faults": _faults,
    "audit": _audit,
}


def main() -> None:
    """Run the parts asked for; exit code 1 if there is a finding."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=[*PARTS, "all"])
    parser.add_argument("--count", type=int, help="cases in all; of 'kills', kills per command")
    parser.add_argument("--only", metavar="CASE", help="one case, as a finding names it")
    parser.add_argument("--kinds", nargs="*", default=[], help="beginnings of names in the table")
    parser.add_argument("--first", type=int, default=0, help="number of the first case of a kind")
    parser.add_argument("--every", type=int, default=1, help="of 'folders', 'faults': every n-th")
    parser.add_argument("--resealed", action="store_true", help="make checksums right again")
    parser.add_argument("--seconds", type=float, default=HANG_SECONDS, help="until it is a hang")
    parser.add_argument("--scene", type=Path, help="folder of the valid files, made if missing")
    given = parser.parse_args()
    good, is_small = True, given.part == "small"
    of_fuzz.import_everything(is_small)
    with tempfile.TemporaryDirectory() as name:
        scene = (given.scene or Path(name) / "scene").absolute()
        if not scene.exists():
            # In a process of its own: what it starts must not be in those that are forked.
            made = multiprocessing.get_context("fork").Process(target=_make, args=(scene, is_small))
            made.start()
            made.join()
            if made.exitcode:
                sys.exit("error: the valid files cannot be made")
        for part in list(PARTS)[1:] if given.part == "all" else [given.part]:
            print(f"\n{part}", flush=True)
            place = Path(name) / part
            place.mkdir()
            outcomes = PARTS[part](given, scene, place)
            again = f"python benchmarks/robustness.py {part} --only '{{}}'"
            good &= print_outcomes(outcomes, again)
            if part != "small":
                RESULTS.mkdir(exist_ok=True)
                file = RESULTS / f"robustness-{part}.json"
                file.write_text(json.dumps(as_records(outcomes), indent=1) + "\n")
    sys.exit(not good)


def _make(scene: Path, small: bool) -> None:
    with alone(scene / "alone"):
        make_scene(scene, small)


if __name__ == "__main__":
    main()
