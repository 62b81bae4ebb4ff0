"""Parquet larger than memory, in one file or in parts: read a batch at a time."""

from __future__ import annotations

import gc
import shutil
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from large_table_helpers import IDS, a_matrix, is_in_file, make_all_large, names
from opensetda.data.tables import mapped, scratch
from opensetda.data.tables import parquet_parts as parts
from opensetda.data.tables.loading import (
    TableColumns,
    read_domains,
    read_samples,
    read_truth,
)
from opensetda.data.tables.mapped import StoredText, first_repeated
from opensetda.data.tables.parquet_parts import is_parts_folder, table_bytes, table_files
from table_helpers import error_of, save


@pytest.fixture
def source(tmp_path):
    return save(tmp_path / "source.npz", np.eye(4, 3), y=["a", "a", "b", "b"])


@pytest.fixture
def large(monkeypatch):
    make_all_large(monkeypatch)


def write_parts(folder, X, cuts, row_group=None, **named):
    """Write a folder of parts that begin at `cuts`, in row groups of some rows."""
    folder.mkdir()
    table = pa.table({f"f{column}": X[:, column] for column in range(X.shape[1])} | named)
    ends = [*cuts[1:], len(X)]
    for number, (start, stop) in enumerate(zip(cuts, ends, strict=True)):
        part = table.slice(start, stop - start)
        file = folder / f"part-{number}.parquet"
        pyarrow.parquet.write_table(part, file, row_group_size=row_group)
    (folder / "_SUCCESS").touch()
    return folder


# tables -----------------------------------------------------------------------------------


def test_a_folder_of_parts_is_known_by_its_files(tmp_path):
    folder = write_parts(tmp_path / "t", a_matrix(), [0, 4])
    assert is_parts_folder(folder)
    assert is_parts_folder(str(folder))
    assert [file.name for file in table_files(folder)] == ["part-0.parquet", "part-1.parquet"]
    assert table_bytes(folder) == sum(file.stat().st_size for file in folder.glob("part*"))
    assert table_files(folder / "part-0.parquet") == [folder / "part-0.parquet"]
    assert not is_parts_folder(folder / "part-0.parquet")
    assert not is_parts_folder(tmp_path / "none")
    (folder / "a.jpg").touch()
    assert not is_parts_folder(folder)
    assert "or a folder with .parquet files only" in error_of(read_samples, folder, 3)
    (tmp_path / "empty").mkdir()
    assert not is_parts_folder(tmp_path / "empty")


def test_small_parts_are_read_into_memory(tmp_path, source):
    X = a_matrix()
    folder = write_parts(tmp_path / "t", X, [0, 4, 4, 7], y=["?"] * 11, id=names(11))
    table = read_domains(source, folder, IDS)[1]
    assert type(table.X) is np.ndarray
    assert table.X.dtype == np.float32
    np.testing.assert_array_equal(table.X, X)
    assert table.ids.tolist() == names(11)
    assert table.feature_names == ("f0", "f1", "f2")
    assert table.labels is None
    labelled, _ = read_domains(folder, folder, TableColumns(label="id", drop=("y",)))
    assert labelled.labels.tolist() == names(11)


@pytest.mark.parametrize("group_values", [1 << 22, 8])
@pytest.mark.parametrize("row_group", [None, 3])
@pytest.mark.parametrize("dtype", ["f2", "f4", "i4"])
def test_large_parts_are_written_to_a_file(
    tmp_path, source, large, monkeypatch, group_values, row_group, dtype
):
    monkeypatch.setattr(parts, "_GROUP_VALUES", group_values)
    X = a_matrix(dtype=dtype)
    folder = write_parts(tmp_path / "t", X, [0, 6], row_group, y=["?"] * 11, id=names(11))
    told = []
    scratch_folder = tmp_path / "scratch"
    table = read_domains(source, folder, IDS, told.append, scratch_folder)[1]
    assert is_in_file(table.X)
    assert table.X.dtype == (np.float16 if dtype == "f2" else np.float32)
    np.testing.assert_array_equal(table.X, X)
    assert isinstance(table.ids, StoredText)
    assert table.ids.tolist() == names(11)
    assert sum(told) == table_bytes(source) + table_bytes(folder)
    assert sorted(file.suffix for file in scratch_folder.iterdir()) == [".arrow", ".npy"]
    np.testing.assert_array_equal(np.load(next(scratch_folder.glob("*.npy"))), X)


def test_one_large_file_is_read_like_parts(tmp_path, large):
    path = save(tmp_path / "t.parquet", a_matrix(), id=names(11))
    table = read_samples(path, 3, ("f2", "f0"), IDS, scratch=tmp_path / "scratch")
    assert is_in_file(table.X)
    np.testing.assert_array_equal(table.X, a_matrix()[:, [2, 0]])
    assert table.feature_names == ("f2", "f0")
    assert table.ids[3:5].tolist() == names(11)[3:5]
    assert read_truth(path, TableColumns(label="id")).labels.tolist() == names(11)


