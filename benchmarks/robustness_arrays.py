"""Mutations of arrays and tables: .npy and .npz, Parquet, segments of the feature cache."""

from __future__ import annotations

import io
import random
import struct
import zipfile
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from robustness_mutators import BYTES, NUMBERS, WORDS, Mutation

# arrays ----------------------------------------------------------------------------------------

_SHAPES = ("()", "(0, 5)", "(5,)", "(24, 0)", "(-1, 5)", "(2**40, 5)", "(1000000000, 5)", "(24,)",
           "(99999999999999999999, 5)", "(24, 5, 1)", "(24.0, 5)", "('a', 5)", "None", "(2**62, 4)",
           "(24, 5", "(True, 5)", "(12, 10)", "(23, 5)", "(100000, 100000)")  # fmt: skip
_DTYPES = ("'|O'", "'<f8'", "'>f4'", "'<U5'", "'<U1000000000'", "'|S9'", "'|V3'", "'<c16'", "'<i8'",
           "'|b1'", "'<M8[ns]'", "'<f2'", "[('a', '<f4')]", "'x'", "None", "'<U0'")  # fmt: skip


def npy_header(rng: random.Random, data: bytes) -> bytes:
    """Write another header before the same content; the last array of several is meant."""
    place = data.rfind(b"\x93NUMPY")
    form, start = ("<H", place + 10) if data[place + 6] == 1 else ("<I", place + 12)
    size = struct.unpack_from(form, data, place + 8)[0]
    text = data[start : start + size].decode("latin-1")
    match rng.randrange(5):
        case 0:
            shape = text[text.index("'shape':") + 8 : text.rindex(")") + 1]
            text = text.replace(shape, " " + rng.choice(_SHAPES))
        case 1:
            dtype = text[text.index("'descr':") + 8 : text.index(", 'fortran")]
            text = text.replace(dtype, " " + rng.choice(_DTYPES))
        case 2:
            text = text.replace("False", rng.choice(("True", "None", "1", "'x'")))
        case 3:
            text = rng.choice(("{}", "__import__('os')", "[" * 9000, "{'descr'", text + "x", "1"))
        case _:
            version = rng.choice((0, 2, 3, 9))
            return data[: place + 6] + bytes([version, 0]) + data[place + 8 :]
    head = text.encode("latin-1")
    return data[: place + 8] + struct.pack(form, len(head)) + head + data[start + size :]


def npy_values(rng: random.Random, data: bytes) -> bytes:
    """Put odd numbers into an array, or store it as another type."""
    place = data.rfind(b"\x93NUMPY")
    array = np.load(io.BytesIO(data[place:]), allow_pickle=False)
    if array.dtype.kind == "f":
        array = array.astype(rng.choice(("f2", "f4", "f8", ">f4", "i2", "O", "c8", "U9")))
        if array.dtype.kind == "f":
            values = (np.nan, np.inf, -np.inf, 3e38, 1e30, -0.0, 1e-45)
            array.flat[rng.randrange(array.size)] = rng.choice(values)
    else:
        array = array.astype(rng.choice(("U3", "O", "S9")))
        array[rng.randrange(len(array))] = rng.choice(WORDS)[:300]
    array = rng.choice((array, np.asfortranarray(array), array[:0], array[:1], array[:, :0]))
    return data[:place] + _saved(array)


