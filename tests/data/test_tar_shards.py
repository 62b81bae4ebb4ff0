"""Images in WebDataset's tar shards: which shards, which samples, and which class each has."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow.csv
import pytest

from cli_helpers import image_fit
from data_helpers import error_of, labelled_shard, listed, tree, write_tar
from extraction_helpers import make_images, make_recipe, run
from opensetda.cli.main import main
from opensetda.data.images.decoding import BrokenImageError, read_content
from opensetda.data.images.loading import (
    is_image_data,
    read_image_truth,
    read_images,
)

# what may be given -------------------------------------------------------------------------


def test_one_shard(tmp_path):
    path = labelled_shard(tmp_path / "shop.tar", "cup", 7)
    assert is_image_data(path)
    images = read_images(path, labelled=True)
    assert listed(images) == [("shop.tar/a.jpg", "cup"), ("shop.tar/b.jpg", "7")]
    assert images.paths == (f"{path}/a.jpg", f"{path}/b.jpg")
    assert images.notes == ()
    assert read_content(images.paths[1]) == b"picture b"


def test_a_folder_of_shards(tmp_path):
    labelled_shard(tmp_path / "shards/1.TAR", "cup")
    labelled_shard(tmp_path / "shards/0.tar", "pen", "cup")
    tree(tmp_path / "shards", "sizes.json", ".hidden.tar")
    images = read_images(tmp_path / "shards", labelled=True)
    expected = [("0.tar/a.jpg", "pen"), ("0.tar/b.jpg", "cup"), ("1.TAR/a.jpg", "cup")]
    assert listed(images) == expected
    assert images.notes == ("left out, as no images: 1 x .json",)
    assert [read_content(path) for path in images.paths[1:]] == [b"picture b", b"picture a"]


def test_shards_beside_images_or_folders_are_left_out(tmp_path):
    labelled_shard(tmp_path / "download.tar", "cup")
    tree(tmp_path, "cup/a.jpg", "pen/b.jpg")
    images = read_images(tmp_path, labelled=True)
    assert listed(images) == [("cup/a.jpg", "cup"), ("pen/b.jpg", "pen")]
    assert images.notes == ("left out, as no images: 1 x .tar",)


def test_a_list_of_shards(tmp_path):
    for name in ("a/0.tar", "b/0.tar"):
        labelled_shard(tmp_path / name, "cup")
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
        ({"cls": "\ufeffgröße"}, "größe"),
        ({"CLS": "two words"}, "two words"),
        ({"json": '{"label": "cup", "class": 3}'}, "cup"),
        ({"json": '{"label": null, "cls": "cup"}'}, "cup"),
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
    expected = "without a class: 1 (for example '0.tar/x/1.jpg')"
    assert expected in error_of(read_images, tmp_path / "s", labelled=True)
    assert expected in error_of(read_images, tmp_path / "s/0.tar", labelled=True)
    assert len(read_images(tmp_path / "s")) == 2


def test_samples_without_and_with_further_images(tmp_path):
    names = ["1.seg.png", "1.jpg", "1.depth.png", "2.left.JPG", "2.right.JPG", "3.cls", "4.npy"]
    names += ["README", "._2.jpg", "__MACOSX/1.jpg", ".git/1.jpg"]
    path = write_tar(tmp_path / "0.tar", *((name, "x") for name in names))
    expected = ["0.tar/1.jpg", "0.tar/2.left.JPG", "0.tar/2.right.JPG"]
    assert read_images(path).ids.tolist() == expected


# what is wrong with a shard ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ([("1.png", "x"), ("1.json", "{")], "1.json: cannot read the class: Expecting"),
        ([("1.png", "x"), ("1.cls", b"\xff\xfe")], "1.cls: cannot read the class: it is not UTF-8"),
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
    ("content", "told"),
    [
        (b"no archive at all" * 99, "not a tar archive; write it again"),
        (b"", "not a tar archive"),
        (bytes(1024), "no image in it"),
    ],
)
def test_what_is_no_archive(tmp_path, content, told):
    (tmp_path / "0.tar").write_bytes(content)
    for given_path in (tmp_path / "0.tar", tmp_path):
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
    link, pipe = tarfile.TarInfo("1.jpg"), tarfile.TarInfo("4.jpg")
    link.type, link.linkname, pipe.type = tarfile.SYMTYPE, "/etc/passwd", tarfile.FIFOTYPE
    evil = [
        (link, ""),
        (pipe, ""),
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


# as good as the same images in folders ------------------------------------------------------


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


def test_features_are_those_of_files_in_folders(recipe, both, tmp_path):
    plain, inside = both
    expected = run(recipe, plain, None).X
    np.testing.assert_array_equal(run(recipe, inside, tmp_path).X, expected)
    again = run(recipe, inside, tmp_path)
    assert again.n_cached == 10
    np.testing.assert_array_equal(again.X, expected)
    # By content: a file in a folder is known, too.
    assert run(recipe, plain, tmp_path).n_cached == 10


def test_a_shard_that_changes(tmp_path):
    path = write_tar(tmp_path / "0.tar", ("1.jpg", "one"), ("2.jpg", "two"))
    image = f"{path}/2.jpg"
    assert read_content(image) == b"two"
    write_tar(path, ("1.jpg", "another"), ("0.jpg", "zero"), ("2.jpg", "second"))
    assert read_content(image) == b"second"
    write_tar(path, ("1.jpg", "one"))
    with pytest.raises(BrokenImageError, match="no such file"):
        read_content(image)


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
    shop, street = tmp_path / "shop", tmp_path / "street.tar"
    assert main(image_fit(pictures, "plain", *means)) == 0
    assert main(image_fit(pictures, "run", *means, source=shop, target=street)) == 0
    tables = [pyarrow.csv.read_csv(f"{out}/predictions.csv") for out in ("plain", "run")]
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
    more = ["--image-size", "32", "--cache", str(pictures / "cache")]
    assert main(["features", "shop", "--out", "shop.npz", *more]) == 0
    with np.load("shop.npz") as made:
        assert made["paths"][[0, -1]].tolist() == ["000.tar/000.png", "001.tar/023.png"]
        assert made["classes"].tolist() == ["blue", "green", "red", "yellow"]
