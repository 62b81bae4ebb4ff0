"""What the tests of tables share: files in every format, and the one line of an error."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from opensetda.errors import InputError

FORMATS = ["npz", "csv", "parquet"]


def save(path, X, **named):
    """Write a table in the format that its name asks for."""
    X = np.asarray(X)
    if path.suffix == ".npz":
        np.savez(path, X=X, **{name: np.asarray(values) for name, values in named.items()})
        return path
    features = {f"f{column}": X[:, column] for column in range(X.shape[1])}
    table = pa.table({**features, **{name: pa.array(values) for name, values in named.items()}})
    if path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path)
    else:
        pyarrow.parquet.write_table(table, path)
    return path


def text(path, content):
    path.write_text(content, encoding="utf-8")
    return path


def error_of(function, *arguments):
    with pytest.raises(InputError) as caught:
        function(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message
