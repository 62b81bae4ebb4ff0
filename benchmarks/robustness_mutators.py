"""Mutations of files by their grammar: text, JSON, safetensors, tar, images, and bytes of any kind.

A mutation is a function of a random generator and the bytes of a file. It may fail on a file that
an earlier one has damaged; `mutate` then leaves the bytes as they are. Arrays and Parquet
are in `robustness_arrays`.
"""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Callable
from typing import Any

Mutation = Callable[[random.Random, bytes], bytes]

# bytes of any kind -----------------------------------------------------------------------------


def flip(rng: random.Random, data: bytes) -> bytes:
    """Change a few bits."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 4, 32))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def truncate(rng: random.Random, data: bytes) -> bytes:
    """Cut the end off, perhaps everything."""
    return data[: rng.choice((0, 1, rng.randrange(len(data)), len(data) - 1, len(data) - 7))]


def extend(rng: random.Random, data: bytes) -> bytes:
    """Add bytes, at the end or at the start."""
    more = rng.choice((b"\0" * 600, rng.randbytes(40), b"\n\n", data[:80], b"\xef\xbb\xbf"))
    return rng.choice((data + more, more + data))


def splice(rng: random.Random, data: bytes) -> bytes:
    """Copy a part to another place, or remove it."""
    start, place = rng.randrange(len(data)), rng.randrange(len(data))
    part = data[start : start + rng.choice((1, 8, 64, 512))]
    return rng.choice((data[:place] + part + data[place:], data.replace(part, b"", 1)))


def fill(rng: random.Random, data: bytes) -> bytes:
    """Overwrite a part with zeros, ones or noise: a lost sector."""
    start, n = rng.randrange(len(data)), rng.choice((1, 4, 16, 512))
    part = rng.choice((bytes(n), b"\xff" * n, rng.randbytes(n)))
    return data[:start] + part + data[start + n :]


def number(rng: random.Random, data: bytes) -> bytes:
    """Overwrite 2, 4 or 8 bytes with a number at a limit."""
    form = rng.choice(("<H", ">H", "<I", ">I", "<Q", ">Q"))
    size = struct.calcsize(form)
    value = rng.choice((0, 1, 2 ** (8 * size) - 1, 2 ** (8 * size - 1), 2 ** (4 * size)))
    start = rng.randrange(max(1, len(data) - size))
    return data[:start] + struct.pack(form, value) + data[start + size :]


BYTES: tuple[Mutation, ...] = (flip, truncate, extend, splice, fill, number)

# text ------------------------------------------------------------------------------------------

NUMBERS = ("1e999", "-1e999", "-0", "NaN", "nan", "inf", "-Infinity", "0x1F", "1_000", "1e-320",
           "1e30", "3.4e38", "1e308", "١٢", "9" * 400, "1,5", "true", "")  # fmt: skip
WORDS = ("", " ", "\0", "\x1b[2J", "\x07\x08", "a\u0300\u0301", "\u202eabc", "\u200b", "\ufeff",
         "\U0001f600", "\ud800", "=1+1", "-", "unknown", "Unknown", "ant ", "Ant", "null", "None",
         "../../etc/passwd", "/dev/zero", "a" * 300, "x" * 1_000_000, '"', "'", "\\", "a,b", "a\nb",
         "\r", "\t", "<script>", "%s%n", "p:ant", "label", "id", "\u2028", "\x85")  # fmt: skip


def _word(rng: random.Random) -> bytes:
    made = rng.choice((*WORDS, *NUMBERS))
    if rng.random() < 0.1:
        return rng.choice((b"\xff\xfe", b"\xc3\x28", b"\x80" * 5, "é".encode("latin-1")))
    return made.encode("utf-8", "surrogatepass")


def _cells(data: bytes) -> list[list[bytes]]:
    return [line.split(b",") for line in data.split(b"\n")]


def _text(rows: list[list[bytes]]) -> bytes:
    return b"\n".join(b",".join(cells) for cells in rows)


def cell(rng: random.Random, data: bytes) -> bytes:
    """Change a cell, or a whole column below its heading."""
    rows, word = _cells(data), _word(rng)
    row = rng.randrange(len(rows))
    column = rng.randrange(len(rows[row]))
    word = rng.choice((word, b'"' + word + b'"', rows[row][column] + word))
    for cells in rows[1:] if rng.random() < 0.2 else [rows[row]]:
        if column < len(cells):
            cells[column] = word[:300] if len(word) > 300 and rng.random() < 0.9 else word
    return _text(rows)


def heading(rng: random.Random, data: bytes) -> bytes:
    """Change a heading: empty, twice, another one's, quoted, or very many of them."""
    rows = _cells(data)
    names, place = rows[0], rng.randrange(len(rows[0]))
    match rng.randrange(5):
        case 0:
            names[place] = _word(rng)[:300]
        case 1:
            names[place] = names[rng.randrange(len(names))]
        case 2:
            rows[0] = names[:place]
        case 3:
            many = rng.choice((1000, 5000))
            rows = [cells + [b"%d" % (n if c == 0 else 1) for n in range(many)]
                    for c, cells in enumerate(rows[:4])]  # fmt: skip
        case _:
            names[place] = b'"' + names[place]
    return _text(rows)


