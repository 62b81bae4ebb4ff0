"""Images in WebDataset's tar shards: which shards, which samples, and which class each has."""

from __future__ import annotations

import contextlib
import posixpath
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from image_helpers import error_of, listed, tree
from opensetda.data.images.decoding import BrokenImageError, read_content
from opensetda.data.images.loading import (
    is_image_data,
    read_image_truth,
    read_images,
)
from opensetda.errors import InputError
from tar_helpers import info, shop, write_tar

# what may be given -------------------------------------------------------------------------


def test_one_shard(tmp_path):
    path = shop(tmp_path / "shop.tar", "cup", 7)
    assert is_image_data(path)
    images = read_images(path, labelled=True)
    assert listed(images) == [("shop.tar/a.jpg", "cup"), ("shop.tar/b.jpg", "7")]
    assert images.paths == (f"{path}/a.jpg", f"{path}/b.jpg")
    assert images.notes == ()
    assert read_content(images.paths[1]) == b"picture b"


def test_a_folder_of_shards(tmp_path):
    shop(tmp_path / "shards/1.TAR", "cup")
    shop(tmp_path / "shards/0.tar", "pen", "cup")
    tree(tmp_path / "shards", "sizes.json", ".hidden.tar")
    images = read_images(tmp_path / "shards", labelled=True)
    expected = [("0.tar/a.jpg", "pen"), ("0.tar/b.jpg", "cup"), ("1.TAR/a.jpg", "cup")]
    assert listed(images) == expected
    assert images.notes == ("left out, as no images: 1 x .json",)
    assert [read_content(path) for path in images.paths[1:]] == [b"picture b", b"picture a"]


def test_shards_beside_images_or_folders_are_left_out(tmp_path):
    shop(tmp_path / "download.tar", "cup")
    tree(tmp_path, "cup/a.jpg", "pen/b.jpg")
    images = read_images(tmp_path, labelled=True)
    assert listed(images) == [("cup/a.jpg", "cup"), ("pen/b.jpg", "pen")]
    assert images.notes == ("left out, as no images: 1 x .tar",)


def test_a_list_of_shards(tmp_path):
    for name in ("a/0.tar", "b/0.tar", "c/0.tar"):
        shop(tmp_path / name, "cup")
    (tmp_path / "list.txt").write_text("a/0.tar\nb/0.tar\n")
    images = read_images(tmp_path / "list.txt", labelled=True)
    assert listed(images) == [("a/0.tar/a.jpg", "cup"), ("b/0.tar/a.jpg", "cup")]
    assert read_content(images.paths[1]) == b"picture a"
    (tmp_path / "list.txt").write_text("a/9.tar\n")
    assert "no such file 'a/9.tar'" in error_of(read_images, tmp_path / "list.txt")


# samples and classes -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "label"),
    [
        ({"cls": " cup\r\n"}, "cup"),
        ({"cls": "0"}, "0"),
        ({"cls": "\ufeffgröße"}, "größe"),
        ({"CLS": "two words"}, "two words"),
        ({"json": '{"label": "cup", "class": 3}'}, "cup"),
        ({"json": '{"class": 3}'}, "3"),
        ({"json": '{"label": null, "cls": "cup"}'}, "cup"),
        ({"txt": "cup\n"}, "cup"),
        ({"txt": "a caption", "json": '{"label": "cup"}'}, "cup"),
        ({"json": '{"label": "pen"}', "cls": "cup"}, "cup"),
        ({"json": '{"width": 3}', "txt": "cup"}, "cup"),
        ({"json": "[1]", "txt": "cup", "cls": " "}, "cup"),
    ],
)
def test_where_a_class_is(tmp_path, members, label):
    files = [(f"k/1.{ending}", text) for ending, text in members.items()]
    path = write_tar(tmp_path / "0.tar", *files, ("k/1.png", "x"))
    assert listed(read_images(path, labelled=True)) == [("0.tar/k/1.png", label)]
    assert read_image_truth(path).labels.tolist() == [label]


def test_a_source_without_classes(tmp_path):
    write_tar(tmp_path / "s/0.tar", ("x/1.jpg", ""), ("x/2.jpg", ""), ("x/2.cls", "cup"))
    expected = "without a class: 1 (for example '0.tar/x/1.jpg'); put"
    assert expected in error_of(read_images, tmp_path / "s", labelled=True)
    assert expected in error_of(read_images, tmp_path / "s/0.tar", labelled=True)
    assert len(read_images(tmp_path / "s")) == 2


