"""Tables in every format: features, labels, ids, later samples and truth."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from opensetda.data.tables.loading import TableColumns, read_domains, read_samples, read_truth
from table_helpers import FORMATS, error_of, save, text


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
    answers = [
        read_domains(source, save(tmp_path / f"t{number}.parquet", X, y=labels))[1]
        for number, labels in enumerate([["a", "b"], ["b", None], [1.5, float("nan")]])
    ]
    for answer in answers:
        assert answer.labels is None
        assert answer.class_counts() == {}
        assert answer.feature_names == ("f0", "f1", "f2")
        np.testing.assert_array_equal(answer.X, X)


def test_columns_of_the_target_are_put_in_the_order_of_the_source(tmp_path):
    a = text(tmp_path / "a.csv", "y,u,v\nk,1,2\nl,3,4\n")
    b = text(tmp_path / "b.csv", "v,u\n20,10\n")
    assert read_domains(a, b)[1].X.tolist() == [[10, 20]]


def test_numbers_of_classes_get_their_names(tmp_path, target):
    path = save(tmp_path / "s.npz", np.eye(3), y=[2, 0, 2], classes=["ant", "bee", "cow"])
    assert read_domains(path, target)[0].labels.tolist() == ["cow", "ant", "cow"]


def test_whole_number_ids_are_not_taken_for_classes(tmp_path, source):
    path = save(tmp_path / "t.npz", np.eye(2, 3), ids=[1, 0], classes=["ant", "bee"])
    assert read_domains(source, path, TableColumns(id="ids"))[1].ids.tolist() == ["1", "0"]


def test_labels_stay_as_they_are_typed(tmp_path, target):
    path = text(tmp_path / "s.csv", "f0,f1,f2,y\n1,2,3,007\n1,2,3,NA\n1,2,3,1.0\n")
    assert read_domains(path, target)[0].labels.tolist() == ["007", "NA", "1.0"]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (np.array([3, 1]), ["3", "1"]),
        (np.array([3.0, 1.0]), ["3", "1"]),
        (np.array([True, False]), ["True", "False"]),
        (np.array([b"x", b"\xc3\xa9"]), ["x", "é"]),
    ],
)
def test_labels_of_other_types_become_text(tmp_path, target, labels, expected):
    path = save(tmp_path / "s.npz", np.eye(2, 3), y=labels)
    assert read_domains(path, target)[0].labels.tolist() == expected


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (pa.array(["x", "y", "x"]).dictionary_encode(), ["x", "y", "x"]),
        (pa.array([1, 2, 1]), ["1", "2", "1"]),
        (pa.array([1.0, 2.0, 1.0]), ["1", "2", "1"]),
        (pa.array([True, False, True]), ["True", "False", "True"]),
    ],
)
def test_parquet_labels_of_other_types_become_text(tmp_path, target, labels, expected):
    path = save(tmp_path / "s.parquet", np.eye(3), y=labels)
    assert read_domains(path, target)[0].labels.tolist() == expected


def test_narrow_and_whole_numbers_are_features_too(tmp_path, source):
    for kind in (np.float16, np.int8, bool):
        path = save(tmp_path / "t.npz", np.eye(2, 3, dtype=kind))
        assert read_domains(source, path)[1].X.tolist() == [[1, 0, 0], [0, 1, 0]]
    decimals = pa.table(
        {
            "u": pa.array([True, False]),
            "v": pa.array([1, 2]).cast(pa.decimal128(22, 2)),
            "w": [3, 4],
        }
    )
    pyarrow.parquet.write_table(decimals, tmp_path / "t.parquet")
    assert read_domains(source, tmp_path / "t.parquet")[1].X.tolist() == [[1, 1, 3], [0, 2, 4]]


def test_dropped_columns_may_be_in_one_file_only(tmp_path):
    a = text(tmp_path / "a.csv", "y,u,camera\nk,1,left\nl,3,right\n")
    b = text(tmp_path / "b.csv", "u\n2\n")
    labelled, _ = read_domains(a, b, TableColumns(drop=("camera",)))
    assert labelled.feature_names == ("u",)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    X=arrays(
        np.float32,
        array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=6),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    ),
    suffix=st.sampled_from(FORMATS),
    data=st.data(),
)
def test_round_trip(tmp_path, X, suffix, data):
    text = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"]), max_size=6)
    # A name of marks alone could not be seen, and is refused.
    name = text.map(lambda some: f"x{some}")
    ids = data.draw(st.lists(name, min_size=len(X), max_size=len(X), unique=True))
    path = save(tmp_path / f"t.{suffix}", X, id=ids)
    table = read_samples(path, X.shape[1], columns=TableColumns(id="id"))
    np.testing.assert_array_equal(table.X, X)
    assert table.ids.tolist() == ids
    truth = read_truth(path, TableColumns(label="id"))
    assert truth.labels.tolist() == ids


# later samples and truth -----------------------------------------------------------------


def test_samples_are_found_by_the_names_of_the_features(tmp_path):
    path = text(tmp_path / "s.csv", "note,v,u\nhello,2,1\n")
    table = read_samples(path, 2, ("u", "v"))
    assert table.X.tolist() == [[1, 2]]
    assert table.feature_names == ("u", "v")
    message = error_of(read_samples, path, 2, ("u", "w"))
    assert "1 feature column of the model not found: 'w'" in message


def test_truth_needs_no_features(tmp_path):
    path = text(tmp_path / "t.csv", "file,class\np,cat\nq,unknown\n")
    truth = read_truth(path, TableColumns(label="class", id="file"))
    assert truth.labels.tolist() == ["cat", "unknown"]
    assert truth.ids.tolist() == ["p", "q"]


def test_truth_with_a_gap_names_the_row(tmp_path):
    path = text(tmp_path / "t.csv", 'y\ncat\n""\n')
    assert "'y', row 2: empty" in error_of(read_truth, path)
