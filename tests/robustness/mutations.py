"""Mutations of files: by the grammar of their format, as bytes, or something else instead."""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet

WORDS = ("", " ", "\0", "\x1b[2J", "\u202eabc", "\ufeff", "\U0001f600", "=1+1", "unknown", "Ant",
         "ant ", "null", "../../etc/passwd", "/dev/zero", "x" * 1_000_000, '"', "\\", "a,b", "a\nb",
         "\r", "\t", "<script>", "%s%n", "id", "1e999", "-0", "NaN", "inf", "0x1F", "1_000",
         "1e-320", "3.4e38", "1e308", "9" * 400, "1,5", "true", "2026-01-01")  # fmt: skip
# Shape and type in the header of an .npy file, and numbers in it.
HEADERS = ((b"9)", b"8)"), (b", 9)", b", -9)"), (b", 9)", b"9**9)"), (b"<f4", b"|O8"),
           (b"<f4", b">f4"), (b"<f4", b"<U1"), (b"False", b"True "))  # fmt: skip
FLOATS = [struct.pack("<f", number) for number in (float("nan"), float("inf"), 1e30)]
VALUES = (None, True, 0, -1, 2**63, 10**400, 0.5, 1e308, float("nan"), [], {}, [[]], *WORDS)


def as_bytes(rng: Random, data: bytes) -> bytes:
    """Cut, grow, overwrite or move a part; flip a bit; write a number at a limit."""
    if data.startswith(b"\x93NUMPY") and rng.random() < 0.6:
        return rng.choice((data.replace(*rng.choice(HEADERS), 1), data[:-4] + rng.choice(FLOATS)))
    start, n = rng.randrange(len(data)), rng.choice((1, 4, 64, 512))
    head, part, rest = data[:start], data[start : start + n], data[start + n :]
    flipped = bytes([part[0] ^ 1 << rng.randrange(8)]) + part[1:]
    number = struct.pack(rng.choice("<>") + "i", rng.choice((-1, 0, 1, 2**31 - 1, 60_000)))
    return rng.choice((head, data[:-1], head + rest, head + part + part + rest, data + bytes(600),
                       part + data, head + bytes(n) + rest, head + b"\xff" * n + rest,
                       head + flipped + rest, head + number + data[start + 4 :]))  # fmt: skip


def as_text(rng: Random, data: bytes) -> bytes:
    """Change a cell, lines, separators or the encoding."""
    lines, mark = data.split(b"\n"), next(m for m in (b"\t", b",", b" ") if m in data)
    place, word = rng.choice((0, rng.randrange(len(lines)))), rng.choice(WORDS).encode()
    cells = lines[place].split(mark)
    new = (word, b'"' + word, b"\xff\xfe", b"1" + word, rng.choice(cells))
    cells[rng.randrange(len(cells))] = rng.choice(new)
    changed = [*lines[:place], mark.join(cells), *lines[place + 1 :]]
    others = (lines[:1], lines[1:], lines * 3, lines[:1] + lines[2:], [*lines, b"", lines[place]])
    separated = data.replace(rng.choice((mark, b"\n")), rng.choice((b";", b"\0", b"\r\n", b"\r")))
    encoded = data.decode().encode(rng.choice(("utf-16", "utf-32", "utf-16-be", "utf-7")))
    text = b"\n".join(changed)
    return rng.choice((text, text, text, b"\n".join(rng.choice(others)), separated, encoded))


