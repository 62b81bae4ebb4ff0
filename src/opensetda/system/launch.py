"""How this process was started, by its environment: by `torchrun`, `accelerate launch` or alone."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from opensetda.errors import LostProcessError


def is_shared() -> bool:
    """Whether this process was started as one of several."""
    size = os.environ.get("WORLD_SIZE", "1")
    return "RANK" in os.environ and size.isdigit() and int(size) > 1


def is_first() -> bool:
    """Whether it is the first of several, or alone."""
    return not is_shared() or os.environ["RANK"] == "0"


def was_restarted() -> bool:
    """Whether the launcher has restarted the processes after it lost one."""
    return is_shared() and restart_count() != "0"


def restart_count() -> str:
    """Return the number of restarts, as text."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def neighbours() -> int:
    """Return the number of processes on this machine."""
    size = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, int(size)) if is_shared() and size.isdigit() else 1


def launch_identity(place: str) -> str | None:
    """Return an identity of this launch and result folder, or None without a launcher."""
    launch = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    if not is_shared() or launch == "none":
        return None
    return hashlib.sha256(f"{launch} {place}".encode()).hexdigest()[:32]


def lost_process(error: BaseException) -> str:
    """Return why a process ends that has lost another, or that the launcher ended."""
    size = os.environ.get("WORLD_SIZE", "1")
    if isinstance(error, LostProcessError):
        return f"another of the {size} processes is gone"
    return f"told to end, as torchrun does when another of the {size} processes is gone"


def default_cache_folder() -> Path:
    """Return ``$OSDA_CACHE``, else ``$XDG_CACHE_HOME/opensetda``, else ``~/.cache/opensetda``."""
    if chosen := os.environ.get("OSDA_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "opensetda"
