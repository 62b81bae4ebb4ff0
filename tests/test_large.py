"""Targets beyond memory: the sample that is learned from, and the labels of all."""

from __future__ import annotations

import copy
import json
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_helpers import OPENNESS, SMALL_PGL, blobs, image_fit, names_in
from estimator_helpers import make_classifier
from opensetda.cli.main import main
from opensetda.openness.mixtures import rejection_cut
from opensetda.runs import large
from opensetda.runs.folder import RunFolder
from opensetda.runs.large import draw_sample, label_targets, sample_size
from opensetda.runs.predictions import PredictionTable

# the sample ----------------------------------------------------------------------------------

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


@given(X=matrices, size=st.integers(1, 70), chunk=st.integers(1, 70))
def test_chunks_do_not_change_the_sample(X, size, chunk):
    whole = draw_sample(X, size)
    assert len(whole) == min(size, len(X))
    assert (np.diff(whole) > 0).all()
    before, large.CHUNK_ROWS = large.CHUNK_ROWS, chunk
    try:
        np.testing.assert_array_equal(draw_sample(X, size), whole)
    finally:
        large.CHUNK_ROWS = before


@given(X=matrices, size=st.integers(1, 70), seed=st.integers(0, 9))
def test_the_order_of_the_rows_does_not_change_the_sample(X, size, seed):
    order = np.random.default_rng(seed).permutation(len(X))
    assert contents(X, draw_sample(X, size)) == contents(X[order], draw_sample(X[order], size))


def test_the_type_of_the_numbers_does_not_change_the_sample():
    X = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float16)
    expected = draw_sample(X.astype(np.float64), 50)
    for other in (X, X.astype(np.float32), np.asfortranarray(X)):
        np.testing.assert_array_equal(draw_sample(other, 50), expected)


def test_the_sample_is_like_the_rest():
    X = np.random.default_rng(0).normal(size=(20_000, 3))
    chosen = X[draw_sample(X, 2000)]
    # Five standard errors.
    assert np.abs(chosen.mean(axis=0) - X.mean(axis=0)).max() < 5 / np.sqrt(2000)
    assert np.abs(chosen.std(axis=0) - X.std(axis=0)).max() < 5 / np.sqrt(2 * 2000)


def test_twins_come_in_their_share():
    """Counts and codes repeat: a sample of them holds every row that is frequent."""
    rng = np.random.default_rng(0)
    which = rng.integers(0, 5, 10_000)
    X = rng.normal(size=(5, 3))[which]
    counts = np.bincount(which[draw_sample(X, 1000)], minlength=5)
    assert counts.min() > 100
    assert counts.max() < 400


def test_a_sample_of_many_classes_is_smaller():
    assert sample_size(3) == 65_536
    assert sample_size(3, 2000) == 2000
    assert sample_size(1000) == 2**25 // 1000
    assert sample_size(10**6) == 1024


# labels of all -------------------------------------------------------------------------------

METHODS = ["class-means", "pgl", "osbp", "ovanet"]


class Sampled(dict):
    """A task of 300 targets, and classifiers by name that have learned from 100 of them."""

    def __init__(self):
        source, labels = blobs(0)
        known = labels != "horse"
        self.source, self.labels = source[known], labels[known]
        self.target = blobs(1, n=100)[0]
        self.sample = draw_sample(self.target, 100)

    def __missing__(self, method):
        quick = {"steps": 2, "epochs": 1, "edge_width": 8, "node_width": 8}
        own = {"settings": quick} if method == "pgl" else {}
        X = np.concatenate([self.source, self.target[self.sample]])
        y = np.concatenate([self.labels, np.full(100, "cat")])
        domain = np.repeat([1, -1], [len(self.source), 100])
        self[method] = make_classifier(method, openness=0.3, **own).fit(X, y, domain)
        return self[method]


@pytest.fixture(scope="module")
def sampled():
    return Sampled()


def read_table(path):
    return PredictionTable.read_parquet(path)


def label(classifier, X, folder, ids=None):
    """Return the files that are written, the predictions, the counts and the threshold."""
    folder.mkdir()
    own = copy.deepcopy(classifier)
    told = []
    counts = label_targets(own, X, ids, "id", folder, lambda *done: told.append(done))
    assert told[-1] == (len(X), len(X))
    assert told == sorted(told)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert sorted(files) == ["predictions.csv", "steps.parquet"]
    return files, read_table(folder / "predictions.csv"), counts, own.rejection_threshold_


