"""Folders, lists and manifests of images: what counts as an image, and which class it has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_helpers import error_of, listed, tree, write
from opensetda.data.images.loading import (
    ImageColumns,
    all_there,
    is_image_data,
    iterate_entries,
    parse_line,
    read_image_domains,
    read_image_truth,
    read_images,
)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    return tree(tmp_path / "shop", "cup/b.jpg", "cup/a.PNG", "pen/deep/er/c.jpeg", "pen/a.jpg")


def test_class_folders_nested_at_any_depth(shop):
    images = read_images(shop, labelled=True)
    expected = [("cup/a.PNG", "cup"), ("cup/b.jpg", "cup"), ("pen/a.jpg", "pen")]
    assert listed(images) == [*expected, ("pen/deep/er/c.jpeg", "pen")]
    assert images.paths[0] == str(shop / "cup" / "a.PNG")
    assert images.origin == shop
    assert images.notes == ()
    assert images.class_counts() == {"cup": 2, "pen": 2}
    assert len(images) == 4
    assert listed(images.select([2, 0])) == [("pen/a.jpg", "pen"), ("cup/a.PNG", "cup")]
    mask = images.labels == "pen"
    assert images.select(mask).class_counts() == {"pen": 2}
    assert images.select(mask).paths == images.paths[2:]


def test_one_folder_between_the_domain_and_its_classes(tmp_path):
    tree(tmp_path, "amazon/images/back_pack/a.jpg", "amazon/images/bike/b.jpg", "amazon/notes.txt")
    images = read_images(tmp_path / "amazon", labelled=True)
    expected = [("images/back_pack/a.jpg", "back_pack"), ("images/bike/b.jpg", "bike")]
    assert listed(images) == expected
    # One class folder that holds no folder is a class, not a wrapper.
    tree(tmp_path, "one/cup/a.jpg")
    assert read_images(tmp_path / "one", labelled=True).class_counts() == {"cup": 1}


def test_what_is_left_out(tmp_path):
    names = ["cup/a.jpg", "cup/._a.jpg", "cup/.hidden.jpg", "cup/Thumbs.db", "cup/.git/x.jpg"]
    names += ["__MACOSX/cup/b.jpg", "cup/notes.txt", "cup/b.heic", "pen/a.jpg", "Empty/readme.txt"]
    images = read_images(tree(tmp_path, *names), labelled=True)
    assert listed(images) == [("cup/a.jpg", "cup"), ("pen/a.jpg", "pen")]
    assert images.notes == ("left out, as no images: 2 x .txt, 1 x .heic",)


def test_the_labels_of_a_target_are_never_returned(shop, tmp_path):
    (tmp_path / "list.txt").write_text("shop/cup/b.jpg cup\nshop/pen/a.jpg pen\n")
    (tmp_path / "list.csv").write_text("path,label\nshop/cup/b.jpg,cup\nshop/pen/a.jpg,pen\n")
    for target in (shop, tmp_path / "list.txt", tmp_path / "list.csv"):
        source, images = read_image_domains(shop, target)
        assert source.labels is not None
        assert images.labels is None
        assert images.class_counts() == {}
        assert len(images) in (2, 4)


def test_a_flat_folder_and_one_image_are_targets(shop, tmp_path):
    flat = tree(tmp_path / "flat", "b c.jpg", "ä.jpg", "写真.jpg")
    _, images = read_image_domains(shop, flat)
    assert images.ids.tolist() == ["b c.jpg", "ä.jpg", "写真.jpg"]
    _, images = read_image_domains(shop, flat / "ä.jpg")
    assert images.paths == (str(flat / "ä.jpg"),)


def test_truth_has_the_ids_of_the_target(shop, tmp_path):
    truth = read_image_truth(shop)
    assert truth.ids.tolist() == read_images(shop).ids.tolist()
    assert truth.labels.tolist() == ["cup", "cup", "pen", "pen"]
    # Its images may be elsewhere.
    (tmp_path / "truth.txt").write_text("gone/a.jpg cup\ngone/b.jpg pen\n")
    truth = read_image_truth(tmp_path / "truth.txt")
    assert truth.labels.tolist() == ["cup", "pen"]
    assert "no such file 'gone/a.jpg' (2 of 2" in error_of(read_images, tmp_path / "truth.txt")


def test_errors_of_folders(shop, tmp_path):
    assert f"no such folder; did you mean {shop}?" in error_of(read_images, tmp_path / "shpo")
    tree(tmp_path, "empty/readme.txt", "one/cup/a.jpg", "flat/a.jpg", "flat/b.jpg", "mixed/a.jpg")
    tree(tmp_path, "mixed/cup/a.jpg", "mixed/pen/a.jpg", "x.doc")
    message = error_of(read_images, tmp_path / "empty")
    assert "left out, as no images: 1 x .txt" in message
    assert "one class only ('cup')" in error_of(read_image_domains, tmp_path / "one", shop)
    assert "without a class: 2 (for" in error_of(read_image_domains, tmp_path / "flat", shop)
    assert "without a class: 1" in error_of(read_image_domains, tmp_path / "mixed", shop)
    assert "neither a folder, an image" in error_of(read_images, tmp_path / "x.doc")


def test_links_are_followed_and_loops_end(shop, tmp_path):
    (shop / "pen" / "up").symlink_to(shop)
    (shop / "pen" / "self").symlink_to(shop / "pen")
    (shop / "cup" / "b2.jpg").symlink_to(shop / "cup" / "b.jpg")
    (shop / "cup" / "gone.jpg").symlink_to(tmp_path / "nowhere")
    (shop / "cup" / "round.jpg").symlink_to(shop / "cup" / "round.jpg")
    tree(tmp_path, "store/sun/s.jpg")
    (shop / "sun").symlink_to(tmp_path / "store" / "sun")
    images = read_images(shop, labelled=True)
    assert images.class_counts() == {"cup": 5, "pen": 2, "sun": 1}


def test_names_that_are_no_utf8(tmp_path):
    raw = os.fsencode(tmp_path) + b"/b\xe4r"
    os.mkdir(raw)  # noqa: PTH102
    with open(raw + b"/caf\xe9.jpg", "wb"):  # noqa: PTH123
        pass
    tree(tmp_path, "cup/a.jpg")
    images = read_images(tmp_path, labelled=True)
    assert images.ids.tolist() == ["b\\xe4r/caf\\xe9.jpg", "cup/a.jpg"]
    assert images.labels.tolist() == ["b\\xe4r", "cup"]
    assert Path(images.paths[0]).exists()
    (tmp_path / "list.txt").write_bytes(b"b\xe4r/caf\xe9.jpg cup\n")
    assert read_images(tmp_path / "list.txt").paths[0].endswith("caf\udce9.jpg")


def test_iteration_streams_the_same_images(shop, tmp_path):
    usual = ImageColumns()
    images = read_images(shop)
    pairs = [(entry.id, entry.path) for entry in iterate_entries([shop], usual)]
    assert pairs == [*zip(images.ids, images.paths, strict=True)]
    (tmp_path / "list.txt").write_text("shop/cup/b.jpg cup\ngone.jpg\n")
    several = [shop, shop / "pen/a.jpg", tmp_path / "list.txt"]
    paths = [(entry.id, entry.path) for entry in iterate_entries(several, usual)]
    expected = shop / "pen/a.jpg", shop / "cup/b.jpg", tmp_path / "gone.jpg"
    assert paths[4:] == [(str(path), str(path)) for path in expected]
    assert len([*all_there(iterate_entries(several, usual), 7, several)]) == 7
    fewer = all_there(iterate_entries(several, usual), 9, several)
    assert "shop ...: 2 of 9 images are gone since the command began" in error_of(list, fewer)
    (tmp_path / "void").mkdir()
    assert "no image in it" in error_of(list, iterate_entries([tmp_path / "void"], usual))
    assert "no such folder" in error_of(list, iterate_entries([tmp_path / "no"], usual))


# lists and manifests ----------------------------------------------------------------------


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
    assert len(read_images(tmp_path / "far" / "list.txt", ImageColumns(root=shop))) == 1


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


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_manifests(shop, suffix):
    path = shop / f"manifest{suffix}"
    write(path, {"File": ["cup/b.jpg", "pen/a.jpg"], "class": ["007", "pen"]})
    assert is_image_data(path)
    images = read_images(path, labelled=True)
    assert listed(images) == [("cup/b.jpg", "007"), ("pen/a.jpg", "pen")]
    assert read_image_truth(path).labels.tolist() == ["007", "pen"]
    assert read_images(path).labels is None


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
        ("a.JPG", b"", True),
        ("list.txt", b"", True),
        ("a.npz", b"", False),
        ("m.csv", b"\xef\xbb\xbfimage\r\n", True),
        ("m.csv", b"id,path,label\n", True),
        ("m.csv", b"path,x1,x2,label\n", False),
        ("m.csv", b"x1,x2,y\n", False),
        ("m.csv", b"", False),
        ("m.parquet", b"nonsense", False),
        ("notes.doc", b"", False),
    ],
)
def test_images_or_a_table(tmp_path, name, content, expected):
    (tmp_path / name).write_bytes(content)
    assert is_image_data(tmp_path / name) is expected
