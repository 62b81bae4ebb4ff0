"""`faults`: every single write of a command fails once; full, read-only and vanishing folders.

`faults.c` counts the calls that write below the output, the cache and the temporary folder, then
each of them fails in turn with "no space left on device". Wanted is exit code 1 or 2 and one line
that names a path, or success: earlier files are whole, no partial file stays, and the next run
gives the bytes of an undisturbed one.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from opensetda.errors import InputError
from opensetda.runs.manifest import MANIFEST, Manifest
from robustness_commands import Ended, classify, decided, in_scene, run
from robustness_fuzz import import_everything
from robustness_kills import COMMANDS, RANDOM, Killed, equal_files, files_there, make_fresh
from robustness_outcomes import FOREIGN, UNNAMED, Outcome
from robustness_preload import Control, build
from robustness_scene import copy_tree

_REVIEW = Killed(("review", "out/run", "--no-browser"), ("run",), ())
NAMES = ("predict", "features", "fit of tables", "evaluate", "report", "fit of images", "review")
_ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS)


def faults(
    scene: Path, place: Path, wanted: Sequence[str], every: int, only: str | None
) -> list[Outcome]:
    """Start two processes that have the library; each takes every other call."""
    library = build(place)
    if library is None:
        print("faults: skipped, there is no C compiler")
        return []
    names = [name for name in NAMES if not wanted or name.startswith(tuple(wanted))]
    started = []
    for share in range(1 if only else 2):
        own = place / f"share-{share}"
        own.mkdir()
        control = Control(own / "control")
        watched = [own / "worker-0/scene/out", own / "worker-0/tmp"]
        environment = {**os.environ, **control.environment(library, own / "log", *watched)}
        task = {"scene": str(scene), "place": str(own), "names": names, "every": 2 * every,
                "first": share * every, "only": only}  # fmt: skip
        command = [sys.executable, __file__, json.dumps(task)]
        started.append((subprocess.Popen(command, env=environment), own / "outcomes.json"))
    outcomes = []
    for process, file in started:
        if process.wait():
            raise RuntimeError(f"{process.args}: exit code {process.returncode}")
        outcomes += [Outcome(**record) for record in json.loads(file.read_text())]
    return outcomes


def inside(task: dict[str, object]) -> None:
    """Do a share of the calls; this process has the library."""
    place, scene = Path(str(task["place"])), Path(str(task["scene"]))
    control = Control(place / "control")
    import_everything()
    here = in_scene(scene, place, 0)
    decided[:] = [f"kind {number}" for number in range(4)]
    outcomes: list[Outcome] = []
    for name in task["names"]:  # type: ignore[attr-defined]
        command = _REVIEW if name == "review" else COMMANDS[name]
        bench = _Bench(name, command, here, scene, control)
        numbers = range(1 + int(str(task["first"])), bench.count + 1, int(str(task["every"])))
        if task["only"]:
            kind, number = str(task["only"]).rsplit(":", 1)
            numbers = range(int(number), int(number) + 1) if kind == name else range(0)
        print(f"  {name}: {bench.count} calls", flush=True)
        for number in numbers:
            # Usually a single failure; a disk that is full stays full.
            stays, error = (
                number % 2,
                _ERRORS[number % len(_ERRORS)] if number % 4 else errno.ENOSPC,
            )
            settings = {"fail_at": number, "fail_all": stays, "error": error}
            outcomes.append(bench.fail(f"{name}:{number}", settings))
        if not task["only"] and not task["first"]:
            outcomes += bench.others()
    text = json.dumps([asdict(outcome) for outcome in outcomes])
    (place / "outcomes.json").write_text(text)


@dataclass
class _Bench:
    """A command whose writes fail: what it does undisturbed, and then what it does."""

    name: str
    command: Killed
    here: Path
    scene: Path
    control: Control

    def __post_init__(self) -> None:
        found = []
        for _ in range(2):
            self._prepare()
            ended = self._run(count=0)
            if ended.code:
                raise RuntimeError(f"{self.command.arguments}: {ended.errors}")
            found.append(files_there())
        self.count = self.control.count
        self.same = equal_files(*found)
        self.names = {RANDOM.sub("#", n) for files in found for n in files}

    def _prepare(self) -> None:
        self.control.set()
        make_fresh(self.command, self.scene)
        if "--out" in self.command.arguments:
            out = Path(self.command.arguments[self.command.arguments.index("--out") + 1])
            if out.suffix:
                # An earlier output, which is to be replaced.
                out.write_bytes(b"earlier")
        self.earlier = files_there()

    def _run(self, **settings: int) -> Ended:
        self.control.set(**settings)
        try:
            return run(_overwriting(self.command), self.here, 60)
        finally:
            count = self.control.count
            self.control.set(count=count)

    def fail(self, case: str, settings: dict[str, int]) -> Outcome:
        """Let a call fail; then look at what is there, and run the command again."""
        self._prepare()
        return self._judged(case, self._run(**settings), os.strerror(settings["error"]))

    def _judged(self, case: str, ended: Ended, how: str) -> Outcome:
        outcome = replace(classify(ended), kind=self.name, case=case, done=how)
        if not outcome.is_good:
            return outcome
        line, places = " ".join(ended.error_lines), ("out/", os.environ["TMPDIR"])
        if ended.code and not any(place in line for place in places):
            return replace(outcome, result=UNNAMED, where=f"{self.name}: no path named")
        found = files_there()
        if self.name == "review":
            log = found["out/run/review.jsonl"].decode()
            lost = [label for label in decided if (f"\nsaved {label}\n" in ended.out)
                    and f'"label": "{label}"' not in log]  # fmt: skip
            lost += [label for label in decided if f"\nnot saved {label}: not saved" in ended.out
                     and f'"label": "{label}"' in log]  # fmt: skip
            if lost or not log.startswith(self.earlier["out/run/review.jsonl"].decode()):
                return replace(outcome, result=FOREIGN, where="review: lost", text=f"{lost}")
        for path, data in self.earlier.items():
            whole = (data, self.same.get(path, found.get(path)))
            if found.get(path) not in whole and not _lists_what_is_there(Path(path)):
                text = f"{path}: {len(found.get(path, b''))} bytes"
                return replace(
                    outcome, result=FOREIGN, where=f"{self.name}: half-written", text=text
                )
        known = self.names | {RANDOM.sub("#", path) for path in self.earlier}
        left = [path for path in found if RANDOM.sub("#", path) not in known
                and ".unfinished/" not in path]  # fmt: skip
        if left:
            where = f"{self.name}: left behind {RANDOM.sub('#', left[0])}"
            return replace(outcome, result=UNNAMED, where=where)
        again = self.command.arguments if self.name == "review" else _overwriting(self.command)
        if Path("out/run.unfinished/request.json").exists():
            again = ("resume", "out/run", "--quiet")
        second = run(again, self.here, 60)
        # Not the cache: with all features in it, a network is not needed, and not exported again.
        differ = [path for path, data in self.same.items()
                  if files_there().get(path) != data and "/cache/" not in path]  # fmt: skip
        if second.code or differ:
            text = " ".join(second.error_lines) or f"other bytes: {differ}"
            return replace(outcome, result=FOREIGN, where=f"{self.name}: the next run", text=text)
        return outcome

    # Folders and clocks ------------------------------------------------------------------------

    def others(self) -> Iterator[Outcome]:
        """Run on a full disk, in read-only and vanishing folders, with a clock set back, twice."""
        for kind, place in (("full disk", "out"), ("full disk as TMPDIR", os.environ["TMPDIR"])):
            if os.geteuid() != 0:
                print(f"  {kind}: skipped, it needs root")
                continue
            self._prepare()
            with _full_disk(Path(place)):
                ended = run(_overwriting(self.command), self.here, 60)
                yield self._classed(f"{self.name}, {kind}", ended)
        self._prepare()
        self.control.set(fail_at=1, fail_all=1, error=errno.EROFS)
        yield self._classed(
            f"{self.name}, read-only", run(_overwriting(self.command), self.here, 60)
        )
        self._prepare()
        self.control.set(clock_shift=-86_400 * 400)
        ended = run(_overwriting(self.command), self.here, 60)
        self.control.set()
        outcome = self._classed(f"{self.name}, clock set back", ended)
        if ended.code:
            outcome = replace(outcome, result=FOREIGN, where=f"{self.name}: clock")
        yield outcome
        yield from self._vanishing()
        yield from self._two_at_once()

    def _classed(self, case: str, ended: Ended) -> Outcome:
        return replace(classify(ended), kind=f"{self.name}: places", case=case, done=case)

    def _vanishing(self) -> Iterator[Outcome]:
        """Remove the output folder while the command is at work."""
        self._prepare()
        seconds = run(_overwriting(self.command), self.here, 60).seconds
        for share in (0.3, 0.6, 0.9):
            self._prepare()
            child = os.fork()
            if child == 0:
                time.sleep(share * seconds)
                shutil.rmtree("out", ignore_errors=True)
                os._exit(0)
            ended = run(_overwriting(self.command), self.here, 60)
            os.waitpid(child, 0)
            yield self._classed(f"{self.name}, vanishes at {share}", ended)

    def _two_at_once(self) -> Iterator[Outcome]:
        """Run two of a command at once: each succeeds or says why not, and bytes are right."""
        self._prepare()
        child = os.fork()
        if child == 0:
            ended = run(_overwriting(self.command), self.here, 120)
            Path("twin.json").write_text(json.dumps(asdict(ended)))
            os._exit(0)
        ended = run(_overwriting(self.command), self.here, 120)
        os.waitpid(child, 0)
        twin = Ended(**json.loads(Path("twin.json").read_text()))
        for one in (ended, twin):
            yield self._classed(f"{self.name}, two at once", one)
        # Not the cache: with all features in it, a network is not needed, and not exported again.
        differ = [path for path, data in self.same.items()
                  if files_there().get(path) != data and "/cache/" not in path]  # fmt: skip
        if differ or (ended.code and twin.code):
            where, text = (
                f"{self.name}: two at once",
                f"exit codes {ended.code}, {twin.code}; {differ}",
            )
            kind = f"{self.name}: places"
            yield Outcome(kind, f"{self.name}, two at once", FOREIGN, "two at once", where, text)


def _lists_what_is_there(path: Path) -> bool:
    """Return whether a file is a manifest that says of each file, replaced or not, what is true."""
    if path.name != MANIFEST:
        return False
    with suppress(InputError):
        manifest = Manifest.read(path.parent)
        for name in filter(manifest.has, manifest.files):
            manifest.open(name).close()
        return True
    return False


def _overwriting(command: Killed) -> tuple[str, ...]:
    return (*command.arguments, *command.again)


@contextmanager
def _full_disk(place: Path) -> Iterator[None]:
    """Mount a small file system in the place of a folder, with its files, and fill it."""
    kept = place.with_name(f"{place.name}-kept")
    copy_tree(place, kept)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", place], check=True)
    try:
        shutil.copytree(kept, place, dirs_exist_ok=True)
        with (place / "filler").open("wb", buffering=0) as stream:
            try:
                while True:
                    stream.write(bytes(4096))
            except OSError:
                pass
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=True)
        shutil.rmtree(kept)


if __name__ == "__main__":
    inside(json.loads(sys.argv[1]))