def test_columns_come_in_the_order_of_the_source(tmp_path, large):
    X = a_matrix()
    a = tmp_path / "a.csv"
    a.write_text("f2,y,f0,f1\n1,k,2,3\n4,l,5,6\n")
    folder = write_parts(tmp_path / "t", X, [0, 5])
    table = read_domains(a, folder, scratch=tmp_path / "scratch")[1]
    assert is_in_file(table.X)
    np.testing.assert_array_equal(table.X, X[:, [2, 0, 1]])
    assert table.feature_names == ("f2", "f0", "f1")
    folder = write_parts(tmp_path / "u", X, [0], note=["left"] * 11)
    message = error_of(read_domains, a, folder)
    assert f"1 column that {a} does not have: 'note'; add --drop note" in message
    folder = write_parts(tmp_path / "v", X, [0], note=[1] * 11)
    assert "1 column that" in error_of(read_domains, a, folder)


def test_own_scratch_files_are_gone_with_their_users(tmp_path, large, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    at_exit = []
    monkeypatch.setattr(scratch.atexit, "register", at_exit.append)
    scratch._own_folder.cache_clear()
    table = read_samples(save(tmp_path / "t.parquet", a_matrix(), id=names(11)), 3, columns=IDS)
    (folder,) = (tmp_path / "tmp").iterdir()
    assert len(list(folder.iterdir())) == 2
    np.testing.assert_array_equal(table.X, a_matrix())
    del table
    gc.collect()
    assert list(folder.iterdir()) == []
    monkeypatch.setattr(scratch.os, "getpid", lambda: -1)
    at_exit[0]()
    assert folder.exists()
    monkeypatch.undo()
    at_exit[0]()
    assert not folder.exists()
    scratch._own_folder.cache_clear()


@pytest.mark.parametrize("group_values", [1 << 22, 8])
@pytest.mark.parametrize(
    ("value", "words"), [(np.nan, "NaN"), (np.inf, "infinite"), (1e300, "1e+300 is too large")]
)
def test_what_is_no_number_is_named_by_part(
    tmp_path, large, monkeypatch, group_values, value, words
):
    monkeypatch.setattr(parts, "_GROUP_VALUES", group_values)
    X = a_matrix(17, np.float64)
    X[14, 1] = value
    folder = write_parts(tmp_path / "t", X, [0, 6], 5)
    message = error_of(lambda: read_samples(folder, 3, scratch=tmp_path / "scratch"))
    assert message.startswith(f"{folder / 'part-1.parquet'}: row 9, column 'f1': {words}")
    # Nothing half-written stays behind.
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([*names(10), ""], "part-1.parquet: 'id', row 5: empty; name the row"),
        ([*names(10), None], "part-1.parquet: 'id', row 5: empty"),
        ([*names(9), "é0", "z"], "t: 'id', rows 1 and 10: the id 'é0' is there twice"),
        ([*range(10), 0.5], "part-1.parquet: column 'id', row 5: 0.5 is neither text"),
        ([[1]] * 11, "column 'id' holds list<"),
    ],
)
def test_ids_of_parts_that_do_not_fit_are_named(tmp_path, large, ids, words):
    ids = pa.array([float(i) for i in ids] if ids[-1] == 0.5 else ids)
    folder = write_parts(tmp_path / "t", a_matrix(), [0, 6], 4, id=ids)
    message = error_of(lambda: read_samples(folder, 3, None, IDS, scratch=tmp_path / "s"))
    assert words in message


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"f0": [1.0], "f1": [1.0]}, "no column 'f2', which part-0.parquet has"),
        (
            {"f0": [1.0], "f1": [1], "f2": [1.0]},
            "column 'f1' holds int64, in part-0.parquet double",
        ),
        ({"f0": [1.0], "f1": [1.0], "f2": [1.0], "g": [1]}, "column 'g' is not in part-0.parquet"),
    ],
)
def test_parts_need_the_same_columns(tmp_path, other, words):
    folder = write_parts(tmp_path / "t", a_matrix(dtype=np.float64), [0, 6])
    pyarrow.parquet.write_table(pa.table(other), folder / "part-2.parquet")
    message = error_of(read_samples, folder, 3)
    end = "; all parts of a table need the same columns"
    assert message == f"{folder / 'part-2.parquet'}: {words}{end}"


def test_columns_of_parts_may_be_in_another_order(tmp_path):
    folder = write_parts(tmp_path / "t", a_matrix(2), [0])
    swapped = pa.table({f"f{j}": pa.array([float(j)], pa.float32()) for j in (2, 1, 0)})
    pyarrow.parquet.write_table(swapped, folder / "part-1.parquet")
    assert read_samples(folder, 3).X.tolist() == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]


