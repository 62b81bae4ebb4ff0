from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opensetda.data.protocols import ClassSplit, open_set_split, open_set_task
from opensetda.errors import InputError


def test_office31_split_is_the_first_ten_and_the_last_eleven_names():
    names = [f"class_{number:02d}" for number in range(31)]
    split = open_set_split(reversed(names), 10, 11)
    assert split.known == tuple(names[:10])
    assert split.unknown == tuple(names[20:])


@given(
    st.sets(st.text(max_size=4), min_size=2, max_size=12), st.integers(2, 12), st.integers(0, 12)
)
def test_known_and_unknown_never_overlap(classes, n_known, n_unknown):
    if n_known + n_unknown > len(classes):
        with pytest.raises(InputError, match="there are"):
            open_set_split(classes, n_known, n_unknown)
        return
    split = open_set_split(classes, n_known, n_unknown)
    assert (len(split.known), len(split.unknown)) == (n_known, n_unknown)
    assert not set(split.known) & set(split.unknown)
    assert set(split.known + split.unknown) <= classes


def test_no_unknown_class_is_allowed():
    assert open_set_split("abc", 3, 0) == ClassSplit(("a", "b", "c"), ())


@pytest.mark.parametrize(("n_known", "n_unknown"), [(1, 2), (0, 0), (2, -1)])
def test_too_few_classes_are_refused(n_known, n_unknown):
    with pytest.raises(InputError, match="at least two"):
        open_set_split("abcdef", n_known, n_unknown)


def test_task_keeps_knowns_in_the_source_and_drops_the_middle():
    X = np.arange(12, dtype=np.float32).reshape(6, 2)
    y = np.array(list("abcdef"))
    task = open_set_task((X, y), (X + 100, y), open_set_split("abcdef", 2, 2))
    assert task.source_labels.tolist() == ["a", "b"]
    assert task.target_truth.tolist() == ["a", "b", "e", "f"]
    np.testing.assert_array_equal(task.target_features, X[[0, 1, 4, 5]] + 100)
    assert task.target_rows.tolist() == [0, 1, 4, 5]
    assert task.openness == 0.5


def test_task_without_rows_of_a_class_is_refused():
    X, y = np.zeros((2, 1), np.float32), np.array(["a", "c"])
    split = ClassSplit(("a", "b"), ("c",))
    with pytest.raises(InputError, match="known class 'b'"):
        open_set_task((X, y), (X, y), split)
    with pytest.raises(InputError, match="no row"):
        open_set_task((X, np.array(["a", "b"])), (X, np.array(["x", "z"])), split)
    with pytest.raises(InputError, match="differ in length"):
        open_set_task((X, y[:1]), (X, y), split)
