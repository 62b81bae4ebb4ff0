"""Every kind of image file becomes RGB, or says in a few words why it cannot."""

from __future__ import annotations

import io
import os
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from opensetda.data.images import decoding
from opensetda.data.images.decoding import BrokenImageError, decode_bytes, decode_image

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


@pytest.mark.parametrize(
    ("kind", "options", "off"),
    [
        ("PNG", {}, 0),
        ("BMP", {}, 0),
        ("PPM", {}, 0),
        ("TIFF", {"compression": "tiff_lzw"}, 0),
        ("GIF", {}, 0),
        ("WEBP", {"lossless": True}, 0),
        ("JPEG", {"quality": 95, "subsampling": 0, "progressive": True}, 10),
    ],
)
def test_plain_colour_in_every_format(kind, options, off):
    array = decoded(picture(), kind, **options)
    assert array.shape == (24, 40, 3)
    assert np.abs(array.astype(int) - np.asarray(picture())).max() <= off


def test_nonsense_in_exif_does_not_spoil_the_picture():
    for nonsense in (b"MM\0*\0\0\xff\xffnonsense", b"nonsense and more of it"):
        content = encoded(picture(), "JPEG", exif=b"Exif\0\0" + nonsense)
        assert decode_bytes(content).shape == (24, 40, 3)
    exif = Image.Exif()
    exif[0x0112] = 77
    assert decoded(picture(), "JPEG", exif=exif).shape == (24, 40, 3)


def test_sixteen_bits_are_scaled_and_not_clipped():
    deep = np.tile(np.array([0, 257, 32896, 65535], np.uint16), (4, 1))
    image = Image.fromarray(deep)
    assert image.mode.startswith("I;16")
    for kind in ("PNG", "TIFF"):
        assert decoded(image, kind)[0, :, 0].tolist() == [0, 1, 128, 255]


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


def test_cmyk():
    array = decoded(picture().convert("CMYK"), "JPEG", quality=95)
    assert np.abs(array.astype(int) - np.asarray(picture())).mean() < 2


def test_the_first_frame_of_an_animation():
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, GREEN, BLUE)]
    for kind in ("GIF", "WEBP", "PNG", "TIFF"):
        options = {"lossless": True} if kind == "WEBP" else {}
        array = decoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        assert array[0, 0].tolist() == list(RED), kind


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


@pytest.mark.parametrize(
    ("kind", "orientation"), [("JPEG", 3), ("JPEG", 6), ("PNG", 6), ("TIFF", 6), ("WEBP", 8)]
)
def test_a_camera_that_was_turned(kind, orientation):
    upright = np.asarray(picture())
    stored = np.rot90(upright, {3: 2, 6: 1, 8: 3}[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"JPEG": {"quality": 95, "subsampling": 0}, "WEBP": {"lossless": True}}
    image = Image.fromarray(np.ascontiguousarray(stored))
    array = decoded(image, kind, exif=exif, **options.get(kind, {}))
    assert array.shape == upright.shape
    # JPEG rounds, more so beside an edge.
    assert np.abs(array.astype(int) - upright).mean() < (4 if kind == "JPEG" else 0.01)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "empty file"),
        (b"just text\n", "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
        (encoded(picture(200, 200), "JPEG")[:-200], "truncated"),
        # The file holds 64 bytes of pixels: had it been decoded, it would be truncated.
        (png_header(100_000, 100_000), "exceeds limit of"),
    ],
)
def test_what_is_no_image(content, told, capfd):
    with pytest.raises(BrokenImageError, match=told):
        decode_bytes(content)
    assert capfd.readouterr() == ("", "")


def test_files_that_are_not_there(tmp_path):
    (tmp_path / "x.jpg").mkdir()
    picture().save(tmp_path / "y.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    reasons = {
        "x.jpg": "a folder, a device or a pipe, not a file",
        "pipe.jpg": "a pipe, not a file",
        "no.jpg": "no such file",
        "y.jpg/z.jpg": "no such file",
        "nul\0.jpg": "null",
    }
    for name, reason in reasons.items():
        with pytest.raises(BrokenImageError, match=reason) as caught:
            decode_image(tmp_path / name)
        assert str(tmp_path) not in str(caught.value)
    assert decode_image(str(tmp_path / "y.jpg"), at_least=8).shape == (12, 20, 3)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16", "F"])
def test_large_images_are_reduced_strip_by_strip(mode, monkeypatch):
    grey = mode in ("I;16", "F")
    image = picture(48, 80).convert("L" if grey else mode)
    if grey:
        image = Image.fromarray(np.asarray(image).astype("<u2" if mode == "I;16" else "<f4") * 200)
    kind = "TIFF" if mode == "F" else "PNG"
    whole = Image.fromarray(decoded(image, kind)).reduce(4)
    monkeypatch.setattr(decoding, "LARGE_PIXELS", 48 * 80 // 16)
    monkeypatch.setattr(decoding, "_STRIP_PIXELS", 80 * 8)
    np.testing.assert_array_equal(decoded(image, kind), np.asarray(whole))


def test_large_photographs_keep_their_rotation(monkeypatch):
    exif = Image.Exif()
    exif[0x0112] = 6
    content = encoded(picture(48, 80), "JPEG", exif=exif.tobytes(), quality=95)
    whole = Image.fromarray(decode_bytes(content)).reduce(4)
    monkeypatch.setattr(decoding, "LARGE_PIXELS", 48 * 80 // 16)
    found = decode_bytes(content)
    assert found.shape == (20, 12, 3)
    assert np.abs(found.astype(int) - np.asarray(whole)).mean() < 4
