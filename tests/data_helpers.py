"""What the tests of data share: tables, folders and tar shards, and the one line of an error."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from opensetda.errors import InputError

FORMATS = ["npz", "csv", "parquet"]


def error_of(call, *arguments, **options):
    with pytest.raises(InputError) as caught:
        call(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def save(path, X, **named):
    """Write a table in the format that its name asks for."""
    X = np.asarray(X)
    if path.suffix == ".npz":
        np.savez(path, X=X, **{name: np.asarray(values) for name, values in named.items()})
        return path
    features = {f"f{column}": X[:, column] for column in range(X.shape[1])}
    return write(path, {**features, **{name: pa.array(values) for name, values in named.items()}})


def write(path, columns):
    """Write columns as CSV or Parquet."""
    writer = pyarrow.csv.write_csv if path.suffix == ".csv" else pyarrow.parquet.write_table
    writer(pa.table(columns), path)
    return path


def text(path, content):
    path.write_text(content, encoding="utf-8")
    return path


def tree(root, *names):
    """Make files, which need not be images: nothing here opens them."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return root


def listed(images):
    labels = [None] * len(images) if images.labels is None else images.labels.tolist()
    return list(zip(images.ids.tolist(), labels, strict=True))


def write_tar(path, *members, form=tarfile.GNU_FORMAT):
    """Write (name or TarInfo, content) pairs; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form, encoding="utf-8", errors="surrogateescape") as tar:
        for name, content in members:
            content = content if isinstance(content, bytes) else str(content).encode()
            member = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def labelled_shard(path, *classes):
    """Write a shard of a.jpg and a.cls, b.jpg and b.cls, ..."""
    members = []
    for key, name in zip("abcdefgh", classes, strict=False):
        members += [(f"{key}.jpg", f"picture {key}"), (f"{key}.cls", f"{name}\n")]
    return write_tar(path, *members)