@pytest.mark.parametrize("method", METHODS)
def test_labels_are_those_of_predict_and_of_the_cut_of_all(sampled, tmp_path, method):
    classifier, X = copy.deepcopy(sampled[method]), sampled.target
    _, table, counts, threshold = label(classifier, X, tmp_path / "all")
    known = classifier.open_set_scores(X).known
    np.testing.assert_array_equal(table.known_scores, known)
    if not classifier.openness_report_.own_boundary:
        assert threshold == rejection_cut(known, classifier.openness_)
        assert abs((table.labels == "unknown").sum() - 0.3 * len(X)) <= 1
    classifier.rejection_threshold_ = threshold
    np.testing.assert_array_equal(table.labels, classifier.predict(X))
    np.testing.assert_allclose(table.proba, classifier.predict_proba(X), rtol=0, atol=6e-7)
    assert counts == {name: int((table.labels == name).sum()) for name in set(table.labels)}
    assert table.ids.tolist() == [str(row + 1) for row in range(len(X))]


@pytest.mark.parametrize("method", ["class-means", "pgl"])
def test_chunks_do_not_change_the_predictions(sampled, tmp_path, monkeypatch, method):
    files, *_, threshold = label(sampled[method], sampled.target, tmp_path / "whole")
    monkeypatch.setattr(large, "CHUNK_ROWS", 70)
    others, *_, theirs = label(sampled[method], sampled.target, tmp_path / "chunks")
    assert theirs == threshold
    assert others["predictions.csv"] == files["predictions.csv"]
    one, other = (
        pyarrow.parquet.read_table(tmp_path / folder / "steps.parquet")
        for folder in ("whole", "chunks")
    )
    assert one.equals(other)


def test_names_stay_with_their_rows(sampled, tmp_path, monkeypatch):
    monkeypatch.setattr(large, "CHUNK_ROWS", 70)
    ids = np.array([f"é{row}" for row in range(len(sampled.target))])
    files, table, *_ = label(sampled["class-means"], sampled.target, tmp_path / "1", ids)
    assert table.ids.tolist() == ids.tolist()
    assert files["predictions.csv"].decode().splitlines()[1].startswith('"é0",')
    steps = pyarrow.parquet.read_table(tmp_path / "1" / "steps.parquet")
    step = len(sampled["class-means"].history_)
    assert steps.column_names == ["id", f"step_{step}"]
    assert steps[f"step_{step}"].to_pylist() == table.labels.tolist()


def test_the_order_of_the_targets_carries_nothing(sampled, tmp_path):
    order = np.random.default_rng(0).permutation(len(sampled.target))
    classifier = sampled["pgl"]
    _, one, *_ = label(classifier, sampled.target, tmp_path / "1")
    _, other, *_ = label(classifier, sampled.target[order], tmp_path / "2")
    np.testing.assert_array_equal(one.labels[order], other.labels)
    np.testing.assert_array_equal(one.proba[order], other.proba)


def test_a_target_costs_a_few_numbers_of_memory(sampled, tmp_path, monkeypatch):
    monkeypatch.setattr(large, "CHUNK_ROWS", 1024)
    peaks = []
    for n in (10_000, 40_000):
        path = tmp_path / f"{n}.npy"
        X = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n, 4))
        for start in range(0, n, 2000):
            X[start : start + 2000] = np.random.default_rng(start).normal(size=(2000, 4)) + 1
        del X
        mapped = np.load(path, mmap_mode="r")
        scratch = tmp_path / f"of {n}"
        scratch.mkdir()
        tracemalloc.start()
        assert len(draw_sample(mapped, 1024)) == 1024
        classifier = copy.deepcopy(sampled["class-means"])
        counts = label_targets(classifier, mapped, None, "id", scratch)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert counts.total() == n
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


def command(*more, method="class-means", target="target.npz", ids="file_name"):
    quick = ["--set", "steps=2", *SMALL_PGL]
    quick = quick if method == "pgl" else ["--set", "iterations=20"] if method == "osbp" else []
    return [
        *("fit", "source.npz", target, "--out", "run", "--method", method, "--no-report"),
        *(["--id-column", ids] if ids else []),
        *("--sample", "1024", *OPENNESS, *quick, *more),
    ]


def error_of(capsys):
    err = capsys.readouterr().err
    assert err.count("error:") == 1
    assert "Traceback" not in err
    return err.splitlines()[-1]


