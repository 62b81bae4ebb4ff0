"""How the targets would be labelled if another share of them were unknown.

The threshold on the known score moves, and nothing else: the scores are those of the run.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.openness.mixtures import rejection_cut
from opensetda.report.content import Refit, WhatIf
from opensetda.report.run_parts import codes_of, cut_of, own_labels
from opensetda.runs.predictions import PredictionTable
from opensetda.system.files import in_shell

# Closer to the share of the run than this, a whole percentage has no position of its own.
_CLOSE = 0.0025
_VALUED, _FLAGS = ("--openness", "--unknown-share", "--out"), ("--overwrite",)
_SHARE, _OUT = "--openness", "--out"


def what_if(table: PredictionTable, unknown: str, shown: npt.NDArray[np.intp]) -> WhatIf:
    """Return the labels at every whole percentage, and at the share of the run.

    `shown` are the target rows of the map: the samples nearest to a threshold are among them.
    """
    scores, cut, own = table.known_scores, cut_of(table, unknown), own_labels(table)
    used = 0.0 if cut is None else float((scores < cut).mean())
    whole = (percent / 100 for percent in range(100))
    shares = sorted([used, *(share for share in whole if abs(share - used) >= _CLOSE)])
    ordered = np.sort(scores)
    cuts = [
        rejection_cut(ordered, share) if share != used or cut is None else cut for share in shares
    ]
    counts = _counts(table, own, cuts)
    place, code = shares.index(used), codes_of(table.labels, table.classes)
    counts[place] = np.bincount(code, minlength=len(table.classes) + 1)
    # Corrected labels do not depend on the threshold.
    theirs = np.flatnonzero(own[shown])
    theirs = theirs[np.argsort(scores[shown[theirs]], kind="stable")]
    return WhatIf(
        shares=tuple(shares),
        cuts=tuple(cuts),
        used=place,
        counts=counts,
        order=theirs,
        nearest=codes_of(table.nearest[shown[theirs]], table.classes),
        below=tuple(np.searchsorted(scores[shown[theirs]], cuts, "left").tolist()),
    )


def _counts(
    table: PredictionTable, own: npt.NDArray[np.bool_], cuts: Sequence[float]
) -> npt.NDArray[np.intp]:
    """Return targets by position and label, unknown last; shape (positions, classes + 1)."""
    n_classes = len(table.classes)
    fixed = np.bincount(codes_of(table.labels[~own], table.classes), minlength=n_classes + 1)
    counts = np.zeros((len(cuts), n_classes + 1), dtype=np.intp) + fixed
    nearest, scores = codes_of(table.nearest[own], table.classes), table.known_scores[own]
    rows = np.lexsort((scores, nearest))
    ends = np.searchsorted(nearest[rows], np.arange(n_classes + 1))
    for label, (start, stop) in enumerate(pairwise(ends)):
        below = np.searchsorted(scores[rows[start:stop]], cuts, "left")
        counts[:, label] += stop - start - below
        counts[:, -1] += below
    return counts


def refit_of(settings: Mapping[str, Any], run: Path) -> Refit:
    """Return the command that made a run, ready for another share and another folder."""
    command: list[str] = list(settings["command"] or ())
    if command[:2] == ["osda", "fit"]:
        return _refit(*_without(command, run))
    inputs = settings["inputs"].items()
    paths = [in_shell(given["path"]) if "path" in given else name.upper() for name, given in inputs]
    return _refit(" ".join(["osda fit", *paths[:2]]), str(run), is_whole=False)


def _without(command: Sequence[str], run: Path) -> tuple[str, str]:
    """Return the command without share, folder and --overwrite, quoted, and the folder."""
    kept, out, words = [], str(run), iter(command)
    for word in words:
        name, equals, value = word.partition("=")
        if name in _VALUED:
            value = value if equals else next(words, "")
            out = value if name == _OUT and value else out
        elif word not in _FLAGS:
            kept.append(word)
    return shlex.join(kept), out


def _refit(head: str, out: str, is_whole: bool = True) -> Refit:
    quoted = in_shell(f"{out.rstrip('/') or 'run'}-00")
    before, _, after = quoted.rpartition("00")
    return Refit(f"{head} {_SHARE} ", f" {_OUT} {before}", after, is_whole)
