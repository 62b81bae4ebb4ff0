"""Commands in forks of a process that has imported everything, and how they ended."""

from __future__ import annotations

import importlib
import os
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

Command = list[str]
_LONGEST_LINE, _MOST_BYTES = 1500, 4 * 2**30
_WARNING = re.compile(r"^\S+:\d+: \w*Warning: .*", re.MULTILINE)
_FRAME = re.compile(r'File ".*/opensetda/(\S+", line \d+, in \w+)')
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Ended(NamedTuple):
    """How a command ended; its code is None if it was killed, -N if it died of a signal."""

    command: Command
    code: int | None
    out: str
    errors: str

    def fault(self, names: tuple[str, ...] = ()) -> str:
        """Return what is wrong with this end, or ""; an error has one of `names` in it."""
        lines = [line for line in self.errors.split("\n") if line.startswith("error: ")]
        text, frames = (lines or [self.errors[-300:]])[-1], _FRAME.findall(self.errors)
        warned, shown = _WARNING.search(self.errors), f"{text[:400]!r} {frames[-1:]}"
        if self.code is None:
            return "hangs"
        if "(run again with --debug" in text or self.code not in (0, 1, 2):
            return f"foreign error, exit code {self.code}: {shown}"
        if warned or "out of memory" in text:
            return f"foreign warning, or memory: {warned[0][:400] if warned else shown}"
        if _CONTROLS.search(self.out + "".join(lines)):
            return f"control characters: {shown}"
        if self.code and (not lines or len(text) > _LONGEST_LINE):
            return f"no error line, or a long one: {shown}"
        is_named = not self.code or not names or any(name in text for name in names)
        return "" if is_named else f"no file is named: {shown}"


def import_everything() -> None:
    """Import what commands import, before processes are forked: it takes seconds."""
    for name in ("cli.main", "runs", "pgl.estimator", "report.page", "review.session"):
        importlib.import_module(f"opensetda.{name}")
    importlib.import_module("opensetda.backbones.registry").import_timm()


def run(
    command: Command,
    folder: Path,
    seconds: float = 30,
    is_time: Callable[..., bool] | None = None,
    before: Callable[[], object] = lambda: None,
) -> Ended:
    """Run a command in `folder`, after `before`; kill it once `is_time` or the time is over.

    A review is interrupted when it has told its address; of `is_time`, it is asked with that.
    """
    streams = [os.memfd_create("stream") for _ in "oe"]  # In memory: the disk may be full.
    child = os.fork()
    if child == 0:
        _be_the_command(command, folder, streams, before)
    until, is_review, is_killed = time.monotonic() + seconds, command[0] == "review", False
    while not (done := os.waitpid(child, os.WNOHANG))[0]:
        out = os.pread(streams[0], 9999, 0).decode() if is_review else ""
        if (is_time and is_time(*[out] * is_review)) or time.monotonic() > until:
            is_killed = True
            os.kill(child, signal.SIGKILL)
        elif "token=" in out and not is_time:
            os.kill(child, signal.SIGINT)
            is_review = False
        time.sleep(0.001)
    code = None if is_killed else os.waitstatus_to_exitcode(done[1])
    texts = [os.pread(stream, 10**7, 0).decode("utf-8", "replace") for stream in streams]
    for stream in streams:
        os.close(stream)
    return Ended(command, code, *texts)


def _be_the_command(
    command: Command, folder: Path, streams: list[int], before: Callable[[], object]
) -> None:
    code = 98
    try:
        os.chdir(folder)
        for number, stream in enumerate(streams, 1):
            os.dup2(stream, number)
        sys.stdout, sys.stderr = (open(n, "w", closefd=False) for n in (1, 2))  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + _MOST_BYTES, taken + _MOST_BYTES))
        before()
        code = importlib.import_module("opensetda.cli.main").main([*command, "--debug"])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
