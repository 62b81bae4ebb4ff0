"""Pieces of work on the workers of dask, and a folder of Parquet parts, one per piece."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import compress, islice
from pathlib import Path
from typing import Any

from opensetda.cluster.connection import connected, versions
from opensetda.errors import InputError, one_line
from opensetda.progress import RunListener
from opensetda.system.files import new_file, unfinished_folder

TRIES = 3
# Pieces per thread that are with the scheduler, one to go on with; failures that are named.
_WAITING = 2
_MOST_NAMED = 10
_PART = "part-{:08}.parquet"

Write = Callable[[Any, Path], None]
"""Writes the part of a piece to a path, on a worker; it can be pickled."""
Place = tuple[Path, Any, bool, RunListener]
"""The folder to make, the scheduler, whether to replace what is there, and who listens."""


def run_pieces(
    client: Any, function: Callable[[Any], Any], pieces: Iterable[Any]
) -> Iterator[tuple[Any, Any]]:
    """Yield each piece with its result, or with the exception that it raised three times.

    In any order, with few pieces at a time at the scheduler. The pieces of a lost worker are
    repeated. A `ConnectionError` if the scheduler is lost.
    """
    from distributed import as_completed

    name = f"osda-{secrets.token_hex(8)}"
    left = enumerate(pieces)
    finished = as_completed(loop=client.loop)
    asked: dict[str, tuple[Any, Any]] = {}
    try:
        while True:
            with _scheduler():
                room = _WAITING * max(1, sum(client.nthreads().values())) - len(asked)
            for number, piece in islice(left, max(0, room)):
                how = {"key": f"{name}-{number}", "retries": TRIES - 1, "pure": False}
                with warnings.catch_warnings():
                    # Advice of dask's for programmers: rows are sent on purpose, in small pieces.
                    warnings.filterwarnings("ignore", "Sending large graph")
                    future = client.submit(function, piece, **how)
                asked[future.key] = piece, future
                finished.add(future)
            if not asked:
                return
            with _scheduler():
                done = next(finished)
                if done.status not in ("finished", "error"):
                    raise CancelledError
                outcome = done.exception() if done.status == "error" else done.result()
            yield asked.pop(done.key)[0], outcome
    finally:
        with suppress(Exception):
            client.cancel([future for _, future in asked.values()])


@contextmanager
def _scheduler() -> Iterator[None]:
    """Say what to do if the scheduler is lost."""
    try:
        yield
    except (OSError, CancelledError, TimeoutError) as error:
        kept = "what is finished is kept, give the same command again"
        raise ConnectionError(f"the scheduler of dask was lost; {kept}") from error


def write_parts(
    write: Write,
    pieces: Iterable[Any],
    total: int,
    identity: Any,
    files: Sequence[str],
    place: Place,
) -> list[Path]:
    """Write a folder of parts, in the order of the pieces, and return their paths.

    `identity` decides the content: parts that an interrupted call has left in ``OUT.unfinished``
    are not made again. A piece that fails is named, and the other parts stay there. `files` must
    be there on all workers.
    """
    (out, scheduler, overwrite, listener), parts = place, [*map(_PART.format, range(total))]
    if out.suffix.lower() in (".csv", ".npz", ".parquet"):
        raise InputError(f"--out {out}: a folder of parts, with --scheduler; leave the ending out")
    with (
        unfinished_folder(out, repr((versions(), identity)), overwrite) as folder,
        connected(scheduler, listener, files, str(folder)) as client,
        listener.counting(out.name, "piece") as progress,
    ):
        wanted = [not (folder / part).exists() for part in parts]
        failed = 0
        done = total - sum(wanted)
        progress(done, total)
        left = compress(zip(parts, pieces, strict=True), wanted)
        for (part, piece), error in run_pieces(client, _Writer(write, folder), left):
            failed = failed + (error is not None)
            done = done + 1
            progress(done, total)
            if error is not None and failed <= _MOST_NAMED:
                first = f"{piece[0].path} ..." if isinstance(piece, list) else piece
                listener.warn(f"{part} ({first}) is given up: {one_line(error)}")
        if failed:
            kept = f"the others are kept in {folder}, the same command tries again"
            raise ChildProcessError(f"{failed:,} of {total:,} pieces failed; {kept}")
    return [out / part for part in parts]


@dataclass(frozen=True)
class _Writer:
    """Writes a part on a worker."""

    write: Write
    folder: Path

    def __call__(self, named: tuple[str, Any]) -> None:
        import torch
        from threadpoolctl import threadpool_limits

        part = self.folder / named[0]
        # A worker may be lost after it has written its part.
        if not part.exists():
            # One thread per piece: several would round differently.
            torch.set_num_threads(1)
            threadpool_limits(limits=1)
            # Under a name of its own: a worker that dask has given up may still be writing.
            with new_file(part) as aside:
                self.write(named[1], aside)