def _saved(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


NPY: tuple[Mutation, ...] = (npy_header, npy_header, npy_values)


def npz_member(rng: random.Random, data: bytes) -> bytes:
    """Change a member: its array, name, compression; add bombs and pickles; drop or repeat it."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    place, how = rng.randrange(len(members)), zipfile.ZIP_STORED
    name, content = members[place]
    match rng.randrange(8):
        case 0 | 1:
            members[place] = (name, rng.choice(NPY)(rng, content))
        case 2:
            other = ("x.npy", "X", "../X.npy", "/X.npy", "X.npy/", "y.npy", "\0.npy", "é.npy")
            members[place] = (rng.choice(other), content)
        case 3:
            del members[place]
        case 4:
            members.append((name, members[0][1]))
        case 5:
            return _zip_bomb(name, 2**33 if rng.random() < 0.05 else 2**24)
        case 6:
            how = rng.choice((zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
        case _:
            members[place] = (name, rng.choice((b"", b"PK\3\4", b"cos\nsystem\n(S'id'\ntR.")))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", how) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content, how)
    return stream.getvalue()


def _zip_bomb(name: str, size: int) -> bytes:
    """Return an archive of one array of zeros, `size` bytes when unpacked, in some kilobytes."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (size // 200, 50)}
    )
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(header.getvalue()) + packer.flush(zlib.Z_FULL_FLUSH)
    # After a full flush the same bytes unpack to the same zeros, as often as they are repeated.
    block = packer.compress(bytes(2**24)) + packer.flush(zlib.Z_FULL_FLUSH)
    packed += block * (size // 2**24) + packer.flush()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(zipfile.ZipInfo(name), packed)
        own = archive.infolist()[0]
        own.compress_type, own.file_size = zipfile.ZIP_DEFLATED, len(header.getvalue()) + size
        own.CRC = 0
    data = stream.getvalue()
    return data[:8] + b"\x08\0" + data[10:]


def zip_header(rng: random.Random, data: bytes) -> bytes:
    """Change a field of a local or central header: flags, method, sizes, offsets."""
    mark, fields = rng.choice(((b"PK\3\4", (6, 8, 14, 18, 22, 26, 28)),
                               (b"PK\1\2", (8, 10, 16, 20, 24, 28, 30, 42)),
                               (b"PK\5\6", (8, 10, 12, 16, 20))))  # fmt: skip
    place = data.index(mark) + rng.choice(fields)
    value = rng.choice(
        (b"\1\0", b"\xff\xff", b"\0\0", b"\x63\0", b"\xff\xff\xff\xff", b"\0\0\0\x80")
    )
    return data[:place] + value + data[place + len(value) :]


NPZ: tuple[Mutation, ...] = (npz_member, npz_member, npz_member, zip_header)


def xlsx_member(rng: random.Random, data: bytes) -> bytes:
    """Change, drop or inflate a part of an Excel file."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(parts))
    match rng.randrange(5):
        case 0:
            del parts[name]
        case 1:
            parts[name] += b" " * rng.choice((10, 1 << 22))
        case 2:
            far = rng.choice((b'r="XFD1048576"', b'r="A9999999999"', b'r=""', b'r="-1"'))
            parts[name] = parts[name].replace(b'r="B2"', far).replace(b'r="2"', far)
        case 3:
            bomb = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]>'
            parts[name] = bomb + parts[name].replace(b"<v>", b"<v>&b;", 1)
        case _:
            parts[name] = rng.choice(BYTES)(rng, parts[name])
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return out.getvalue()


XLSX: tuple[Mutation, ...] = (xlsx_member, xlsx_member, xlsx_member, zip_header)

# Parquet ---------------------------------------------------------------------------------------


def parquet_column(rng: random.Random, data: bytes) -> bytes:
    """Change a column: its type, values, name, nulls; drop or repeat it."""
    table = pq.read_table(io.BytesIO(data))
    place = rng.randrange(table.num_columns)
    name, n = table.column_names[place], table.num_rows
    values = table[place].to_pylist()
    odd = rng.randrange(max(n, 1))
    match rng.randrange(9):
        case 0:
            column = _of_another_type(rng, n)
        case 1:
            column = pa.array([None if row == odd or n < 3 else v for row, v in enumerate(values)],
                              table.schema[place].type)  # fmt: skip
        case 2:
            values[odd] = rng.choice(WORDS)[:400].replace("\ud800", "?")
            column = pa.array([str(value) for value in values])
        case 3:
            column = pa.array([rng.choice((b"\xff\xfe", b"a", b"\xc3(")) for _ in range(n)])
            if rng.random() < 0.6:
                column = pa.Array.from_buffers(pa.string(), n, column.buffers())
        case 4:
            column = pa.array([float(rng.choice(NUMBERS[:7]) or 0) if row == odd else 1.0
                               for row in range(n)])  # fmt: skip
        case 5:
            column = table[place].combine_chunks().dictionary_encode()
        case 6:
            names = ("x", "", "y", "id", "p:", "step_x", "step_99", "\0", "top_1", "label", "f0")
            renamed = [rng.choice(names) if c == place else own for c, own in
                       enumerate(table.column_names)]  # fmt: skip
            return _written(rng, table.rename_columns(renamed))
        case 7:
            return _written(rng, table.drop_columns([name]))
        case _:
            return _written(rng, table.append_column(name, table[place]))
    return _written(rng, table.set_column(place, name, column))


def _of_another_type(rng: random.Random, n: int) -> Any:
    kinds: tuple[Any, ...] = (
        pa.nulls(n), pa.array([[1.0]] * n), pa.array([{"a": 1}] * n), pa.array([True] * n),
        pa.array([10**18] * n), pa.array(["x"] * n), pa.array([b"\0"] * n), pa.array([-1.5] * n),
        pa.array([0] * n, pa.timestamp("ns")), pa.array(["1"] * n, pa.large_string()),
        pa.array([1] * n, pa.decimal128(30)), pa.array([1] * n, pa.uint64()),
        pa.array([0.5] * n, pa.float32()), pa.array([[]] * n, pa.list_(pa.string())),
        pa.array([0] * n, pa.date32()), pa.array([b"abcd"] * n, pa.binary(4)),
    )  # fmt: skip
    return rng.choice(kinds)


def parquet_rows(rng: random.Random, data: bytes) -> bytes:
    """Fewer rows, none, twice as many, another order, many row groups."""
    table = pq.read_table(io.BytesIO(data))
    n = table.num_rows
    rows = rng.choice((table.slice(0, 0), table.slice(0, 1), table.slice(0, n - 1),
                       pa.concat_tables([table, table]), table.take(list(range(n))[::-1]),
                       table.select([]), table.slice(1)))  # fmt: skip
    return _written(rng, rows)


def parquet_many(rng: random.Random, data: bytes) -> bytes:
    """Write a small file of very many equal rows, which needs gigabytes in memory."""
    if rng.random() < 0.9:
        raise ValueError  # it takes long
    table = pq.read_table(io.BytesIO(data))
    n = rng.choice((10**5, 10**6)) if rng.random() < 0.9 else 3 * 10**7
    index = pa.array(np.zeros(n, dtype=np.int8))
    columns = {name: pa.DictionaryArray.from_arrays(index, table[name].slice(0, 1).combine_chunks())
               for name in table.column_names}  # fmt: skip
    return _written(rng, pa.table(columns))


def _written(rng: random.Random, table: Any) -> bytes:
    stream = io.BytesIO()
    options: dict[str, Any] = {"compression": rng.choice(("snappy", "zstd", "none", "gzip"))}
    options["row_group_size"] = rng.choice((None, None, 1, 5))
    if table.num_rows >= 10**5:  # row groups of a few rows would take minutes to write
        options["row_group_size"] = None
    options["store_schema"] = rng.random() < 0.5
    pq.write_table(table, stream, **options)
    return stream.getvalue()


PARQUET: tuple[Mutation, ...] = (parquet_column, parquet_column, parquet_column, parquet_rows,
                                 parquet_many, *BYTES)  # fmt: skip
