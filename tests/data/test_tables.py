"""Tables in every format: features, labels, ids, later samples and truth; what is refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from data_helpers import FORMATS, error_of, save, text, write
from opensetda.data.tables.loading import TableColumns, read_domains, read_samples, read_truth
from opensetda.errors import InputError


@pytest.fixture
def source(tmp_path):
    return save(tmp_path / "source.npz", np.eye(4, 3), y=["a", "a", "b", "b"])


@pytest.fixture
def target(tmp_path):
    return save(tmp_path / "target.npz", np.ones((2, 3)))


# reading ---------------------------------------------------------------------------------


@pytest.mark.parametrize("source_format", FORMATS)
@pytest.mark.parametrize("target_format", FORMATS)
def test_every_pair_of_formats(tmp_path, source_format, target_format):
    X = np.array([[1.5, -2], [0.25, 3], [7, 8]], dtype=np.float32)
    a = save(tmp_path / f"a.{source_format}", X, y=["cat", "dog", "cat"])
    b = save(tmp_path / f"b.{target_format}", X + 1, y=["?", "?", "?"], name=["p", "q", "r"])
    labelled, unlabelled = read_domains(a, b, TableColumns(id="name"))
    np.testing.assert_array_equal(labelled.X, X)
    np.testing.assert_array_equal(unlabelled.X, X + 1)
    assert labelled.X.dtype == unlabelled.X.dtype == np.float32
    assert labelled.labels.tolist() == ["cat", "dog", "cat"]
    assert labelled.class_counts() == {"cat": 2, "dog": 1}
    assert unlabelled.ids.tolist() == ["p", "q", "r"]
    assert len(unlabelled) == 3


def test_labels_of_the_target_are_dropped_at_the_door(tmp_path, source):
    X = np.ones((2, 3))
    for number, labels in enumerate([["a", "b"], ["b", None], [1.5, float("nan")]]):
        path = save(tmp_path / f"t{number}.parquet", X, y=labels)
        answer = read_domains(source, path)[1]
        assert answer.labels is None
        assert answer.class_counts() == {}
        assert answer.feature_names == ("f0", "f1", "f2")
        np.testing.assert_array_equal(answer.X, X)


def test_columns_of_the_target_are_put_in_the_order_of_the_source(tmp_path):
    a = text(tmp_path / "a.csv", "y,u,v,camera\nk,1,2,left\nl,3,4,right\n")
    b = text(tmp_path / "b.csv", "v,u\n20,10\n")
    # Dropped columns may be in one file only.
    labelled, unlabelled = read_domains(a, b, TableColumns(drop=("camera",)))
    assert labelled.feature_names == ("u", "v")
    assert unlabelled.X.tolist() == [[10, 20]]


def test_numbers_of_classes_get_their_names_and_ids_do_not(tmp_path):
    how = {"y": [2, 0, 2], "ids": [1, 0, 2], "classes": ["ant", "bee", "cow"]}
    path = save(tmp_path / "s.npz", np.eye(3), **how)
    labelled, unlabelled = read_domains(path, path, TableColumns(id="ids"))
    assert labelled.labels.tolist() == ["cow", "ant", "cow"]
    assert unlabelled.ids.tolist() == ["1", "0", "2"]


def test_labels_stay_as_they_are_typed(tmp_path, target):
    path = text(tmp_path / "s.csv", "f0,f1,f2,y\n1,2,3,007\n1,2,3,NA\n1,2,3,1.0\n")
    assert read_domains(path, target)[0].labels.tolist() == ["007", "NA", "1.0"]


@pytest.mark.parametrize(
    ("suffix", "labels", "expected"),
    [
        ("npz", np.array([3, 1]), ["3", "1"]),
        ("npz", np.array([3.0, 1.0]), ["3", "1"]),
        ("npz", np.array([b"x", b"\xc3\xa9"]), ["x", "é"]),
        ("parquet", pa.array(["x", "y"]).dictionary_encode(), ["x", "y"]),
        ("parquet", pa.array([1, 2]), ["1", "2"]),
        ("parquet", pa.array([1.0, 2.0]), ["1", "2"]),
        ("parquet", pa.array([True, False]), ["True", "False"]),
    ],
)
def test_labels_of_other_types_become_text(tmp_path, target, suffix, labels, expected):
    path = save(tmp_path / f"s.{suffix}", np.eye(2, 3), y=labels)
    assert read_domains(path, target)[0].labels.tolist() == expected


def test_narrow_and_whole_numbers_are_features_too(tmp_path, source):
    for kind in (np.float16, np.int8, bool):
        path = save(tmp_path / "t.npz", np.eye(2, 3, dtype=kind))
        assert read_domains(source, path)[1].X.tolist() == [[1, 0, 0], [0, 1, 0]]
    decimals = pa.array([1, 2]).cast(pa.decimal128(22, 2))
    path = write(tmp_path / "t.parquet", {"u": [True, False], "v": decimals, "w": [3, 4]})
    assert read_domains(source, path)[1].X.tolist() == [[1, 1, 3], [0, 2, 4]]


def test_samples_are_found_by_the_names_of_the_features(tmp_path):
    path = text(tmp_path / "s.csv", "note,v,u\nhello,2,1\n")
    table = read_samples(path, 2, ("u", "v"))
    assert table.X.tolist() == [[1, 2]]
    assert table.feature_names == ("u", "v")
    message = error_of(read_samples, path, 2, ("uu", "v"))
    assert "1 feature column of the model not found: 'uu'; did you mean 'u'?" in message


def test_truth_needs_no_features_but_every_label(tmp_path):
    path = text(tmp_path / "t.csv", "file,class\np,cat\nq,unknown\n")
    truth = read_truth(path, TableColumns(label="class", id="file"))
    assert truth.labels.tolist() == ["cat", "unknown"]
    assert truth.ids.tolist() == ["p", "q"]
    path = text(tmp_path / "t.csv", 'y\ncat\n""\n')
    assert "'y', row 2: empty" in error_of(read_truth, path)
    assert read_truth(path, partial=True).labels.tolist() == ["cat", ""]


# what is refused -------------------------------------------------------------------------


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
    path = text(tmp_path / "s.ods", "")
    assert "must end in .npz, .npy, .csv" in error_of(read_domains, path, target)


@pytest.mark.parametrize("suffix", ["npz", "parquet", "feather"])
def test_damaged_files_are_named(tmp_path, target, suffix):
    path = tmp_path / f"s.{suffix}"
    if suffix == "feather":
        pa.feather.write_feather(pa.table({"u": np.ones(50), "y": ["a", "b"] * 25}), path)
    else:
        save(path, np.ones((50, 3)), y=["a", "b"] * 25)
    whole = path.read_bytes()
    for length in (0, 20, len(whole) // 2, len(whole) - 4):
        path.write_bytes(whole[:length])
        assert error_of(read_domains, path, target).startswith(f"{path}: cannot read")


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
    message = error_of(read_domains, source, target, TableColumns(drop=("X",)))
    assert message == f"--drop X: {source} has arrays, not columns"


def test_columns_that_are_no_numbers_or_there_twice_are_named(tmp_path, source):
    path = write(tmp_path / "t.parquet", {"u": [1, 2], "v": [1, 2], "w": [[1.0], [2.0]]})
    assert "column 'w' is not numeric (it holds list<" in error_of(read_domains, source, path)
    path = text(tmp_path / "t.csv", "u,u,v\n1,2,a\n")
    assert "column 'u' appears twice" in error_of(read_domains, source, path)


@pytest.mark.parametrize("suffix", FORMATS)
def test_other_widths_and_empty_tables_are_refused(tmp_path, source, suffix):
    path = save(tmp_path / f"t.{suffix}", np.ones((2, 4)))
    assert f"{path}: 4 features, but {source} has 3" in error_of(read_domains, source, path)
    path = save(tmp_path / f"t.{suffix}", np.ones((0, 3)))
    assert "at least one row" in error_of(read_domains, source, path)


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
    a = text(tmp_path / "a.csv", "y\na\nb\n")
    assert "no feature column left; it has 'y'" in error_of(read_domains, a, b)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["a", "", "b"], "'y', row 2: empty; label the row"),
        (["a", "a", "a"], "one class only ('a' in 'y')"),
        (np.array([0.5, 1, 2]), "row 1: 0.5 is neither text nor a whole number"),
        (np.array([[1], [2], [3]]), "labels and ids need one dimension"),
        (np.array([1, 2, 3j]), "labels and ids are text or numbers"),
        (np.array(["a", "b"]), "2 entries in 'y' for 3 rows"),
        (np.array([0, 1, -1]), "-1 is not a number of the 2 names in 'classes'"),
    ],
)
def test_labels_that_are_none_are_refused(tmp_path, target, labels, words):
    path = save(tmp_path / "s.npz", np.eye(3), y=labels, classes=["ant", "bee"])
    assert words in error_of(read_domains, path, target)


@pytest.mark.parametrize("X", [np.ones(3), np.array([["a"]]), np.ones((2, 0))])
def test_features_that_are_none_are_refused(tmp_path, source, X):
    path = tmp_path / "t.npz"
    np.savez(path, X=X)
    assert "features need numbers in two dimensions" in error_of(read_domains, source, path)


def test_ids_must_be_complete_and_unique(tmp_path, source):
    columns = TableColumns(id="file")
    path = save(tmp_path / "t.csv", np.ones((3, 3)), file=["p", "q", "p"])
    message = error_of(read_domains, source, path, columns)
    assert "'file', rows 1 and 3: the id 'p' is there twice" in message
    path = save(tmp_path / "t.parquet", np.ones((3, 3)), file=["p", None, "q"])
    assert "'file', row 2: empty" in error_of(read_domains, source, path, columns)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("u,v,y\n1,2,a\n3,4\n", "cannot read the file: CSV parse error: Row #3: Expected 3"),
        ("", "cannot read the file: Empty CSV file"),
        ("u,v\n" + "x" * 1000 + "\n", "cannot read the file"),
        ("u;v;y\n1;2;a\n3;4;\x81\n", "save it as UTF-8"),
        ("\xff\xfeu\0,\0y\0\n\0", "save it as UTF-8"),
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