def as_json(rng: Random, data: bytes) -> bytes:
    """Change, rename or remove a value of JSON or of one of the JSON lines, or nest it deeply."""
    lines = data.split(b"\n") if b"\n{" in data else [data]
    place = rng.randrange(len(lines))
    if rng.random() < 0.1:
        return lines[place].replace(b":", b":" + b"[" * rng.choice((900, 50_000)), 1)
    whole = json.loads(lines[place])
    (value, key), (other, its_key) = rng.choices(list(_places(whole)), k=2)
    old = value[key]
    numbers = (-old, old + 1, str(old)) if isinstance(old, int | float) else ()
    value[key] = rng.choice((*numbers, other[its_key], rng.choice(VALUES)))
    if rng.random() < 0.2:
        new = value.pop(key)
        if isinstance(value, dict) and rng.random() < 0.5:
            value[f"{key}-2"] = new
    lines[place] = json.dumps(whole).encode()
    return b"\n".join(lines)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys: list[Any] = [*value] if isinstance(value, dict) else []
    for key in [*range(min(len(value), 50))] if isinstance(value, list) else keys:
        yield value, key
        yield from _places(value[key])


def as_archive(rng: Random, data: bytes) -> bytes:
    """Change a member of a zip file (.npz, .xlsx): content, name, number; a bomb."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    place = rng.randrange(len(members))
    name, content = members[place]
    other, new = rng.choice(("x.npy", "../X.npy", "/X.npy", "é.npy")), as_bytes(rng, content)
    members[place : place + 1] = rng.choice(
        ([(name, new)], [(name, new)], [], [(other, content)], [(name, content + bytes(2**26))])
    )
    with zipfile.ZipFile(stream := io.BytesIO(), "w") as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return stream.getvalue()


def as_columns(rng: Random, data: bytes) -> bytes:
    """Change type, values, name or number of columns and rows of a Parquet or Feather file."""
    module = pyarrow.parquet if data[:4] == b"PAR1" else pyarrow.feather
    table = module.read_table(io.BytesIO(data))
    place, n, word = rng.randrange(table.num_columns), table.num_rows, rng.choice(WORDS)
    names, no_text = [*table.column_names], pa.array([b"\xff\xfe"] * n)
    columns = (
        pa.nulls(n), pa.array([[1.0]] * n), pa.array([{"a": 1}] * n), pa.array([True] * n),
        pa.array([word] * n), no_text, no_text.view(pa.string()), pa.array([float("nan")] * n),
        pa.array([0] * n, pa.timestamp("ns")), table[place].combine_chunks().dictionary_encode(),
    )  # fmt: skip
    own, names[place] = names[place], rng.choice((word, "y", "id"))
    several = (table[:0], table[:1], table.select([]), pa.concat_tables([table] * 3),
               table.rename_columns(names), table.drop_columns([own]))  # fmt: skip
    table = rng.choice((table.set_column(place, own, rng.choice(columns)), rng.choice(several)))
    write = getattr(module, "write_table", None) or pyarrow.feather.write_feather
    write(table, stream := io.BytesIO())
    return stream.getvalue()


GRAMMARS: dict[str, Callable[[Random, bytes], bytes]] = {
    ".csv": as_text, ".tsv": as_text, ".txt": as_text, ".json": as_json, ".jsonl": as_json,
    ".parquet": as_columns, ".feather": as_columns, ".npz": as_archive, ".xlsx": as_archive,
}  # fmt: skip
INSTEAD: tuple[Callable[[Path], object], ...] = (
    Path.exists, Path.touch, Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path.name),
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.touch() or os.truncate(path, 2**40),
)  # fmt: skip


def damage(path: Path, number: int) -> None:
    """Replace a file by mutation `number` of it; some are other things than files."""
    rng, old = Random(f"{path}:{number}"), path.read_bytes()
    path.unlink()
    if number % 12 == 11:
        INSTEAD[number // 12 % len(INSTEAD)](path)
        return
    new = old
    while new == old:
        mutation = GRAMMARS.get(path.suffix, as_bytes) if rng.random() < 0.8 else as_bytes
        with suppress(Exception):  # Libraries that read a damaged file raise anything.
            new = mutation(rng, new)
    path.write_bytes(new)
    if number % 2:
        # In a run folder, its checksum is made right again.
        before, after = (f"{len(data)}:{hashlib.sha256(data).hexdigest()}" for data in (old, new))
        with suppress(OSError, ValueError):
            manifest = path.with_name("manifest.json")
            manifest.write_text(manifest.read_text().replace(before, after))