def lines(rng: random.Random, data: bytes) -> bytes:
    """Change lines: order, ends, empty ones, comments, one twice, none but the first."""
    own = data.split(b"\n")
    match rng.randrange(7):
        case 0:
            rng.shuffle(own)
        case 1:
            return b"\r\n".join(own) if rng.random() < 0.5 else b"\r".join(own)
        case 2:
            own.insert(rng.randrange(len(own)), rng.choice((b"", b"   ", b"# a", b",,,", b"\t")))
        case 3:
            own.insert(rng.randrange(len(own)), rng.choice(own))
        case 4:
            own = own[:1]
        case 5:
            own = own * rng.choice((2, 50))
        case _:
            own = [own[0], *own[2:]]
    return b"\n".join(own)


def encoding(rng: random.Random, data: bytes) -> bytes:
    """Encode it differently, or change what separates cells."""
    match rng.randrange(4):
        case 0:
            return data.decode().encode(rng.choice(("utf-16", "utf-32", "utf-16-be", "utf-7")))
        case 1:
            return b"\xef\xbb\xbf" * rng.choice((1, 2)) + data
        case 2:
            return data.replace(b",", rng.choice((b";", b"\t", b" ", b"|", b",,", b"\0")))
        case _:
            return data.replace(b"\n", rng.choice((b"\0", b"\n\n", b" \n")))


TEXT: tuple[Mutation, ...] = (cell, cell, heading, lines, encoding)


def path_line(rng: random.Random, data: bytes) -> bytes:
    """Change a line of a list of images."""
    own = data.split(b"\n")
    place = rng.randrange(len(own))
    others = (b"shop", b".", b"../images/shop/ant/0.png ant", b"shard.tar/0000.png ant",
              b"https://host/a.png ant", _word(rng)[:9000])  # fmt: skip
    line = own[place]
    own[place] = rng.choice((line + b" " + _word(rng), line.replace(b" ", b"\t"), *others))
    return b"\n".join(own)


LIST: tuple[Mutation, ...] = (path_line, path_line, lines, encoding)

# JSON ------------------------------------------------------------------------------------------

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, 0.5, 1e308, float("nan"), float("inf"),
    "", "x", "NaN", "1", "\ud800", "\0", "\x1b[2J", "a" * 5000, [], {}, [None], {"a": None}, [[]],
    [1, 2, 3], ["x"], "../..", "/dev/zero", "2026-01-01T00:00:00",
)  # fmt: skip


def _places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = list(value) if isinstance(value, dict) else range(min(len(value), 50)) if isinstance(
        value, list) else ()  # fmt: skip
    return [here, *(place for key in keys for place in _places(value[key], (*here, key)))]


def change_value(rng: random.Random, value: Any) -> Any:
    """Return JSON with one change at a random place; syntax stays valid."""
    places = [place for place in _places(value) if place]
    if not places or rng.random() < 0.02:
        return rng.choice(VALUES)
    place = rng.choice(places)
    inner = value
    for key in place[:-1]:
        inner = inner[key]
    key, kind = place[-1], rng.randrange(6)
    if kind == 0:
        del inner[key]
    elif kind == 1 and isinstance(inner, dict):
        inner[f"{key}-2"] = inner.pop(key)
    elif kind == 2 and isinstance(inner, list):
        inner.insert(key, inner[key])
    elif kind == 3 and isinstance(inner[key], int | float):
        inner[key] = rng.choice((-inner[key], inner[key] + 1, 1e30, 10**15, str(inner[key])))
    elif kind == 4:
        other = value
        for step in rng.choice(places):
            other = other[step]
        inner[key] = json.loads(json.dumps(other))
    else:
        inner[key] = rng.choice(VALUES)
    return value


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()


