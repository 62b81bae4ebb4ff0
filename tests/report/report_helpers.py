"""Reports that are made up: all parts, few or many classes, with and without truth and pictures."""

from __future__ import annotations

import base64
import dataclasses
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from opensetda.report import charts as style
from opensetda.report.content import (
    ClassGallery,
    Confusion,
    LabelCount,
    LinePanel,
    Openness,
    Refit,
    Report,
    Sample,
    SampleMap,
    ScoreHistogram,
    Series,
    UnknownGroup,
    WhatIf,
)
from opensetda.share.report import ShareSource

HOSTILE = (
    "<script>alert(1)</script>",
    "\"quoted' & </script><img src=x onerror=alert(1)>",
    "two\nlines <!-- and a comment",
    "مجلد طويل \u202e للصور",
    "long-" * 40,
)
KNOWN = ("back_pack", "bike", "calculator", "headphones", "keyboard", "laptop", "monitor", "mug")
NEW = ("pen", "phone", "printer", "ruler")


def picture(kind: int) -> str:
    """Return a little image of one colour."""
    buffer = io.BytesIO()
    color = tuple(np.random.default_rng(kind).integers(256, size=3).tolist())
    Image.new("RGB", (24, 24), color).save(buffer, format="JPEG")
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def make_map(
    known: Sequence[str],
    new: Sequence[str],
    *,
    n_source: int = 160,
    n_target: int = 300,
    pictures: bool = True,
    truth: bool = True,
    names: Sequence[str] = (),
) -> SampleMap:
    """Return one cloud per class; some targets have a wrong label."""
    rng = np.random.default_rng(0)
    n_known, n_kinds, n = len(known), len(known) + len(new), n_source + n_target
    is_target = np.arange(n) >= n_source
    kinds = rng.integers(np.where(is_target, n_kinds, n_known))
    angles = 2 * np.pi * np.arange(n_kinds) / n_kinds
    # Known classes outside, new ones inside.
    radius = np.where(np.arange(n_kinds) < n_known, 0.38, 0.16)
    centres = 0.5 + radius[:, None] * np.column_stack([np.cos(angles), np.sin(angles)])
    wrong = is_target & (rng.random(n) < 0.15)
    labels = np.where(wrong, rng.integers(n_known + 1, size=n), np.minimum(kinds, n_known))
    files = [f"webcam/images/frame_{row:04d}.jpg" for row in range(n)]
    files[n_source : n_source + len(names)] = names
    shown = [picture(kind) if pictures else None for kind in range(n_kinds)]
    return SampleMap(
        classes=tuple(known),
        true_classes=(*known, *new) if truth else (),
        places=np.clip(centres[kinds] + 0.04 * rng.normal(size=(n, 2)), 0, 1),
        is_target=is_target,
        labels=labels,
        confidence=np.where(is_target, rng.beta(5, 1.6, size=n), 1.0),
        truth=kinds if truth else None,
        names=tuple(files),
        pictures=tuple(shown[kind] for kind in kinds.tolist()),
        n_source=n_source * 20,
        n_target=n_target * 20,
    )


def make_samples(
    label: str, others: Sequence[str], count: int, pictures: bool, truth: bool, names: Sequence[str]
) -> tuple[Sample, ...]:
    """Return targets that got one label, of which every second is wrong."""
    return tuple(
        Sample(
            row=row,
            name=names[row] if row < len(names) else f"webcam/{label}/frame_{row:04d}.jpg",
            label=label,
            nearest=others[row % len(others)],
            confidence=0.995 - 0.05 * row,
            p_unknown=0.5 + (0.03 * row if row % 2 else -0.03 * row) / 2,
            truth=(others[(row + 1) % len(others)] if row % 2 else label) if truth else None,
            picture=picture(row) if pictures else None,
        )
        for row in range(count)
    )


