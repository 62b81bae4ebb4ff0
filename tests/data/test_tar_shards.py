"""Images in WebDataset's tar shards: which shards, which samples, and which class each has."""

from __future__ import annotations

import contextlib
import posixpath
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from image_helpers import error_of, listed, tree
from opensetda.data.images.decoding import BrokenImageError, read_content
from opensetda.data.images.lists import expand
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
    assert images.notes == ("left out: 1 x file that is not an image (.json)",)
    assert [read_content(path) for path in images.paths[1:]] == [b"picture b", b"picture a"]


def test_shards_beside_images_or_folders_are_left_out(tmp_path):
    shop(tmp_path / "download.tar", "cup")
    tree(tmp_path, "cup/a.jpg", "pen/b.jpg")
    images = read_images(tmp_path, labelled=True)
    assert listed(images) == [("cup/a.jpg", "cup"), ("pen/b.jpg", "pen")]
    assert images.notes == ("left out: 1 x file that is not an image (.tar)",)


def test_a_pattern(tmp_path):
    for number in (8, 9, 10):
        shop(tmp_path / f"train-{number:03}.tar", "cup")
    pattern = tmp_path / "train-{008..010}.tar"
    assert is_image_data(pattern)
    ids = ["train-008.tar/a.jpg", "train-009.tar/a.jpg", "train-010.tar/a.jpg"]
    assert read_images(pattern).ids.tolist() == ids
    (tmp_path / "train-009.tar").unlink()
    message = error_of(read_images, pattern)
    assert message.startswith(f"{tmp_path}/train-009.tar: cannot be read (No such file")


def test_shards_of_one_name_in_two_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("x/a", "x/b", "a", "b"):
        shop(Path(folder) / "0.tar", "cup")
    for pattern in ("x/{a,b}/0.tar", "{a,b}/0.tar"):
        assert read_images(pattern).ids.tolist() == ["a/0.tar/a.jpg", "b/0.tar/a.jpg"]
    assert "is there twice" in error_of(read_images, "a/{0,0}.tar")
    mixed = read_images(f"{{{tmp_path}/a,b}}/0.tar").ids
    assert len(set(mixed)) == 2


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a.tar", ["a.tar"]),
        ("{0..2}", ["0", "1", "2"]),
        ("{8..10}", ["8", "9", "10"]),
        ("{08..10}", ["08", "09", "10"]),
        ("{1..003}", ["001", "002", "003"]),
        ("{2..0}", ["2", "1", "0"]),
        ("{a,b}-{0..1}", ["a-0", "a-1", "b-0", "b-1"]),
        ("x{,y}", ["x", "xy"]),
        ("{a}{}{1..}{", ["{a}{}{1..}{"]),
    ],
)
def test_what_a_pattern_stands_for(pattern, expected):
    assert expand(pattern) == expected


WORDS = st.text("abz09-./", max_size=6)


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
    expected = "(for example '0.tar/x/1.jpg'); write it to '1.cls' beside the image"
    assert error_of(read_images, tmp_path / "s", labelled=True).endswith(expected)
    assert error_of(read_images, tmp_path / "s/0.tar", labelled=True).endswith(expected)
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
    assert images.notes == ("left out: 3 x sample without an image, 2 x further image of a sample",)


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
        ([("1.cls", "cup")], "no image in this shard"),
        ([], "no image in this shard"),
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
        ("0.tar.gz", b"", "compressed, so it is not read; unpack it to a .tar"),
        ("0.tar", bytes(1024), "no image in this shard"),
    ],
)
def test_what_is_no_archive(tmp_path, name, content, told):
    (tmp_path / name).write_bytes(content)
    assert is_image_data(tmp_path / name)
    for given_path in (tmp_path / name, tmp_path):
        assert told.replace("this shard", "") in error_of(read_images, given_path)


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
    assert images.notes == ("left out: 4 x link, device or sparse file in a shard",)
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
