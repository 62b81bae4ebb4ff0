"""The manifest of a run: checksums of its files, so that a damaged one is named and never used.

A file that is replaced later, by an evaluation or a report, is listed with its old and its new
checksum before it is moved into its place: a process that dies at any moment leaves a run that
can be read. ``review.jsonl``, ``corrections.csv`` and ``report.html`` are not listed: the first
two are the user's, and no command reads the last.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict

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
_KEY, _KEY_BYTES = "key", 32
_LARGEST = 1 << 24


class _Written(BaseModel):
    """The content of ``manifest.json``; None among the checksums: the file may be absent."""

    model_config = ConfigDict(extra="forbid")

    format: Literal["opensetda-manifest"]
    version: Literal[1]
    files: dict[str, list[str | None]]
    images: str | None


class Manifest:
    """The checksums of a run folder, and its files opened for reading.

    `images` is a code of this user's secret key over the list of the run's images, if it has one.
    """

    def __init__(
        self, folder: Path, files: dict[str, list[str | None]], images: str | None = None
    ) -> None:
        self.folder, self.files, self.images = folder, files, images

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest of a run."""
        path = folder / MANIFEST
        with _opened(path) as stream, reading(path):
            if os.fstat(stream.fileno()).st_size > _LARGEST:
                raise damaged(path, "larger than any manifest")
            content = parse_json(stream.read(), dict[str, Any], path)
        written = check_value(unsealed(content, path), _Written, path)
        return cls(folder, written.files, written.images)

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Return a manifest of all files that are in a folder."""
        names = sorted(path.name for path in folder.iterdir() if path.name != MANIFEST)
        return cls(folder, {name: [_file_digest(folder / name)] for name in names})

    def write(self) -> None:
        """Write ``manifest.json``."""
        files = dict(sorted(self.files.items()))
        kind = {"format": "opensetda-manifest", "version": 1}
        with new_file(self.folder / MANIFEST) as aside:
            write_json(aside, sealed({**kind, "files": files, "images": self.images}))

    def has(self, name: str) -> bool:
        """Return whether the run has a file."""
        listed = self.files.get(name, [None])
        return None not in listed or (self.folder / name).exists()

    def open(self, name: str) -> BufferedReader:
        """Open a file whose checksum is right, or raise an `InputError` that names it."""
        path = self.folder / name
        stream = _opened(path)
        if not self._is_right(name, stream):
            # An evaluation or a report may have replaced it since; another run may not.
            now = Manifest.read(self.folder)
            is_same_run = now.files.get(SETTINGS) == self.files.get(SETTINGS)
            if not is_same_run or not now._is_right(name, stream):
                stream.close()
                raise damaged(path, f"its checksum is not that of {MANIFEST}")
            self.files = now.files
        stream.seek(0)
        return stream

    def _is_right(self, name: str, stream: BufferedReader) -> bool:
        """Return whether an open file is as listed; one of another size is not read."""
        listed, size = self.files.get(name, []), f"{os.fstat(stream.fileno()).st_size}:"
        if not any(digest is not None and digest.startswith(size) for digest in listed):
            return False
        stream.seek(0)
        return _digest_of(stream, self.folder / name) in listed

    def content(self, name: str) -> bytes:
        """Return the content of a file whose checksum is right."""
        with self.open(name) as stream:
            return stream.read()

    def replace(self, contents: Mapping[str, bytes]) -> None:
        """Write files into the run, in the place of earlier ones."""
        with _locked(self.folder / MANIFEST):
            self.files = Manifest.read(self.folder).files
            before = {name: self._present(name) for name in contents}
            self.files |= {
                name: [*dict.fromkeys((_digest(content), before[name]))]
                for name, content in contents.items()
            }
            self.write()
            try:
                with ExitStack() as asides:
                    for name, content in contents.items():
                        asides.enter_context(new_file(self.folder / name)).write_bytes(content)
            except BaseException:
                # Files that were not replaced, on a full disk, are listed as before.
                with suppress(OSError):
                    self._settle(contents)
                raise
            self._settle(contents)

    def _settle(self, names: Iterable[str]) -> None:
        """List files as they are now."""
        now = {name: self._present(name) for name in names}
        self.files |= {name: [digest] for name, digest in now.items()}
        self.files = {name: digests for name, digests in self.files.items() if digests != [None]}
        self.write()

    def _present(self, name: str) -> str | None:
        """Return the checksum of a file, if it is there and right."""
        path = self.folder / name
        digest = _file_digest(path) if path.exists() else None
        return digest if digest in self.files.get(name, ()) else None

    def sign_images(self, name: str) -> None:
        """Mark the list of images as made by this user."""
        (digest,) = self.files[name]
        self.images = _code(str(digest))

    def is_own(self, name: str) -> bool:
        """Return whether this user made the list of images, on this machine."""
        own = (_code(str(digest)) for digest in self.files.get(name, ()))
        return self.images is not None and any(hmac.compare_digest(self.images, o) for o in own)


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


def _digest(content: bytes) -> str:
    """Return the size and the SHA-256 of a file's content: another size is seen at once."""
    return f"{len(content)}:{hashlib.sha256(content).hexdigest()}"


def _file_digest(path: Path) -> str:
    with _opened(path) as stream:
        return _digest_of(stream, path)


def _digest_of(stream: BufferedReader, path: Path) -> str:
    with reading(path):
        size = os.fstat(stream.fileno()).st_size
        return f"{size}:{hashlib.file_digest(stream, 'sha256').hexdigest()}"


def _code(text: str) -> str:
    return hmac.new(_own_key(), text.encode(), "sha256").hexdigest()


@cache
def _own_key() -> bytes:
    """Return the secret key of this user; of this process alone, if it cannot be kept."""
    place = default_cache_folder() / _KEY
    with suppress(OSError, InputError):
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(FileExistsError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with open(os.open(place, flags, 0o600), "wb") as stream:  # noqa: PTH123
                stream.write(secrets.token_bytes(_KEY_BYTES))
        with open_regular(place, follow_links=False) as stream:
            status, key = os.fstat(stream.fileno()), stream.read()
        is_private = status.st_uid == os.getuid() and not status.st_mode & 0o077
        if is_private and len(key) == _KEY_BYTES:
            return key
    return secrets.token_bytes(_KEY_BYTES)
