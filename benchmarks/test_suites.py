"""The suites: which help is chosen, which methods the tables have, and one fit for both tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import suites
from opensetda.benchmark.grid import AUTO, TRUE, Cell, run_cell
from opensetda.benchmark.tasks import TaskSet
from opensetda.benchmark.variants import Variant
from opensetda.data.benchmarks.protocols import ClassSplit, OpenSetTask
from suite_data import aligned_task, read_fewer_rows
from suites import CHOICE, SUITES, TABLE
from trained_once import fit_once


def lines_of(method: str, hos: dict[tuple[str, str], float], chosen: tuple[str, str]):
    """Figures of a method on all suites: each help for the choice, the chosen one for tables."""
    measured = [(how, TRUE, CHOICE, value) for how, value in hos.items()]
    measured += [(chosen, share, TABLE, 0.5) for share in (TRUE, AUTO)]
    return [
        dict.fromkeys(suites.COLUMNS, "0.1")
        | {"suite": suite, "openness": share, "method": method, "purpose": purpose}
        | {"scaling": how[0], "aligned": how[1], "hos": str(value)}
        for suite in SUITES
        for how, share, purpose, value in measured
    ]


SCALINGS = {("none", ""): 0.6, ("standard", ""): 0.8, ("ranks", ""): 0.7}


def test_the_help_with_the_best_mean_is_chosen_and_printed():
    lines = lines_of("osbp", SCALINGS, ("standard", ""))
    assert suites.chosen_help(lines, "osbp") == ("standard", "")
    assert "| osbp | standardised |" in suites.short_table(lines)
    assert "**80.0**" in suites.scaling_table(lines)


def test_nothing_is_chosen_before_all_has_been_measured():
    lines = lines_of("osbp", SCALINGS, ("standard", ""))
    without = [row for row in lines if (row["suite"], row["scaling"]) != ("gas", "ranks")]
    assert suites.chosen_help(without, "osbp") is None
    text, _, sentence = suites.short_table(without).partition("Not measured")
    assert "osbp" not in text
    assert "`osbp`" in sentence
    # An alignment has to be tried, too, where the method has none.
    assert suites.chosen_help(lines_of("oslpp", SCALINGS, ("none", "")), "oslpp") is None


@pytest.fixture(scope="module")
def task() -> OpenSetTask:
    rng = np.random.default_rng(0)
    classes = rng.permutation(np.repeat(["a", "b", "c", "x"], 15))
    centres = {label: 4 * rng.normal(size=6) for label in "abcx"}
    rows = np.stack([centres[label] for label in classes]) + rng.normal(size=(60, 6))
    X, known = rows.astype(np.float32), classes != "x"
    split = ClassSplit(("a", "b", "c"), ("x",))
    return OpenSetTask(X[known], classes[known], X + np.float32(0.5), classes, split)


def test_rows_are_drawn_once_and_aligned_without_labels(task):
    fewer = read_fewer_rows("t", lambda name: task, 20)
    again = read_fewer_rows("t", lambda name: task, 20)
    assert len(fewer.source_labels) == len(fewer.target_truth) == 20
    np.testing.assert_array_equal(fewer.target_features, again.target_features)
    other = replace(task, target_truth=task.target_truth[::-1])
    one, same = (aligned_task("t", lambda name, t=t: t, "ranks") for t in (task, other))
    np.testing.assert_array_equal(one.target_features, same.target_features)
    np.testing.assert_allclose(np.linalg.norm(one.target_features, axis=1), 1, rtol=1e-5)
    # Every row keeps its label: a class lies together, in both domains.
    for rows, labels in (
        (one.source_features, one.source_labels),
        (one.target_features, one.target_truth),
    ):
        means = np.stack([rows[labels == label].mean(axis=0) for label in one.split.known])
        is_known = np.isin(labels, one.split.known)
        nearest = np.array(one.split.known)[(rows[is_known] @ means.T).argmax(axis=1)]
        assert (nearest == labels[is_known]).mean() > 0.9


def test_one_training_gives_the_rows_of_both_cells(task):
    variant = Variant("osbp", "osbp", changes=(("iterations", 20),), scaling="standard")
    cell = Cell(variant, "t", AUTO, 0)
    rows = fit_once(task, cell)
    for share in (TRUE, AUTO):
        tasks = TaskSet("own", lambda name: task, {"t": f"{share} of both"})
        expected = run_cell(tasks, replace(cell, openness=share), Path("unused"))
        for name in ("hos", "os_star", "unk", "auroc", "differs", "scaling"):
            assert rows[share][name] == expected[name]
