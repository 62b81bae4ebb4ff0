"""Lists and manifests: lines and columns that name images, and tables that do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_helpers import error_of, listed, tree
from opensetda.data.images.lists import parse_line
from opensetda.data.images.loading import (
    ImageColumns,
    is_image_data,
    read_image_domains,
    read_image_truth,
    read_images,
)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    return tree(tmp_path / "shop", "cup/b.jpg", "cup/a.PNG", "pen/deep/er/c.jpeg", "pen/a.jpg")


def test_lists(shop, tmp_path):
    text = "\ufeff# a comment\r\n\r\nshop/cup/b.jpg cup\r\nshop/pen/a.jpg\tpen  \r\n"
    path = tmp_path / "list.txt"
    path.write_bytes(text.encode())
    images = read_images(path, labelled=True)
    assert listed(images) == [("shop/cup/b.jpg", "cup"), ("shop/pen/a.jpg", "pen")]
    assert Path(images.paths[1]).samefile(shop / "pen" / "a.jpg")


def test_where_the_paths_of_a_list_start(shop, tmp_path):
    (shop / "list.txt").write_text("cup/b.jpg\n")
    (shop / "cup" / "list.txt").write_text("cup/b.jpg\n")
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "list.txt").write_text("cup/b.jpg\n")
    (tmp_path / "far" / "absolute.txt").write_text(f"{shop}/cup/b.jpg 3\n")
    for path in (shop / "list.txt", shop / "cup" / "list.txt", tmp_path / "far" / "absolute.txt"):
        assert Path(read_images(path).paths[0]).samefile(shop / "cup" / "b.jpg")
    message = error_of(read_images, tmp_path / "far" / "list.txt")
    assert "list.txt, line 1: no such file 'cup/b.jpg' (1 of 1 are missing)" in message
    assert "the folder of the list or the one above" in message
    columns = ImageColumns(root=shop)
    assert len(read_images(tmp_path / "far" / "list.txt", columns)) == 1
    (tmp_path / "far" / "list.txt").write_text("cup/no.jpg\n")
    message = error_of(read_images, tmp_path / "far" / "list.txt", columns)
    assert f"paths start from {shop}" in message


def test_errors_of_lists(shop, tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("shop/cup/b.jpg cup\n\nshop/pen/a.jpg\n")
    message = error_of(read_image_domains, path, shop)
    assert "line 3: images without a class: 1 (for example 'shop/pen/a.jpg')" in message
    path.write_text("shop/cup/b.jpg cup\nshop/pen/a.jpg pen\nshop/cup/b.jpg cup\n")
    assert "list.txt, line 1 and line 3: 'shop/cup/b.jpg' is there twice" in error_of(
        read_images, path
    )
    path.write_text("shop/cup/b.jpg cup\n./shop/cup/b.jpg cup\n")
    assert "line 1 and line 2" in error_of(read_images, path)
    path.write_text("# nothing\n")
    assert "no image in it" in error_of(read_images, path)
    assert "no such file" in error_of(read_images, tmp_path / "no.txt")


_part = st.text(
    st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp"), blacklist_characters="/\x85"),
    min_size=1,
    max_size=12,
)
_path = st.lists(_part, min_size=1, max_size=4).map(lambda parts: f"{'/'.join(parts)}.jpg")
_label = _part.map(lambda text: "".join(text.split())).filter(bool)


@given(path=_path, label=_label, blank=st.sampled_from([" ", "\t", "  ", " \t "]))
def test_every_path_and_label_come_back(path, label, blank):
    path = path.strip()
    assert parse_line(f"{path}{blank}{label}", lambda text: text == path) == (path, label)
    assert parse_line(path, lambda text: text == path) == (path, None)
    assert parse_line(path, lambda text: False) == (path, None)


@given(st.text())
def test_any_line_is_a_path_and_perhaps_a_label(text):
    path, label = parse_line(text, lambda t: False)
    assert text.startswith(path)
    assert label is None or text.endswith(label)
    assert label is None or not set(label) & set(" \t")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("path_name", "label_name"), [("path", "label"), ("File", "class"), ("filename", "y")]
)
def test_manifests(shop, suffix, path_name, label_name):
    path = shop / f"manifest{suffix}"
    write(path, {path_name: ["cup/b.jpg", "pen/a.jpg"], label_name: ["007", "pen"]})
    assert is_image_data(path)
    images = read_images(path, labelled=True)
    assert listed(images) == [("cup/b.jpg", "007"), ("pen/a.jpg", "pen")]
    assert read_image_truth(path).labels.tolist() == ["007", "pen"]
    assert read_images(path).labels is None


def write(path: Path, columns: dict[str, list[Any]]) -> None:
    table = pa.table(columns)
    if path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path)
    else:
        pyarrow.parquet.write_table(table, path)


def test_the_ids_of_a_manifest(shop):
    write(shop / "m.csv", {"id": ["1", "2"], "path": ["cup/b.jpg", "pen/a.jpg"]})
    assert read_images(shop / "m.csv").ids.tolist() == ["1", "2"]
    write(shop / "m.csv", {"id": ["1", "1"], "path": ["cup/b.jpg", "pen/a.jpg"]})
    assert "row 1 and row 2: '1' is there twice" in error_of(read_images, shop / "m.csv")


def test_columns_by_name(shop):
    path = shop / "m.parquet"
    write(path, {"where": ["cup/b.jpg", "pen/a.jpg"], "what": ["a", "b"], "size": [1, 2]})
    assert not is_image_data(path)
    columns = ImageColumns(path="where", label="what")
    assert is_image_data(path, columns)
    assert listed(read_images(path, columns, labelled=True))[1] == ("pen/a.jpg", "b")
    assert "no column 'path'" in error_of(read_images, path)
    message = error_of(read_images, path, ImageColumns(path="where"), labelled=True)
    assert "no column 'label'" in message


def test_errors_of_manifests(shop):
    path = shop / "m.csv"
    path.write_text("path,label\ncup/b.jpg,cup\npen/a.jpg,\n")
    assert "m.csv, row 2: images without a class: 1" in error_of(read_image_domains, path, shop)
    path.write_text("path,label\n,cup\npen/a.jpg,pen\n")
    assert "'path', row 1: empty" in error_of(read_images, path)
    path.write_text("path,label\ncup/b.jpg,cup\npen/no.jpg,pen\n")
    assert "m.csv, row 2: no such file 'pen/no.jpg' (1 of 2" in error_of(read_images, path)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jpg", b"", True),
        ("a.JPG", b"", True),
        ("list.txt", b"", True),
        ("a.npz", b"", False),
        ("m.csv", b"path,label\n", True),
        ("m.csv", b"\xef\xbb\xbfimage\r\n", True),
        ("m.csv", b"id,path,label\n", True),
        ("m.csv", b"path,x1,x2,label\n", False),
        ("m.csv", b"x1,x2,y\n", False),
        ("m.csv", b"label\n", False),
        ("m.csv", b"", False),
        ("m.parquet", b"nonsense", False),
        ("notes.doc", b"", False),
    ],
)
def test_images_or_a_table(tmp_path, name, content, expected):
    (tmp_path / name).write_bytes(content)
    assert is_image_data(tmp_path / name) is expected
