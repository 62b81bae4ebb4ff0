"""Files that would hang a reader or fill the memory: each ends in one line that names it."""

from __future__ import annotations

import io
import os
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from opensetda.data.images.decoding import BrokenImageError, decode_image
from opensetda.data.images.loading import is_image_data, read_images
from opensetda.data.tables.loading import read_domains
from table_helpers import error_of, save


def read(path):
    """Read what a path leads to, as `fit` does."""
    read_images(path, labelled=True) if is_image_data(path) else read_domains(path, path)


@pytest.mark.parametrize("kind", ["npz", "npy", "csv", "parquet", "txt", "tar"])
def test_what_is_no_file_is_refused_at_once(tmp_path, kind):
    pipe, device, circle = (tmp_path / f"{name}.{kind}" for name in ("p", "d", "c"))
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    circle.symlink_to(circle)
    for path, words in (
        (pipe, "a pipe"),
        (device, "a device"),
        (circle, "cannot be read (Too many levels of symbolic links)"),
    ):
        assert error_of(read, path).startswith(f"{path}: {words}")
    image = pipe.with_suffix(".jpg")
    os.mkfifo(image)
    with pytest.raises(BrokenImageError, match="a pipe"):
        decode_image(image)


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet"])
@pytest.mark.parametrize("label", ["b" * 10**6, "b\x1b[2J"])
def test_labels_that_are_no_names_are_refused(tmp_path, kind, label):
    path = save(tmp_path / f"s.{kind}", np.eye(3), y=["a", label, "a"])
    message = error_of(read, path)
    assert message.startswith(f"{path}: ")
    assert "row 2" in message
    assert message.isprintable()
    assert len(message) < 500


def test_bytes_that_are_no_text_name_file_and_column(tmp_path):
    path = tmp_path / "s.parquet"
    labels = pa.array([b"\xff\xfe", b"b"]).view(pa.string())
    pyarrow.parquet.write_table(pa.table({"f0": [1.0, 2.0], "f1": [1.0, 2.0], "y": labels}), path)
    message = error_of(read, path)
    assert message.startswith(f"{path}: ")
    assert "'y'" in message


@pytest.mark.parametrize("n_rows", [1 << 12, 1 << 50])
def test_arrays_that_say_another_size_are_damaged(tmp_path, n_rows):
    header, path = io.BytesIO(), tmp_path / "t.npz"
    shape = {"descr": "<f4", "fortran_order": False, "shape": (n_rows, 2)}
    np.lib.format.write_array_header_1_0(header, shape)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("X.npy", header.getvalue() + bytes(1 << 10))
        archive.writestr("y.npy", b"")
    assert error_of(read, path).startswith(f"{path}: ")