def test_samples_without_and_with_further_images(tmp_path):
    names = [
        "1.seg.png",
        "1.jpg",
        "1.depth.png",
        "2.left.JPG",
        "3.cls",
        "4.npy",
        "README",
        "._2.jpg",
    ]
    names += ["__MACOSX/1.jpg", ".git/1.jpg"]
    path = write_tar(tmp_path / "0.tar", *((name, "x") for name in names))
    images = read_images(path)
    assert images.ids.tolist() == ["0.tar/1.jpg", "0.tar/2.left.JPG"]


@pytest.mark.parametrize("names", [("1.jpg", "1.png"), ("2020.01.02.jpg", "2020.01.03.jpg")])
def test_two_images_of_one_sample(tmp_path, names):
    path = write_tar(tmp_path / "0.tar", *((name, "x") for name in names))
    message = error_of(read_images, path)
    assert message.startswith(f"{path}: {names[0]!r} and {names[1]!r} are images of one sample")


# what is wrong with a shard ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ([("1.png", "x"), ("1.json", "{")], "'1.json': no class (Expecting"),
        ([("1.png", "x"), ("1.cls", b"\xff\xfe")], "'1.cls': no class (not UTF-8)"),
        ([("1.png", "x"), ("1.cls", "cup\npen")], "no character of a name"),
        ([("1.cls", "cup")], "no image in it"),
        ([], "no image in it"),
    ],
)
def test_what_is_no_labelled_shard(tmp_path, members, told):
    path = write_tar(tmp_path / "0.tar", *members)
    message = error_of(read_images, path, labelled=True)
    assert message.startswith(str(path))
    assert told in message


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("0.tar", b"no archive at all" * 99, "not a tar archive; write it again"),
        ("0.tar", b"", "not a tar archive"),
        ("0.tar", bytes(1024), "no image in it"),
    ],
)
def test_what_is_no_archive(tmp_path, name, content, told):
    (tmp_path / name).write_bytes(content)
    assert is_image_data(tmp_path / name)
    for given_path in (tmp_path / name, tmp_path):
        assert told in error_of(read_images, given_path)


def test_an_archive_cut_short(tmp_path):
    path = write_tar(tmp_path / "0.tar", ("1.jpg", "x" * 512), ("2.jpg", "y" * 2000))
    whole = path.read_bytes()
    for length in (1300, 2500):
        path.write_bytes(whole[:length])
        assert "damaged or cut short at byte" in error_of(read_images, path)
        with pytest.raises(BrokenImageError, match="cut short"):
            read_content(f"{path}/1.jpg")


def test_members_that_are_no_files_of_the_shard(tmp_path):
    evil = [
        (info("1.jpg", tarfile.SYMTYPE, linkname="/etc/passwd"), ""),
        (info("4.jpg", tarfile.FIFOTYPE), ""),
        (info("d/", tarfile.DIRTYPE), ""),
        ("a/../../out.jpg", "x"),
        ("/etc/out.jpg", "x"),
        ("ok.jpg", "fine"),
    ]
    path = write_tar(tmp_path / "0.tar", *evil)
    images = read_images(path)
    assert images.ids.tolist() == ["0.tar/ok.jpg"]
    assert read_content(images.paths[0]) == b"fine"
    assert [entry.name for entry in tmp_path.iterdir()] == ["0.tar"]
    for name in ("1.jpg", "../out.jpg", "/etc/out.jpg"):
        with pytest.raises(BrokenImageError, match="no such file"):
            read_content(f"{path}/{name}")


PARTS = st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=70)


@settings(max_examples=25)
@given(
    names=st.lists(st.lists(PARTS, min_size=1, max_size=4).map("/".join), max_size=4, unique=True),
    form=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_every_name_leads_to_its_content(tmp_path_factory, names, form):
    names = [f"{name}.jpg" for name in names if ".." not in name]
    path = write_tar(
        tmp_path_factory.mktemp("names") / "0.tar", *((name, name) for name in names), form=form
    )
    for name in {posixpath.normpath(name): name for name in names}.values():
        if not name.startswith("/"):
            assert read_content(f"{path}/{posixpath.normpath(name)}") == name.encode()


@settings(max_examples=80)
@given(data=st.data())
def test_damaged_bytes_give_one_line_or_images(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("damaged") / "0.tar"
    form = data.draw(st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
    write_tar(path, ("ü" * 60 + ".jpg", "x"), ("2.jpg", "y" * 600), ("2.cls", "cup"), form=form)
    content = bytearray(path.read_bytes()[:7000])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 6999))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, 7000))])
    # Nothing but these two errors comes out, and it comes to an end.
    with contextlib.suppress(InputError, BrokenImageError):
        for where in read_images(path, labelled=True).paths:
            assert read_content(where).strip(b"xy") == b""
