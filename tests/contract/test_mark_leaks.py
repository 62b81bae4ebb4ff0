"""Of a target's labels only the marks of a person reach a run, the next one, and `drift`."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from conftest import make_task
from opensetda.usecases import adapt, drift, fit

pytestmark = pytest.mark.no_cover

# When and from which files a run was made; all others say what it found, and what it keeps.
OF_ITS_MAKING = {"environment.json", "history.jsonl", "settings.json"}
MARKED = np.arange(0, 120, 6)
TINY = {"steps": 2, "epochs": 2, "edge_width": 8, "node_width": 8, "graph_rate": 1e-2}
SETTINGS = {"committee": {}, "moving-means": {}, "dann": {"iterations": 20}, "pgl": TINY}


@pytest.fixture(scope="module")
def task():
    return make_task(per_class=20, seed=1)


@pytest.fixture
def place(task, tmp_path):
    """A folder with the source, and targets with labels that are true, permuted and false."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "source.npz", X=task.source, y=task.labels)
    classes = np.unique(task.labels)
    given = {
        "true": task.truth,
        "permuted": rng.permutation(task.truth),
        "false": rng.choice(classes, len(task.truth)),
    }
    for name, labels in given.items():
        np.savez(tmp_path / f"{name}.npz", X=task.target, y=labels)
        np.savez(tmp_path / f"{name}-later.npz", X=task.target + np.float32(0.7), y=labels)
    said = {"right.csv": task.truth, "wrong.csv": np.roll(task.truth, 7)}
    for name, labels in said.items():
        lines = [f"{row + 1},{labels[row]}\n" for row in MARKED]
        (tmp_path / name).write_text("id,label\n" + "".join(lines))
    return tmp_path


def bytes_of(run):
    """The digests of what a run says."""
    written = dict(run.folder.manifest.files)
    assert set(written) > OF_ITS_MAKING
    return {name: digest for name, digest in written.items() if name not in OF_ITS_MAKING}


def check_labels(run):
    """No label is less probable than another column of its row; marked targets have their mark."""
    table = run.folder.predictions()
    chosen = table.proba[np.arange(len(table)), table.columns_of(table.labels)]
    np.testing.assert_array_equal(chosen, table.proba.max(axis=1))


@pytest.mark.parametrize(
    ("method", "openness"),
    [*((method, "auto") for method in SETTINGS), *(("committee", given) for given in (0.0, 0.3))],
)
def test_only_marks_reach_a_fit(method, openness, place, task):
    how = {"method": method, "settings": SETTINGS[method], "openness": openness, "seed": 0}

    def run(target, marks):
        out = place / f"{target}-{marks}"
        corrections = place / f"{marks}.csv"
        return fit(
            place / "source.npz", place / f"{target}.npz", out, corrections=corrections, **how
        )

    first = run("true", "right")
    check_labels(first)
    assert (first.folder.labels()[MARKED] == task.truth[MARKED]).all()
    others = ("permuted", "false") if openness == "auto" else ("false",)
    for target in others:
        assert bytes_of(run(target, "right")) == bytes_of(first)
    other = run("true", "wrong")
    unmarked = np.setdiff1d(np.arange(len(task.truth)), MARKED)
    told = [one.folder.predictions().proba[unmarked] for one in (first, other)]
    assert np.abs(told[0] - told[1]).max() > 0.01


@pytest.mark.parametrize("method", ["committee", "moving-means"])
def test_only_marks_reach_an_adapted_run_and_drift(method, place):
    made = []
    for target in ("true", "false"):
        base = fit(
            place / "source.npz",
            place / f"{target}.npz",
            place / f"base-{target}",
            corrections=place / "right.csv",
            method=method,
        )
        later = place / f"{target}-later.npz"
        out = place / f"next-{target}"
        adapted = adapt(base, later, out, corrections=place / "wrong.csv")
        check_labels(adapted)
        made.append((bytes_of(base), bytes_of(adapted), asdict(drift(base, later))))
    assert made[0] == made[1]
