"""The manifest of a run: checksums of its files, so that a damaged one is named and never used.

A file that is replaced later, by an evaluation or a report, is not listed while it is replaced: a
process that dies at any moment leaves a run that can be read, without that file. ``review.jsonl``,
``corrections.csv`` and ``report.html`` are never listed: the first two are the user's, and no
command reads the last.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel

from opensetda.errors import InputError
from opensetda.runs.checked import (
    FIT_AGAIN,
    check_value,
    damaged,
    parse_json,
    reading,
    sealed,
    unsealed,
)
from opensetda.system.cache_folder import default_cache_folder
from opensetda.system.files import new_file, open_regular, write_json

MANIFEST, SETTINGS = "manifest.json", "settings.json"


class _Written(BaseModel):
    """The content of ``manifest.json``: sizes and checksums of files by name."""

    format: Literal["opensetda-manifest"] = "opensetda-manifest"
    version: Literal[2] = 2
    files: dict[str, str]
    images: str | None = None


class Manifest:
    """The checksums of a run folder, and its files opened for reading.

    `images` is a code of this user's secret key over the list of the run's images, if it has one.
    """

    def __init__(self, folder: Path, files: dict[str, str], images: str | None = None) -> None:
        self.folder, self.files, self.images = folder, files, images

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest of a run."""
        path = folder / MANIFEST
        with _opened(path) as stream, reading(path):
            content = parse_json(stream.read(), dict[str, Any], path)
        written = check_value(unsealed(content, path), _Written, path)
        return cls(folder, written.files, written.images)

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Return a manifest of all files that are in a folder."""
        names = sorted(path.name for path in folder.iterdir() if path.name != MANIFEST)
        files = {}
        for name in names:
            with _opened(folder / name) as stream:
                files[name] = _digest_of(stream)
        return cls(folder, files)

    def write(self) -> None:
        """Write ``manifest.json``."""
        written = _Written(files=dict(sorted(self.files.items())), images=self.images)
        with new_file(self.folder / MANIFEST) as aside:
            write_json(aside, sealed(written.model_dump()))

    def has(self, name: str) -> bool:
        """Return whether the run has a file."""
        return name in self.files

    def open(self, name: str) -> BufferedReader:
        """Open a file whose checksum is right, or raise an `InputError` that names it."""
        path = self.folder / name
        stream = _opened(path)
        with reading(path):
            digest = _digest_of(stream)
            if digest != self.files.get(name):
                # An evaluation or a report may have replaced it since; another run may not.
                now = Manifest.read(self.folder)
                is_same_run = now.files.get(SETTINGS) == self.files.get(SETTINGS)
                if not is_same_run or digest != now.files.get(name):
                    stream.close()
                    raise damaged(path, f"its checksum is not that of {MANIFEST}")
                self.files = now.files
            stream.seek(0)
        return stream

    def content(self, name: str) -> bytes:
        """Return the content of a file whose checksum is right."""
        with self.open(name) as stream:
            return stream.read()

    def replace(self, contents: Mapping[str, bytes]) -> None:
        """Write files into the run, in the place of earlier ones."""
        with _locked(self.folder / MANIFEST), ExitStack() as moves:
            # First all that may fail on a full disk.
            for name, content in contents.items():
                moves.enter_context(new_file(self.folder / name)).write_bytes(content)
            found = Manifest.read(self.folder).files
            self.files = {name: digest for name, digest in found.items() if name not in contents}
            self.write()
            moves.close()
            self.files |= {
                name: f"{len(content)}:{hashlib.sha256(content).hexdigest()}"
                for name, content in contents.items()
            }
            self.write()

    def sign_images(self, name: str) -> None:
        """Mark the list of images as made by this user."""
        self.images = _code(self.files[name])

    def is_own(self, name: str) -> bool:
        """Return whether this user made the list of images, on this machine."""
        return self.images is not None and self.images == _code(self.files.get(name, ""))


def reseal(folder: Path) -> None:
    """Make all checksums right again; what was written by hand is then taken as it is."""
    Manifest.of(folder).write()


def _opened(path: Path) -> BufferedReader:
    try:
        return open_regular(path)
    except FileNotFoundError:
        raise InputError(f"{path}: missing; the run is not complete, {FIT_AGAIN}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the file") from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process at a time change the manifest."""
    while True:
        with _opened(path) as stream:
            with suppress(ImportError, OSError):
                import fcntl

                fcntl.flock(stream, fcntl.LOCK_EX)
            # Another process may have replaced it while this one waited.
            if path.stat().st_ino == os.fstat(stream.fileno()).st_ino:
                yield
                return


def _digest_of(stream: BufferedReader) -> str:
    """Return the size and the SHA-256 of an open file."""
    digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return f"{stream.tell()}:{digest}"


def _code(text: str) -> str:
    return hmac.new(_own_key(), text.encode(), "sha256").hexdigest()


@cache
def _own_key() -> bytes:
    """Return the secret key of this user; of this process alone, if it cannot be kept."""
    place = default_cache_folder() / "key"
    with suppress(OSError, InputError):
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not place.exists():
            with new_file(place) as aside:
                aside.chmod(0o600)
                aside.write_bytes(secrets.token_bytes(32))
        return place.read_bytes()
    return secrets.token_bytes(32)
