"""Targets beyond memory: the sample that is learned from, and the labels of all."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_helpers import OPENNESS, SMALL_PGL, blobs, image_fit, names_in
from opensetda.cli.main import main
from opensetda.runs.folder import RunFolder
from opensetda.share.decision import rejection_cut
from opensetda.usecases import fit_rows
from opensetda.usecases.fit_rows import draw_sample, label_targets, sample_size
from runs_helpers import fitted

matrices = st.builds(
    lambda seed, n, distinct: np.random.default_rng(seed).normal(size=(distinct, 3))[
        np.random.default_rng(seed + 1).integers(0, distinct, n)
    ],
    st.integers(0, 99),
    st.integers(1, 60),
    st.sampled_from([2, 10, 10_000]),
)


def contents(X, rows):
    return np.sort(np.ascontiguousarray(X[rows].astype(np.float32)).view("V12").ravel()).tolist()


@given(X=matrices, size=st.integers(1, 70), chunk=st.integers(1, 70), seed=st.integers(0, 9))
def test_neither_chunks_nor_order_change_the_sample(X, size, chunk, seed):
    whole = draw_sample(X, size)
    assert len(whole) == min(size, len(X))
    assert (np.diff(whole) > 0).all()
    order = np.random.default_rng(seed).permutation(len(X))
    assert contents(X, whole) == contents(X[order], draw_sample(X[order], size))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit_rows, "CHUNK_ROWS", chunk)
        np.testing.assert_array_equal(draw_sample(X, size), whole)


def test_twins_come_in_their_share():
    """Counts and codes repeat: a sample of them holds every row that is frequent."""
    rng = np.random.default_rng(0)
    which = rng.integers(0, 5, 10_000)
    counts = np.bincount(which[draw_sample(rng.normal(size=(5, 3))[which], 1000)], minlength=5)
    assert np.abs(counts - np.bincount(which) / 10).max() <= 1


def test_a_sample_of_many_classes_is_smaller():
    found = [sample_size(3), sample_size(3, 2000), sample_size(1000), sample_size(10**6)]
    assert found == [65_536, 2000, 2**25 // 1000, 1024]


def test_a_target_costs_a_few_numbers_of_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(fit_rows, "CHUNK_ROWS", 1024)
    peaks, told = [], []
    for n in (10_000, 40_000):
        path, scratch = tmp_path / f"{n}.npy", tmp_path / f"of {n}"
        np.save(path, np.random.default_rng(n).normal(1, 1, (n, 4)).astype(np.float32))
        scratch.mkdir()
        mapped, classifier = np.load(path, mmap_mode="r"), fitted()
        tracemalloc.start()
        assert len(draw_sample(mapped, 1024)) == 1024
        given = classifier, mapped, None, "id", scratch
        _, counts = label_targets(*given, lambda *done: told.append(done))
        assert counts.total() == n
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert told[-1] == (n, n)
    assert told == sorted(told, key=lambda done: done[::-1])
    # A hash or a score of each target, twice.
    assert peaks[1] - peaks[0] < 30_000 * 20


# `osda fit --sample` -------------------------------------------------------------------------

N = 1200


@pytest.fixture
def many(tmp_path, monkeypatch):
    """A folder with source.npz, target.npz of 1,200 rows with names, and truth.npz."""
    monkeypatch.chdir(tmp_path)
    X, y = blobs(0)
    np.savez("source.npz", X=X[y != "horse"], y=y[y != "horse"])
    X, y = blobs(1, n=N // 3)
    ids = np.array([f"row {row}" for row in range(N)])
    np.savez("target.npz", X=X, file_name=ids)
    np.savez("truth.npz", y=y, file_name=ids)
    return tmp_path


def command(*more, method="class-means", target="target.npz"):
    quick = ["--set", "steps=2", *SMALL_PGL] if method == "pgl" else []
    quick = ["--set", "iterations=20"] if method == "osbp" else quick
    return [
        *("fit", "source.npz", target, "--out", "run", "--method", method, "--no-report"),
        *("--id-column", "file_name", "--sample", "1024", *OPENNESS, *quick, *more),
    ]


@pytest.mark.parametrize("method", ["moving-means", "osbp"])
def test_a_run_of_a_sample_is_a_run(many, capsys, method):
    assert main([*command("--json", method=method)]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["targets"] == N
    assert "target.npz: more than 1,024 rows: learning from 1,024 of them, drawn" in err
    run = RunFolder.open(many / "run")
    table = run.predictions()
    assert table.ids.tolist() == [f"row {row}" for row in range(N)]
    assert run.settings["sample"] == 1024
    X, model = np.load("target.npz")["X"], run.model()
    np.testing.assert_array_equal(model.predict(X), table.labels)
    np.testing.assert_allclose(model.predict_proba(X), table.proba, rtol=0, atol=6e-7)
    np.testing.assert_array_equal(model.open_set_scores(X).known, table.known_scores)
    # The cut of all, and not of the sample.
    assert model.decision_.threshold == rejection_cut(table.known_scores, 0.333)
    assert run.steps()[max(len(run.history()), 1)].tolist() == table.labels.tolist()
    truth = np.load("truth.npz")["y"]
    assert (table.labels == np.where(truth == "horse", "unknown", truth)).mean() > 0.9
    assert names_in(many) == ["run", "source.npz", "target.npz", "truth.npz"]
    assert main(["evaluate", "run", "--labels", "truth.npz"]) == 0
    # As many targets as the sample are all learned from.
    assert main([*command("--sample", str(N), "--overwrite")]) == 0
    assert RunFolder.open(many / "run").settings["sample"] is None


def test_labels_order_format_and_chunks_of_the_target_change_nothing(many, monkeypatch):
    assert main([*command(method="pgl")]) == 0
    one = RunFolder.open(many / "run").predictions()
    arrays, y = np.load("target.npz"), np.load("truth.npz")["y"]
    order = np.argsort(y, kind="stable")
    X, ids = arrays["X"][order], arrays["file_name"][order]
    np.savez("sorted.npz", X=X, file_name=ids, y=y[order])
    (many / "parts").mkdir()
    for part in (slice(0, 500), slice(500, N)):
        columns = {f"f{column}": X[part, column] for column in range(4)}
        table = pa.table({"file_name": ids[part], **columns})
        pyarrow.parquet.write_table(table, many / "parts" / f"{part.start:03}.parquet")
    monkeypatch.setattr(fit_rows, "CHUNK_ROWS", 70)
    for target in ("sorted.npz", "parts"):
        assert main([*command("--overwrite", method="pgl", target=target)]) == 0
        other = RunFolder.open(many / "run").predictions()
        assert other.ids.tolist() == one.ids[order].tolist()
        np.testing.assert_array_equal(one.labels[order], other.labels)
        np.testing.assert_array_equal(one.proba[order], other.proba)


def test_images_beyond_the_sample_and_what_needs_all(pictures, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("opensetda.usecases.train_run.sample_size", lambda n_classes, wanted: 20)
    assert main([*image_fit(pictures, tmp_path / "run", "--method", "class-means")]) == 0
    table = RunFolder.open(tmp_path / "run").predictions()
    assert table.id_name == "path"
    assert sorted(table.ids) == names_in(pictures / "street")
    (tmp_path / "said.csv").write_text(f"path,label\n{table.ids[0]},red\n")
    for option in (["--finetune"], ["--corrections", str(tmp_path / "said.csv")]):
        capsys.readouterr()
        assert main([*image_fit(pictures, tmp_path / "other", *option)]) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith(f"error: {option[0]}: ")
        assert "more than 20 images; " in line
        assert names_in(tmp_path) == ["run", "said.csv"]
