"""Images in WebDataset's tar shards: as good as the same images in folders, whatever the tar."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli_helpers import image_fit
from extraction_helpers import make_images, make_recipe, run
from image_helpers import error_of, listed, tree
from opensetda.backbones import file_digests
from opensetda.backbones.extractor import read_content
from opensetda.backbones.file_digests import FileDigests, read_digest, read_signed
from opensetda.cli.main import main
from opensetda.data import tar_members
from opensetda.data.decoding import BrokenImageError, decode_image
from opensetda.data.images import (
    is_image_data,
    iterate_images,
    read_image_domains,
    read_image_truth,
    read_images,
)
from opensetda.data.tar_members import clean_name, open_image
from opensetda.data.tar_shards import expand
from opensetda.errors import InputError
from opensetda.review.images import showable
from opensetda.runs.folder import RunFolder
from opensetda.runs.pictures import Pictures


def info(name, kind=tarfile.REGTYPE, size=0, **more):
    made = tarfile.TarInfo(name)
    made.type, made.size = kind, size
    for key, value in more.items():
        setattr(made, key, value)
    return made


def write_tar(path, *members, form=tarfile.GNU_FORMAT, mode="w"):
    """Write (name or TarInfo, content) pairs; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode, format=form, encoding="utf-8", errors="surrogateescape") as tar:
        for name, content in members:
            content = content if isinstance(content, bytes) else str(content).encode()
            member = name if isinstance(name, tarfile.TarInfo) else info(name)
            member.size = len(content) or member.size
            tar.addfile(member, io.BytesIO(content))
    return path


def shop(path, *classes):
    """A labelled shard: a.jpg and a.cls, b.jpg and b.cls, ..."""
    members = []
    for key, name in zip("abcdefgh", classes, strict=False):
        members += [(f"{key}.jpg", f"picture {key}"), (f"{key}.cls", f"{name}\n")]
    return write_tar(path, *members)


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
    assert images.notes == ("1 file that is no image left out (.json)",)
    assert [read_content(path) for path in images.paths[1:]] == [b"picture b", b"picture a"]


def test_shards_beside_images_or_folders_are_left_out(tmp_path):
    shop(tmp_path / "download.tar", "cup")
    tree(tmp_path, "cup/a.jpg", "pen/b.jpg")
    images = read_images(tmp_path, labelled=True)
    assert listed(images) == [("cup/a.jpg", "cup"), ("pen/b.jpg", "pen")]
    assert images.notes == ("1 file that is no image left out (.tar)",)


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
        ("json", '{"label": "\\ud800"}', "not UTF-8"),
        ("cls", b"\xff\xfe", "not UTF-8"),
        ("cls", "cup\npen", "not one line"),
        ("txt", "long " * 99, "not one line"),
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


# names -------------------------------------------------------------------------------------

PARTS = st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=70)


@settings(max_examples=60, deadline=None)
@given(
    names=st.lists(st.lists(PARTS, min_size=1, max_size=4).map("/".join), max_size=4, unique=True),
    form=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT]),
)
def test_every_name_leads_to_its_content(tmp_path_factory, names, form):
    names = [f"{name}.jpg" for name in names]
    if form == tarfile.USTAR_FORMAT:
        names = [name for name in names if len(name.encode()) <= 100]
    path = write_tar(
        tmp_path_factory.mktemp("names") / "0.tar", *((name, name) for name in names), form=form
    )
    clean = {clean_name(name): name for name in names}
    for found, name in clean.items():
        if found is not None:
            assert read_content(f"{path}/{found}") == name.encode()
            assert os.path.normpath(f"{path}/{found}") == f"{path}/{found}"
    with path.open("rb") as stream:
        archive = tar_members.archive_of(str(path), stream)
    assert [member.name for member in archive.members] == names
    assert archive.is_whole


