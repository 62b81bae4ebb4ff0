"""Arrays larger than memory stay in their file: ``.npy``, and ``.npz`` that is not packed."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from large_table_helpers import IDS, a_matrix, is_in_file, make_all_large, names
from opensetda.data.tables import mapped, scratch
from opensetda.data.tables import parquet_parts as parts
from opensetda.data.tables.loading import TableColumns, read_domains, read_samples, read_truth
from opensetda.data.tables.mapped import StoredText
from opensetda.system import memory
from table_helpers import error_of, save


@pytest.fixture
def source(tmp_path):
    return save(tmp_path / "source.npz", np.eye(4, 3), y=["a", "a", "b", "b"])


@pytest.fixture
def large(monkeypatch):
    make_all_large(monkeypatch)


# bare arrays -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", "i1", "u2", "i8"])
def test_a_bare_array_stays_in_its_file_as_it_is(tmp_path, source, dtype):
    X = a_matrix(dtype=dtype)
    np.save(tmp_path / "t.npy", X)
    for table in (read_domains(source, tmp_path / "t.npy")[1], read_samples(tmp_path / "t.npy", 3)):
        assert is_in_file(table.X)
        assert table.X.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(table.X, X)
        assert (table.ids, table.labels, table.feature_names) == (None, None, None)
        assert len(table) == 11


def test_a_bare_array_of_truths_becomes_numbers(tmp_path):
    np.save(tmp_path / "t.npy", np.eye(3, dtype=bool))
    X = read_samples(tmp_path / "t.npy", 3).X
    assert is_in_file(X)
    assert X.dtype == np.uint8
    assert X.tolist() == np.eye(3).tolist()


def test_a_bare_array_has_no_labels_and_no_ids(tmp_path, source):
    np.save(tmp_path / "t.npy", a_matrix())
    path = tmp_path / "t.npy"
    expected = f"{path}: a bare array has no 'y' beside it; save X and y with np.savez"
    assert error_of(read_domains, path, source) == expected
    assert error_of(read_truth, path) == expected
    assert "save X and id with np.savez" in error_of(read_domains, source, path, IDS)
    assert read_samples(path, 3, usual_id="id").ids is None
    message = error_of(read_domains, path, path, TableColumns(drop=("z",)))
    assert message == "--drop z: an .npy file has arrays, not columns to drop"


def test_columns_before_rows_are_read_if_they_are_small(tmp_path, monkeypatch):
    X = np.asfortranarray(a_matrix(dtype=np.float16))
    np.save(tmp_path / "t.npy", X)
    read = read_samples(tmp_path / "t.npy", 3).X
    np.testing.assert_array_equal(read, X)
    assert read.flags.c_contiguous
    X[4, 1] = np.nan
    np.save(tmp_path / "t.npy", X)
    assert "row 5, column 1: NaN" in error_of(read_samples, tmp_path / "t.npy", 3)
    monkeypatch.setattr(mapped, "LARGE_BYTES", 0)
    assert "save np.ascontiguousarray(X)" in error_of(read_samples, tmp_path / "t.npy", 3)


@pytest.mark.parametrize(
    ("X", "words"),
    [
        (np.ones(3), "the array has shape (3,) of float64; features need numbers in two"),
        (np.array([["a", "b"]]), "features need numbers in two dimensions"),
        (np.array([[None]]), "holds Python objects, which are never unpickled"),
        (np.ones((2, 4)), "4 features, but the model has 3"),
        (np.ones((0, 3)), "the table is empty"),
        (np.ones((2, 0)), "the array has no feature"),
    ],
)
def test_other_bare_arrays_are_refused(tmp_path, X, words):
    np.save(tmp_path / "t.npy", X)
    message = error_of(read_samples, tmp_path / "t.npy", 3)
    assert message.startswith(f"{tmp_path / 't.npy'}: ")
    assert words in message


def test_damaged_bare_arrays_are_named(tmp_path):
    path = tmp_path / "t.npy"
    np.save(path, a_matrix())
    whole = path.read_bytes()
    for damaged in (b"", whole[:5], whole[:50], whole[:-1], b"x" + whole[1:], whole[:20] * 9):
        path.write_bytes(damaged)
        assert error_of(read_samples, path, 3).startswith(f"{path}: cannot read an .npy file")
    path.write_bytes(whole[:6] + b"\x09\x00" + whole[8:])
    assert "its version is not known" in error_of(read_samples, path, 3)
    path.write_bytes(whole.replace(b"(11, 3)", b"(-1, 3)"))
    assert "the file is damaged" in error_of(read_samples, path, 3)


@pytest.mark.parametrize(
    ("value", "words"),
    [(np.nan, "NaN or empty"), (-np.inf, "infinite"), (-1e300, "-1e+300 is too large")],
)
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_what_is_no_number_is_found_in_later_chunks(tmp_path, large, suffix, value, words):
    X = a_matrix(dtype=np.float64)
    X[9, 1] = value
    path = tmp_path / f"t.{suffix}"
    np.save(path, X) if suffix == "npy" else np.savez(path, X=X)
    message = error_of(read_samples, path, 3)
    assert message.startswith(f"{path}: row 10, column 1: {words}")


# arrays of .npz files --------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i2"])
def test_a_large_array_stays_in_its_archive(tmp_path, source, large, dtype):
    X = a_matrix(dtype=dtype)
    path = save(tmp_path / "t.npz", X, y=["?"] * 11, id=names(11))
    table = read_domains(source, path, IDS)[1]
    assert is_in_file(table.X)
    assert table.X.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(table.X, X)
    assert table.labels is None
    assert isinstance(table.ids, StoredText)
    assert table.ids.tolist() == names(11)


def packed_and_by_column(folder):
    """Write the same table compressed, column by column, and both."""
    by_column = np.asfortranarray(a_matrix(dtype=np.float64))
    np.savez_compressed(folder / "p.npz", X=a_matrix(dtype=np.float64), id=names(11))
    np.savez(folder / "f.npz", X=by_column, id=names(11))
    np.savez_compressed(folder / "pf.npz", X=by_column, id=names(11))
    return [folder / name for name in ("p.npz", "f.npz", "pf.npz")]


def test_small_arrays_are_read_into_memory(tmp_path, monkeypatch):
    path = save(tmp_path / "t.npz", a_matrix(dtype=np.float64), id=names(11))
    monkeypatch.setattr(mapped, "LARGE_BYTES", 2 * a_matrix().nbytes)
    for file in (path, *packed_and_by_column(tmp_path)):
        table = read_samples(file, 3, columns=IDS)
        assert type(table.X) is type(table.ids) is np.ndarray
        assert table.X.dtype == np.float32
        assert table.X.flags.c_contiguous
        np.testing.assert_array_equal(table.X, a_matrix())
        assert table.ids.tolist() == names(11)


def test_large_packed_arrays_are_unpacked_to_a_file(tmp_path, large):
    for file in packed_and_by_column(tmp_path):
        table = read_samples(file, 3, columns=IDS, scratch=tmp_path / "scratch")
        assert is_in_file(table.X)
        assert table.X.flags.c_contiguous
        np.testing.assert_array_equal(table.X, a_matrix())
        assert table.ids.tolist() == names(11)
    # Features and ids of the two compressed tables, and the features of the other.
    assert len(list((tmp_path / "scratch").iterdir())) == 5


def test_a_large_source_keeps_its_labels(tmp_path, large):
    path = save(tmp_path / "s.npz", a_matrix(), y=[0, 1] * 5 + [0], classes=["ant", "bee"])
    labelled, _ = read_domains(path, path)
    assert is_in_file(labelled.X)
    assert labelled.class_counts() == {"ant": 6, "bee": 5}


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (np.arange(11), [str(row) for row in range(11)]),
        (np.arange(11.0), [str(row) for row in range(11)]),
        (np.array([f"é{row}".encode() for row in range(11)]), [f"é{row}" for row in range(11)]),
    ],
)
def test_ids_of_other_types_become_text(tmp_path, large, ids, expected):
    path = save(tmp_path / "t.npz", a_matrix(), id=ids)
    stored = read_samples(path, 3, columns=IDS).ids
    assert isinstance(stored, StoredText)
    assert stored.tolist() == expected


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([*names(10), ""], "'id', row 11: empty; name the row"),
        (names(10), "10 entries in 'id' for 11 rows"),
        ([*names(9), names(11)[1], "z"], "'id', rows 2 and 10: the id 'é1é1' is there twice"),
        (np.arange(11) + 0.5, "row 1: 0.5 is neither text nor a whole number"),
        ([[name] for name in names(11)], "array 'id' has shape (11, 1)"),
        (np.array([{}] * 11), "holds Python objects, which are never unpickled"),
        ([b"\xff"] * 11, "is not UTF-8 text"),
    ],
)
def test_ids_that_do_not_fit_are_named(tmp_path, large, ids, words):
    path = save(tmp_path / "t.npz", a_matrix(), id=ids)
    assert words in error_of(read_samples, path, 3, None, IDS)


def test_maps_outlive_a_change_of_folder(tmp_path, large, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    path = save(tmp_path / "t.npz", a_matrix(), id=names(11)).relative_to(tmp_path)
    table = read_samples(path, 3, columns=IDS)
    monkeypatch.chdir(tmp_path / "elsewhere")
    np.testing.assert_array_equal(table.X, a_matrix())
    assert table.ids.tolist() == names(11)


def test_a_disk_that_cannot_map_is_named(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(19, "No such device")

    np.save(tmp_path / "t.npy", a_matrix())
    monkeypatch.setattr(np, "memmap", refuse)
    message = error_of(read_samples, tmp_path / "t.npy", 3)
    assert "cannot be mapped into memory ([Errno 19] No such device); copy it" in message


def test_the_width_is_checked_before_anything_is_read(tmp_path, large):
    X = a_matrix()
    X[0, 0] = np.nan
    path = save(tmp_path / "t.npz", X)
    assert "3 features, but the model has 4" in error_of(read_samples, path, 4)


def test_what_is_no_matrix_is_named_in_large_archives(tmp_path, large):
    path = save(tmp_path / "t.npz", np.ones(9))
    assert "array 'X' has shape (9,) of float64; features need" in error_of(read_samples, path, 9)


# memory ----------------------------------------------------------------------------------


N_ROWS, WIDTH = 100_000, 64


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(mapped, "LARGE_BYTES", 1 << 20)
    monkeypatch.setattr(mapped, "_CHUNK_BYTES", 1 << 18)
    monkeypatch.setattr(parts, "_BATCH_VALUES", 1 << 16)
    monkeypatch.setattr(parts, "_GROUP_VALUES", 1 << 18)
    monkeypatch.setattr(scratch, "_BLOCK_BYTES", 1 << 18)


@pytest.fixture(scope="module")
def numbers():
    return np.random.default_rng(0).random((N_ROWS, WIDTH), dtype=np.float32)


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_memory_does_not_grow_with_an_array(tmp_path, small_pieces, numbers, suffix):
    path = tmp_path / f"t.{suffix}"
    np.save(path, numbers) if suffix == "npy" else np.savez(path, X=numbers)
    if not memory.reset_peak():
        pytest.skip("the system does not tell the peak of a piece of work")
    before = memory.peak_megabytes()
    X = read_samples(path, WIDTH).X
    grown = memory.peak_megabytes() - before
    assert np.array_equal(X[-1], numbers[-1])
    assert grown < 0.5 * numbers.nbytes / 1e6


@pytest.mark.parametrize("row_group", [4_000, N_ROWS])
def test_memory_does_not_grow_with_parquet(tmp_path, small_pieces, numbers, row_group):
    table = pa.table({f"f{column}": numbers[:, column] for column in range(WIDTH)})
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(table, path, row_group, use_dictionary=False, compression="none")
    # What Arrow and numpy hold is counted: of memory that was freed systems keep a part.
    pool = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(pool)
    pa.set_memory_pool(counted)
    tracemalloc.start()
    try:
        X = read_samples(path, WIDTH, scratch=tmp_path / "scratch").X
        peak = counted.max_memory() + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(pool)
    assert is_in_file(X)
    assert np.array_equal(X[-1], numbers[-1])
    assert 0 < peak < 0.3 * numbers.nbytes
