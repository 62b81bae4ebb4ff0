"""What another share of unknowns would give, and the command to fit with it."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest

from opensetda.openness.mixtures import rejection_cut
from opensetda.report.what_if import refit_of, what_if
from opensetda.runs.predictions import PredictionTable

CLASSES = ("ant", "bee", "cat")


def make_table(n=200, share=0.333, corrected=None, seed=0):
    rng = np.random.default_rng(seed)
    scores, nearest = rng.random(n), np.array(CLASSES)[rng.integers(3, size=n)]
    labels = np.where(scores < rejection_cut(scores, share), "unknown", nearest)
    if corrected is not None:
        labels[corrected] = "cat"
    mask = None if corrected is None else np.isin(np.arange(n), corrected)
    return PredictionTable(
        np.arange(n).astype(str),
        labels=labels,
        known_scores=scores,
        nearest=nearest,
        proba=np.full((n, 4), 0.25),
        classes=CLASSES,
        corrected=mask,
    )


def counted(labels):
    return [int((labels == name).sum()) for name in (*CLASSES, "unknown")]


def test_counts_are_those_of_the_moved_threshold():
    table = make_table()
    what = what_if(table, "unknown", np.arange(200))
    assert what.shares[what.used] == pytest.approx(67 / 200)
    assert counted(table.labels) == what.counts[what.used].tolist()
    assert [round(100 * share) for share in what.shares if share != 67 / 200] == [*range(100)]
    for share, cut, counts in zip(what.shares, what.cuts, what.counts, strict=True):
        moved = np.where(table.known_scores < cut, "unknown", table.nearest)
        assert counts.tolist() == counted(moved)
        assert counts[-1] == pytest.approx(200 * share, abs=0.5)


def test_samples_are_ordered_by_score_and_divided_by_the_threshold():
    table, shown = make_table(), np.array([5, 190, 17, 60, 99, 3])
    what = what_if(table, "unknown", shown)
    scores = table.known_scores[shown[what.order]]
    assert (np.diff(scores) > 0).all()
    for cut, below in zip(what.cuts, what.below, strict=True):
        assert below == (scores < cut).sum()
    assert [CLASSES[label] for label in what.nearest] == table.nearest[shown[what.order]].tolist()


def test_manual_labels_stay_at_every_share():
    rows = np.array([0, 1, 2, 3])
    table = make_table(corrected=rows)
    what = what_if(table, "unknown", np.arange(200))
    assert not set(rows) & set(what.order.tolist())
    assert counted(table.labels) == what.counts[what.used].tolist()
    assert (what.counts.sum(axis=1) == 200).all()
    assert what.counts[-1, 2] >= 4


def test_nothing_rejected_is_the_first_position():
    table = make_table(share=0.0)
    what = what_if(table, "unknown", np.arange(200))
    assert (what.used, what.shares[0], what.below[0]) == (0, 0.0, 0)
    assert len(what.shares) == 100


def settings_of(command, **inputs):
    inputs = inputs or {"source": {"path": "my photos"}, "target": {"embedded": "digits"}}
    return {"command": command, "inputs": inputs}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "osda fit a 'b c' --openness auto --out run --overwrite --seed 3",
            "osda fit a 'b c' --seed 3 --openness 0.40 --out run-40",
        ),
        (
            "osda fit a b --unknown-share=0.2 '--out=my run/' --set x=1",
            "osda fit a b --set x=1 --openness 0.40 --out 'my run-40'",
        ),
        ("osda demo --out x", "osda fit 'my photos' TARGET --openness 0.40 --out 'the run-40'"),
        ("", "osda fit 'my photos' TARGET --openness 0.40 --out 'the run-40'"),
    ],
)
def test_the_command_to_refit(command, expected):
    made = refit_of(settings_of(shlex.split(command) or None), Path("the run"))
    assert f"{made.head}0.40{made.middle}40{made.tail}" == expected
    assert made.is_whole == command.startswith("osda fit")


def test_a_hostile_command_stays_one_command():
    words = ["osda", "fit", "a; rm -rf /", "$(b)", "--out", "x'; y #"]
    made = refit_of(settings_of(words), Path("run"))
    text = f"{made.head}0.40{made.middle}40{made.tail}"
    assert shlex.split(text) == [*words[:4], "--openness", "0.40", "--out", "x'; y #-40"]