def test_names_that_are_no_text_or_long(tmp_path):
    names = [b"\xff\xfe.jpg".decode("utf-8", "surrogateescape"), "ü" * 90 + ".jpg"]
    names.append(f"{'d' * 80}/{'e' * 70}/{'f' * 60}.jpg")
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        path = write_tar(tmp_path / "0.tar", *((name, "x") for name in names[1:]), form=form)
        assert read_images(path).ids.tolist() == [f"0.tar/{name}" for name in names[1:]]
    path = write_tar(tmp_path / "1.tar", *((name, "x") for name in names))
    images = read_images(path)
    assert images.ids[0] == r"1.tar/\xff\xfe.jpg"
    assert all(read_content(where) == b"x" for where in images.paths)
    prefixed = write_tar(tmp_path / "2.tar", (names[2], "x"), form=tarfile.USTAR_FORMAT)
    assert read_images(prefixed).ids.tolist() == [f"2.tar/{names[2]}"]


def test_a_folder_that_is_named_like_a_shard(tmp_path):
    tree(tmp_path, "a.tar/cup/x.jpg")
    (tmp_path / "a.tar/cup/x.jpg").write_bytes(b"plain")
    write_tar(tmp_path / "a.tar/b.tar", ("c.tar/x.jpg", "inside"))
    images = read_images(tmp_path / "a.tar")
    assert [read_content(path) for path in images.paths] == [b"plain"]
    assert read_content(f"{tmp_path}/a.tar/b.tar/c.tar/x.jpg") == b"inside"


# odd and hostile archives ------------------------------------------------------------------


def test_members_that_are_no_files_of_the_shard(tmp_path):
    evil = [
        (info("1.jpg", tarfile.SYMTYPE, linkname="/etc/passwd"), ""),
        (info("2.jpg", tarfile.LNKTYPE, linkname="ok.jpg"), ""),
        (info("3.jpg", tarfile.CHRTYPE, devmajor=1), ""),
        (info("4.jpg", tarfile.FIFOTYPE), ""),
        (info("d/", tarfile.DIRTYPE), ""),
        ("../out.jpg", "x"),
        ("a/../../out.jpg", "x"),
        ("/etc/out.jpg", "x"),
        ("ok.jpg", "fine"),
    ]
    path = write_tar(tmp_path / "0.tar", *evil)
    images = read_images(path)
    assert images.ids.tolist() == ["0.tar/ok.jpg"]
    assert read_content(images.paths[0]) == b"fine"
    what = "left out of the shards: "
    assert images.notes == (
        f"{what}link, device or sparse file, 4 in all, such as '{path}/1.jpg'",
        f"{what}file whose name leads out of the shard, 3 in all, such as '{path}/../out.jpg'",
    )
    assert os.listdir(tmp_path) == ["0.tar"]  # noqa: PTH208
    for name in ("1.jpg", "2.jpg", "../out.jpg", "/etc/out.jpg"):
        with pytest.raises(BrokenImageError, match="no such file"):
            read_content(f"{path}/{name}")


