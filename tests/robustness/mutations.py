"""Mutations of files: by the grammar of their format, as bytes, or something else instead."""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import warnings
import zipfile
from collections.abc import Callable
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
VALUES = (None, True, 0, -1, 2**63, 10**400, 0.5, 1e308, float("nan"), [], {}, [[]], *WORDS)


def as_bytes(rng: Random, data: bytes) -> bytes:
    """Cut, grow, overwrite or move a part; flip a bit; write a number at a limit."""
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
    """Change a value of JSON or of one of the JSON lines, or nest it deeply."""
    lines = data.split(b"\n") if b"\n{" in data else [data]
    place = rng.randrange(len(lines))
    if rng.random() < 0.1:
        return lines[place].replace(b":", b":" + b"[" * rng.choice((900, 50_000)), 1)
    lines[place] = json.dumps(_changed(rng, json.loads(lines[place]))).encode()
    return b"\n".join(lines)


def _changed(rng: Random, value: Any) -> Any:
    """Change, rename, copy or remove one place of a JSON value."""
    keys: list[Any] = [*value] if isinstance(value, dict) else []
    keys = [*range(min(len(value), 50))] if isinstance(value, list) else keys
    if not keys:
        numbers = (-value, value + 1, str(value)) if isinstance(value, int | float) else ()
        return rng.choice((*numbers, *VALUES))
    key, kind = rng.choice(keys), rng.randrange(8)
    if kind == 0:
        del value[key]
    elif kind == 1 and isinstance(value, dict):
        value[f"{key}-2"] = value.pop(key)
    else:
        others = (value[rng.choice(keys)], rng.choice(VALUES))
        value[key] = _changed(rng, value[key]) if kind > 3 else rng.choice(others)
    return value


def as_tensors(rng: Random, data: bytes) -> bytes:
    """Change the header of a safetensors file, or the last number."""
    size = int.from_bytes(data[:8], "little")
    text = json.dumps(_changed(rng, json.loads(data[8 : 8 + size]))).encode()
    number = struct.pack("<f", rng.choice((float("nan"), float("inf"), 1e30)))
    head = len(text).to_bytes(8, "little") + text
    return rng.choice((head + data[8 + size :], data[:-4] + number))


def as_array(rng: Random, data: bytes) -> bytes:
    """Change shape or type in the header of an .npy file, or the last number."""
    heads = ((b"9)", b"8)"), (b", 9)", b", -9)"), (b", 9)", b"9**9)"), (b"<f4", b"|O8"),
             (b"<f4", b">f4"), (b"<f4", b"<U1"), (b"False", b"True "))  # fmt: skip
    number = struct.pack("<f", rng.choice((float("nan"), float("inf"), 1e30)))
    return rng.choice((data.replace(*rng.choice(heads), 1), data[:-4] + number))


def as_archive(rng: Random, data: bytes) -> bytes:
    """Change a member of a zip file (.npz, .xlsx): content, name, number, compression; a bomb."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    place = rng.randrange(len(members))
    name, content = members[place]
    mutation = as_array if name.endswith(".npy") and rng.random() < 0.7 else as_bytes
    other, new = rng.choice(("x.npy", "../X.npy", "/X.npy", "é.npy")), mutation(rng, content)
    members[place : place + 1] = rng.choice(
        ([(name, new)], [(name, new)], [], [(other, content)], [(name, content + bytes(2**26))],
         [members[0], members[place]])
    )  # fmt: skip
    how = rng.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    with zipfile.ZipFile(stream := io.BytesIO(), "w", how) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of names that are there twice.
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content, how)
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


def as_tar(rng: Random, data: bytes) -> bytes:
    """Change a field of a header, and make its checksum right again."""
    place = rng.choice([n for n in range(0, len(data), 512) if data[n + 257 : n + 262] == b"ustar"])
    head = bytearray(data[place : place + 512])
    values = (b"", b"77777777777", b"\x80" + b"\xff" * 11, b"-1", b"/etc/passwd", b"../../a.png",
              b"0000.png", b"a" * 100, b"\xfe\xff.png", b"a\x1b[2J.png")  # fmt: skip
    start, size = rng.choice(((0, 100), (124, 12), (156, 1), (157, 100), (345, 155)))
    value = bytes([rng.choice(b"123567xgLKS\0Z")]) if size == 1 else rng.choice(values)
    head[start : start + size] = value[:size].ljust(size, b"\0")
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return data[:place] + head + data[place + 512 :]


GRAMMARS: dict[str, Callable[[Random, bytes], bytes]] = {
    ".csv": as_text, ".tsv": as_text, ".txt": as_text, ".json": as_json, ".jsonl": as_json,
    ".parquet": as_columns, ".feather": as_columns, ".npz": as_archive, ".xlsx": as_archive,
    ".npy": as_array, ".safetensors": as_tensors, ".tar": as_tar,
}  # fmt: skip
INSTEAD: tuple[Callable[[Path], object], ...] = (
    Path.exists, Path.touch, Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path.name),
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: os.truncate(path.open("w").fileno(), 2**40),
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
        _reseal(path, old, new)


def _reseal(path: Path, old: bytes, new: bytes) -> None:
    """Make checksums right again: of the file in its manifest, and of a JSON file in itself."""
    before, after = (f"{len(data)}:{hashlib.sha256(data).hexdigest()}" for data in (old, new))
    for file in (path, path.with_name("manifest.json")):
        with suppress(OSError, ValueError, RecursionError):
            content = json.loads(file.read_text().replace(before, after))
            if isinstance(content, dict) and content.pop("sha256", None):
                own = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
                content["sha256"] = own
            file.write_text(json.dumps(content))
