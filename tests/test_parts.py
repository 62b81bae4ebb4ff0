"""Files that several processes write together: predictions, and matrices of features."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cli_helpers import names_in
from extraction_helpers import make_images, make_recipe
from opensetda.backbones import extraction
from opensetda.backbones.cache import FeatureCache
from opensetda.backbones.extraction import Broken, SharedRows, extract
from opensetda.errors import InputError
from opensetda.pgl.induction import SAME, same_rows
from opensetda.runs import shared_tables as parts
from opensetda.runs.predictions import PredictionTable
from opensetda.runs.shared_tables import Parts, written_together
from opensetda.system.team import ALONE
from team_helpers import in_threads


def table(rows):
    """Predictions of some of a million rows, which depend on the row alone."""
    numbers = np.array(rows)
    proba = np.stack([np.sin(numbers + k) ** 2 + 0.1 for k in range(3)], axis=1)
    proba /= proba.sum(axis=1, keepdims=True)
    labels = np.array(["cat", "dog", "unknown"])[proba.argmax(axis=1)]
    return PredictionTable(
        ids=np.array([f"é{row}" for row in rows]),
        labels=labels,
        known_scores=np.cos(numbers),
        nearest=np.array(["cat", "dog"])[numbers % 2],
        proba=proba,
        classes=("cat", "dog"),
    )


def written(folder, n, size, chunk=1000):
    """A team of threads writes n rows; returns the first one's `Parts`."""
    folder.mkdir(parents=True, exist_ok=True)

    def work(team):
        own = Parts(folder, team)
        rows = team.rows(n)
        with own.writer() as writer:
            for start in range(rows.start, rows.stop, chunk):
                writer.write(table(range(start, min(start + chunk, rows.stop))))
        return own

    return in_threads(size, work)[0]


@pytest.mark.parametrize("n", [1, 50, 9001])
def test_batches_are_the_same_for_any_number_of_parts(tmp_path, monkeypatch, n):
    monkeypatch.setattr(parts, "_ROWS", 3000)
    monkeypatch.setattr(parts, "_READ_ROWS", 700)
    expected = None
    for size in (1, 2, 3, 7):
        own = written(tmp_path / str(size), n, size, chunk=400)
        batches = [batch.to_pydict() for batch in own.batches()]
        assert [len(batch["id"]) for batch in batches] == [
            min(3000, n - start) for start in range(0, n, 3000)
        ]
        assert batches == (expected or batches)
        expected = batches
        assert [name for batch in batches for name in batch["id"]] == [f"é{k}" for k in range(n)]
        assert own.names()[:2] == ["id", "label"]


def test_a_batch_of_many_columns_is_smaller(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "_CELLS", 80)
    own = written(tmp_path, 25, 2)
    assert [len(batch) for batch in own.batches()] == [10, 10, 5]
    assert [len(batch) for batch in own.batches(["id", "label"])] == [25]


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".json"])
def test_files_have_the_same_bytes_for_any_number_of_parts(tmp_path, suffix):
    files = set()
    for size in (1, 2, 3):
        own = written(tmp_path / f"of {size}", 9001, size, chunk=999 + size)
        own.write(tmp_path / f"{size}{suffix}")
        files.add((tmp_path / f"{size}{suffix}").read_bytes())
    assert len(files) == 1


def test_some_columns_under_new_names(tmp_path):
    written(tmp_path / "parts", 9, 2).write(
        tmp_path / "steps.parquet", {"id": "id", "label": "step_2"}
    )
    read = pyarrow.parquet.read_table(tmp_path / "steps.parquet")
    assert read.column_names == ["id", "step_2"]
    assert read["step_2"].to_pylist() == table(range(9)).labels.tolist()


# written together ----------------------------------------------------------------------------


def write_together(path, scratch, n, size, top_k=None, fail=lambda rank, place: None):
    scratch.mkdir(exist_ok=True)

    def work(team):
        with written_together(path, scratch, team, top_k) as together:
            rows = team.rows(n)
            fail(team.rank, "rows")
            if rows:
                together.writer.write(table(rows))
            broken = [Broken(f"b{team.rank}", "place", "torn")]
            said = ["the same", f"of {team.rank}"]
            found = together.add_up(Counter(a=len(rows)), broken, said)
            fail(team.rank, "added up")
        return found

    return in_threads(size, work)


def rows_of(path):
    if path.suffix == ".json":
        return json.loads(path.read_text())
    if path.suffix == ".csv":
        return pyarrow.csv.read_csv(path).to_pylist()
    return pyarrow.parquet.read_table(path).to_pylist()


@pytest.mark.parametrize("top_k", [None, 2])
@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".json"])
def test_all_write_one_file(tmp_path, suffix, top_k):
    # Of three processes for two rows, one has none.
    for n, sizes in ((40, (1, 2, 3)), (2, (1, 3))):
        expected = None
        for size in sizes:
            path = tmp_path / f"{n}-{size}{suffix}"
            found = write_together(path, tmp_path / f"s{n}-{size}", n, size, top_k)
            rows = rows_of(path)
            assert len(rows) == n
            assert rows == (expected or rows)
            expected = rows
            for counts, broken, said in found:
                assert counts == {"a": n}
                assert [image.id for image in broken] == [f"b{rank}" for rank in range(size)]
                assert said == ["the same", *(f"of {rank}" for rank in range(size))]


def test_the_text_of_one_is_that_of_several(tmp_path):
    for suffix in (".csv", ".json"):
        files = set()
        for size in (1, 2, 3):
            path = tmp_path / f"{size}{suffix}"
            write_together(path, tmp_path / f"s{size}", 40, size)
            files.add(path.read_bytes())
        assert len(files) == 1