def test_damaged_parts_are_named(tmp_path, large):
    folder = write_parts(tmp_path / "t", a_matrix(1000), [0, 500])
    part = folder / "part-1.parquet"
    whole = part.read_bytes()
    for damaged in (b"", whole[:100], whole[:-9]):
        part.write_bytes(damaged)
        assert error_of(read_samples, folder, 3).startswith(f"{part}: cannot ")
    part.write_bytes(whole[:4] + b"\xff" * 200 + whole[204:])
    message = error_of(lambda: read_samples(folder, 3, scratch=tmp_path / "scratch"))
    assert message.startswith(f"{part}: cannot ")
    twice = pa.table([pa.array([1.0])] * 2, names=["u", "u"])
    pyarrow.parquet.write_table(twice, tmp_path / "u.parquet")
    assert "column 'u' appears twice" in error_of(read_samples, tmp_path / "u.parquet", 2)


def test_an_id_that_was_not_named_is_not_counted_as_a_feature(tmp_path):
    folder = write_parts(tmp_path / "t", a_matrix(), [0, 6], id=names(11))
    message = error_of(read_samples, folder, 3)
    assert "column 'id' is not numeric (row 1 holds 'é0')" in message
    assert "--id-column" in message


def test_bytes_that_are_no_text_are_named(tmp_path, large):
    not_text = pa.array([b"\xff"] * 11).view(pa.string())
    path = save(tmp_path / "t.parquet", a_matrix(), id=not_text)
    assert "column 'id' is not UTF-8 text" in error_of(read_samples, path, 3, None, IDS)


def test_an_empty_folder_of_rows_is_named(tmp_path, large):
    folder = write_parts(tmp_path / "t", a_matrix(0), [0])
    assert f"{folder}: the table is empty" in error_of(read_samples, folder, 3)


def test_a_full_disk_is_an_error(tmp_path, large, monkeypatch):
    path = save(tmp_path / "t.parquet", a_matrix())
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10))
        message = error_of(lambda: read_samples(path, 3, scratch=tmp_path / "s"))
        assert "has 0.0 GB left; make room there" in message
        assert "or set TMPDIR" in error_of(read_samples, path, 3)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np.lib.format, "write_array_header_1_0", full)
        message = error_of(lambda: read_samples(path, 3, scratch=tmp_path / "s"))
        assert f"cannot be unpacked in {tmp_path / 's'} (No space left on device)" in message
    assert list((tmp_path / "s").iterdir()) == []
    (tmp_path / "file").touch()
    message = error_of(lambda: read_samples(path, 3, scratch=tmp_path / "file"))
    assert f"cannot be unpacked in {tmp_path / 'file'}" in message


# text in files ---------------------------------------------------------------------------


@pytest.fixture(params=["npz", "parquet"])
def stored(tmp_path, large, request):
    path = save(tmp_path / f"t.{request.param}", a_matrix(), id=names(11))
    return read_samples(path, 3, columns=IDS, scratch=tmp_path / "scratch").ids


def test_stored_text_is_taken_by_row(stored):
    plain = np.array(names(11))
    assert isinstance(stored, StoredText)
    assert len(stored) == 11
    for rows in (
        slice(None),
        slice(2, 9),
        slice(9, 2),
        slice(-3, None),
        slice(None, None, -2),
        np.array([10, 0, 5, 5, -1]),
        np.array([], dtype=int),
        np.arange(11) % 3 == 0,
        [1, 2],
    ):
        some = stored[rows]
        assert type(some) is np.ndarray
        assert some.dtype.kind == "U"
        assert some.tolist() == plain[rows].tolist()
    assert stored[4] == stored[np.int64(-7)] == plain[4]
    assert np.asarray(stored).tolist() == list(stored) == plain.tolist()
    with pytest.raises(IndexError):
        stored[11]
    with pytest.raises(IndexError):
        stored[np.array([-12])]
    with pytest.raises(IndexError):
        stored[np.array([True])]


def test_texts_of_one_hash_are_told_apart(stored, monkeypatch):
    monkeypatch.setattr(mapped, "_CHUNK_ROWS", 3)
    monkeypatch.setattr(mapped, "hash", len, raising=False)
    assert first_repeated(stored) is None


def test_the_first_text_that_comes_again_is_found(tmp_path, large, monkeypatch):
    monkeypatch.setattr(mapped, "_CHUNK_ROWS", 3)
    path = save(tmp_path / "t.npz", a_matrix(), id=[*"abcdefgfhdf"])
    for _ in range(2):
        message = error_of(read_samples, path, 3, None, IDS)
        assert "'id', rows 4 and 10: the id 'd' is there twice" in message
        # Once more, where all have the same hash.
        monkeypatch.setattr(mapped, "hash", len, raising=False)
