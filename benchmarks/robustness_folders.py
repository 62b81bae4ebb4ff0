"""`folders`: every file of finished and unfinished runs, damaged, and every command that reads it.

A command names the damaged file, or gives the bytes that it gives for the whole run.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import robustness_arrays as arrays
import robustness_mutators as mutators
from robustness_commands import Ended, classify, in_scene, run, run_commands
from robustness_kinds import GRAMMARS, SPECIAL, reseal, restore
from robustness_outcomes import HANG_SECONDS, OK, UNNAMED, Outcome, Work, run_cases

Case = tuple[str, str, str, int]
"""A file of a run, what is done to it, and the number of the command."""

FOLDERS = ("run", "pictures-run", "left.unfinished", "pictures-left.unfinished")
# The page is written, never read.
_WRITTEN_ONLY = ("report.html", "lock")


def _half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _flip(share: float) -> Callable[[bytes], bytes]:
    def flip(data: bytes) -> bytes:
        place = min(int(share * len(data)), len(data) - 1)
        return data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :]

    return flip


def _zeros(data: bytes) -> bytes:
    return bytes(len(data))


BYTES: dict[str, Callable[[bytes], bytes]] = {
    "half": _half, "flip-start": _flip(0.03), "flip-middle": _flip(0.5), "flip-end": _flip(0.97),
    "zeros": _zeros, "longer": lambda data: data + b"\n\0more",
}  # fmt: skip
INSTEAD = ("missing", "empty", "folder", "dangling", "zero", "fifo")
OTHER_RUN = "other-run"


def damages(path: Path) -> Iterator[str]:
    """Yield the names of what can be done to a file."""
    yield from (*BYTES, *INSTEAD, OTHER_RUN)
    if path.suffix in (".json", ".jsonl", ".parquet", ".csv", ".safetensors"):
        yield from (f"valid-{number}" for number in range(8))
    if path.suffix == ".safetensors":
        yield from ("nan", "1e30")


def damage(path: Path, how: str, pristine: Path) -> None:
    """Do it to the file at `path`."""
    data = path.read_bytes()
    path.unlink()
    if how in BYTES:
        path.write_bytes(BYTES[how](data))
    elif how in INSTEAD:
        SPECIAL[how](path)
    elif how == OTHER_RUN:
        other = pristine / "run-b" / path.name
        path.write_bytes(other.read_bytes() if other.exists() else data[::-1])
    elif how in ("nan", "1e30"):
        path.write_bytes(_in_largest(data, float(how)))
    else:
        path.write_bytes(_changed(path, how, data))


def _changed(path: Path, how: str, data: bytes) -> bytes:
    """Change the meaning of a file and leave its syntax valid."""
    rng = random.Random(f"{path.name} {how}")
    mutation = {
        ".json": mutators.json_value,
        ".jsonl": mutators.json_line,
        ".parquet": arrays.parquet_column,
        ".safetensors": mutators.tensor_header,
    }
    for _ in range(20):
        with suppress(ValueError, LookupError, TypeError):
            changed = mutation.get(path.suffix, GRAMMARS[path.suffix][0])(rng, data)
            if changed != data:
                return changed
    return data


def _in_largest(data: bytes, value: float) -> bytes:
    """Put a number into the largest tensor of floats."""
    import numpy as np
    from safetensors.numpy import load, save

    tensors = load(data)
    floats = {name: values for name, values in tensors.items() if values.dtype.kind == "f"}
    name = max(floats, key=lambda name: floats[name].size)
    tensors[name] = np.array(tensors[name])
    tensors[name].flat[0] = value
    return save(tensors, metadata=_metadata(data))


def _metadata(data: bytes) -> dict[str, str] | None:
    import json

    size = int.from_bytes(data[:8], "little")
    found: dict[str, str] | None = json.loads(data[8 : 8 + size]).get("__metadata__")
    return found


def cases(scene: Path, folders: Sequence[str] = FOLDERS, every: int = 1) -> list[Case]:
    """Return every file, damage and command; of these every so-manieth."""
    found = []
    for folder in folders:
        for path in sorted((scene / folder).rglob("*")):
            if path.is_file() and path.name not in _WRITTEN_ONLY:
                for how in damages(path):
                    for number in range(len(_commands(folder))):
                        found.append((str(path.relative_to(scene)), how, "", number))
    return found[::every]


def _commands(folder: str) -> list[list[str]]:
    if folder.endswith(".unfinished"):
        return [["resume", folder.removesuffix(".unfinished"), "--quiet"]]
    return run_commands(folder)


def folders(
    scene: Path,
    place: Path,
    wanted: Sequence[Case],
    resealed: bool = False,
    workers: int = 2,
    seconds: float = HANG_SECONDS,
) -> list[Outcome]:
    """Damage, run, and compare with what the whole run gives."""

    def prepare(number: int) -> Work:
        here = in_scene(scene, place, number)
        expected = {}
        for folder in dict.fromkeys(case[0].split("/")[0] for case in wanted):
            for arguments in _commands(folder):
                _clear(folder, scene)
                ended = run(arguments, here, 60)
                if ended.code:
                    raise RuntimeError(f"{arguments}: {ended.errors}")
                expected[tuple(arguments)] = _outputs(folder, ended)
                _clear(folder, scene)

        def work(case: Case) -> Outcome:
            path = Path(case[0])
            folder = path.parts[0]
            arguments = _commands(folder)[case[3]]
            damage(path, case[1], scene)
            if resealed:
                reseal(path)
            ended = run(arguments, here, seconds)
            outcome = classify(ended, (path.name,))
            # A stranger who makes the checksums right may say what he likes, but not NaN.
            is_compared = not resealed or case[1] == "nan"
            if outcome.result == OK and is_compared and path.name not in ended.warnings:
                now, then = _outputs(folder, ended), expected[tuple(arguments)]
                differ = [name for name in {**now, **then} if now.get(name) != then.get(name)]
                # What was damaged may stay damaged, if nobody reads it.
                differ = [name for name in differ if not name.endswith(path.name)]
                if differ:
                    outcome = replace(outcome, result=UNNAMED, text=f"other bytes: {differ}",
                                      where=f"labels on: {path.name}, {arguments[0]}")  # fmt: skip
            _clear(folder, scene)
            return replace(outcome, kind=f"{folder}: {arguments[0]}", case=_name(case))

        return work

    def blank(case: Case) -> Outcome:
        return Outcome(case[0].split("/")[0], _name(case), OK)

    return run_cases(wanted, prepare, blank, workers, 4 * seconds)


def _name(case: Case) -> str:
    return f"{case[0]}:{case[1]}:{case[3]}"


def parse(text: str) -> Case:
    """Read what `--only` was given."""
    path, how, number = text.rsplit(":", 2)
    return path, how, "", int(number)


def _clear(folder: str, scene: Path) -> None:
    shutil.rmtree("out", ignore_errors=True)
    os.mkdir("out")  # noqa: PTH102
    place = Path(folder)
    if place.is_dir() and not place.is_symlink():
        for path in [*place.rglob("*")]:
            if path.is_symlink() or (not path.is_dir() and not path.is_file()):
                path.unlink()
    restore(place, scene)


_TIMES = ("environment.json", "settings.json", "report.html", "history.jsonl",
          "manifest.json")  # fmt: skip


def _outputs(folder: str, ended: Ended) -> dict[str, bytes]:
    """Return what a command has written, except what has times in it."""
    found = {}
    places = [Path("out"), Path(folder.removesuffix(".unfinished"))]
    for place in places:
        for path in sorted(place.rglob("*")):
            is_plain = path.is_file() and not path.is_symlink()
            if is_plain and (path.name not in _TIMES or path.parts[0] == "out"):
                found[str(path)] = path.read_bytes()
    if ended.arguments[0] == "evaluate":
        found["stdout"] = ended.out.encode()
    return found
