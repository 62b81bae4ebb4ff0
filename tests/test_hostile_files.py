"""Files that would hang a reader or fill the memory: each ends in one line that names it."""

from __future__ import annotations

import os
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from opensetda.data import limits
from opensetda.data.images import decoding, lists
from opensetda.data.images.decoding import BrokenImageError, decode_image, read_content
from opensetda.data.images.loading import is_image_data, iterate_images, read_images
from opensetda.data.tables import mapped
from opensetda.data.tables.loading import TableColumns, read_domains, read_samples
from opensetda.errors import InputError
from opensetda.runs.domain_arrays import DomainArrays
from opensetda.runs.fit_data import load
from opensetda.runs.listening import RunListener
from opensetda.runs.request import FitRequest
from opensetda.system.files import file_record
from table_helpers import error_of, save, text

IDS = TableColumns(id="id")
KINDS = ["npz", "npy", "csv", "parquet", "txt", "tar"]


def read(path):
    """Read what a path leads to, as `fit` does."""
    if is_image_data(path):
        read_images(path, labelled=True)
    else:
        read_domains(path, path)


# What is no file --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_pipes_and_devices_are_refused_at_once(tmp_path, kind):
    pipe, device = tmp_path / f"p.{kind}", tmp_path / f"d.{kind}"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    assert error_of(read, pipe) == f"{pipe}: a pipe, not a file; copy its content to a file"
    assert error_of(read, device) == f"{device}: a device, not a file; copy its content to a file"


@pytest.mark.parametrize("kind", [*KINDS, "jpg", ""])
def test_links_in_a_circle_are_told(tmp_path, kind):
    path = tmp_path / f"loop.{kind}".rstrip(".")
    path.symlink_to(path)
    assert (
        error_of(read, path)
        == f"{path}: cannot be read (Too many levels of symbolic links); check it"
    )


@pytest.mark.parametrize("kind", ["npz", "csv", "txt", "jpg"])
def test_a_path_never_suggests_itself(tmp_path, kind):
    path = tmp_path / f"t.{kind}"
    path.symlink_to(tmp_path / "gone")
    assert error_of(read, path) == f"{path}: no such file: a link to what does not exist"


@pytest.mark.parametrize("kind", ["npz", "csv", "txt", "jpg", ""])
def test_names_that_no_file_can_have(tmp_path, kind):
    for name in ("a\0b", "\ud800"):
        message = error_of(read, tmp_path / f"{name}.{kind}".rstrip("."))
        assert message.endswith("no file can have this name; give another")
        assert message.isprintable()
    assert "cannot be read (File name too long)" in error_of(read, tmp_path / f"{'x' * 300}.{kind}")


def test_images_that_are_no_files_are_broken(tmp_path):
    pipe, loop = tmp_path / "p.jpg", tmp_path / "l.jpg"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    for path, reason in (
        (pipe, "a pipe, not a file"),
        (loop, "links that lead in a circle"),
        (tmp_path, "a folder, not a file"),
    ):
        with pytest.raises(BrokenImageError, match=reason):
            decode_image(path)
    with pytest.raises(BrokenImageError, match="a pipe, not a file"):
        read_content(str(pipe))
    with pytest.raises(InputError, match="a pipe, not a file"):
        file_record(pipe)


# What would fill the memory ---------------------------------------------------------------


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet"])
def test_long_ids_are_refused(tmp_path, kind, monkeypatch):
    path = save(tmp_path / f"t.{kind}", np.zeros((3, 2)), id=["a", "b", "c" * 5000])
    for large in (1 << 28, 0):
        monkeypatch.setattr(mapped, "LARGE_BYTES", large)
        message = error_of(read_samples, path, 2, None, IDS)
        assert (
            message == f"{path}: 'id', row 3: 5,000 characters, at most 4,096 are read; rename it"
        )


def test_lists_are_limited(tmp_path, monkeypatch):
    path = text(tmp_path / "l.txt", "a.jpg\n" + "x" * 70_000)
    assert error_of(read_images, path) == f"{path}, line 2: more than 65,536 characters; divide it"
    path = text(tmp_path / "l.txt", "a.jpg\nb.jpg\nc.jpg\n")
    monkeypatch.setattr(lists, "MOST_LINES", 2)
    message = error_of(lambda: list(iterate_images([path])))
    assert message == f"{path}, line 3: more than 2 lines; divide it"
    # The second line ends it, however many follow.
    monkeypatch.setattr(lists, "MOST_LINES", 5)
    path = text(tmp_path / "l.txt", "a.jpg\n" * 9)
    assert "'a.jpg' is there twice" in error_of(read_images, path)


