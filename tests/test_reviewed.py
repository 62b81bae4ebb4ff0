"""What a fit with corrections says if it made a class worse, or if its share looks wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from opensetda.openness.audit import Audit
from opensetda.openness.evidence import Evidence
from opensetda.openness.share_model import ShareEstimate
from opensetda.openness.tracker import ESTIMATE, OpennessReport
from opensetda.runs.corrections import Corrections
from opensetda.runs.reviewed import ReviewedRun, warnings_after

BEFORE = np.array(["cat"] * 20 + ["dog"] * 20 + ["unknown"] * 20)


def report(share=0.6, told=False, audit=""):
    found = ShareEstimate(share, 0.0, 1.0)
    return OpennessReport(
        share=share,
        low=0.0,
        high=1.0,
        told=told,
        found_unknowns=True,
        estimates={ESTIMATE: found},
        evidence=Evidence(0.5, 0.5, 0.0, 0.5, 2),
        by_step=(),
        warnings=(),
        audit=audit,
    )


def corrected(labels, rows=None, new=(), audit=None):
    rows = np.arange(len(labels)) if rows is None else np.array(rows)
    return Corrections(Path("run/corrections.csv"), rows, np.array(labels), "unknown", new, audit)


def warned(corrections, now, found=None, reviewed=True):
    run = ReviewedRun(Path("run"), BEFORE, np.zeros(60), "unknown", 0.33) if reviewed else None
    return warnings_after(corrections, run, np.array(now), found or report(), Path("run2"))


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
    (line,) = warned(corrected(["cat", "cat"]), now)
    assert line == (
        "known classes lost targets: unknown now, but not in run: 15 of 18 'cat', 4 of 20 'dog'; "
        "the share of unknowns is 0.60 (0.33 in run), estimated: audit it with 'osda review run2', "
        "or give it (--openness)"
    )
    (line,) = warned(corrected(["cat", "cat"]), now, report(told=True))
    assert line.endswith("as given; check it")
    (line,) = warned(corrected(["cat", "cat"]), now, report(audit="9 of 30"))
    assert line.endswith("by the audit; mark more targets to be surer")


def test_a_class_that_goes_to_a_new_one_has_lost_nothing():
    now = BEFORE.copy().astype("U9")
    now[5:20] = "owl"
    assert not warned(corrected(["owl"], [5], ("owl",)), now)


def test_corrected_targets_that_the_model_rejects_are_counted_without_the_run():
    now = BEFORE.copy()
    now[:6] = "unknown"
    (line,) = warned(corrected(["cat"] * 8), now, reviewed=False)
    assert "of targets corrected to a class, the model itself rejects 6 of 8 'cat'" in line


def test_decisions_that_contradict_the_share():
    """Most of the rejected targets that were looked at are cats."""
    labels, rows = ["cat"] * 9 + ["unknown"] * 3, range(40, 52)
    now = BEFORE.copy()
    now[40:49] = "cat"
    (line,) = warned(corrected(labels, rows), now)
    assert "of 12 decided targets that run called unknown, 9 are of a known class" in line
    assert "may be too high" in line
    assert "osda review run2" in line
    (line,) = warned(corrected(["owl"] * 12, range(12), ("owl",)), BEFORE)
    assert "that run called known, 12 are not: its share of unknowns may be too low" in line
    # An audit has settled it.
    drawn = Audit(np.arange(3), np.zeros(3, dtype=bool), np.zeros(3, dtype=bool))
    assert not warned(corrected(labels, rows, (), drawn), now, report(audit="0 of 3"))
