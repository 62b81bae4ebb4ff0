"""Commands in forks of this process, alone or beside each other, and how they ended."""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from opensetda.cli.main import main

FORK = multiprocessing.get_context("fork")
_LONGEST_LINE, _MOST_BYTES = 1500, 4 * 2**30
_WARNING = re.compile(r"^\S+:\d+: \w*Warning: .*", re.MULTILINE)
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Ended(NamedTuple):
    """How a command ended; its code is None if it was killed, -N if it died of a signal."""

    command: str
    code: int | None
    out: str
    errors: str

    def fault(self, names: tuple[str, ...] = ()) -> str:
        """Return what is wrong with this end, or ""; an error has one of `names` in it."""
        lines = [line for line in self.errors.split("\n") if line.startswith("error: ")]
        text = (lines or [self.errors[-300:]])[-1]
        is_foreign = any(words in text for words in ("(run again with --debug", "out of memory"))
        faults = {
            "hangs": self.code is None,
            "foreign error": is_foreign or self.code not in (0, 1, 2),
            "foreign warning": _WARNING.search(self.errors),
            "control characters": _CONTROLS.search(self.out + "".join(lines)),
            "no error line, or a long one": self.code and (not lines or len(text) > _LONGEST_LINE),
            "no file is named": self.code and names and not any(name in text for name in names),
        }
        found = next((fault for fault, is_so in faults.items() if is_so), "")
        return found and f"{found}: exit code {self.code}, {self.errors[-1000:]!r}"


class Running:
    """A command that runs in `folder`, after `before`; `name` tells it from others there."""

    def __init__(
        self,
        command: str,
        folder: Path,
        before: Callable[[], object] = lambda: None,
        name: str = "",
    ) -> None:
        self.command, self._is_killed = command, False
        streams = ("output", "errors")
        self._files = [folder.with_name(f"{folder.name}{name}.{stream}") for stream in streams]
        for file in self._files:
            file.write_bytes(b"")

        def be_the_command() -> None:
            os.chdir(folder)
            for number, file in enumerate(self._files, 1):
                os.dup2(os.open(file, os.O_WRONLY | os.O_APPEND), number)
            how = {"errors": "backslashreplace", "closefd": False}
            sys.stdout, sys.stderr = (open(n, "w", 1, **how) for n in (1, 2))  # noqa: SIM115, PTH123
            signal.signal(signal.SIGINT, signal.default_int_handler)
            taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (taken + _MOST_BYTES, taken + _MOST_BYTES))
            before()
            sys.exit(main([*command.split(), "--debug"]))

        self._process = FORK.Process(target=be_the_command)
        self._process.start()

    @property
    def out(self) -> str:
        """What it has written to stdout."""
        return self._files[0].read_text("utf-8", "replace")

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid or 0

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._process.is_alive()

    @property
    def is_served(self) -> bool:
        """Whether it is a review that has told its address."""
        return self.command.startswith("review") and "token=" in self.out

    def kill(self) -> None:
        """Kill it, at once."""
        self._is_killed = True
        self._process.kill()

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        if self.is_alive:
            os.kill(self.pid, signal.SIGINT)

    def ended(self, seconds: float = 60) -> Ended:
        """Wait until it has ended; what takes longer is killed."""
        self._process.join(seconds)
        if self.is_alive:
            self.kill()
            self._process.join()
        code = None if self._is_killed else self._process.exitcode
        return Ended(self.command, code, *(f.read_text("utf-8", "replace") for f in self._files))


def run(
    command: str,
    folder: Path,
    seconds: float = 30,
    is_time: Callable[[str], bool] | None = None,
    before: Callable[[], object] = lambda: None,
) -> Ended:
    """Run a command in `folder`, after `before`; kill it once `is_time`, or the time is over.

    `is_time` is asked with stdout. Without it, a review that has told its address is interrupted.
    """
    running, is_interrupted = Running(command, folder, before), False
    until = time.monotonic() + seconds
    while running.is_alive:
        if (is_time and is_time(running.out)) or time.monotonic() > until:
            running.kill()
        elif running.is_served and not is_time and not is_interrupted:
            running.interrupt()
            is_interrupted = True
        time.sleep(0.001)
    return running.ended()


def decide(out: str, row: int, label: str, waits: bool = True) -> bool:
    """Decide as the page of a review does; return whether the server says that it is saved."""
    address = urlsplit(out.split()[-1])
    connection = http.client.HTTPConnection(address.netloc, timeout=5 if waits else 1)
    headers = {"Origin": f"http://{address.netloc}", "Content-Type": "application/json"}
    headers["X-Review-Token"] = address.query.removeprefix("token=")
    body = json.dumps({"list": "border", "row": row, "label": label})
    with suppress(OSError, http.client.HTTPException):
        connection.request("POST", "/api/decide", body, headers)
        return waits and connection.getresponse().status == 200
    return False


def review(
    command: str,
    folder: Path,
    label: str,
    before: Callable[[], object] = lambda: None,
    row: int = 3,
) -> tuple[Ended, bool]:
    """Review with one decision; return whether the server says that it is saved."""
    running, is_saved = Running(command, folder, before), False
    until = time.monotonic() + 30
    while running.is_alive and not running.is_served and time.monotonic() < until:
        time.sleep(0.01)
    if running.is_alive and running.is_served:
        is_saved = decide(running.out, row, label)
        running.interrupt()
    return running.ended(), is_saved
