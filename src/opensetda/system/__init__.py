"""Files and memory: what the operating system gives."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache_folder() -> Path:
    """Return ``$OSDA_CACHE``, else ``$XDG_CACHE_HOME/opensetda``, else ``~/.cache/opensetda``."""
    if chosen := os.environ.get("OSDA_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "opensetda"
