"""Analyses that vary a setting: their numbers are those of single runs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analyses_helpers import QUICK, SmallTasks, a_request
from opensetda.analyses import steps, sweeps
from opensetda.analyses.contract import by_seed, difference, failures, summary
from opensetda.benchmark.grid import fit_task
from opensetda.data.benchmarks.protocols import with_openness
from opensetda.errors import InputError
from opensetda.metrics.open_set import evaluate
from opensetda.pgl.settings import PGLSettings
from opensetda.runs.evaluation import evaluate_targets
from opensetda.runs.methods import build_method


def a_row(seed, hos, task="0", status="ok", method="pgl"):
    error = None if status == "ok" else "boom"
    return {
        **{"seed": seed, "hos": hos, "task": task, "status": status},
        **{"method": method, "error": error},
    }


def test_first_over_tasks_then_over_seeds():
    rows = [a_row(0, 0.5), a_row(0, 0.7, "1"), a_row(1, 0.8), a_row(1, 0.8, "1")]
    assert by_seed(rows, "hos") == {0: pytest.approx(0.6), 1: pytest.approx(0.8)}
    spread = summary(rows, ("hos",))["hos"]
    assert (spread.mean, spread.n) == (pytest.approx(0.7), 2)
    assert spread.deviation == pytest.approx(math.sqrt(0.02))


def test_a_seed_with_a_failed_task_is_left_out_and_named():
    rows = [a_row(0, 0.5), a_row(0, None, "1", "failed"), a_row(1, 0.8), a_row(1, 0.8, "1")]
    assert by_seed(rows, "hos") == {1: pytest.approx(0.8)}
    assert failures(rows) == ["Failed: pgl on 1, seed 0: boom"]


def test_differences_are_taken_seed_by_seed():
    spread = difference(
        [a_row(0, 0.5), a_row(1, 0.7)], [a_row(0, 0.4), a_row(1, 0.6), a_row(2, 0.1)]
    )
    assert spread.mean == pytest.approx(0.1)
    assert spread.deviation == pytest.approx(0.0)
    assert spread.n == 2


def hos_of(changes, task="0", method="pgl", share=None, seed=0, preset="default"):
    data = SmallTasks().load(task)
    data = data if share is None else with_openness(data, share, seed)
    own = {**dict(QUICK), **changes} if method == "pgl" else {}
    classifier = build_method(method, openness=data.openness, preset=preset, changes=own, seed=seed)
    fit_task(classifier, data)
    return evaluate_targets(classifier, data.target_truth).hos


# ablation -----------------------------------------------------------------------------------


def test_what_a_preset_does_not_have_it_cannot_lose():
    default, paper = PGLSettings.preset("default"), PGLSettings.preset("paper-visda")
    parts = PGLSettings.ablations()
    why = {name: sweeps.why_not(default, changes) for name, changes in parts.items()}
    assert why["no-adversary"] == "has losses.adversary=0 already"
    assert why["nll-instead-of-focal"] == "losses.node=0: there is no focal loss to replace"
    assert why["no-graph"] is why["no-mix-up"] is None
    assert all(sweeps.why_not(paper, changes) is None for changes in parts.values())


def test_every_part_of_ours_makes_a_difference_to_the_default():
    default = PGLSettings.preset("default")
    for changes in sweeps.OUR_PARTS.values():
        assert sweeps.why_not(default, changes) is None
    assert not set(sweeps.OUR_PARTS) & set(sweeps.ablations_of("paper-visda"))


def test_the_ablation_has_a_row_a_part(tmp_path, monkeypatch):
    parts = {name: PGLSettings.ablations()[name] for name in ("no-adversary", "no-graph")}
    monkeypatch.setattr(sweeps, "ablations_of", lambda preset: parts)
    told = []
    request = a_request(
        tmp_path,
        tasks=SmallTasks(("0",)),
        preset="finetune",
        progress=lambda done, total, row: told.append((done, total)),
    )
    result = sweeps.analyse_ablation(request)
    rows = {row["variant"]: row for row in result.table.rows}
    assert list(rows) == ["PGL, finetune", *parts]
    assert rows["no-adversary"]["remark"] == "has losses.adversary=0 already"
    assert result.table.cells(rows["no-adversary"])[1:7] == ["-"] * 6
    full = hos_of({}, preset="finetune")
    without = hos_of({"graph.enabled": False}, preset="finetune")
    assert rows["PGL, finetune"]["hos"].mean == pytest.approx(full)
    assert rows["no-graph"]["difference"].mean == pytest.approx(without - full)
    assert result.runs is not None
    assert told[-1] == (len(result.runs.rows),) * 2
    # Asked again, nothing is run any more.
    told.clear()
    again = sweeps.analyse_ablation(request)
    assert told == [(0, 0)]
    assert again.table.to_csv() == result.table.to_csv()


# alpha --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "count"), [(0.05, 20), (0.1, 10), (0.333, 3), (1, 1)])
def test_alpha_is_one_over_the_steps(value, count):
    assert sweeps.steps_of(value) == count


@pytest.mark.parametrize("value", [0.3, 0, -1, 1.5, 0.7])
def test_an_alpha_that_is_none(value):
    with pytest.raises(InputError, match="alpha is 1 / steps"):
        sweeps.steps_of(value)


def test_alpha_has_a_row_a_value(tmp_path):
    tasks = SmallTasks(("1",))
    result = sweeps.analyse_alpha(a_request(tmp_path, tasks=tasks, values=(0.5, 0.25)))
    rows = result.table.rows
    assert [(row["alpha"], row["steps"]) for row in rows] == [("0.25", 4), ("0.5", 2)]
    assert rows[0]["hos"].mean == pytest.approx(hos_of({"steps": 4}, "1"))
    assert result.table.marked == {1}


# losses -------------------------------------------------------------------------------------


def test_losses_vary_one_weight_and_leave_the_other(tmp_path):
    changes = (*QUICK, ("losses.edge", 1.0), ("losses.adversary", 0.5))
    tasks = SmallTasks(("0",))
    result = sweeps.analyse_losses(a_request(tmp_path, tasks=tasks, changes=changes, values=(2.0,)))
    rows = {(row["weight"], row["value"]): row["hos"].mean for row in result.table.rows}
    assert not any("the edge loss only" in note for note in result.table.notes)
    # The preset's own value is there, too, and in bold.
    assert list(rows) == [("mu", "1"), ("mu", "2"), ("gamma", "0.5"), ("gamma", "2")]
    assert result.table.marked == {0, 2}
    assert rows["mu", "1"] == rows["gamma", "0.5"]
    own = {"losses.adversary": 0.5, "losses.edge": 2.0}
    assert rows["mu", "2"] == pytest.approx(hos_of(own))
    own = {"losses.adversary": 2.0, "losses.edge": 1.0}
    assert rows["gamma", "2"] == pytest.approx(hos_of(own))


def test_the_weight_of_a_loss_that_is_alone_makes_no_difference(tmp_path, monkeypatch):
    monkeypatch.setattr(sweeps, "WEIGHTS", {"mu": "losses.edge"})
    changes = (*QUICK, ("losses.edge", 1.0))
    asked = a_request(tmp_path, tasks=SmallTasks(("0",)), changes=changes, values=(0.5,))
    result = sweeps.analyse_losses(asked)
    by_weight = {row["value"]: row["hos"] for row in result.table.rows}
    assert by_weight["0.5"] == by_weight["1"]
    assert any("the edge loss only" in note for note in result.table.notes)


# openness -----------------------------------------------------------------------------------


def test_openness_thins_the_target_for_every_method(tmp_path):
    request = a_request(
        tmp_path,
        tasks=SmallTasks(("0",)),
        seeds=(1,),
        methods=("pgl", "class-means"),
        values=(0.5, 0.2),
    )
    result = sweeps.analyse_openness(request)
    rows = {(row["openness"], row["method"]): row for row in result.table.rows}
    assert list(rows) == [
        *(("0.2", "pgl"), ("0.2", "class-means")),
        *(("0.5", "pgl"), ("0.5", "class-means")),
    ]
    for (share, _), row in rows.items():
        assert row["share"].mean == pytest.approx(float(share), abs=0.05)
    for place in (("0.2", "class-means"), ("0.5", "pgl")):
        expected = hos_of({}, "0", place[1], float(place[0]), seed=1)
        assert rows[place]["hos"].mean == pytest.approx(expected)


def test_a_share_that_is_none_and_a_method_that_is_none(tmp_path):
    with pytest.raises(InputError, match="--value 1: a share of unknowns"):
        sweeps.analyse_openness(a_request(tmp_path, values=(1.0,)))
    with pytest.raises(InputError, match="method 'nonsense' does not exist"):
        sweeps.analyse_openness(a_request(tmp_path, methods=("nonsense",)))


# steps --------------------------------------------------------------------------------------


def test_steps_are_scored_by_the_labels_they_left(tmp_path):
    result = steps.analyse(a_request(tmp_path, tasks=SmallTasks(("0",)), seeds=(0, 1)))
    data = SmallTasks().load("0")
    kept = []
    expected = []
    for seed in (0, 1):
        classifier = build_method("pgl", openness=data.openness, changes=dict(QUICK), seed=seed)
        fit_task(classifier, data)
        names = np.array([*classifier.classes_, "unknown"])
        kept.append(classifier.kept_step_.step)
        expected.append(
            [
                evaluate(data.target_truth, names[labels], classifier.classes_).hos
                for labels in classifier.step_labels_
            ]
        )
    rows = result.table.rows
    assert [row["step"] for row in rows] == [1, 2]
    assert [row["hos"].mean for row in rows] == pytest.approx(np.mean(expected, axis=0).tolist())
    said = {row["step"]: row["kept"] for row in rows if row["kept"]}
    assert said == {step: f"{kept.count(step)} of 2" for step in set(kept)}