def json_value(rng: random.Random, data: bytes) -> bytes:
    """Change a value, its type, its key, or remove it."""
    return _dump(change_value(rng, json.loads(data)))


def json_syntax(rng: random.Random, data: bytes) -> bytes:
    """Nest deeply, repeat keys, add what strict JSON has not."""
    match rng.randrange(5):
        case 0:
            return rng.choice((b"[", b'{"a":')) * 100_000
        case 1:
            value = rng.choice((b"[" * 990 + b"]" * 990, b"[" * 50_000 + b"]" * 50_000))
            return data.replace(b": ", b": " + value + b', "x": ', 1)
        case 2:
            return data.replace(b"{", b'{"version": 7, "format": null, ', 1)
        case 3:
            return data.replace(b'"', rng.choice((b"'", b"", b'\\"')), rng.choice((1, 2)))
        case _:
            return data.replace(b": ", b": 1" + b"0" * rng.choice((20, 5000)) + b" , ", 1)


JSON: tuple[Mutation, ...] = (json_value, json_value, json_value, json_syntax)


def json_line(rng: random.Random, data: bytes) -> bytes:
    """Change one line of JSON lines."""
    own = data.split(b"\n")
    place = rng.randrange(max(1, len(own) - 1))
    own[place] = rng.choice((json_value, json_value, json_syntax))(rng, own[place])
    return b"\n".join(own)


JSONL: tuple[Mutation, ...] = (json_line, json_line, lines)

# safetensors -----------------------------------------------------------------------------------


def tensor_header(rng: random.Random, data: bytes) -> bytes:
    """Change the header: dtypes, shapes, offsets, names, metadata; or its length."""
    size = int.from_bytes(data[:8], "little")
    header, rest = json.loads(data[8 : 8 + size]), data[8 + size :]
    name = rng.choice(list(header))
    match rng.randrange(6):
        case 0:
            header = change_value(rng, header)
        case 1:
            header[name]["dtype"] = rng.choice(("F64", "F16", "I64", "BOOL", "BF16", "F8_E4M3"))
        case 2:
            header[name]["shape"] = rng.choice(([], [0], [1], [2**40, 2**40], [-1], [2**62]))
        case 3:
            header[rng.choice(("x", "\0", "weight", name + "2"))] = header.pop(name)
        case 4:
            inner = header.setdefault("__metadata__", {"values": "{}"})
            key = rng.choice(list(inner))
            inner[key] = json_value(rng, inner[key].encode()).decode()
        case _:
            size = rng.choice((0, 2**63, 2**32, 100_000_001, size - 1, size + 1))
            return size.to_bytes(8, "little") + data[8:]
    text = _dump(header)
    return len(text).to_bytes(8, "little") + text + rest


