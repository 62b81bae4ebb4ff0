"""How the targets would be labelled if another share of them were unknown.

The threshold on the known score moves, and nothing else: the scores are those of the run.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from opensetda.openness.mixtures import rejection_cut
from opensetda.report.content import Indices, Refit, WhatIf
from opensetda.report.run_parts import codes_of, cut_of, own_labels
from opensetda.runs.predictions import PredictionTable
from opensetda.system.files import in_shell

# Closer to the share of the run than this, a whole percentage has no position of its own.
_CLOSE = 0.0025
# What another fit has otherwise: options with a value, and one without.
_REPLACED, _OVERWRITE = ("--openness", "--unknown-share", "--out"), "--overwrite"


def what_if(table: PredictionTable, unknown: str, shown: Indices) -> WhatIf:
    """Return the labels at every whole percentage, and at the share of the run.

    `shown` are the target rows of the map: the samples nearest to a threshold are among them.
    """
    scores, cut, own = table.known_scores, cut_of(table, unknown), own_labels(table)
    used = 0.0 if cut is None else float((scores < cut).mean())
    whole = (percent / 100 for percent in range(100))
    shares = sorted([used, *(share for share in whole if abs(share - used) >= _CLOSE)])
    ordered, place = np.sort(scores), shares.index(used)
    cuts = [rejection_cut(ordered, share) for share in shares]
    if cut is not None:
        cuts[place] = cut
    n_labels = len(table.classes) + 1
    given, nearest = (codes_of(labels, table.classes) for labels in (table.labels, table.nearest))
    # Corrected labels do not depend on the threshold.
    moved = (np.where(own, np.where(scores < at, n_labels - 1, nearest), given) for at in cuts)
    counts = np.stack([np.bincount(labels, minlength=n_labels) for labels in moved])
    counts[place] = np.bincount(given, minlength=n_labels)
    theirs = np.flatnonzero(own[shown])
    theirs = theirs[np.argsort(scores[shown[theirs]], kind="stable")]
    return WhatIf(
        shares=tuple(shares),
        cuts=tuple(cuts),
        used=place,
        counts=counts,
        order=theirs,
        nearest=nearest[shown[theirs]],
        below=tuple(np.searchsorted(scores[shown[theirs]], cuts, "left").tolist()),
    )


def refit_of(settings: Mapping[str, Any], run: Path) -> Refit:
    """Return the command that made a run, ready for another share and another folder."""
    command, out = list(settings["command"] or ()), str(run)
    is_whole = command[:2] == ["osda", "fit"]
    if is_whole:
        kept, words = [], iter(command)
        for word in words:
            name, equals, value = word.partition("=")
            if name in _REPLACED:
                value = value if equals else next(words, "")
                out = value if name == "--out" and value else out
            elif word != _OVERWRITE:
                kept.append(word)
        head = shlex.join(kept)
    else:
        given = list(settings["inputs"].items())[:2]
        paths = [in_shell(of["path"]) if "path" in of else name.upper() for name, of in given]
        head = " ".join(["osda fit", *paths])
    before, _, after = in_shell(f"{out.rstrip('/') or 'run'}-00").rpartition("00")
    return Refit(f"{head} --openness ", f" --out {before}", after, is_whole)
