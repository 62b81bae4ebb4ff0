"""Files that would hang a reader or fill the memory: each ends in one line that names it."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from opensetda.data import limits
from opensetda.data.images import decoding, lists
from opensetda.data.images.decoding import BrokenImageError, decode_image, read_content
from opensetda.data.images.loading import is_image_data, iterate_images, read_images
from opensetda.data.tables import column_files, formats, mapped, scratch
from opensetda.data.tables.loading import TableColumns, read_domains, read_samples, read_truth
from opensetda.errors import InputError
from opensetda.runs.domain_arrays import DomainArrays
from opensetda.runs.fit_data import load
from opensetda.runs.listening import RunListener
from opensetda.runs.request import FitRequest
from opensetda.system import memory
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
    assert error_of(read, path) == f"{path}: links that lead in a circle; give the file itself"


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


def megabytes_of(function, *arguments):
    if not memory.reset_peak():
        pytest.skip("the system does not tell the peak of a piece of work")
    before = memory.peak_megabytes()
    message = error_of(function, *arguments)
    return message, memory.peak_megabytes() - before


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet"])
def test_one_long_label_is_refused(tmp_path, kind):
    labels = ["a"] * 400 + ["b" * 10**6]
    path = tmp_path / f"s.{kind}"
    if kind == "npz":
        labels = ["a"] * 4 + ["b" * 10**6]
    save(path, np.zeros((len(labels), 2)), y=labels)
    message, used = megabytes_of(read_domains, path, path)
    problem = f"'y', row {len(labels)}: 1,000,000 characters, at most 200 are read; rename it"
    assert message == f"{path}: {problem}"
    assert used < 200


def test_text_that_is_longer_than_names_is_not_unpacked(tmp_path):
    path = tmp_path / "s.parquet"
    rows = pa.array([f"{row}" * 10**6 for row in range(4)])
    pyarrow.parquet.write_table(pa.table({"f": pa.nulls(4, pa.int8()), "y": rows}), path)
    message = error_of(read_truth, path)
    assert message == f"{path}: column 'y': longer than any name; at most 4,096 characters are read"


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet"])
def test_long_ids_are_refused(tmp_path, kind, monkeypatch):
    path = save(tmp_path / f"t.{kind}", np.zeros((3, 2)), id=["a", "b", "c" * 5000])
    for large in (1 << 28, 0):
        monkeypatch.setattr(mapped, "LARGE_BYTES", large)
        message = error_of(read_samples, path, 2, None, IDS)
        assert (
            message == f"{path}: 'id', row 3: 5,000 characters, at most 4,096 are read; rename it"
        )


def test_text_as_wide_as_its_longest_must_fit_into_memory(tmp_path, monkeypatch):
    path = save(tmp_path / "s.csv", np.zeros((3, 2)), y=["a", "bbb", "a"])
    monkeypatch.setattr(memory, "free_bytes", lambda: 35)
    monkeypatch.setattr(column_files, "check_free", lambda *_: None)
    message = error_of(read_domains, path, path)
    assert "'y', whose longest is row 2 with 3 characters, needs about" in message
    assert "shorten the longest" in message


def test_millions_of_labels_are_refused_before_they_are_read(tmp_path):
    part = pa.table({"f": pa.nulls(10**6, pa.int8()), "y": pa.nulls(10**6, pa.string())})
    path = tmp_path / "s.parquet"
    with pyarrow.parquet.ParquetWriter(path, part.schema) as writer:
        for _ in range(11):
            writer.write_table(part)
    message, used = megabytes_of(read_truth, path)
    assert message.startswith(f"{path}: 11,000,000 rows of 'y'; labels, and ids")
    assert used < 100


def test_labels_that_are_repeated_take_little_memory(tmp_path):
    labels = pa.array(["a" * 150, "b" * 150] * 35_000)
    path = tmp_path / "s.parquet"
    pyarrow.parquet.write_table(pa.table({"f": pa.nulls(70_000, pa.int8()), "y": labels}), path)
    table = formats.open_table(path)
    cells = table.text("y")
    assert len({id(cell) for cell in cells.tolist()}) < 50
    assert cells.tolist() == labels.to_pylist()


def bomb(path, n_bytes, fortran=False, declared=None, **options):
    """Write an archive whose array takes many more bytes than the file."""
    rows, header = (declared or n_bytes) // 8, io.BytesIO()
    described = {"descr": "<f4", "fortran_order": fortran, "shape": (rows, 2)}
    np.lib.format.write_array_header_1_0(header, described)
    with (
        zipfile.ZipFile(path, "w", **{"compression": zipfile.ZIP_DEFLATED} | options) as archive,
        archive.open("X.npy", "w") as stream,
    ):
        stream.write(header.getvalue() + bytes(n_bytes))
    return path


@pytest.mark.parametrize("fortran", [False, True])
def test_zip_bombs_are_refused(tmp_path, monkeypatch, fortran):
    monkeypatch.setattr(mapped, "LARGE_BYTES", 1 << 20)
    path = bomb(tmp_path / "t.npz", 1 << 22, fortran)
    message = error_of(read_samples, path, 2)
    assert message.startswith(f"{path}: array 'X' unpacks to 1,0")
    assert "times its size, as only a zip bomb does" in message


def test_arrays_that_say_another_size_are_damaged(tmp_path):
    for declared in (1 << 12, 1 << 50):
        path = bomb(tmp_path / "t.npz", 1 << 10, declared=declared)
        message = error_of(read_samples, path, 2)
        assert message == f"{path}: cannot read array 'X': the file is damaged"


def test_other_ways_to_pack_are_refused(tmp_path):
    path = bomb(tmp_path / "t.npz", 1 << 10, compression=zipfile.ZIP_BZIP2)
    assert "its compression is not known; use np.savez_compressed" in error_of(
        read_samples, path, 2
    )


def test_headers_of_arrays_are_limited(tmp_path):
    path = tmp_path / "t.npy"
    for start in (b"\2\0\xff\xff\xff\xff{", b"\1\0\x76\0{'descr': 'f4', 'shape': (True,)}"):
        path.write_bytes(b"\x93NUMPY" + start)
        assert error_of(read_samples, path, 2).startswith(f"{path}: cannot read an .npy file")
    np.save(path, np.zeros(3, [("a", "f4")]))
    assert "holds records" in error_of(read_samples, path, 2)
    with zipfile.ZipFile(tmp_path / "t.npz", "w"):
        pass
    assert "there is no array in it" in error_of(read_samples, tmp_path / "t.npz", 2)


def test_a_csv_file_must_fit_into_memory(tmp_path, monkeypatch):
    path = save(tmp_path / "t.csv", np.zeros((3, 2)))
    monkeypatch.setattr(memory, "free_bytes", lambda: 100)
    message = error_of(read_samples, path, 2)
    assert message.startswith(f"{path}: in memory it needs about 0.0 GB of memory")
    assert "save it as Parquet, which is read in parts" in message


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_very_many_columns_are_read_as_few_are(tmp_path, kind, monkeypatch):
    X = np.random.default_rng(0).normal(size=(3, 50)).round(3)
    X[:, 0] = [1, 2, 3]
    path = save(tmp_path / f"s.{kind}", X, y=["a", "b", "007"])
    monkeypatch.setattr(column_files, "_BLOCK_BYTES", 16)
    for most in (10, 100):
        monkeypatch.setattr(column_files, "_MANY_COLUMNS", most)
        source, _ = read_domains(path, path)
        np.testing.assert_array_equal(source.X, X.astype(np.float32))
        assert source.labels.tolist() == ["a", "b", "007"]
    if kind == "csv":
        path.write_text(path.read_text().replace("1,", "left,", 1))
        monkeypatch.setattr(column_files, "_MANY_COLUMNS", 10)
        assert "column 'f0' is not numeric (row 1 holds 'left')" in error_of(read, path)


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


def test_what_a_killed_process_unpacked_is_removed_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / ".opensetda.0123abcd.partial"
    left.mkdir()
    (left / "t.npy").write_bytes(bytes(100))
    monkeypatch.setattr(scratch.atexit, "register", lambda function: None)
    folder = scratch._own_folder.__wrapped__()
    assert list(tmp_path.iterdir()) == [folder]