def test_sparse_files(tmp_path):
    pax = info("new.jpg", pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0"})
    path = write_tar(tmp_path / "0.tar", (pax, "1\n0\n1\n" + "x" * 600), form=tarfile.PAX_FORMAT)
    assert "no image" in error_of(read_images, path)
    # The older way: the header says that another follows it.
    old = bytearray(info("old.jpg", b"S", size=5).tobuf(tarfile.GNU_FORMAT))
    old[482] = 1
    old[148:156] = f"{sum(old) - sum(old[148:156]) + 256:06o}\0 ".encode()
    after = info("b.jpg", size=3).tobuf(tarfile.GNU_FORMAT) + b"yes".ljust(512, b"\0")
    path.write_bytes(bytes(old) + bytes(512) + b"12345".ljust(512, b"\0") + after + bytes(1024))
    images = read_images(path)
    assert images.ids.tolist() == ["0.tar/b.jpg"]
    assert read_content(images.paths[0]) == b"yes"


@pytest.mark.parametrize("mode", ["gz", "bz2", "xz"])
@pytest.mark.parametrize("name", ["s/0.tar.{}", "s/0.tar"])
def test_compressed_archives(tmp_path, mode, name):
    path = write_tar(tmp_path / name.format(mode), ("1.jpg", "x"), mode=f"w:{mode}")
    assert is_image_data(path)
    for given_path in (path, path.parent):
        message = error_of(read_images, given_path)
        assert message.startswith(f"{path}: compressed (")
        assert message.endswith("cannot be read in any order; unpack it to a .tar")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"no archive at all" * 99, "not a tar archive; write it anew"),
        (b"PK\3\4" + bytes(2000), "not a tar archive"),
        (b"", "not a tar archive"),
        (b"short", "not a tar archive"),
        (bytes(1024), "no image in this shard"),
    ],
)
def test_what_is_no_archive(tmp_path, content, reason):
    path = tmp_path / "0.tar"
    path.write_bytes(content)
    assert error_of(read_images, path).startswith(f"{path}: {reason}")
    with pytest.raises(BrokenImageError):
        read_content(f"{path}/a.jpg")


def test_an_archive_cut_short(tmp_path):
    path = write_tar(tmp_path / "0.tar", ("1.jpg", "x" * 512), ("2.jpg", "y" * 2000))
    whole = path.read_bytes()
    for length, names in [(1024, ["1.jpg"]), (1300, ["1.jpg"]), (2500, ["1.jpg", "2.jpg"])]:
        path.write_bytes(whole[:length])
        images = read_images(path)
        assert images.ids.tolist() == [f"0.tar/{name}" for name in names]
        assert images.notes == (f"{path}: the archive's end is missing, it may be cut short",)
        assert read_content(images.paths[0]) == b"x" * 512
    with pytest.raises(BrokenImageError, match="cut short"):
        read_content(images.paths[1])
    with pytest.raises(BrokenImageError, match=r"^cut short$"):
        decode_image(images.paths[1])


def test_sizes_beyond_all_measure(tmp_path):
    path = tmp_path / "0.tar"
    for size in (2**40, 2**80):
        header = info("1.jpg", size=size).tobuf(tarfile.GNU_FORMAT)
        path.write_bytes(header + bytes(512))
        with pytest.raises(BrokenImageError, match="cut short"):
            read_content(read_images(path).paths[0])
        path.write_bytes(info("././@LongLink", b"L", size=size).tobuf(tarfile.GNU_FORMAT))
        assert "not a tar archive" in error_of(read_images, path)


@pytest.mark.parametrize(
    "notes",
    [b"x path=1.jpg\n", b"0 path=1.jpg\n", b"5 a\n", b"12 size=-512\n", b"11 size=1e9\n", b"99999"],
)
def test_damaged_notes(tmp_path, notes):
    header = info("pax", b"x", size=len(notes)).tobuf(tarfile.USTAR_FORMAT)
    path = write_tar(tmp_path / "0.tar", ("0.jpg", "x"))
    start = path.read_bytes()[:1024]
    path.write_bytes(start + header + notes.ljust(512, b"\0") + start + bytes(1024))
    assert error_of(read_images, path) == f"{path}: damaged at byte 1,024; write it anew"


@settings(max_examples=150, deadline=None)
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


def test_what_cannot_be_opened(tmp_path):
    (tmp_path / "s").mkdir()
    os.mkfifo(tmp_path / "s" / "0.tar")
    assert "not a file" in error_of(read_images, tmp_path / "s/0.tar")
    (tmp_path / "s" / "0.tar").unlink()
    (tmp_path / "s" / "0.tar").symlink_to("nowhere")
    assert "0.tar: not a file" in error_of(read_images, tmp_path / "s")
    assert "no such file" in error_of(read_images, tmp_path / "missing.tar")


