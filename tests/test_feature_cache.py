"""The cache on disk: whole or absent, whoever writes and whenever they die."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from opensetda.backbones import cache as cache_module
from opensetda.backbones import file_digests
from opensetda.backbones.cache import FeatureCache
from opensetda.backbones.file_digests import FILE_NAME, FileDigests, read_digest
from opensetda.system.files import new_file
from opensetda.system.launch import default_cache_folder

WIDTH = 16


def digest_of(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def row_of(number: int) -> np.ndarray:
    return np.random.default_rng(number).normal(size=WIDTH).astype(np.float32)


def open_cache(folder: Path, width: int = WIDTH) -> FeatureCache:
    return FeatureCache(folder, "recipe", width)


def fill(folder: Path, numbers: range) -> None:
    with open_cache(folder) as cache:
        for number in numbers:
            cache.add(digest_of(number), row_of(number))


def assert_holds(folder: Path, numbers: range) -> None:
    rows, found = open_cache(folder).read([digest_of(number) for number in numbers])
    assert found.all()
    np.testing.assert_array_equal(rows, [row_of(number) for number in numbers])


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "features" / "recipe").glob("*.features"))


def test_what_was_added_is_found_before_and_after_it_is_on_disk(tmp_path):
    cache = open_cache(tmp_path)
    cache.add(digest_of(1), row_of(1))
    for _ in range(2):
        rows, found = cache.read([digest_of(0), digest_of(1), digest_of(1)])
        assert found.tolist() == [False, True, True]
        np.testing.assert_array_equal(rows, [row_of(1), row_of(1)])
        cache.flush()
    assert len(list(tmp_path.rglob("*.features"))) == 1
    assert_holds(tmp_path, range(1, 2))


def test_an_empty_cache_finds_nothing(tmp_path):
    rows, found = open_cache(tmp_path).read([digest_of(0)])
    assert rows.shape == (0, WIDTH)
    assert not found.any()
    assert open_cache(tmp_path).read([])[0].shape == (0, WIDTH)


def test_rows_of_many_segments(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "FLUSHED_ROWS", 100)
    fill(tmp_path, range(250))
    fill(tmp_path, range(250, 260))
    assert len(segments(tmp_path)) == 4
    assert_holds(tmp_path, range(259, -1, -1))


def test_rows_are_mapped_not_loaded(tmp_path):
    fill(tmp_path, range(5))
    (segment,) = open_cache(tmp_path)._segments
    assert isinstance(segment.matrix, np.memmap)


def test_recipes_do_not_mix(tmp_path):
    fill(tmp_path, range(3))
    _, found = FeatureCache(tmp_path, "another", WIDTH).read([digest_of(0)])
    assert not found.any()


def test_digests_that_begin_alike_are_told_apart(tmp_path):
    alike = ["0" * 63 + letter for letter in "abc"]
    with open_cache(tmp_path) as cache:
        for number, digest in enumerate(alike[:2]):
            cache.add(digest, row_of(number))
    rows, found = open_cache(tmp_path).read(alike[::-1])
    assert found.tolist() == [False, True, True]
    np.testing.assert_array_equal(rows, [row_of(1), row_of(0)])


@pytest.mark.parametrize("keep", [0, 7, 100, 300, -1])
def test_a_segment_cut_short_is_ignored(tmp_path, keep):
    fill(tmp_path, range(10))
    fill(tmp_path, range(10, 20))
    damaged = segments(tmp_path)[0]
    damaged.write_bytes(damaged.read_bytes()[:keep])
    cache = open_cache(tmp_path)
    _, found = cache.read([digest_of(number) for number in range(20)])
    assert found.sum() == 10
    assert len(cache.warnings) == 1
    assert str(damaged) in cache.warnings[0]


def test_no_byte_of_a_header_stops_a_run(tmp_path):
    fill(tmp_path, range(10))
    (path,) = segments(tmp_path)
    whole = path.read_bytes()
    second = whole.index(b"\x93NUMPY", 1)
    places = [*range(128), *range(second, second + 128)]
    rng = np.random.default_rng(0)
    changes = [(int(rng.choice(places)), int(rng.integers(1, 256))) for _ in range(60)]
    # An unclosed bracket, which only the tokenizer minds.
    changes.append((whole.index(b")"), ord(")") ^ ord("(")))
    digests = [digest_of(number) for number in range(10)]
    expected = np.array([row_of(number) for number in range(10)])
    damaged = 0
    for place, change in changes:
        content = bytearray(whole)
        content[place] ^= change
        path.write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cache = open_cache(tmp_path)
        rows, found = cache.read(digests)
        np.testing.assert_array_equal(rows, expected[found])
        damaged += len(cache.warnings)
    assert damaged > 20


def test_foreign_files_are_ignored(tmp_path):
    fill(tmp_path, range(3))
    place = segments(tmp_path)[0].parent
    (place / "notes.txt").write_text("mine")
    (place / "foreign.features").write_text("mine")
    np.save(place / "array.npy", np.zeros(3))
    (place / "array.npy").rename(place / "array.features")
    cache = open_cache(tmp_path)
    assert len(cache.warnings) == 2
    assert_holds(tmp_path, range(3))


def test_another_width_is_ignored(tmp_path):
    fill(tmp_path, range(3))
    cache = open_cache(tmp_path, WIDTH + 1)
    assert not cache.read([digest_of(0)])[1].any()
    assert len(cache.warnings) == 1


def test_a_changed_bit_is_noticed_and_the_row_replaced(tmp_path):
    fill(tmp_path, range(3))
    path = segments(tmp_path)[0]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with open_cache(tmp_path) as cache:
        _, found = cache.read([digest_of(number) for number in range(3)])
        assert found.tolist() == [True, True, False]
        assert "damaged" in cache.warnings[0]
        cache.add(digest_of(2), row_of(2))
    assert_holds(tmp_path, range(3))


def test_a_full_disk_costs_a_warning(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache_module, "_write_segment", full)
    with open_cache(tmp_path) as cache:
        cache.add(digest_of(0), row_of(0))
        cache.flush()
        cache.add(digest_of(1), row_of(1))
    assert len(cache.warnings) == 1
    assert "No space left" in cache.warnings[0]


def test_a_folder_that_cannot_be_made_costs_a_warning(tmp_path):
    (tmp_path / "file").touch()
    with open_cache(tmp_path / "file" / "cache") as cache:
        cache.add(digest_of(0), row_of(0))
    assert len(cache.warnings) == 1


def test_many_small_segments_become_one(tmp_path):
    for number in range(40):
        fill(tmp_path, range(number, number + 1))
    assert len(segments(tmp_path)) < 32
    assert_holds(tmp_path, range(40))


def test_a_reader_keeps_what_is_merged_away(tmp_path):
    fill(tmp_path, range(1))
    reader = open_cache(tmp_path)
    for number in range(1, 40):
        fill(tmp_path, range(number, number + 1))
    np.testing.assert_array_equal(reader.read([digest_of(0)])[0], [row_of(0)])


def test_what_dead_writers_left_is_removed(tmp_path):
    fill(tmp_path, range(1))
    place = segments(tmp_path)[0].parent
    dead = place / ".a1.0123abcd.partial.features"
    dead.touch()
    with new_file(place / "b2.features") as being_written:
        open_cache(tmp_path)
        assert not dead.exists()
        assert being_written.exists()


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from opensetda.backbones import cache as cache_module
cache_module.FLUSHED_ROWS = 16
from test_feature_cache import digest_of, open_cache, row_of
with open_cache(Path({folder!r})) as cache:
    for number in range({start}, {stop}):
        cache.add(digest_of(number), row_of(number))
        print(number, flush=True)
"""


