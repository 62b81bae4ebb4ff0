"""Every kind of image file becomes RGB, or says in a few words why it cannot."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from opensetda.data.images.decoding import (
    IMAGE_SUFFIXES,
    MAX_PIXELS,
    BrokenImageError,
    decode_bytes,
    decode_image,
)

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def picture(height: int = 24, width: int = 40) -> Image.Image:
    """Four blocks of colour, so that every turn and flip gives another picture."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[: height // 2, : width // 2] = RED
    pixels[: height // 2, width // 2 :] = GREEN
    pixels[height // 2 :, : width // 2] = BLUE
    return Image.fromarray(pixels)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def decoded(image: Image.Image, kind: str, **options: Any) -> np.ndarray[Any, Any]:
    array = decode_bytes(encoded(image, kind, **options))
    assert array.dtype == np.uint8
    assert array.ndim == 3
    assert array.shape[2] == 3
    return array


def chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims to be large and holds a few bytes."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 64)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def reason(content: bytes) -> str:
    with pytest.raises(BrokenImageError) as caught:
        decode_bytes(content)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "options", "off"),
    [
        ("PNG", {}, 0),
        ("BMP", {}, 0),
        ("PPM", {}, 0),
        ("TIFF", {}, 0),
        ("TIFF", {"compression": "tiff_lzw"}, 0),
        ("GIF", {}, 0),
        ("WEBP", {"lossless": True}, 0),
        ("JPEG", {"quality": 95, "subsampling": 0}, 10),
        ("JPEG", {"quality": 95, "subsampling": 0, "progressive": True}, 10),
    ],
)
def test_plain_colour_in_every_format(kind, options, off):
    array = decoded(picture(), kind, **options)
    assert array.shape == (24, 40, 3)
    assert np.abs(array.astype(int) - np.asarray(picture())).max() <= off


@pytest.mark.parametrize(
    ("kind", "orientation"),
    [*(("JPEG", orientation) for orientation in range(1, 9)), ("PNG", 6), ("TIFF", 6), ("WEBP", 6)],
)
def test_a_camera_that_was_turned(kind, orientation):
    upright = np.asarray(picture())
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: upright.transpose(1, 0, 2)[::-1],
        7: upright.transpose(1, 0, 2)[::-1, ::-1],
        8: upright.transpose(1, 0, 2)[:, ::-1],
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"JPEG": {"quality": 95, "subsampling": 0}, "WEBP": {"lossless": True}}
    image = Image.fromarray(np.ascontiguousarray(stored))
    array = decoded(image, kind, exif=exif, **options.get(kind, {}))
    assert array.shape == upright.shape
    # JPEG rounds, more so beside an edge.
    assert np.abs(array.astype(int) - upright).mean() < (4 if kind == "JPEG" else 0.01)


def test_nonsense_in_exif_does_not_spoil_the_picture():
    for nonsense in (b"MM\0*\0\0\xff\xffnonsense", b"nonsense and more of it"):
        content = encoded(picture(), "JPEG", exif=b"Exif\0\0" + nonsense)
        assert decode_bytes(content).shape == (24, 40, 3)
    exif = Image.Exif()
    exif[0x0112] = 77
    assert decoded(picture(), "JPEG", exif=exif).shape == (24, 40, 3)


def test_grey_and_one_bit():
    ramp = np.tile(np.arange(0, 240, 10, dtype=np.uint8), (8, 1))
    array = decoded(Image.fromarray(ramp), "PNG")
    assert np.array_equal(array, np.repeat(ramp[:, :, None], 3, axis=2))
    bits = Image.fromarray(ramp > 100)
    assert bits.mode == "1"
    assert np.array_equal(decoded(bits, "PNG")[:, :, 1], np.where(ramp > 100, 255, 0))


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_and_not_clipped(kind):
    deep = np.tile(np.array([0, 257, 32896, 65535], np.uint16), (4, 1))
    image = Image.fromarray(deep)
    assert image.mode.startswith("I;16")
    assert decoded(image, kind)[0].tolist() == [[0] * 3, [1] * 3, [128] * 3, [255] * 3]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0.0, 0.5, 1.0]], np.float32), [0, 128, 255]),
        (np.array([[0.0, 51.0, 255.0]], np.float32), [0, 51, 255]),
        (np.array([[0.0, np.nan, 1e9]], np.float32), [0, 0, 255]),
        (np.array([[-5, 1 << 20, 1 << 21]], np.int32), [0, 128, 255]),
        (np.zeros((1, 3), np.float32), [0, 0, 0]),
    ],
)
def test_numbers_of_no_fixed_range(values, expected):
    assert decoded(Image.fromarray(values), "TIFF")[0, :, 0].tolist() == expected