def make_report(
    *,
    known: Sequence[str] = KNOWN,
    new: Sequence[str] = NEW,
    truth: bool = True,
    pictures: bool = True,
    names: Sequence[str] = (),
    **map_options: Any,
) -> Report:
    """Return a report with every part in it.

    `names` are the first file names, wherever there are file names.
    """
    rng = np.random.default_rng(1)
    sizes = sorted(rng.integers(20, 700, size=len(known)).tolist(), reverse=True)
    n_unknown = round(0.58 * sum(sizes))
    n_target = sum(sizes) + n_unknown
    labels = dict(zip((*known, "unknown"), (*sizes, n_unknown), strict=True))
    edges, is_known = np.linspace(0, 1, 41), np.arange(40) > 20
    total = rng.poisson(n_target / 40, size=40)
    matrix = rng.poisson(9, size=(len(known) + len(new), len(known) + 1))

    def samples(label: str, count: int) -> tuple[Sample, ...]:
        return make_samples(label, known, count, pictures, truth, names)

    metrics = {"HOS": 0.844, "OS*": 0.909, "UNK": 0.788, "OS": 0.891, "ALL": 0.85, "AUROC": 0.941}
    loss = Series("edge", {1.0: 0.8, 2.0: 0.3}, style.BLUE, "o")
    return Report(
        title="webcam labelled by moving-means",
        noun="image",
        headline=f"{n_unknown:,} of {n_target:,} images fit none of {len(known)} known labels.",
        how=("Labelled by moving-means. Class means that move.", "Columns: as ranks."),
        n_target=n_target,
        counts=tuple(LabelCount(name, n, n / n_target, 0.71) for name, n in labels.items()),
        openness=Openness(
            share=0.369,
            low=0.31,
            high=0.43,
            source=ShareSource.ESTIMATED,
            sentence="estimated from the scores",
            true=0.331 if truth else None,
            looked_at=((0.41, "score so"), (0.34, "score otherwise"), (0.39, "fit worse")),
        ),
        warnings=("3 images could not be read and are not in this report.",),
        metrics=metrics if truth else None,
        panels=(LinePanel("What it learns: losses", "mean", (loss,)),),
        map=make_map(known, new, pictures=pictures, truth=truth, names=names, **map_options),
        histogram=ScoreHistogram(edges, total * is_known, total * ~is_known, float(edges[21])),
        what_if=make_what_if(n_target, sizes, n_unknown, map_options.get("n_target", 300)),
        refit=Refit("osda fit amazon webcam --openness ", " --out run-", "", True),
        confusion=(
            Confusion((*known, *new), (*known, "unknown"), matrix, len(known)) if truth else None
        ),
        galleries=tuple(
            ClassGallery(label, size, samples(label, 6), samples(label, 6)[::-1])
            for label, size in labels.items()
        ),
        groups=tuple(
            UnknownGroup(50, tuple(known[:2]), ((name, 9),) if truth else (), samples("unknown", 8))
            for name in new
        ),
        groups_note="All unknowns, put into groups of samples that look alike.",
        border=(*samples("unknown", 6), *samples(known[0], 6)),
        facts={
            "Command": {"command": "osda fit amazon webcam --out run --labels webcam.csv"},
            "Settings": {"method": "moving-means", "seed": "0"},
        },
        run="run",
    )


def make_what_if(n_target: int, sizes: Sequence[int], n_unknown: int, shown: int) -> WhatIf:
    """Return labels by share; every class loses the same part of its targets."""
    used = n_unknown / n_target
    shares = sorted([used, *(percent / 100 for percent in range(100))])
    left = np.array([round((1 - share) * n_target) for share in shares])
    counts = left[:, None] * np.array(sizes)[None] // (n_target - n_unknown)
    return WhatIf(
        shares=tuple(shares),
        cuts=tuple(np.linspace(0.1, 0.95, len(shares)).tolist()),
        used=shares.index(used),
        counts=np.column_stack([counts, n_target - counts.sum(axis=1)]),
        order=np.random.default_rng(5).permutation(shown),
        nearest=np.arange(shown) % len(sizes),
        below=tuple(round(share * shown) for share in shares),
    )


def hostile_report() -> Report:
    """Return a report whose names try to be more than names."""
    return dataclasses.replace(
        make_report(known=HOSTILE, names=HOSTILE),
        title=HOSTILE[0],
        headline=f"All of {HOSTILE[1]}",
        how=HOSTILE[:1],
        warnings=HOSTILE,
        run=HOSTILE[1],
        groups_note=HOSTILE[0],
        facts={HOSTILE[0]: {HOSTILE[1]: HOSTILE[0]}, "Command": {"command": HOSTILE[1]}},
    )


def empty_report() -> Report:
    """Return a report of a method without steps, on rows without truth or pictures."""
    report = make_report(truth=False, pictures=False)
    return dataclasses.replace(
        report, warnings=(), panels=(), galleries=(), groups=(), border=(), facts={}
    )
