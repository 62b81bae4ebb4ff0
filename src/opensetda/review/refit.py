"""The fit that a review starts: a process of its own, which learns from the decisions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

from opensetda.errors import InputError, visible
from opensetda.runs.folder import RunFolder
from opensetda.system.files import in_shell
from opensetda.usecases.corrections import next_folder, refit_command, refit_words

_LONGEST_LINE = 300


def next_steps(run: RunFolder, corrections: Path) -> dict[str, str]:
    """Return what can be done after a review, as places and commands."""
    name = in_shell(run.path)
    return {
        "The labels are in": str(run.path),
        "Learn from the marks": refit_command(run, corrections),
        "Label later samples": f"osda predict {name} FILE --out labels.csv",
        "Use the model elsewhere": f"osda export {name} --to model.onnx",
    }


class Refit:
    """A fit with the corrections of a review; `done` is called once, if it succeeded."""

    def __init__(self, run: RunFolder, corrections: Path, done: Callable[[Path], None]) -> None:
        self.out = next_folder(run.path)
        self.state = "running"
        self.line = "starts"
        self._done = done
        words = refit_words(run, self.out, corrections)
        if words is None:
            how = "fit(..., corrections=...) in Python learns from the marks"
            raise InputError(f"this run was not made by 'osda fit' from files; {how}")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "opensetda", *words[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        Thread(target=self._watch, name="refit", daemon=True).start()

    def _watch(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if line.strip():
                self.line = visible(line.strip().split("\r")[-1])[:_LONGEST_LINE]
        if self._process.wait():
            self.state = "failed"
            return
        try:
            self._done(self.out)
            self.state = "done"
        except Exception as error:
            self.line = str(error)
            self.state = "failed"

    def summary(self) -> dict[str, Any]:
        """Return what the page shows."""
        return {"state": self.state, "line": self.line, "out": self.out.name}

    def stop(self) -> None:
        """End the process, if it is still at work; what it has written is removed by the next."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
