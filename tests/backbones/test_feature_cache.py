"""The cache on disk: rows whole or absent, whoever writes and whenever they die."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path

import numpy as np

from opensetda.backbones import extraction as cache_module
from opensetda.backbones.extraction import FeatureCache
from opensetda.system import default_cache_folder

WIDTH = 16


def digest_of(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def row_of(number: int) -> np.ndarray:
    return np.random.default_rng(number).normal(size=WIDTH).astype(np.float32)


def open_cache(folder: Path) -> FeatureCache:
    return FeatureCache(folder, "recipe", WIDTH)


def fill(folder: Path, numbers: range) -> Path:
    with open_cache(folder) as cache:
        cache.add(map(digest_of, numbers), map(row_of, numbers))
    return cache.path


def assert_holds(folder: Path, numbers: range) -> None:
    with open_cache(folder) as cache:
        for number in numbers:
            np.testing.assert_array_equal(cache.get(digest_of(number)), row_of(number))
    assert not cache.warnings


def test_what_was_added_is_found_again(tmp_path):
    fill(tmp_path, range(250))
    fill(tmp_path, range(250, 260))
    assert_holds(tmp_path, range(259, -1, -1))
    assert open_cache(tmp_path).get(digest_of(260)) is None


def test_a_changed_bit_is_noticed_and_the_row_replaced(tmp_path):
    path = fill(tmp_path, range(3))
    content = path.read_bytes()
    place = content.index(row_of(1).tobytes())
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    with open_cache(tmp_path) as cache:
        found = [cache.get(digest_of(number)) is not None for number in range(3)]
        assert found == [True, False, True]
        assert "damaged" in cache.warnings[0]
        cache.add([digest_of(1)], [row_of(1)])
    assert_holds(tmp_path, range(3))


def test_no_byte_of_the_file_stops_a_run_or_gives_wrong_features(tmp_path):
    path = fill(tmp_path, range(10))
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(100):
        content = bytearray(whole[: rng.choice([len(whole), rng.integers(len(whole))])])
        for place in rng.integers(max(len(content), 1), size=3 * bool(content)):
            content[place] ^= int(rng.integers(1, 256))
        path.write_bytes(content)
        with open_cache(tmp_path) as cache:
            for number in range(10):
                found = cache.get(digest_of(number))
                assert found is None or (found == row_of(number)).all()
            cache.add([digest_of(0)], [row_of(0)])


def test_a_locked_file_costs_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "_LOCK_SECONDS", 0.05)
    path = fill(tmp_path, range(1))
    with open_cache(tmp_path) as cache:
        lock = sqlite3.connect(path)
        lock.execute("BEGIN EXCLUSIVE")
        cache.add([digest_of(1)], [row_of(1)])
        lock.close()
    assert "features cannot be kept (database is locked)" in cache.warnings[0]


def test_where_the_cache_lies(monkeypatch, tmp_path):
    monkeypatch.setenv("OSDA_CACHE", str(tmp_path / "own"))
    assert default_cache_folder() == tmp_path / "own"
    monkeypatch.delenv("OSDA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_folder() == tmp_path / "opensetda"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_folder() == Path.home() / ".cache" / "opensetda"