@pytest.mark.parametrize(("who", "where"), [(0, "rows"), (1, "rows"), (0, "added up")])
@pytest.mark.parametrize("size", [1, 2])
def test_nothing_half_written_stays_and_what_was_there_does(tmp_path, size, who, where):
    path = tmp_path / "labels.csv"
    path.write_text("of yesterday")
    scratch = tmp_path / "scratch"

    def fail(rank, place):
        if rank == min(who, size - 1) and place == where:
            raise InputError("no")

    with pytest.raises(InputError, match="no"):
        write_together(path, scratch, 10, size, fail=fail)
    assert names_in(tmp_path) == ["labels.csv", "scratch"]
    assert path.read_text() == "of yesterday"


# features ------------------------------------------------------------------------------------


def shared(scratch, n, taken, size, width=3):
    X = np.arange(n * width, dtype=np.float32).reshape(n, width)

    def work(team):
        rows = SharedRows(n, width, scratch, team)
        mine = team.rows(n)
        assert rows.own.shape == (len(mine), width)
        rows.own[:] = X[mine.start : mine.stop]
        got = rows.take(np.array(taken, dtype=np.intp))
        np.testing.assert_array_equal(got, X[taken])
        team.wait()
        return isinstance(got, np.memmap) and got.mode == "r"

    return in_threads(size, work)


@given(
    n=st.integers(1, 40),
    left_out=st.sets(st.integers(0, 39)),
    kind=st.sampled_from([("memory", 1), ("file", 1), ("file", 2), ("file", 5)]),
)
def test_rows_come_without_the_broken_ones(tmp_path_factory, n, left_out, kind):
    where, size = kind
    taken = [row for row in range(n) if row not in left_out]
    before = extraction.LARGE_BYTES, extraction._MOVED_ROWS
    # Files of a few rows, moved by fewer at a time.
    extraction.LARGE_BYTES, extraction._MOVED_ROWS = -1 if where == "file" else 2**20, 3
    try:
        scratch = tmp_path_factory.mktemp("shared")
        in_file = shared(scratch, n, taken, size)
    finally:
        extraction.LARGE_BYTES, extraction._MOVED_ROWS = before
    # Of no rows numpy does not say where they are.
    assert not taken or in_file == [where == "file"] * size
    assert names_in(scratch) == (["features.npy"] if where == "file" else [])


def test_without_a_folder_rows_stay_in_memory(monkeypatch):
    monkeypatch.setattr(extraction, "LARGE_BYTES", -1)
    assert shared(None, 7, [0, 1, 5], 1) == [False]


@pytest.fixture(scope="module")
def some_images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("some")
    paths = make_images(folder / "images", 9)
    for number in (2, 7):
        Path(paths[number]).write_bytes(b"torn")
    # The same picture in both halves: computed twice, but not told apart.
    Path(paths[8]).write_bytes(Path(paths[0]).read_bytes())
    return make_recipe(folder), paths


@pytest.mark.parametrize("cached", [False, True])
def test_two_extract_what_one_does(some_images, tmp_path, cached):
    recipe, paths = some_images
    ids = [f"image {number}" for number in range(len(paths))]
    # Threads cannot export a network at the same time, as processes do.
    alone = extract(recipe, ids, paths, engine="torch")

    def work(team):
        cache = FeatureCache(tmp_path / "cache", recipe.key, recipe.width) if cached else None
        try:
            return extract(recipe, ids, paths, cache, None, "torch", tmp_path, team)
        finally:
            if cache is not None:
                cache.close()

    for again in range(2 if cached else 1):
        for found in in_threads(2, work):
            np.testing.assert_array_equal(found.X, alone.X)
            np.testing.assert_array_equal(found.rows, alone.rows)
            assert found.rows.tolist() == [0, 1, 3, 4, 5, 6, 8]
            assert found.broken == alone.broken
            assert [image.id for image in found.broken] == ["image 2", "image 7"]
            assert found.n_cached == 7 * again


# rows that are among others ------------------------------------------------------------------


@given(
    seed=st.integers(0, 1000),
    width=st.integers(1, 6),
    scale=st.sampled_from([1e-7, 1e-3, 1.0, 1e3, 1e8]),
    gap=st.sampled_from([0.0, 0.3 * SAME, 0.99 * SAME, 1.01 * SAME, 3 * SAME, 1e-3]),
)
def test_same_rows_are_those_that_are_near(seed, width, scale, gap):
    rng = np.random.default_rng(seed)
    others = torch.from_numpy(scale * rng.normal(size=(12, width)))
    directions = torch.nn.functional.normalize(torch.from_numpy(rng.normal(size=(8, width))), dim=1)
    x = torch.cat([others[:8] + gap * directions, others[8:] * 2, torch.zeros(1, width)])
    found = same_rows(x, others, (others**2).sum(dim=1))
    expected = (x[:, None] - others[None]).norm(dim=2) < SAME
    assert torch.equal(found, expected)


def test_no_rows_and_no_others():
    x = torch.ones(3, 2, dtype=torch.float64)
    assert same_rows(x[:0], x, (x**2).sum(dim=1)).shape == (0, 3)
    assert same_rows(x, x[:0], x[:0, 0]).shape == (3, 0)


def test_one_alone_needs_no_folder_of_parts(tmp_path):
    with written_together(tmp_path / "l.csv", tmp_path / "none", ALONE, None) as together:
        together.writer.write(table(range(3)))
        together.add_up(Counter(), [], [])
    assert names_in(tmp_path) == ["l.csv"]
    assert len(rows_of(tmp_path / "l.csv")) == 3