def start_writer(folder: Path, start: int, stop: int) -> subprocess.Popen[str]:
    tests = str(Path(__file__).parent)
    code = WRITER.format(tests=tests, folder=str(folder), start=start, stop=stop)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_two_processes_write_at_once(tmp_path):
    writers = [start_writer(tmp_path, 0, 400), start_writer(tmp_path, 200, 600)]
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    assert not open_cache(tmp_path).warnings
    assert_holds(tmp_path, range(600))


def test_killed_in_the_middle(tmp_path):
    for attempt in range(4):
        writer = start_writer(tmp_path, 1000 * attempt, 10**9)
        for line in writer.stdout:
            if int(line) >= 1000 * attempt + 50 + 7 * attempt:
                break
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
    cache = open_cache(tmp_path)
    assert not cache.warnings
    for attempt in range(4):
        # All but the rows of the last, unfinished segment.
        assert_holds(tmp_path, range(1000 * attempt, 1000 * attempt + 48))


def test_where_the_cache_lies(monkeypatch, tmp_path):
    monkeypatch.setenv("OSDA_CACHE", str(tmp_path / "own"))
    assert default_cache_folder() == tmp_path / "own"
    monkeypatch.delenv("OSDA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_folder() == tmp_path / "opensetda"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_folder() == Path.home() / ".cache" / "opensetda"


class TestFileDigests:
    @pytest.fixture(autouse=True)
    def settled(self, monkeypatch):
        monkeypatch.setattr(file_digests, "_SETTLED_NS", 0)

    @pytest.fixture
    def file(self, tmp_path) -> Path:
        path = tmp_path / "image.jpg"
        path.write_bytes(b"content")
        return path

    EXPECTED = hashlib.sha256(b"content").hexdigest()

    def test_remembered_between_runs(self, tmp_path, file):
        with FileDigests(tmp_path / "cache") as digests:
            assert digests.recall([file]) == [None]
            assert digests.digest(file) == self.EXPECTED
        with FileDigests(tmp_path / "cache") as digests:
            assert digests.recall([str(file), "missing"]) == [self.EXPECTED, None]

    def test_a_changed_file_is_not_known(self, tmp_path, file):
        with FileDigests(tmp_path / "cache") as digests:
            digests.digest(file)
            file.write_bytes(b"another")
            assert digests.recall([file]) == [None]
            assert digests.digest(file) == hashlib.sha256(b"another").hexdigest()

    def test_times_set_back_do_not_deceive(self, tmp_path, file):
        before = file.stat()
        with FileDigests(tmp_path / "cache") as digests:
            digests.digest(file)
            time.sleep(0.02)
            file.write_bytes(b"another")
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
            assert digests.recall([file]) == [None]

    def test_young_files_are_not_remembered(self, tmp_path, file, monkeypatch):
        monkeypatch.setattr(file_digests, "_SETTLED_NS", 2_000_000_000)
        with FileDigests(tmp_path / "cache") as digests:
            assert digests.digest(file) == self.EXPECTED
            assert digests.recall([file]) == [None]

    def test_a_file_is_as_young_as_when_it_was_read(self, tmp_path, file, monkeypatch):
        monkeypatch.setattr(file_digests, "_SETTLED_NS", 2_000_000_000)
        content, signature = read_digest(file)
        # Computing takes a while before anything is noted.
        now = time.time_ns()
        monkeypatch.setattr(file_digests.time, "time_ns", lambda: now + 60_000_000_000)
        with FileDigests(tmp_path / "cache") as digests:
            digests.remember(file, signature, content)
            assert digests.recall([file]) == [None]
            assert digests.digest(file) == self.EXPECTED
            assert digests.recall([file]) == [self.EXPECTED]

    def test_a_file_written_once_the_clock_was_read(self, file, monkeypatch):
        monkeypatch.setattr(file_digests, "_SETTLED_NS", 2_000_000_000)
        written = file.stat().st_mtime_ns
        clock = iter([written - 1_000_000, written + 1_000_000])
        monkeypatch.setattr(file_digests.time, "time_ns", lambda: next(clock))
        assert read_digest(file) == (self.EXPECTED, None)

    def test_names_that_are_not_text(self, tmp_path):
        path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.jpg")
        Path(path).write_bytes(b"content")
        with FileDigests(tmp_path / "cache") as digests:
            digests.digest(path)
        with FileDigests(tmp_path / "cache") as digests:
            assert digests.recall([path]) == [self.EXPECTED]

    def test_a_locked_database_is_done_without(self, tmp_path, file, monkeypatch):
        monkeypatch.setattr(file_digests, "_LOCK_SECONDS", 0.05)
        with FileDigests(tmp_path / "cache") as digests:
            digests.digest(file)
        lock = sqlite3.connect(tmp_path / "cache" / FILE_NAME)
        lock.execute("BEGIN EXCLUSIVE")
        with FileDigests(tmp_path / "cache") as digests:
            assert digests.digest(file) == self.EXPECTED
        lock.close()

    @pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0garbage"])
    def test_a_damaged_database_is_done_without(self, tmp_path, file, content):
        (tmp_path / FILE_NAME).write_bytes(content)
        for _ in range(2):
            with FileDigests(tmp_path) as digests:
                assert digests.digest(file) == self.EXPECTED

    def test_no_folder(self, tmp_path, file):
        (tmp_path / "file").touch()
        for folder in (None, tmp_path / "file"):
            with FileDigests(folder) as digests:
                assert digests.digest(file) == self.EXPECTED
                assert digests.recall([file]) == [self.EXPECTED]

    def test_a_missing_file_is_an_error(self, tmp_path):
        with FileDigests(tmp_path) as digests, pytest.raises(OSError, match="missing"):
            digests.digest(tmp_path / "missing")

    def test_many_files(self, tmp_path):
        paths = [tmp_path / f"{number}.jpg" for number in range(1200)]
        for number, path in enumerate(paths):
            path.write_bytes(str(number).encode())
        with FileDigests(tmp_path / "cache") as digests:
            for path in paths:
                digests.digest(path)
        with FileDigests(tmp_path / "cache") as digests:
            assert digests.recall(paths) == [digest_of(number) for number in range(1200)]
