"""Tables that cannot be read as they are: one line names the file, the place and the way out."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from opensetda.data.tables.loading import TableColumns, read_domains
from opensetda.errors import InputError
from table_helpers import FORMATS, error_of, save, text


@pytest.fixture
def source(tmp_path):
    return save(tmp_path / "source.npz", np.eye(4, 3), y=["a", "a", "b", "b"])


@pytest.fixture
def target(tmp_path):
    return save(tmp_path / "target.npz", np.ones((2, 3)))


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "inf is too large")])
def test_not_a_number_names_row_and_column(tmp_path, source, suffix, value, word):
    X = np.ones((5, 3))
    X[3, 1] = value
    path = save(tmp_path / f"t.{suffix}", X)
    message = error_of(read_domains, source, path)
    column = "column 1" if suffix == "npz" else "column 'f1'"
    assert message.startswith(f"{path}: row 4, {column}: {word}")


def test_missing_files_suggest_a_neighbour(tmp_path, source, target):
    message = error_of(read_domains, tmp_path / "sources.npz", target)
    assert message == f"{tmp_path / 'sources.npz'}: no such file; did you mean {source}?"
    message = error_of(read_domains, tmp_path / "no" / "x.npz", target)
    assert f"nor a folder {tmp_path / 'no'}" in message
    assert error_of(read_domains, tmp_path / "zzzzz.csv", target).endswith(
        "no such file; check the name"
    )


def test_wrong_kinds_of_files_are_named(tmp_path, target):
    assert "a folder of .parquet files" in error_of(read_domains, tmp_path, target)
    path = text(tmp_path / "s.ods", "")
    message = error_of(read_domains, path, target)
    assert "must end in .npz, .npy, .csv, .tsv, .xlsx, .feather, .jsonl, .parquet" in message


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_truncated_files_are_named(tmp_path, target, suffix):
    path = save(tmp_path / f"s.{suffix}", np.ones((50, 3)), y=["a", "b"] * 25)
    whole = path.read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 10):
        path.write_bytes(whole[:length])
        assert error_of(read_domains, path, target).startswith(f"{path}: cannot read")


def test_a_damaged_array_is_named(tmp_path, target):
    path = save(tmp_path / "s.npz", np.ones((50, 3)), y=["a", "b"] * 25)
    whole = bytearray(path.read_bytes())
    whole[400] ^= 0xFF
    path.write_bytes(whole)
    assert "array 'X': the file is damaged" in error_of(read_domains, path, target)


def test_objects_are_never_unpickled(tmp_path, source):
    class Trap:
        def __reduce__(self):
            return pytest.fail, ("unpickled",)

    path = tmp_path / "t.npz"
    np.savez(path, X=np.ones((1, 3)), paths=np.array([Trap()], dtype=object))
    message = error_of(read_domains, source, path, TableColumns(id="paths"))
    assert "array 'paths' holds Python objects, which are never unpickled" in message


def test_a_missing_column_is_named_with_what_there_is(tmp_path, source, target):
    path = text(tmp_path / "s.csv", "u,v,label\n1,2,a\n")
    message = error_of(read_domains, path, target, TableColumns(label="labels"))
    expected = "no column 'labels'; it has 'u', 'v', 'label'; did you mean 'label'?"
    assert message == f"{path}: {expected}"
    message = error_of(read_domains, source, target, TableColumns(features="embedding"))
    assert "no array 'embedding'; it has 'X', 'y'; choose another with --features-key" in message
    message = error_of(read_domains, source, target, TableColumns(id="paths"))
    assert message.startswith(f"{target}: no array 'paths'")


@pytest.mark.parametrize(
    ("values", "words"),
    [(pa.array([[1.0], [2.0]]), "it holds list<"), (pa.array(["1", "2"]), "it holds text")],
)
def test_other_columns_that_are_no_numbers_are_named(tmp_path, source, values, words):
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pa.table({"u": [1, 2], "v": [1, 2], "w": values}), path)
    assert words in error_of(read_domains, source, path)


def test_a_column_that_is_there_twice_is_named(tmp_path, target):
    path = text(tmp_path / "s.csv", "u,u,y\n1,2,a\n")
    assert "column 'u' appears twice" in error_of(read_domains, path, target)


@pytest.mark.parametrize("suffix", FORMATS)
def test_different_widths_are_refused(tmp_path, source, suffix):
    path = save(tmp_path / f"t.{suffix}", np.ones((2, 4)))
    message = error_of(read_domains, source, path)
    assert f"{path}: 4 features, but {source} has 3" in message


def test_different_columns_are_refused(tmp_path):
    a = save(tmp_path / "a.csv", np.eye(3), y=list("aab"))
    b = text(tmp_path / "b.csv", "f0,f1,f3\n1,2,3\n")
    with pytest.raises(InputError, match="2 problems") as caught:
        read_domains(a, b)
    assert f"{a}: 1 column not in {b}: 'f2'" in str(caught.value)
    assert str(caught.value).endswith("\nAdd --drop f2,f3")
    b = text(tmp_path / "b.csv", "f0,f1,f2,g,h\n1,2,3,4,5\n")
    assert f"{b}: 2 columns not in {a}: 'g', 'h'; add --drop g,h" in error_of(read_domains, a, b)
    b = text(tmp_path / "b.csv", "g,h\n4,5\n")
    assert f"{b}: no column of {a}, which has 'f0'" in error_of(read_domains, a, b)


def test_source_labels_must_be_complete(tmp_path, target):
    path = save(tmp_path / "s.npz", np.eye(3), y=["a", "", "b"])
    assert "'y', row 2: empty; label the row" in error_of(read_domains, path, target)
    path = save(tmp_path / "s.parquet", np.eye(3), y=[1.0, None, 2.0])
    assert "'y', row 2: empty" in error_of(read_domains, path, target)


def test_one_class_only_is_refused(tmp_path, target):
    path = save(tmp_path / "s.npz", np.eye(3), y=["a"] * 3)
    assert "one class only ('a' in 'y')" in error_of(read_domains, path, target)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([0, 3, 1], "row 2: 3 is not a number of the 2 names in 'classes'"),
        ([0, 1, -1], "row 3: -1 is not a number"),
    ],
)
def test_class_numbers_outside_the_names_are_named(tmp_path, target, labels, words):
    path = save(tmp_path / "s.npz", np.eye(3), y=labels, classes=["ant", "bee"])
    assert words in error_of(read_domains, path, target)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (np.array([0.5, 1, 2]), "row 1: 0.5 is neither text nor a whole number"),
        (np.array([[1], [2], [3]]), "labels and ids need one dimension"),
        (np.array([1, 2, 3j]), "labels and ids are text or numbers"),
        (np.array(["a", "b"]), "2 entries in 'y' for 3 rows"),
    ],
)
def test_labels_that_are_none_are_refused(tmp_path, target, labels, words):
    path = save(tmp_path / "s.npz", np.eye(3), y=labels)
    assert words in error_of(read_domains, path, target)


@pytest.mark.parametrize("X", [np.ones(3), np.array([["a"]]), np.ones((2, 2, 2))])
def test_features_that_are_none_are_refused(tmp_path, source, X):
    path = tmp_path / "t.npz"
    np.savez(path, X=X)
    assert "features need numbers in two dimensions" in error_of(read_domains, source, path)


@pytest.mark.parametrize("suffix", FORMATS)
def test_empty_tables_are_refused(tmp_path, source, suffix):
    path = save(tmp_path / f"t.{suffix}", np.ones((0, 3)))
    message = error_of(read_domains, source, path)
    assert message.startswith(f"{path}: ")
    assert "at least one row" in message


def test_tables_without_a_feature_are_refused(tmp_path, source, target):
    path = text(tmp_path / "s.csv", "y\na\nb\n")
    assert "no feature column left; it has 'y'" in error_of(read_domains, path, target)
    path = save(tmp_path / "t.npz", np.ones((2, 0)))
    assert "array 'X' has shape (2, 0)" in error_of(read_domains, source, path)


def test_ids_must_be_complete_and_unique(tmp_path, source):
    columns = TableColumns(id="file")
    path = save(tmp_path / "t.csv", np.ones((3, 3)), file=["p", "q", "p"])
    message = error_of(read_domains, source, path, columns)
    assert "'file', rows 1 and 3: the id 'p' is there twice" in message
    path = save(tmp_path / "t.parquet", np.ones((3, 3)), file=["p", None, "q"])
    assert "'file', row 2: empty" in error_of(read_domains, source, path, columns)


def test_columns_to_drop_must_exist(tmp_path, source, target):
    a = save(tmp_path / "a.csv", np.eye(3), y=list("aab"))
    message = error_of(read_domains, a, target, TableColumns(drop=("f9",)))
    assert "no column 'f9'" in message
    message = error_of(read_domains, source, target, TableColumns(drop=("X",)))
    assert message == f"--drop X: {source} has arrays, not columns"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("u,v,y\n1,2,a\n3,4\n", "cannot read the file: CSV parse error: Row #3: Expected 3"),
        ("", "cannot read the file: Empty CSV file"),
        ("u,v\n" + "x" * 1000 + "\n", "cannot read the file"),
        ("u;v;y\n1;2;a\n3;4;\xff\n", "save it as UTF-8"),
    ],
)
def test_broken_text_is_named(tmp_path, target, content, words):
    path = tmp_path / "s.csv"
    path.write_bytes(content.encode("latin-1"))
    message = error_of(read_domains, path, target)
    assert message.startswith(f"{path}: ")
    assert words in message
    assert len(message) < len(str(path)) + 220


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (TableColumns(impute="mean"), "--impute mean: choose one of none, median"),
        (TableColumns(one_hot=("kind",)), "--one-hot kind: 60 values, at most 50"),
        (TableColumns(keep=("kind9",)), "no column 'kind9'"),
    ],
)
def test_options_that_do_not_fit_are_named(tmp_path, columns, words):
    kinds = [f"k{row}" for row in range(60)]
    path = save(tmp_path / "s.csv", np.random.default_rng(0).random((60, 2)), y=kinds, kind=kinds)
    assert words in error_of(read_domains, path, path, columns)
