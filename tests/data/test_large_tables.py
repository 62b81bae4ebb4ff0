"""Tables larger than memory: mapped arrays, and Parquet that is read a batch at a time."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from data_helpers import error_of, save, write
from opensetda.data.tables import formats, mapped
from opensetda.data.tables.formats import is_parts_folder
from opensetda.data.tables.loading import TableColumns, read_domains, read_samples, read_truth
from opensetda.system import memory

IDS = TableColumns(id="id")
NAMES = [f"é{row}" * (row % 3 + 1) for row in range(11)]


@pytest.fixture
def source(tmp_path):
    return save(tmp_path / "source.npz", np.eye(4, 3), y=["a", "a", "b", "b"])


@pytest.fixture
def large(monkeypatch):
    """Let every table be large, and be read in pieces of a few rows and columns."""
    monkeypatch.setattr(mapped, "LARGE_BYTES", 0)
    monkeypatch.setattr(mapped, "_CHUNK_VALUES", 12)
    monkeypatch.setattr(formats, "_BATCH_VALUES", 8)
    monkeypatch.setattr(formats, "_COLUMNS_AT_ONCE", 2)


def a_matrix(n_rows=11, dtype=np.float32):
    return np.arange(3 * n_rows).reshape(n_rows, 3).astype(dtype)


def is_in_file(X):
    return isinstance(X, np.memmap) and X.mode == "r" and not X.flags.writeable


def write_parts(folder, X, cuts, row_group=None, **named):
    """Write a folder of parts that begin at `cuts`, in row groups of some rows."""
    folder.mkdir()
    table = pa.table({f"f{column}": X[:, column] for column in range(X.shape[1])} | named)
    for number, (start, stop) in enumerate(zip(cuts, [*cuts[1:], len(X)], strict=True)):
        file = folder / f"part-{number}.parquet"
        pyarrow.parquet.write_table(table.slice(start, stop - start), file, row_group)
    (folder / "_SUCCESS").touch()
    return folder


# arrays ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f2", ">f4", "i1", "?"])
def test_a_bare_array_stays_in_its_file_as_it_is(tmp_path, source, dtype):
    X = a_matrix(dtype=dtype)
    np.save(tmp_path / "t.npy", X)
    for table in (read_domains(source, tmp_path / "t.npy")[1], read_samples(tmp_path / "t.npy", 3)):
        assert is_in_file(table.X)
        np.testing.assert_array_equal(table.X, X)
        assert (table.ids, table.labels, table.feature_names) == (None, None, None)


def test_a_bare_array_has_no_labels_and_no_ids(tmp_path, source):
    path = tmp_path / "t.npy"
    np.save(path, a_matrix())
    expected = f"{path}: no array 'y'; it has one without a name (np.savez stores several)"
    assert error_of(read_domains, path, source).startswith(expected)
    assert error_of(read_truth, path).startswith(expected)
    assert read_samples(path, 3, usual_id="id").ids is None


def test_columns_before_rows_are_read_if_they_are_small(tmp_path, monkeypatch):
    X = np.asfortranarray(a_matrix(dtype=np.float16))
    for path in (tmp_path / "t.npy", tmp_path / "t.npz"):
        np.save(path, X) if path.suffix == ".npy" else np.savez_compressed(path, X=X)
        read = read_samples(path, 3).X
        np.testing.assert_array_equal(read, X)
        assert read.flags.c_contiguous
        with monkeypatch.context() as patch:
            patch.setattr(mapped, "LARGE_BYTES", 0)
            assert "save np.ascontiguousarray(X)" in error_of(read_samples, path, 3)


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_a_large_array_of_an_archive_is_mapped(tmp_path, source, large, write):
    X = a_matrix(dtype=np.float64)
    write(tmp_path / "t.npz", X=X, y=["?"] * 11, id=NAMES)
    table = read_domains(source, tmp_path / "t.npz", IDS, scratch=tmp_path / "scratch")[1]
    assert is_in_file(table.X)
    np.testing.assert_array_equal(table.X, X)
    assert table.labels is None
    assert table.ids.tolist() == NAMES
    # Unpacked to files without a name: nothing is left behind, even by a process that is killed.
    assert list((tmp_path / "scratch").iterdir()) == []


# Parquet ---------------------------------------------------------------------------------


def test_a_folder_of_parts_is_known_by_its_files(tmp_path):
    folder = write_parts(tmp_path / "t", a_matrix(), [0, 4])
    assert is_parts_folder(folder)
    assert not is_parts_folder(folder / "part-0.parquet")
    (folder / "a.jpg").touch()
    assert not is_parts_folder(folder)
    assert "or be a folder of .parquet files only" in error_of(read_samples, folder, 3)


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("dtype", ["f2", "i4"])
def test_parts_are_one_table(tmp_path, source, request, is_large, dtype):
    if is_large:
        request.getfixturevalue("large")
    X = a_matrix(dtype=dtype)
    folder = write_parts(tmp_path / "t", X, [0, 6, 6], 3, y=["?"] * 11, id=NAMES)
    table = read_domains(source, folder, IDS, tmp_path / "scratch")[1]
    assert is_in_file(table.X) == is_large
    np.testing.assert_array_equal(table.X, X)
    assert table.X.dtype == np.float32
    assert table.ids.tolist() == NAMES
    assert table.labels is None
    found = read_samples(folder, 3, ("f2", "f0"), IDS)
    np.testing.assert_array_equal(found.X, X[:, [2, 0]])


@pytest.mark.parametrize(("value", "words"), [(np.nan, "NaN"), (1e300, "1e+300 is too large")])
def test_what_is_no_number_is_named_by_file_and_row(tmp_path, large, value, words):
    X = a_matrix(17, np.float64)
    X[14, 1] = value
    folder = write_parts(tmp_path / "t", X, [0, 6], 5)
    message = error_of(lambda: read_samples(folder, 3, scratch=tmp_path / "scratch"))
    assert message.startswith(f"{folder / 'part-1.parquet'}: row 9, column 'f1': {words}")
    for path in (tmp_path / "t.npy", tmp_path / "t.npz"):
        np.save(path, X) if path.suffix == ".npy" else np.savez(path, X=X)
        assert error_of(read_samples, path, 3).startswith(f"{path}: row 15, column 1: {words}")


def test_parts_need_the_same_columns_in_any_order(tmp_path):
    folder = write_parts(tmp_path / "t", a_matrix(dtype=np.float64), [0, 6])
    part = write(folder / "part-2.parquet", {"f2": [1.0], "f0": [2.0], "f1": [3.0]})
    assert read_samples(folder, 3).X[-1].tolist() == [2, 3, 1]
    for other in ({"f0": [1.0], "f1": [1.0]}, {"f0": [1.0], "f1": [1], "f2": [1.0]}):
        write(part, other)
        message = error_of(read_samples, folder, 3)
        assert message.startswith(f"{part}: names or types of columns are not those of part-0")


def test_damaged_parts_are_named(tmp_path, large):
    folder = write_parts(tmp_path / "t", a_matrix(1000), [0, 500])
    part = folder / "part-1.parquet"
    whole = part.read_bytes()
    for damaged in (b"", whole[:100], whole[:-9], whole[:4] + b"\xff" * 200 + whole[204:]):
        part.write_bytes(damaged)
        assert error_of(read_samples, folder, 3).startswith(f"{part}: cannot ")


def test_a_disk_without_room_is_named(tmp_path, large, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    path = save(tmp_path / "t.parquet", a_matrix())
    monkeypatch.setattr(mapped.os, "posix_fallocate", full)
    message = error_of(lambda: read_samples(path, 3, scratch=tmp_path / "s"))
    assert f"cannot be unpacked in {tmp_path / 's'} (No space left on device" in message


@pytest.mark.parametrize("suffix", ["npy", "npz", "parquet"])
def test_memory_does_not_grow_with_a_table(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(mapped, "LARGE_BYTES", 1 << 20)
    monkeypatch.setattr(mapped, "_CHUNK_VALUES", 1 << 16)
    monkeypatch.setattr(formats, "_BATCH_VALUES", 1 << 16)
    numbers = np.random.default_rng(0).random((100_000, 64), dtype=np.float32)
    path = tmp_path / f"t.{suffix}"
    if suffix == "parquet":
        table = pa.table({f"f{column}": numbers[:, column] for column in range(64)})
        pyarrow.parquet.write_table(table, path, 4000, use_dictionary=False)
    else:
        np.save(path, numbers) if suffix == "npy" else np.savez(path, X=numbers)
    # What Arrow and numpy hold is counted, not pages of files, which the system takes back.
    pool = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(pool)
    pa.set_memory_pool(counted)
    tracemalloc.start()
    try:
        X = read_samples(path, 64, scratch=tmp_path).X
        peak = counted.max_memory() + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(pool)
    assert is_in_file(X)
    assert np.array_equal(X[-1], numbers[-1])
    assert 0 < peak < 0.5 * numbers.nbytes


def test_a_table_that_is_read_as_a_whole_must_fit_into_memory(tmp_path, monkeypatch):
    path = save(tmp_path / "t.csv", np.zeros((3, 2)))
    monkeypatch.setattr(memory, "free_bytes", lambda: 10)
    message = error_of(read_samples, path, 2)
    assert message.startswith(f"{path}: in memory it needs about 0.0 GB of memory")
    assert "save it as Parquet, which is read in batches" in message