@pytest.mark.parametrize("method", ["class-means", "moving-means"])
def test_a_run_of_a_sample_is_a_run(many, capsys, quick_maps, method):
    assert main([*command("--json", method=method)]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["targets"] == N
    assert "target.npz: more than 1,024 rows: learning from 1,024 of them, drawn" in err
    run = RunFolder.open(many / "run")
    table = run.predictions()
    assert table.ids.tolist() == [f"row {row}" for row in range(N)]
    assert json.loads((many / "run" / "settings.json").read_text())["sample"] == 1024
    with np.load("target.npz") as arrays:
        X = arrays["X"]
    np.testing.assert_array_equal(run.model().predict(X), table.labels)
    truth = np.load("truth.npz")["y"]
    assert (table.labels == np.where(truth == "horse", "unknown", truth)).mean() > 0.9
    assert names_in(many) == ["run", "source.npz", "target.npz", "truth.npz"]
    assert main(["evaluate", "run", "--labels", "truth.npz"]) == 0
    if method != "pgl":
        return
    assert main(["predict", "run", "target.npz", "--out", "again.parquet"]) == 0
    again = read_table(many / "again.parquet")
    np.testing.assert_array_equal(again.labels, table.labels)
    assert main(["report", "run"]) == 0
    from opensetda.review.session import ReviewSession

    session = ReviewSession(many / "run")
    try:
        assert session.summary()
    finally:
        session.close()


def test_as_many_targets_as_the_sample_are_all_learned_from(many):
    assert main([*command("--sample", str(N))]) == 0
    assert json.loads((many / "run" / "settings.json").read_text())["sample"] is None


def test_labels_and_order_of_the_target_file_change_nothing(many):
    assert main([*command(method="pgl")]) == 0
    one = RunFolder.open(many / "run").predictions()
    with np.load("target.npz") as arrays:
        X, ids = arrays["X"], arrays["file_name"]
    order = np.argsort(np.load("truth.npz")["y"], kind="stable")
    np.savez("sorted.npz", X=X[order], file_name=ids[order], y=np.load("truth.npz")["y"][order])
    assert main([*command("--overwrite", method="pgl", target="sorted.npz")]) == 0
    other = RunFolder.open(many / "run").predictions()
    assert other.ids.tolist() == one.ids[order].tolist()
    np.testing.assert_array_equal(one.labels[order], other.labels)
    np.testing.assert_array_equal(one.proba[order], other.proba)


def test_corrections_of_more_are_refused_in_one_line(many, capsys):
    (many / "said.csv").write_text("id,label\nrow 1,cat\n")
    assert main([*command("--corrections", "said.csv")]) == 2
    line = error_of(capsys)
    assert line.startswith("error: --corrections: target.npz: more than 1,024 rows; correct a run")
    assert "run" not in names_in(many)
    assert "run.unfinished" not in names_in(many)


def test_images_beyond_the_sample(pictures, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("opensetda.runs.fitting.sample_size", lambda n_classes, wanted: 20)
    assert main([*image_fit(pictures, tmp_path / "run", "--method", "class-means")]) == 0
    table = RunFolder.open(tmp_path / "run").predictions()
    assert table.id_name == "path"
    assert sorted(table.ids) == sorted(path.name for path in (pictures / "street").iterdir())
    capsys.readouterr()
    assert main([*image_fit(pictures, tmp_path / "other", "--finetune")]) == 2
    line = error_of(capsys)
    assert line.startswith("error: --finetune: ")
    assert "more than 20 images; fine-tune on fewer" in line
    assert names_in(tmp_path) == ["run"]


def test_interrupted_while_it_labels_it_goes_on_to_the_same_bytes(many, monkeypatch):
    assert main([*command(method="pgl")]) == 0
    (many / "run").rename(many / "whole")

    def fail(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("opensetda.runs.predictions.PredictionWriter.close", fail)
        assert main([*command(method="pgl")]) == 130
    assert "run" not in names_in(many)
    assert "run.unfinished" in names_in(many)
    assert main(["resume", "run"]) == 0
    for name in ("predictions.csv", "steps.parquet", "model.safetensors"):
        assert (many / "run" / name).read_bytes() == (many / "whole" / name).read_bytes(), name
    assert names_in(many) == ["run", "source.npz", "target.npz", "truth.npz", "whole"]


def test_interrupted_with_nothing_learned_nothing_stays(many, monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("opensetda.runs.predictions.PredictionWriter.write_rows", fail)
    assert main([*command("--out", "deep/run")]) == 130
    assert names_in(many) == ["source.npz", "target.npz", "truth.npz"]


def test_an_array_of_half_precision_and_parts_with_names(many):
    X = blobs(1, n=N // 3)[0].astype(np.float16)
    np.save("target.npy", X)
    assert main([*command(target="target.npy", ids=None)]) == 0
    table = RunFolder.open(many / "run").predictions()
    assert table.ids.tolist() == [str(row + 1) for row in range(N)]
    (many / "parts").mkdir()
    ids = [f"n{row}" for row in range(N)]
    for number, start in enumerate(range(0, N, 500)):
        part = slice(start, start + 500)
        columns = {f"f{column}": X[part, column].astype(np.float32) for column in range(4)}
        file = many / "parts" / f"part-{number}.parquet"
        pyarrow.parquet.write_table(pa.table({"name": ids[part], **columns}), file)
    assert main([*command("--overwrite", target="parts", ids="name")]) == 0
    named = RunFolder.open(many / "run").predictions()
    assert named.ids.tolist() == ids
    np.testing.assert_array_equal(named.labels, table.labels)
    np.testing.assert_array_equal(named.known_scores, table.known_scores)
