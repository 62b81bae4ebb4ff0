"""Where arrays lie in ``.npz`` files: whatever wrote them, and whatever happened to them since."""

from __future__ import annotations

import io
import struct
import zipfile
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from opensetda.data.tables import mapped
from opensetda.data.tables.arrays import find_array
from opensetda.data.tables.loading import TableColumns, read_samples
from opensetda.errors import InputError
from table_helpers import error_of

quick = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

kinds = st.one_of(
    arrays.boolean_dtypes(),
    arrays.integer_dtypes(),
    arrays.unsigned_integer_dtypes(),
    arrays.floating_dtypes(),
    arrays.unicode_string_dtypes(max_len=4),
    arrays.byte_string_dtypes(max_len=4),
)
some_arrays = arrays.arrays(kinds, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0))
# No NUL, at which zip cuts a name.
some_names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9)


class Member:
    """An array on its way into an archive, in one of the ways there are."""

    def __init__(self, values, packed, zip64, extra, version):
        self.values, self.packed, self.zip64 = values, packed, zip64
        self.extra, self.version = extra, version

    def write(self, archive, name):
        info = zipfile.ZipInfo(f"{name}.npy")
        info.compress_type = zipfile.ZIP_DEFLATED if self.packed else zipfile.ZIP_STORED
        info.extra = struct.pack("<HH", 0xCAFE, len(self.extra)) + self.extra
        with archive.open(info, "w", force_zip64=self.zip64) as stream:
            np.lib.format.write_array(stream, self.values, self.version, allow_pickle=False)

    def __repr__(self):
        return f"Member({vars(self)})"


members = st.builds(
    Member,
    values=some_arrays,
    packed=st.sampled_from([False, False, True]),
    zip64=st.booleans(),
    extra=st.binary(max_size=20),
    version=st.sampled_from([None, (1, 0), (2, 0), (3, 0)]),
)


@quick
@given(
    content=st.dictionaries(some_names, members, min_size=1, max_size=3),
    before=st.binary(max_size=9),
    comment=st.binary(max_size=9),
)
def test_arrays_are_found_where_they_are(tmp_path, content, before, comment):
    path = tmp_path / "t.npz"
    stream = io.BytesIO()
    # Archives may begin with anything: a program that unpacks them, for example.
    stream.write(before)
    with zipfile.ZipFile(stream, "a") as archive:
        for name, member in content.items():
            member.write(archive, name)
        archive.comment = comment
    path.write_bytes(stream.getvalue())
    for name, member in content.items():
        found = find_array(path, name)
        values = member.values
        columns_first = values.flags.f_contiguous and not values.flags.c_contiguous
        assert (found.values is not None) == (member.packed or columns_first)
        there = found.map()
        assert there.dtype == values.dtype
        assert there.shape == values.shape
        assert there.tobytes() == values.tobytes()
        if there.ndim:
            chunks = [chunk.tobytes() for _, chunk in found.chunks()]
            assert b"".join(chunks) == values.tobytes()


def an_archive(path):
    X = np.arange(24, dtype=np.float32).reshape(8, 3)
    ids = np.array([f"sample {row}" for row in range(8)])
    np.savez(path, X=X, id=ids)
    return X.tolist(), ids.tolist()


@settings(quick, max_examples=100)
@given(
    flips=st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 255)), max_size=3),
    end=st.none() | st.integers(0, 2000),
)
@example(flips=[(725, 1 << 6)], end=None)  # a version of zip that does not exist
@example(flips=[(727, 1 << 0)], end=None)  # a password
@example(flips=[(729, 1 << 1)], end=None)  # a way to pack that does not exist
def test_damaged_archives_are_refused(tmp_path, flips, end):
    path = tmp_path / "t.npz"
    expected = an_archive(path)
    whole = bytearray(path.read_bytes())
    for place, bits in flips:
        whole[place % len(whole)] ^= bits
    path.write_bytes(whole[:end])
    for large in (0, 1 << 28):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mapped, "LARGE_BYTES", large)
            # Anything but the right numbers or this error fails the test.
            with suppress(InputError):
                table = read_samples(path, 3, columns=TableColumns(id="id"))
                assert (table.X.tolist(), table.ids.tolist()) == expected


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (26, b"\x04\x00"),  # the length of the name
        (30, b"Y"),  # the name
        (30 + 5 + 20 + 60, b"9"),  # the header of the array
        (200, b"\xff"),  # a number
    ],
)
def test_each_kind_of_damage_is_found(tmp_path, monkeypatch, place, value):
    monkeypatch.setattr(mapped, "LARGE_BYTES", 0)
    path = tmp_path / "t.npz"
    an_archive(path)
    whole = bytearray(path.read_bytes())
    whole[place : place + len(value)] = value
    path.write_bytes(whole)
    message = error_of(read_samples, path, 3)
    assert message == f"{path}: cannot read array 'X': the file is damaged"


def test_a_damaged_signature_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(mapped, "LARGE_BYTES", 0)
    path = tmp_path / "t.npz"
    an_archive(path)
    whole = path.read_bytes()
    second = whole.rindex(b"PK\x03\x04")
    path.write_bytes(whole[:second] + b"x" + whole[second + 1 :])
    message = error_of(read_samples, path, 3, None, TableColumns(id="id"))
    assert message == f"{path}: cannot read array 'id': the file is damaged"


def test_numbers_that_are_no_characters_are_damage(tmp_path, monkeypatch):
    monkeypatch.setattr(mapped, "LARGE_BYTES", 0)
    path = tmp_path / "t.npz"
    an_archive(path)
    path.write_bytes(path.read_bytes().replace(b"s\0\0\0", b"s\0\0\x7f"))
    message = error_of(read_samples, path, 3, None, TableColumns(id="id"))
    assert message == f"{path}: cannot read array 'id': the file is damaged"


def test_what_is_no_array_is_named(tmp_path):
    path = tmp_path / "t.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("X", "some text that is no array")
    assert "cannot read array 'X': it is damaged, cut short or not an array" in error_of(
        read_samples, path, 3
    )