# reading -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return make_recipe(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The same images in a folder and in a shard."""
    folder = tmp_path_factory.mktemp("both")
    paths = make_images(folder / "plain", 10)
    files = [(Path(path).name, Path(path).read_bytes()) for path in paths]
    write_tar(folder / "shards/0.tar", *files[:6])
    write_tar(folder / "shards/1.tar", *files[6:])
    return paths, list(read_images(folder / "shards").paths)


def test_features_are_those_of_files_in_folders(recipe, both, tmp_path, monkeypatch):
    monkeypatch.setattr(file_digests, "_SETTLED_NS", 0)
    plain, inside = both
    expected = run(recipe, plain, None).X
    np.testing.assert_array_equal(run(recipe, inside, tmp_path).X, expected)
    with monkeypatch.context() as patch:
        patch.setattr("opensetda.backbones.extraction.read_content", None)
        again = run(recipe, inside, tmp_path)
    assert again.n_cached == 10
    np.testing.assert_array_equal(again.X, expected)
    # By content: a file in a folder is known, too.
    assert run(recipe, plain, tmp_path).n_cached == 10


def test_pixels_are_those_of_files_in_folders(both):
    for plain, inside in zip(*both, strict=True):
        np.testing.assert_array_equal(decode_image(plain), decode_image(Path(inside)))
        assert showable(Path(plain)) == showable(Path(inside))
    for missing in (f"{both[1][0]}.png", both[1][0].replace("0.tar", "9.tar")):
        for read in (decode_image, read_content):
            with pytest.raises(BrokenImageError, match=r"^no such file$"):
                read(missing)
    with pytest.raises(BrokenImageError):
        decode_image("a.tar/\0.jpg")


def test_names_longer_than_the_disk_has_them(tmp_path):
    name = f"{'a' * 300}/{'b' * 5000}.jpg"
    path = write_tar(tmp_path / "0.tar", (name, "x"))
    (image,) = read_images(path).paths
    assert read_content(image) == b"x"
    assert read_signed(image, read_content)[0] == b"x"


def test_no_name_reaches_the_terminal_as_it_is(tmp_path):
    name = "\x1b[2J\n"
    path = write_tar(tmp_path / "0.tar", (f"../{name}.jpg", "x"), (f"{name}.jpg", "x"))
    (note,) = read_images(path).notes
    assert note.isprintable()
    assert error_of(read_images, path, labelled=True).isprintable()
    write_tar(path, (f"{name}.jpg", "x"), (f"{name}.cls", "a\nb"))
    assert error_of(read_images, path, labelled=True).isprintable()


def test_an_empty_image(tmp_path):
    path = write_tar(tmp_path / "0.tar", ("1.jpg", ""))
    with pytest.raises(BrokenImageError, match=r"^empty file$"):
        decode_image(f"{path}/1.jpg")


def test_many_threads_and_a_small_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(tar_members, "_MOST_MEMBERS", 25)
    expected = {}
    for shard in range(5):
        files = [(f"{n}.jpg", f"{shard} {n} " * (1 + 97 * n)) for n in range(10)]
        path = write_tar(tmp_path / f"{shard}.tar", *files)
        expected |= {f"{path}/{name}": text.encode() for name, text in files}
    paths = [*expected] * 3
    np.random.default_rng(0).shuffle(paths)
    with ThreadPoolExecutor(8) as pool:
        for path, content in zip(paths, pool.map(read_content, paths), strict=True):
            assert content == expected[path]
    assert sum(len(archive.members) for archive in tar_members._known.values()) <= 25


