"""Files, memory and processes: what the operating system gives."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path


def default_cache_folder() -> Path:
    """Return ``$OSDA_CACHE``, else ``$XDG_CACHE_HOME/opensetda``, else ``~/.cache/opensetda``."""
    if chosen := os.environ.get("OSDA_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "opensetda"


def first_process_first() -> AbstractContextManager[None]:
    """Have the other processes of ``accelerate launch`` wait for the first one."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return nullcontext()
    from opensetda.system.processes import this_process

    others: AbstractContextManager[None] = this_process().main_process_first()
    return others


def is_first_process() -> bool:
    """Whether this is the first process of ``accelerate launch``, or the only one."""
    return os.environ.get("RANK", "0") == "0"