def test_transparency_is_laid_on_white():
    pixels = np.zeros((1, 3, 4), np.uint8)
    pixels[0, :, 3] = [0, 128, 255]
    assert decoded(Image.fromarray(pixels), "PNG")[0, :, 0].tolist() == [255, 127, 0]
    grey = Image.fromarray(pixels[:, :, 2:], "LA")
    assert decoded(grey, "PNG")[0, :, 0].tolist() == [255, 127, 0]


def test_palette_with_and_without_transparency():
    image = Image.new("P", (3, 1))
    image.putpalette([*RED, *GREEN, *BLUE])
    image.putdata([0, 1, 2])
    assert decoded(image, "PNG")[0].tolist() == [list(RED), list(GREEN), list(BLUE)]
    for transparency in (1, bytes([255, 0, 255])):
        array = decoded(image, "PNG", transparency=transparency)
        assert array[0].tolist() == [list(RED), list(WHITE), list(BLUE)]


def test_a_colour_that_means_transparent():
    image = Image.fromarray(np.array([[RED, GREEN]], np.uint8))
    assert decoded(image, "PNG", transparency=RED)[0].tolist() == [list(WHITE), list(GREEN)]
    grey = Image.fromarray(np.array([[7, 9]], np.uint8))
    assert decoded(grey, "PNG", transparency=7)[0, :, 0].tolist() == [255, 9]
    bits = Image.fromarray(np.array([[False, True]]))
    assert decoded(bits, "PNG", transparency=0)[0, :, 0].tolist() == [255, 255]
    deep = Image.fromarray(np.array([[0, 65535, 514]], np.uint16))
    assert decoded(deep, "PNG", transparency=0)[0, :, 0].tolist() == [255, 255, 2]


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk(kind):
    cmyk = picture().convert("CMYK")
    array = decoded(cmyk, kind, **({"quality": 95} if kind == "JPEG" else {}))
    assert np.abs(array.astype(int) - np.asarray(picture())).mean() < 2


def test_ycck():
    """The same file with another colour transform in Adobe's marker: Y, Cb, Cr and K."""
    # Adobe stores inks inverted, and Y, Cb, Cr of red stand for what is left of full cyan.
    inks = np.zeros((16, 16, 4), np.uint8)
    inks[...] = 255 - np.array([76, 85, 255, 255])
    content = bytearray(encoded(Image.fromarray(inks, "CMYK"), "JPEG", quality=100))
    marker = content.index(b"Adobe")
    assert content[marker + 11] == 0
    content[marker + 11] = 2
    array = decode_bytes(bytes(content)).reshape(-1, 3).astype(int)
    assert np.abs(array - (0, 255, 255)).max() <= 6


def test_the_first_frame_of_an_animation():
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, GREEN, BLUE)]
    for kind in ("GIF", "WEBP", "PNG", "TIFF"):
        options = {"lossless": True} if kind == "WEBP" else {}
        array = decoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        assert array[0, 0].tolist() == list(RED), kind


