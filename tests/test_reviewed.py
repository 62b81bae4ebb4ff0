"""What a fit with corrections says if it made a class worse."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from opensetda.openness.evidence import Evidence
from opensetda.openness.report import ESTIMATE, OpennessReport
from opensetda.openness.share_model import ShareEstimate
from opensetda.runs.corrections import Corrections
from opensetda.runs.reviewed import ReviewedRun, warning_after

BEFORE = np.array(["cat"] * 20 + ["dog"] * 20 + ["unknown"] * 20)


def report():
    share = 0.6
    found = ShareEstimate(share, 0.0, 1.0)
    return OpennessReport(
        share=share,
        low=0.0,
        high=1.0,
        told=False,
        found_unknowns=True,
        estimates={ESTIMATE: found},
        evidence=Evidence(0.5, 0.5, 0.0, 0.5, 2),
        warnings=(),
    )


def corrected(labels, rows=None, new=()):
    rows = np.arange(len(labels)) if rows is None else np.array(rows)
    return Corrections(Path("run/corrections.csv"), rows, np.array(labels), "unknown", new, None)


def warned(corrections, now):
    run = ReviewedRun(Path("run"), BEFORE, np.zeros(60), "unknown", 0.33)
    return warning_after(corrections, run, np.array(now), report())


def test_nothing_lost_is_no_warning():
    assert not warned(corrected(["cat", "cat"]), BEFORE)
    # Two of twenty, and as many go as come.
    now = BEFORE.copy()
    now[2:4] = "unknown"
    assert not warned(corrected(["cat", "cat"]), now)
    now[2:12], now[40:50] = "unknown", "cat"
    assert not warned(corrected(["cat", "cat"]), now)


def test_the_classes_that_lost_are_named_with_counts_and_advice():
    now = BEFORE.copy()
    now[5:20], now[20:24] = "unknown", "unknown"
    assert warned(corrected(["cat", "cat"]), now) == (
        "unknown now, but not in run: 15 of 18 'cat', 4 of 20 'dog'; the share of unknowns is "
        "0.60 (0.33 there): audit it with 'osda review', or give it (--openness)"
    )


def test_a_class_that_goes_to_a_new_one_has_lost_nothing():
    now = BEFORE.copy().astype("U9")
    now[5:20] = "owl"
    assert not warned(corrected(["owl"], [5], ("owl",)), now)
