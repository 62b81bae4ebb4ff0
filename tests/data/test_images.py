"""Folders of images: what counts as an image, and which class it has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from image_helpers import error_of, listed, tree
from opensetda.data.images.loading import (
    iterate_images,
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


def test_select_takes_rows_or_a_mask(shop):
    images = read_images(shop, labelled=True)
    assert listed(images.select([2, 0])) == [("pen/a.jpg", "pen"), ("cup/a.PNG", "cup")]
    mask = images.labels == "pen"
    assert images.select(mask).class_counts() == {"pen": 2}
    assert images.select(mask).paths == images.paths[2:]


def test_one_folder_between_the_domain_and_its_classes(tmp_path):
    tree(tmp_path, "amazon/images/back_pack/a.jpg", "amazon/images/bike/b.jpg", "amazon/notes.txt")
    images = read_images(tmp_path / "amazon", labelled=True)
    assert listed(images) == [
        ("images/back_pack/a.jpg", "back_pack"),
        ("images/bike/b.jpg", "bike"),
    ]
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


def test_truth_has_the_ids_of_the_target(shop):
    truth = read_image_truth(shop)
    assert truth.ids is not None
    assert truth.ids.tolist() == read_images(shop).ids.tolist()
    assert truth.labels.tolist() == ["cup", "cup", "pen", "pen"]


def test_the_truth_of_images_that_are_elsewhere(tmp_path):
    (tmp_path / "truth.txt").write_text("gone/a.jpg cup\ngone/b.jpg pen\n")
    truth = read_image_truth(tmp_path / "truth.txt")
    assert truth.labels.tolist() == ["cup", "pen"]
    assert "no such file 'gone/a.jpg' (2 of 2" in error_of(read_images, tmp_path / "truth.txt")


def test_errors_of_folders(shop, tmp_path):
    assert f"no such folder; did you mean {shop}?" in error_of(read_images, tmp_path / "shpo")
    assert "nor a folder" in error_of(read_images, tmp_path / "a" / "b")
    tree(tmp_path, "empty/readme.txt", "one/cup/a.jpg", "flat/a.jpg", "flat/b.jpg", "mixed/a.jpg")
    tree(tmp_path, "mixed/cup/a.jpg", "mixed/pen/a.jpg", "x.doc")
    message = error_of(read_images, tmp_path / "empty")
    assert "left out, as no images: 1 x .txt" in message
    assert ".jpeg, .jpg" in message
    assert "one class only ('cup')" in error_of(read_image_domains, tmp_path / "one", shop)
    message = error_of(read_image_domains, tmp_path / "flat", shop)
    assert "images without a class: 2 (for" in message
    assert "named after its class" in message
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
    assert images.labels is not None
    assert images.labels.tolist() == ["b\\xe4r", "cup"]
    assert all(label.encode() for label in images.ids.tolist())
    assert Path(images.paths[0]).exists()
    (tmp_path / "list.txt").write_bytes(b"b\xe4r/caf\xe9.jpg cup\n")
    assert read_images(tmp_path / "list.txt").paths[0].endswith("caf\udce9.jpg")


def test_iteration_streams_the_same_images(shop, tmp_path):
    whole = read_images(shop)
    assert list(iterate_images([shop])) == list(zip(whole.ids, whole.paths, strict=True))
    (tmp_path / "list.txt").write_text("shop/cup/b.jpg cup\ngone.jpg\n")
    ids = [name for name, _ in iterate_images([shop, shop / "pen/a.jpg", tmp_path / "list.txt"])]
    assert ids[0] == f"{shop.as_posix()}/cup/a.PNG"
    assert ids[4:] == [(shop / "pen/a.jpg").as_posix(), "shop/cup/b.jpg", "gone.jpg"]
    (tmp_path / "void").mkdir()
    assert "no image in it" in error_of(list, iterate_images([tmp_path / "void"]))
    assert "no such folder" in error_of(list, iterate_images([tmp_path / "no"]))
