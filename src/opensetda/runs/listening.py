"""What a run reports while it works: notes, warnings and progress."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from opensetda.progress import ProgressListener

CountingProgress = Callable[[int, int], None]
"""Called with how many items are done, and how many there are."""

_LOG = logging.getLogger("opensetda")


class RunListener:
    """Receives the notes, warnings and progress of a run.

    This one logs notes to the logger ``opensetda`` at level INFO, passes warnings to
    `warnings.warn`, and ignores progress. Override what you want to handle differently.
    """

    def note(self, line: str) -> None:
        """Receive a line about the data or about what is being done."""
        _LOG.info(line)

    def warn(self, message: str) -> None:
        """Receive a warning about the data or the result."""
        warnings.warn(message, UserWarning, stacklevel=3)

    def counting(self, title: str, noun: str = "image") -> AbstractContextManager[CountingProgress]:
        """Return a context whose value receives the progress of work on countable items.

        `title` is what is being done, `noun` what is counted: "image", "row", "MB".
        """
        return nullcontext(lambda done, total: None)

    def training(self, method: str) -> AbstractContextManager[ProgressListener]:
        """Return a context whose value receives the progress events of a training."""
        return nullcontext(lambda event: None)
