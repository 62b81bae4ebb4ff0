"""Commands in processes of their own, forked from one that has imported everything.

`run` starts one and watches it, `classify` says how it ended; `commands` runs fuzzed inputs.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from robustness_fuzz import Case, blank
from robustness_kinds import Kind, build, kinds, restore
from robustness_outcomes import (
    CLEAN,
    FOREIGN,
    HANG,
    HANG_SECONDS,
    MEMORY,
    MOST_MEGABYTES,
    OK,
    SIGNAL,
    UNNAMED,
    Outcome,
    Work,
    limit_addresses,
    run_cases,
)
from robustness_scene import copy_tree

_INTERNAL = "(run again with --debug"
_LONGEST_LINE = 1500
_FRAME = re.compile(r'File ".*/opensetda/(\S+)", line (\d+), in (\w+)')
_WARNING = re.compile(r"^\S+:\d+: (\w*Warning): ", re.MULTILINE)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    arguments: tuple[str, ...]
    code: int | None  # None: it was killed as it took too long
    out: str
    errors: str
    megabytes: float
    seconds: float

    @property
    def error_lines(self) -> list[str]:
        """What it said was wrong, without tracebacks."""
        return [line for line in self.errors.split("\n") if line.startswith("error: ")]

    @property
    def warnings(self) -> str:
        """All warnings."""
        lines = self.errors.split("\n")
        return "\n".join(line for line in lines if line.startswith("warning: "))


def run(
    arguments: Sequence[object],
    folder: Path,
    seconds: float = HANG_SECONDS,
    is_time: Callable[[], bool] = lambda: False,
) -> Ended:
    """Run a command in `folder`, in a fork of this process; kill it once `is_time` is true."""
    given = tuple(str(argument) for argument in arguments)
    # In memory: the disk may be full.
    with _memory() as out, _memory() as errors:
        started, own = time.monotonic(), _resident()
        child = os.fork()
        if child == 0:
            _be_the_command(given, folder, out.fileno(), errors.fileno())
        code, megabytes = _wait(child, started + seconds, is_time)
        for stream in (out, errors):
            stream.seek(0)
        texts = [stream.read().decode("utf-8", "replace") for stream in (out, errors)]
    return Ended(given, code, *texts, megabytes - own, time.monotonic() - started)


def _memory() -> IO[bytes]:
    return open(os.memfd_create("stream"), "w+b")  # noqa: PTH123


def _resident() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024 / 1e6


def _wait(child: int, until: float, is_time: Callable[[], bool]) -> tuple[int | None, float]:
    code: int | None = None
    while True:
        done, status, used = os.wait4(child, os.WNOHANG)
        if done:
            if code != -1:
                code = os.waitstatus_to_exitcode(status)
            _kill(child)  # workers that it left
            return (None if code == -1 else code), used.ru_maxrss * 1024 / 1e6
        if code is None and (is_time() or time.monotonic() > until):
            code = -1
            _kill(child)
            os.kill(child, signal.SIGKILL)  # before it has a group of its own
        time.sleep(0.001)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _be_the_command(given: tuple[str, ...], folder: Path, out: int, errors: int) -> None:
    code = 98
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(errors, 2)
        sys.stdout, sys.stderr = (open(n, "w", errors="replace", closefd=False) for n in (1, 2))  # noqa: SIM115
        os.chdir(folder)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0)
        limit_addresses()
        if given[0] == "review":
            _stop_at_once()
        from opensetda.cli.main import main

        code = main([*given, "--debug"])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
        sys.stderr.write(f"error: escaped {_INTERNAL})\n")
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


# What is decided in a review before it is stopped.
decided: list[str] = []


def _stop_at_once() -> None:
    """Decide when the groups have been found, tell what was saved, and press Ctrl-C."""
    from opensetda.errors import InputError
    from opensetda.review.server import ReviewServer

    def serve(self: ReviewServer) -> None:
        self.session._grouping.join()
        rows = [sample["row"] for sample in self.session.page("border", 0, 60)["samples"]]
        for row, label in zip(rows, decided, strict=False):
            try:
                self.session.decide(row, "border", label)
                print(f"saved {label}")
            except (InputError, OSError) as error:
                print(f"not saved {label}: {error}")
        raise KeyboardInterrupt

    ReviewServer.serve_forever = serve  # type: ignore[method-assign, assignment]


def classify(ended: Ended, names: Sequence[str] = ()) -> Outcome:
    """Class how a command ended; an error names one of `names`, if any are given."""
    lines = ended.error_lines
    text = lines[-1] if lines else ended.errors[-300:]
    result, where = (OK if ended.code == 0 else CLEAN), ""
    warned = _WARNING.search(ended.errors)
    frames = _FRAME.findall(ended.errors)
    innermost = "{}:{} {}".format(*frames[-1]) if frames else ""
    if ended.code is None:
        result, where = HANG, f"hang of {ended.arguments[0]}"
    elif ended.code < 0:
        result, where = SIGNAL, f"signal {-ended.code} in {ended.arguments[0]}"
    elif _INTERNAL in text or ended.code not in (0, 1, 2):
        result, where = FOREIGN, f"{text[7:].partition(':')[0][:60]} at {innermost}"
    elif ended.megabytes > MOST_MEGABYTES or "out of memory" in text:
        result, where = MEMORY, f"{ended.arguments[0]} at {innermost}"
        text = f"{ended.megabytes:,.0f} MB; {text}"
    elif warned:
        result, where, text = FOREIGN, warned[1], warned.string[warned.start() :][:300]
    elif ended.code and (len(lines) != 1 or len(text) > _LONGEST_LINE):
        result, where = UNNAMED, f"{len(lines)} lines, {len(text)} characters"
    elif _CONTROLS.search(ended.out + "".join(lines) + ended.warnings):
        result, where = UNNAMED, f"control characters from {ended.arguments[0]}"
    elif ended.code and names and not any(name in text for name in names):
        result, where = UNNAMED, f"no file named; {innermost}"
    return Outcome("", "", result, " ".join(ended.arguments), where, " ".join(text.split())[:300])


# Fuzzed inputs by command ----------------------------------------------------------------------

_FIT = ("--method", "class-means", "--out", "out/run", "--no-report", "--quiet")


def _arguments(kind: Kind, number: int) -> list[list[str]]:
    """Return the commands that read a file of this kind."""
    path = kind.place
    target = [
        "predict",
        "run",
        path,
        "--out",
        f"out/labels.{('csv', 'json', 'parquet')[number % 3]}",
    ]
    small = ("--image-size", "32", "--cache", "cache", "--quiet")
    tables = [
        ["fit", path, f"tables/target{Path(path).suffix}", "--id-column", "id", *_FIT],
        ["fit", f"tables/source{Path(path).suffix}", path, *_FIT],
        target,
        ["evaluate", "run", "--labels", path],
    ]
    images = [
        ["features", path, "--out", "out/f.npz", *small],
        ["fit", path, "images/street", *_FIT, *small[:4]],
        ["predict", "pictures-run", path, "--out", "out/labels.csv"],
        ["evaluate", "pictures-run", "--labels", path],
    ]
    folder = kind.folder
    match kind.area:
        case "tables":
            return [tables[number % len(tables)]]
        case "images":
            return [images[number % len(images)]]
        case "review" if kind.name == "corrections":
            return [["fit", "tables/source.csv", "tables/target.csv", "--id-column", "id",
                     "--corrections", path, *_FIT]]  # fmt: skip
    if folder.endswith("unfinished"):
        return [["resume", folder.removesuffix(".unfinished"), "--quiet"]]
    if folder.endswith("run"):
        return [run_commands(folder)[number % 4]]
    if folder == "benchmark":
        return [["benchmark", "demo", "--method", "source-only", "--method", "class-means",
                 "--seeds", "1", "--jobs", "1", "--openness", "true", "--out", folder]]  # fmt: skip
    if folder == "input":
        return [["features", "images/street", "--out", "out/f.npz", "--weights", path,
                 "--backbone", "timm:test_efficientnet", "--quiet"]]  # fmt: skip
    return [["features", "images/street", "--out", "out/f.npz", *small]]


def run_commands(folder: str) -> list[list[str]]:
    """Return every command that reads a finished run."""
    images = folder.startswith("pictures")
    samples = "images/street" if images else "tables/target.csv"
    truth = "images/truth.txt" if images else "tables/truth.csv"
    return [
        ["predict", folder, samples, "--out", "out/labels.csv"],
        ["evaluate", folder, "--labels", truth, *(() if images else ("--label-column", "y"))],
        ["report", folder, "--out", "out/report.html"],
        ["review", folder, "--no-browser"],
        ["export", folder, "--to", "out/model.onnx"],
    ]


def in_scene(scene: Path, place: Path, number: int) -> Path:
    """Move this worker into its own copy of the scene, with home and caches of its own."""
    import torch

    torch.set_num_threads(1)
    own = place / f"worker-{number}"
    copy_tree(scene, own / "scene")
    for name, folder in {"HOME": "home", "XDG_CACHE_HOME": "home/c", "TMPDIR": "tmp"}.items():
        (own / folder).mkdir(exist_ok=True, parents=True)
        os.environ[name] = str(own / folder)
    os.environ["OSDA_CACHE"] = str(own / "scene/cache")
    tempfile.tempdir = str(own / "tmp")
    os.chdir(own / "scene")
    return own / "scene"


def commands(
    scene: Path, place: Path, cases: Sequence[Case], workers: int = 2, seconds: float = HANG_SECONDS
) -> list[Outcome]:
    """Give mutated files to the commands that read them."""
    known = kinds(scene)

    def prepare(number: int) -> Work:
        here = in_scene(scene, place, number)

        def work(case: Case) -> Outcome:
            kind, worst = known[case[0]], blank(case)
            done = build(kind, case[1], scene)
            for arguments in _arguments(kind, case[1]):
                shutil.rmtree("out", ignore_errors=True)
                Path("out").mkdir()
                found = classify(run(arguments, here, seconds))
                worst = replace(found, kind=case[0], case=worst.case, done=f"{done}; {found.done}")
            path = Path(kind.place)
            if path.is_symlink() or not path.is_dir():
                path.unlink(missing_ok=True)
            restore(Path(kind.folder), scene)
            return worst

        return work

    return run_cases(cases, prepare, blank, workers, 3 * seconds)