def test_images_larger_than_any_are_not_read(tmp_path):
    size = limits.LARGEST_IMAGE + 1
    with (tmp_path / "a.jpg").open("wb") as stream:
        stream.truncate(size)
    info = tarfile.TarInfo("a.jpg")
    info.size = 40 * 10**9
    with (tmp_path / "a.tar").open("wb") as stream:
        stream.write(info.tobuf(tarfile.GNU_FORMAT))
        stream.truncate(info.size + 2048)
    (listed,) = read_images(tmp_path / "a.tar").paths
    for path in (tmp_path / "a.jpg", listed):
        with pytest.raises(BrokenImageError, match="larger than any image \\(1 GiB\\)"):
            decode_image(path)
        with pytest.raises(BrokenImageError, match="larger than any image"):
            read_content(str(path))
    assert decoding.is_member(listed)


# What is no text --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["y", "id", "f0"])
@pytest.mark.parametrize("large", [1 << 28, 0])
def test_bytes_that_are_no_text_name_file_and_column(tmp_path, monkeypatch, name, large):
    monkeypatch.setattr(mapped, "LARGE_BYTES", large)
    columns = {"f0": [1.0, 2.0], "f1": [1.0, 2.0], "y": ["a", "b"], "id": ["p", "q"]}
    columns[name] = pa.array([b"\xff\xfe", b"b"]).view(pa.string())
    path = tmp_path / "s.parquet"
    pyarrow.parquet.write_table(pa.table(columns), path)
    message = error_of(read_domains, path, path, IDS)
    assert message.startswith(f"{path}: ")
    assert f"column {name!r}" in message
    assert "not UTF-8 text" in message


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet"])
def test_control_characters_in_labels_are_shown_and_refused(tmp_path, kind):
    path = save(tmp_path / f"s.{kind}", np.eye(3), y=["a", "b\x1b[2J", "a"])
    message = error_of(read_domains, path, path)
    expected = r"'y', row 2: 'b\x1b[2J' holds '\x1b', which is no character of a name; rename it"
    assert message == f"{path}: {expected}"


def test_halves_of_characters_are_refused(tmp_path):
    path = save(tmp_path / "s.npz", np.eye(3), y=["a", "\ud800", "b"], id=["a", "b", "\udfff"])
    assert r"'y', row 2: '\ud800' holds '\ud800'" in error_of(read_domains, path, path)
    assert r"'id', row 3: '\udfff' holds" in error_of(read_samples, path, 3, None, IDS)
    message = error_of(DomainArrays.of, np.eye(2), ["a\n", "b"], np.eye(2))
    assert message.startswith(r"source labels: 'labels', row 1: 'a\n' holds '\n'")


def test_classes_of_images_are_names_too(tmp_path):
    for name in ("cup", "pen\x1b"):
        (tmp_path / "shop" / name).mkdir(parents=True)
        (tmp_path / "shop" / name / "a.jpg").touch()
    message = error_of(lambda: read_images(tmp_path / "shop", labelled=True))
    assert r"'pen\x1b' holds '\x1b', which is no character of a name; rename it" in message
    assert message.startswith(f"{tmp_path / 'shop'}, class of ")
    assert message.isprintable()


def test_tiny_numbers_are_read_without_a_warning(tmp_path):
    path = text(tmp_path / "t.csv", "f0,f1\n1e-320,1e-40\n-1e-320,5e-324\n")
    with np.errstate(all="raise"):
        assert np.abs(read_samples(path, 2).X).max() < 1e-39
        path = save(tmp_path / "t.npz", np.array([[1e-320, 1e-40]]))
        assert np.abs(read_samples(path, 2).X).max() < 1e-39


def test_classes_that_look_alike_are_told(tmp_path):
    path = save(tmp_path / "s.csv", np.eye(3), y=["cat", "Cat", "dog"])
    data = load(FitRequest("a run", str(path), str(path)), RunListener(), tmp_path)
    assert data.warnings[0].startswith("classes 'Cat' and 'cat' differ only in case")
