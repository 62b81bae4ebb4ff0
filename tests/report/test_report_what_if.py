"""What another share of unknowns would give, and the command to fit with it."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest

from opensetda.report.run_parts import refit_of, what_if
from opensetda.runs.predictions import PredictionTable
from opensetda.share.decision import rejection_cut

CLASSES = ("ant", "bee", "cat")


def make_table(share, corrected=()):
    rng = np.random.default_rng(0)
    scores, nearest = rng.random(200), np.array(CLASSES)[rng.integers(3, size=200)]
    labels = np.where(scores < rejection_cut(scores, share), "unknown", nearest)
    labels[[*corrected]] = "cat"
    return PredictionTable(
        np.arange(200).astype(str),
        labels=labels,
        known_scores=scores,
        nearest=nearest,
        proba=np.full((200, 4), 0.25),
        classes=CLASSES,
        corrected=np.isin(np.arange(200), [*corrected]) if corrected else None,
    )


@pytest.mark.parametrize(("share", "corrected"), [(0.0, ()), (0.333, (0, 1, 2, 3))])
def test_labels_are_those_of_the_moved_threshold(share, corrected):
    table, shown = make_table(share, corrected), np.array([5, 190, 1, 17, 60, 99, 3])
    what = what_if(table, "unknown", shown)
    assert what.shares[what.used] == pytest.approx(share, abs=0.01)
    own = np.ones(200, dtype=bool) if table.corrected is None else ~table.corrected
    for place, (cut, counts) in enumerate(zip(what.cuts, what.counts, strict=True)):
        moved = np.where(table.known_scores < cut, "unknown", table.nearest)
        labels = np.where(own, moved, table.labels)
        # At its own share, they are the labels of the run.
        assert place != what.used or (labels == table.labels).all()
        assert counts.tolist() == [(labels == name).sum() for name in (*CLASSES, "unknown")]
        if not corrected:
            assert counts[-1] == pytest.approx(200 * what.shares[place], abs=0.5)
    # The samples of the map, without corrected ones, by score.
    scores = table.known_scores[shown[what.order]]
    assert (np.diff(scores) > 0).all()
    assert set(shown[what.order]) == {*shown.tolist()} - {*corrected}
    assert [*what.below] == [(scores < cut).sum() for cut in what.cuts]
    assert [CLASSES[label] for label in what.nearest] == table.nearest[shown[what.order]].tolist()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "osda fit a 'b c' --openness auto --out run --overwrite --seed 3",
            "osda fit a 'b c' --seed 3 --openness 0.40 --out run-40",
        ),
        (
            "osda fit 'a; rm -rf /' '$(b)' --unknown-share=0.2 '--out=my run/' --set x=1",
            "osda fit 'a; rm -rf /' '$(b)' --set x=1 --openness 0.40 --out 'my run-40'",
        ),
        ("", "osda fit 'my photos' TARGET --openness 0.40 --out 'the run-40'"),
    ],
)
def test_the_command_to_refit(command, expected):
    inputs = {"source": {"path": "my photos"}, "target": {"embedded": "digits"}}
    settings = {"command": shlex.split(command) or None, "inputs": inputs}
    made = refit_of(settings, Path("the run"))
    assert f"{made.head}0.40{made.middle}40{made.tail}" == expected
    assert made.is_whole == command.startswith("osda fit")