def test_a_shard_that_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(file_digests, "_SETTLED_NS", 0)
    path = write_tar(tmp_path / "0.tar", ("1.jpg", "one"), ("2.jpg", "two"))
    image = f"{path}/2.jpg"
    content, before = read_signed(image, read_content)
    assert (content, before is not None) == (b"two", True)
    with FileDigests(tmp_path / "cache") as digests:
        digests.remember(image, before, "digest")
    with FileDigests(tmp_path / "cache") as digests:
        assert digests.recall([image, f"{path}/1.jpg"]) == ["digest", None]
        assert read_signed(f"{path}/1.jpg", read_content)[1] not in (None, before)
    write_tar(path, ("1.jpg", "another"), ("0.jpg", "zero"), ("2.jpg", "second"))
    assert read_content(image) == b"second"
    with FileDigests(tmp_path / "cache") as digests:
        assert digests.recall([image]) == [None]
    write_tar(path, ("1.jpg", "one"))
    with pytest.raises(BrokenImageError, match="no such file"):
        read_content(image)
    assert read_digest(path)[0] != "digest"


def test_an_image_is_read_without_the_rest(tmp_path):
    path = tmp_path / "0.tar"
    with path.open("wb") as stream:
        # 8 GB that nobody has, before the image.
        stream.write(info("big.bin", size=2**33).tobuf(tarfile.GNU_FORMAT))
        stream.seek(2**33, os.SEEK_CUR)
        stream.write(info("1.jpg", size=3).tobuf(tarfile.GNU_FORMAT) + b"yes".ljust(512, b"\0"))
        stream.write(bytes(1024))
    (image,) = read_images(path).paths
    with open_image(image) as stream:
        assert stream.read() == b"yes"


# the commands ------------------------------------------------------------------------------


def test_the_commands(pictures, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    truth = dict(line.split() for line in (pictures / "truth.txt").read_text().splitlines())
    files = sorted((pictures / "shop").rglob("*.png"))
    source = []
    for number, file in enumerate(files):
        source += [(f"{number:03}.png", file.read_bytes()), (f"{number:03}.cls", file.parent.name)]
    write_tar(tmp_path / "shop/000.tar", *source[:24])
    write_tar(tmp_path / "shop/001.tar", *source[24:])
    target = []
    for name, label in sorted(truth.items()):
        content = (pictures / "street" / name).read_bytes()
        label = json.dumps({"label": label})
        target += [(name, content), (name.replace(".png", ".json"), label)]
    write_tar(tmp_path / "street.tar", *target)
    means = ("--method", "class-means")
    pattern, street = tmp_path / "shop/{000..001}.tar", tmp_path / "street.tar"
    assert main(image_fit(pictures, "plain", *means)) == 0
    assert main(image_fit(pictures, "run", *means, source=pattern, target=street)) == 0
    tables = [pyarrow.parquet.read_table(f"{out}/predictions.parquet") for out in ("plain", "run")]
    names = tables[0]["path"].to_pylist()
    assert tables[1]["path"].to_pylist() == [f"street.tar/{name}" for name in names]
    assert tables[0].drop(["path"]) == tables[1].drop(["path"])
    assert "black" not in Path("run/settings.json").read_text()
    assert main(["evaluate", "run", "--labels", "street.tar"]) == 0
    assert json.loads(Path("run/metrics.json").read_text())["truth"]["rows"] == 30
    assert main(["predict", "run", "street.tar", "--out", "labels.csv"]) == 0
    labels = pyarrow.csv.read_csv("labels.csv")
    assert labels["path"].to_pylist() == [f"street.tar/{name}" for name in names]
    assert labels["label"].to_pylist() == tables[1]["label"].to_pylist()
    # The report and 'osda review' show them; also by their ids, as those of a table.
    folder = RunFolder.open(Path("run"))
    for shown in (Pictures(folder), Pictures(folder, tmp_path)):
        assert shown.file(3) == street / names[3]
        assert shown.thumbnail(3) == Pictures(RunFolder.open(Path("plain"))).thumbnail(3)
    more = ["--image-size", "32", "--cache", str(pictures / "cache")]
    assert main(["features", "shop", "--out", "shop.npz", *more]) == 0
    with np.load("shop.npz") as made:
        assert made["paths"][[0, -1]].tolist() == ["000.tar/000.png", "001.tar/023.png"]
        assert made["classes"].tolist() == ["blue", "green", "red", "yellow"]