def test_two_cameras_in_one_file():
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, BLUE)]
    array = decoded(frames[0], "MPO", save_all=True, append_images=frames[1:])
    assert np.abs(array[4, 4].astype(int) - RED).max() < 4


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP"])
def test_files_that_are_cut_short(kind):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    content = encoded(Image.fromarray(noise), kind)
    assert reason(content[: len(content) // 2])
    if kind == "JPEG":
        assert reason(content[: len(content) // 2]) == "cut short"
        assert reason(content[:-200]) == "cut short"


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "TIFF", "WEBP"])
def test_damaged_files_never_raise_anything_else(kind):
    whole = encoded(picture(), kind)
    rng = np.random.default_rng(1)
    for _ in range(150):
        content = bytearray(whole)
        for place in rng.integers(0, len(content), 4):
            content[place] = rng.integers(256)
        told = "well"
        try:
            assert decode_bytes(bytes(content)).shape[2] == 3
        except BrokenImageError as error:
            told = str(error)
        assert "\n" not in told
        assert 0 < len(told) < 140


def test_files_that_are_no_images(tmp_path):
    assert reason(b"") == "empty file"
    assert reason(b"just text\n") == "not an image"
    assert reason(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n") == "not an image"
    (tmp_path / "x.jpg").mkdir()
    (tmp_path / "y.jpg").touch()
    (tmp_path / "z.jpg").write_text("text")
    found = {}
    for name in ("x.jpg", "y.jpg", "z.jpg", "no.jpg", "y.jpg/z.jpg", "nul\0.jpg"):
        with pytest.raises(BrokenImageError) as caught:
            decode_image(tmp_path / name)
        found[name] = str(caught.value)
    assert found["x.jpg"] == "a folder, not a file"
    assert found["y.jpg"] == "empty file"
    assert found["z.jpg"] == "not an image"
    assert found["no.jpg"] == found["y.jpg/z.jpg"] == "no such file"
    assert "null" in found["nul\0.jpg"]
    assert str(tmp_path) not in "".join(found.values())


def test_a_file_without_permission(tmp_path):
    path = tmp_path / "secret.png"
    picture().save(path)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(BrokenImageError, match="no permission"):
        decode_image(path)


@pytest.mark.parametrize(
    ("width", "height"), [(200_000_000, 1), (100_000, 100_000), (12_000, 12_000)]
)
def test_bombs_are_refused_from_the_header(width, height):
    assert width * height > MAX_PIXELS
    # The file holds 64 bytes of pixels: had it been decoded, it would be "cut short".
    assert "refused as a decompression bomb" in reason(png_header(width, height))


def test_what_is_large_but_no_bomb_is_decoded():
    # Pillow warns above 89 megapixels; the reason shows that this one was opened.
    assert "bomb" not in reason(png_header(10_000, 10_000))


def test_nothing_reaches_the_terminal(tmp_path):
    large, odd = tmp_path / "large.png", tmp_path / "odd.jpg"
    large.write_bytes(png_header(12_000, 11_000))
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\xff\xff\0\0\xff\xff\xff\xff"
    odd.write_bytes(encoded(picture(), "JPEG", exif=exif))
    code = (
        "import sys\nfrom opensetda.data.images.decoding import *\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n        decode_image(path)\n"
        "    except BrokenImageError:\n        pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", code, large, odd], capture_output=True, check=True
    )
    assert done.stdout + done.stderr == b""


def test_warnings_of_others_stay():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        decode_bytes(encoded(picture(), "PNG"))
        warnings.warn("mine", stacklevel=1)
    assert [str(warning.message) for warning in caught] == ["mine"]


def test_many_threads_see_the_same_pixels(tmp_path):
    for number in range(24):
        kind = ("jpg", "png", "tif", "webp", "gif")[number % 5]
        picture(20 + number).save(tmp_path / f"{number}.{kind}")
    paths = sorted(tmp_path.iterdir())
    alone = [decode_image(path) for path in paths]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(decode_image, paths))
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


def test_a_path_may_be_text_and_endings_do_not_matter(tmp_path):
    path = tmp_path / "schöne Bilder 写真.JPG"
    picture().save(path, "PNG")
    assert np.array_equal(decode_image(str(path)), np.asarray(picture()))
    assert ".jpg" in IMAGE_SUFFIXES
    assert all(suffix == suffix.lower() and suffix[0] == "." for suffix in IMAGE_SUFFIXES)
    assert Path("x.JPEG").suffix.lower() in IMAGE_SUFFIXES
