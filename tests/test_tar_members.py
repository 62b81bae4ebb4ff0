"""Files in tar archives: whatever the archive, a name leads to its content or to one line."""

from __future__ import annotations

import contextlib
import os
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from image_helpers import error_of, tree
from opensetda.backbones.extractor import read_content
from opensetda.data.images import decoding
from opensetda.data.images.decoding import BrokenImageError, clean_name
from opensetda.data.images.loading import is_image_data, read_images
from opensetda.errors import InputError
from tar_helpers import info, write_tar

# names -------------------------------------------------------------------------------------

PARTS = st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=70)


@settings(max_examples=25, deadline=None)
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
        archive = decoding.archive_of(str(path), stream)
    assert [member.name for member in archive.members] == names


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
        (b"no archive at all" * 99, "not a tar archive; write it again"),
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
    for length in (1300, 2500):
        path.write_bytes(whole[:length])
        assert "damaged or cut short at byte" in error_of(read_images, path)
        with pytest.raises(BrokenImageError, match="cut short"):
            read_content(f"{path}/1.jpg")


def test_sizes_beyond_all_measure(tmp_path):
    path = tmp_path / "0.tar"
    for size in (2**40, 2**80):
        path.write_bytes(info("1.jpg", size=size).tobuf(tarfile.GNU_FORMAT) + bytes(512))
        assert "cut short" in error_of(read_images, path)
        path.write_bytes(info("././@LongLink", b"L", size=size).tobuf(tarfile.GNU_FORMAT))
        assert "not a tar archive" in error_of(read_images, path)


def test_a_size_that_leads_back(tmp_path):
    path = tmp_path / "0.tar"
    negative = bytearray(info("1.jpg").tobuf(tarfile.GNU_FORMAT))
    negative[124:136] = (2**96 - 512).to_bytes(12, "big")
    negative[148:156] = f"{sum(negative) - sum(negative[148:156]) + 256:06o}\0 ".encode()
    path.write_bytes(negative + bytes(1024))
    assert error_of(read_images, path) == f"{path}: not a tar archive; write it again"


@settings(max_examples=80, deadline=None)
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
    assert "0.tar: cannot be read (No such file" in error_of(read_images, tmp_path / "s")
    assert "no such file" in error_of(read_images, tmp_path / "missing.tar")
