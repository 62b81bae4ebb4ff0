"""Images in WebDataset's tar shards: which shards, which samples, and which class each has."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_helpers import error_of, listed, tree
from opensetda.backbones.extractor import read_content
from opensetda.data.images.loading import (
    is_image_data,
    iterate_images,
    read_image_domains,
    read_image_truth,
    read_images,
)
from opensetda.data.images.tar_shards import expand
from tar_helpers import shop, write_tar

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
    assert images.notes == ("1 file that is not an image left out (.json)",)
    assert [read_content(path) for path in images.paths[1:]] == [b"picture b", b"picture a"]


def test_shards_beside_images_or_folders_are_left_out(tmp_path):
    shop(tmp_path / "download.tar", "cup")
    tree(tmp_path, "cup/a.jpg", "pen/b.jpg")
    images = read_images(tmp_path, labelled=True)
    assert listed(images) == [("cup/a.jpg", "cup"), ("pen/b.jpg", "pen")]
    assert images.notes == ("1 file that is not an image left out (.tar)",)


def test_a_pattern(tmp_path):
    for number in (8, 9, 10):
        shop(tmp_path / f"train-{number:03}.tar", "cup")
    pattern = tmp_path / "train-{008..010}.tar"
    assert is_image_data(pattern)
    ids = ["train-008.tar/a.jpg", "train-009.tar/a.jpg", "train-010.tar/a.jpg"]
    assert read_images(pattern).ids.tolist() == ids
    (tmp_path / "train-009.tar").unlink()
    message = error_of(read_images, pattern)
    assert message.startswith(f"{pattern}: no such shard {tmp_path}/train-009.tar (1 of 3 ")


def test_shards_of_one_name_in_two_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("x/a", "x/b", "a", "b"):
        shop(Path(folder) / "0.tar", "cup")
    for pattern in ("x/{a,b}/0.tar", "{a,b}/0.tar"):
        assert read_images(pattern).ids.tolist() == ["a/0.tar/a.jpg", "b/0.tar/a.jpg"]
    assert "is there twice" in error_of(read_images, "a/{0,0}.tar")
    mixed = read_images(f"{{{tmp_path}/a,b}}/0.tar").ids
    assert len(set(mixed)) == 2


def test_a_file_that_is_named_like_a_pattern(tmp_path):
    path = shop(tmp_path / "{0..3}.tar", "cup")
    assert read_images(path).ids.tolist() == ["{0..3}.tar/a.jpg"]


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


@given(WORDS, st.integers(0, 10**6), st.integers(-40, 40), st.integers(1, 9), WORDS)
def test_numbers_of_a_pattern(before, first, more, width, after):
    last = max(0, first + more)
    step = 1 if first <= last else -1
    names = [f"{before}{n:0{width}}{after}" for n in range(first, last + step, step)]
    expanded = expand(f"{before}{{{first:0{width}}..{last:0{width}}}}{after}")
    # Without a zero in front, 9 and 10 are of different widths, and stay so.
    assert expanded == names


@given(st.lists(st.lists(WORDS, min_size=2, max_size=4), max_size=3))
def test_texts_of_a_pattern(groups):
    pattern = "_".join(f"{{{','.join(group)}}}" for group in groups)
    expected = [""]
    for place, group in enumerate(groups):
        expected = [f"{name}{'_' if place else ''}{word}" for name in expected for word in group]
    assert expand(pattern) == expected


@pytest.mark.parametrize("pattern", ["{0..99999999999}.tar", "{0..999}{0..999}.tar"])
def test_a_pattern_of_far_too_many(pattern):
    assert error_of(expand, pattern) == f"{pattern}: more than 100,000 shards; give fewer"


@pytest.mark.parametrize(
    "url",
    [
        "https://host/a.tar",
        "s3://bucket/train-{0..9}.tar",
        "gs://bucket/photos",
        "pipe:curl -s https://host/a.tar",
        "pipe:a.tar",
    ],
)
def test_urls_are_refused(url):
    assert is_image_data(url)
    assert "URLs are not read; download it" in error_of(read_images, url)
    assert "URLs are not read" in error_of(list, iterate_images([url]))


def test_one_image_of_a_shard(tmp_path):
    path = shop(tmp_path / "0.tar", "cup")
    assert list(iterate_images([f"{path}/a.jpg"])) == [(f"{path}/a.jpg", f"{path}/a.jpg")]
    assert "no such file" in error_of(list, iterate_images([f"{path}/z.jpg"]))


def test_images_one_by_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("s/0.tar", "s/1.tar", "t/0.tar"):
        shop(Path(name), "cup")
    tree(tmp_path, "x.jpg")
    assert list(iterate_images(["s"])) == [(f"{n}.tar/a.jpg", f"s/{n}.tar/a.jpg") for n in (0, 1)]
    several = list(iterate_images(["s", "t/0.tar", "x.jpg", "s/{0,1}.tar"]))
    assert [name for name, _ in several] == [path for _, path in several]
    # Shard by shard: the second is not looked at before the first is through.
    (tmp_path / "s/1.tar").write_bytes(b"no archive")
    images = iterate_images(["s/{0..1}.tar"])
    assert next(images) == ("0.tar/a.jpg", "s/0.tar/a.jpg")
    assert "s/1.tar: not a tar archive" in error_of(list, images)


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


@pytest.mark.parametrize(
    ("ending", "content", "reason"),
    [
        ("json", "{", "Expecting"),
        ("json", "[" * 100_000, "recursion"),
        ("json", '{"label": 1.5}', "'label' is neither text nor a whole number"),
        ("json", '{"label": true}', "neither text"),
        ("json", '{"label": "\\ud800"}', "no character of a name"),
        ("cls", b"\xff\xfe", "not UTF-8"),
        ("cls", "cup\npen", "no character of a name"),
        ("txt", "long " * 99, "494 characters, at most 200"),
        ("txt", bytes((1 << 20) + 1), "1,048,577 bytes"),
    ],
)
def test_a_class_that_is_none(tmp_path, ending, content, reason):
    path = write_tar(tmp_path / "0.tar", ("1.png", "x"), (f"1.{ending}", content))
    message = error_of(read_images, path, labelled=True)
    assert message.startswith(f"{path}, '1.{ending}': no class (")
    assert reason in message
    # A target's are not even looked at.
    assert listed(read_images(path)) == [("0.tar/1.png", None)]


def test_a_source_without_classes(tmp_path):
    write_tar(tmp_path / "s/0.tar", ("x/1.jpg", ""), ("x/2.jpg", ""), ("x/2.cls", "cup"))
    expected = "no class for '0.tar/x/1.jpg' (1 of 2 without); write it to '1.cls' beside the image"
    assert error_of(read_images, tmp_path / "s", labelled=True).endswith(expected)
    assert error_of(read_images, tmp_path / "s/0.tar", labelled=True).endswith(expected)
    assert len(read_images(tmp_path / "s")) == 2


def test_labels_of_a_target_are_not_returned(tmp_path):
    source, target = shop(tmp_path / "s.tar", "cup", "pen"), shop(tmp_path / "t.tar", "cup", "sun")
    labelled, unlabelled = read_image_domains(source, target)
    assert labelled.class_counts() == {"cup": 1, "pen": 1}
    assert unlabelled.labels is None
    assert "sun" not in repr(unlabelled)
    one = shop(tmp_path / "one.tar", "cup", "cup")
    assert "one class only ('cup')" in error_of(read_image_domains, one, target)


def test_files_of_a_sample_need_not_be_neighbours(tmp_path):
    names = ["b.cls", "a.jpg", "./b.jpg", "d/a.jpg", "a.cls", ".//d/./a.cls"]
    path = write_tar(tmp_path / "0.tar", *((name, name) for name in names))
    expected = [
        ("0.tar/b.jpg", "b.cls"),
        ("0.tar/a.jpg", "a.cls"),
        ("0.tar/d/a.jpg", ".//d/./a.cls"),
    ]
    images = read_images(path, labelled=True)
    assert listed(images) == expected
    assert [read_content(path) for path in images.paths] == [b"./b.jpg", b"a.jpg", b"d/a.jpg"]


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
    assert images.notes == (
        f"left out of the shards: further image of a sample, 2 in all, such as '{path}/1.seg.png'",
        f"left out of the shards: sample without an image, 2 in all, such as '{path}/3'",
    )


@pytest.mark.parametrize(
    "names", [("1.jpg", "1.png"), ("2020.01.02.jpg", "2020.01.03.jpg"), ("1.jpg", "1.JPG")]
)
def test_two_images_of_one_sample(tmp_path, names):
    path = write_tar(tmp_path / "0.tar", *((name, "x") for name in names))
    message = error_of(read_images, path)
    assert message.startswith(f"{path}: {names[0]!r} and {names[1]!r} are images of one sample")


def test_a_name_twice(tmp_path):
    path = write_tar(tmp_path / "0.tar", ("1.jpg", "x"), ("./1.jpg", "y"))
    assert error_of(read_images, path) == f"{path}: '1.jpg' is there twice; remove one"


@pytest.mark.parametrize("members", [[], [("1.cls", "cup")], [("d", "x")]])
def test_no_image(tmp_path, members):
    path = write_tar(tmp_path / "s/0.tar", *members)
    assert f"{path}: no image in this shard; images end in" in error_of(read_images, path)
    assert "no image in this shard" in error_of(list, iterate_images([path.parent]))