def tensor_values(rng: random.Random, data: bytes) -> bytes:
    """Put NaN, infinity or a huge number into a tensor."""
    start = 8 + int.from_bytes(data[:8], "little")
    place = start + 4 * rng.randrange((len(data) - start) // 4)
    value = rng.choice((float("nan"), float("inf"), 1e30, -1e30, 0.0))
    return data[:place] + struct.pack("<f", value) + data[place + 4 :]


SAFETENSORS: tuple[Mutation, ...] = (tensor_header, tensor_header, tensor_values)

# tar -------------------------------------------------------------------------------------------

_FIELDS = {"name": (0, 100), "mode": (100, 8), "uid": (108, 8), "size": (124, 12),
           "mtime": (136, 12), "type": (156, 1), "link": (157, 100), "magic": (257, 8),
           "prefix": (345, 155)}  # fmt: skip
_TAR_VALUES = (b"", b"77777777777", b"\x80" + bytes(3) + b"\xff" * 8, b"\xff" * 12, b"-1",
               b"00000000777", b"/etc/passwd", b"../../a.png", b"0000.png", b"a" * 100, b"\0",
               b"\x80\0\0\0\0\0\0\x09\x50\x2f\x90\0", b"\xfe\xff.png", b"a\x1b[2J.png")  # fmt: skip


def tar_header(rng: random.Random, data: bytes) -> bytes:
    """Change a field of a header, and make its checksum right again."""
    heads = [
        place for place in range(0, len(data) - 511, 512) if data[place + 257 :][:5] == b"ustar"
    ]
    place = rng.choice(heads)
    head = bytearray(data[place : place + 512])
    field = rng.choice((*_FIELDS, "size", "type"))
    start, size = _FIELDS[field]
    value = rng.choice(_TAR_VALUES)
    if field == "type":
        value = bytes([rng.choice(b"123567xgLKS\0Z")])
    head[start : start + size] = value[:size].ljust(size, b"\0")
    if rng.random() < 0.9:
        head[148:156] = b" " * 8
        head[148:156] = b"%06o\0 " % sum(head)
    return data[:place] + bytes(head) + data[place + 512 :]


def tar_pax(rng: random.Random, data: bytes) -> bytes:
    """Change a pax record."""
    records = ((b"path=", b"size=99999999999\0"), (b"path=", b"size=-5 "), (b" path=", b" " * 6),
               (b"path=long", b"GNU.sparse.map=1,2"), (b"path=", b"path=../"))  # fmt: skip
    old, new = rng.choice(records)
    return data.replace(old, new[: max(len(old), 5)], 1)


TAR: tuple[Mutation, ...] = (tar_header, tar_header, tar_header, tar_pax)

# images ----------------------------------------------------------------------------------------


def _png_chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    chunks, place = [], 8
    while place < len(data):
        size = int.from_bytes(data[place : place + 4], "big")
        chunks.append((data[place + 4 : place + 8], data[place + 8 : place + 8 + size]))
        place += 12 + size
    return chunks


def png_chunk(rng: random.Random, data: bytes) -> bytes:
    """Change, repeat or swap chunks of a PNG, with right checksums: sizes, depth, text bombs."""
    chunks = _png_chunks(data)
    place = rng.randrange(len(chunks))
    name, body = chunks[place]
    match rng.randrange(5):
        case 0:
            size = rng.choice((0, 1, 65536, 11585, 2**31 - 1, 100_000))
            head = struct.pack(">II", size, rng.choice((size, 1))) + chunks[0][1][8:]
            chunks[0] = (b"IHDR", head)
        case 1:
            head = chunks[0][1]
            chunks[0] = (b"IHDR", head[:8] + bytes(rng.choice((0, 1, 2, 3, 4, 6, 8, 16))
                                                   for _ in range(2)) + head[10:])  # fmt: skip
        case 2:
            chunks.insert(rng.randrange(len(chunks)), (name, body))
        case 3:
            text = zlib.compress(bytes(rng.choice((10**5, 10**8))))
            chunks.insert(1, rng.choice(((b"zTXt", b"k\0\0" + text), (b"iCCP", b"k\0\0" + text))))
        case _:
            chunks[place] = (name, rng.choice((b"", body[:3], flip(rng, body or b"0"))))
    out = data[:8]
    for name, body in chunks:
        check = zlib.crc32(name + body)
        out += struct.pack(">I", len(body)) + name + body + struct.pack(">I", check)
    return out


def image_size(rng: random.Random, data: bytes) -> bytes:
    """Overwrite the 24 pixels of a side, wherever they are written, with another number."""
    form = rng.choice(("<H", ">H", "<I", ">I"))
    own = struct.pack(form, 24)
    places = [place for place in range(len(data)) if data[place : place + len(own)] == own]
    place = rng.choice(places)
    side = rng.choice((0, 1, 25, 60_000, 2 ** (8 * len(own)) - 1))
    return data[:place] + struct.pack(form, side) + data[place + len(own) :]


PNG: tuple[Mutation, ...] = (png_chunk, png_chunk, image_size, *BYTES)
IMAGE: tuple[Mutation, ...] = (image_size, *BYTES)


def mutate(rng: random.Random, grammar: tuple[Mutation, ...], data: bytes) -> tuple[bytes, str]:
    """Return changed bytes, and the names of one to three mutations that made them."""
    names = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        mutation = rng.choice(grammar if rng.random() < 0.8 else BYTES)
        try:
            data = mutation(rng, data)
        except Exception:  # libraries that read a damaged file raise anything
            continue
        names.append(mutation.__name__)
    return data, "+".join(names) or "none"
