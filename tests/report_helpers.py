"""Reports that are made up: all parts, few or many classes, with and without truth and pictures."""

from __future__ import annotations

import base64
import dataclasses
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

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
from opensetda.runs import figure_style as style

HOSTILE = (
    "<script>alert(1)</script>",
    "\"quoted' & </script><img src=x onerror=alert(1)>",
    "two\nlines <!-- and a comment",
    "مجلد طويل \u202e للصور",
    "long-" * 40,
)
KNOWN = ("back_pack", "bike", "calculator", "headphones", "keyboard", "laptop", "monitor", "mug")
NEW = ("pen", "phone", "printer", "ruler")


def picture(kind: int, seed: int = 0) -> str:
    """Return a little image of a shape; kinds differ by colour and form."""
    rng = np.random.default_rng([kind, seed])
    tone = tuple(int(value) for value in rng.integers(190, 245, 3))
    image = Image.new("RGB", (48, 48), tone)
    draw = ImageDraw.Draw(image)
    colors = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7B3F00")
    x, y, size = (int(value) for value in rng.integers((4, 4, 20), (14, 14, 30)))
    box = (x, y, x + size, y + size)
    color = colors[kind % len(colors)]
    if kind % 3 == 0:
        draw.ellipse(box, fill=color)
    elif kind % 3 == 1:
        draw.rectangle(box, fill=color)
    else:
        draw.polygon([(x, y + size), (x + size // 2, y), (x + size, y + size)], fill=color)
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=70)
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
    seed: int = 0,
) -> SampleMap:
    """Return one cloud per class."""
    rng = np.random.default_rng(seed)
    n_classes, n = len(known), n_source + n_target
    kinds = np.concatenate(
        [
            rng.integers(n_classes, size=n_source),
            rng.integers(n_classes + len(new), size=n_target),
        ]
    )
    angles = np.linspace(0, 2 * np.pi, n_classes + len(new), endpoint=False)
    # Known classes outside, new ones inside.
    radius = np.where(np.arange(len(angles)) < n_classes, 0.38, 0.16)
    centres = 0.5 + radius[:, None] * np.column_stack([np.cos(angles), np.sin(angles)])
    labels = np.minimum(kinds, n_classes)
    wrong = rng.random(n) < 0.15
    wrong[:n_source] = False
    labels[wrong] = rng.integers(n_classes + 1, size=int(wrong.sum()))
    confidence = np.clip(rng.beta(5, 1.6, size=n), 0, 1)
    confidence[:n_source] = 1
    file_names = [f"webcam/images/frame_{row:04d}.jpg" for row in range(n)]
    file_names[n_source : n_source + len(names)] = names
    return SampleMap(
        classes=tuple(known),
        true_classes=(*known, *new) if truth else (),
        places=np.clip(centres[kinds] + 0.04 * rng.normal(size=(n, 2)), 0, 1),
        is_target=np.arange(n) >= n_source,
        labels=labels,
        confidence=confidence,
        truth=kinds if truth else None,
        names=tuple(file_names),
        pictures=tuple(
            picture(int(kind), row % 40) if pictures and row % 9 else None
            for row, kind in enumerate(kinds)
        ),
        n_source=n_source * 20,
        n_target=n_target * 20,
    )


def make_samples(
    label: str,
    others: Sequence[str],
    count: int,
    *,
    sure: bool,
    pictures: bool,
    truth: bool,
    names: Sequence[str] = (),
    seed: int = 0,
) -> tuple[Sample, ...]:
    """Return targets that got one label."""
    rng = np.random.default_rng(seed)
    made = []
    for row in range(count):
        confidence = 0.995 - 0.004 * row if sure else 0.31 + 0.02 * row
        right = sure or rng.random() < 0.5
        made.append(
            Sample(
                row=row,
                name=names[row] if row < len(names) else f"webcam/{label}/frame_{row:04d}.jpg",
                label=label,
                nearest=others[row % len(others)],
                confidence=confidence,
                p_unknown=0.5 + (0.03 * row if row % 2 else -0.03 * row) / 2,
                truth=(label if right else others[(row + 1) % len(others)]) if truth else None,
                picture=picture(seed, row) if pictures else None,
            )
        )
    return tuple(made)


def make_panels(n_steps: int) -> tuple[LinePanel, ...]:
    steps = range(1, n_steps + 1)

    def curve(start: float, end: float, bend: float = 3.0) -> dict[int, float]:
        part = {step: (step - 1) / max(n_steps - 1, 1) for step in steps}
        return {step: end - (end - start) * float(np.exp(-bend * part[step])) for step in steps}

    far = (
        Series("known", curve(300, 4200, 1), style.BLUE, "o"),
        Series("unknown", curve(120, 2100, 1), style.ORANGE, "s"),
    )
    changed = Series("changed", curve(31, 0.6), style.BLUE, "o")
    return (
        LinePanel("How far: pseudo-labels", "step", "targets", far),
        LinePanel(
            "How settled: labels that changed", "step", "% of targets", (changed,), percent=True
        ),
    )


def make_report(
    *,
    known: Sequence[str] = KNOWN,
    new: Sequence[str] = NEW,
    truth: bool = True,
    pictures: bool = True,
    names: Sequence[str] = (),
    n_steps: int = 10,
    **map_options: Any,
) -> Report:
    """Return a report with every part in it.

    `names` are the first file names, wherever there are file names.
    """
    rng = np.random.default_rng(1)
    sizes = sorted(rng.integers(20, 700, size=len(known)).tolist(), reverse=True)
    n_unknown = round(0.58 * sum(sizes))
    n_target = sum(sizes) + n_unknown
    counts = [
        LabelCount(name, size, size / n_target, float(rng.uniform(0.6, 0.97)))
        for name, size in zip(known, sizes, strict=True)
    ]
    counts.append(LabelCount("unknown", n_unknown, n_unknown / n_target, 0.71, is_unknown=True))
    edges = np.linspace(0, 1, 41)
    centres = (edges[:-1] + edges[1:]) / 2
    bell = 320 * np.exp(-(((centres - 0.78) / 0.13) ** 2))
    other = 210 * np.exp(-(((centres - 0.31) / 0.12) ** 2))
    rejected = centres < 0.52
    total = np.rint(bell + other).astype(np.intp)
    matrix = rng.poisson(1.2, size=(len(known) + len(new), len(known) + 1))
    for row in range(len(matrix)):
        matrix[row, min(row, len(known))] = rng.integers(40, 160)
    options = {"pictures": pictures, "truth": truth, "names": names}
    samples_options: dict[str, Any] = options
    galleries = [
        ClassGallery(
            label,
            size,
            make_samples(label, known, 6, sure=True, seed=seed, **samples_options),
            make_samples(label, known, 6, sure=False, seed=seed, **samples_options),
        )
        for seed, (label, size) in enumerate(
            zip((*known, "unknown"), (*sizes, n_unknown), strict=True)
        )
    ]
    groups = [
        UnknownGroup(
            number + 1,
            410 - 83 * number,
            tuple(known[number : number + 2]),
            ((name, 260 - 50 * number), (new[0], 12)) if truth else (),
            make_samples("unknown", known, 8, sure=True, seed=40 + number, **samples_options),
        )
        for number, name in enumerate(new[:4])
    ]
    return Report(
        title="webcam labelled by moving-means",
        noun="image",
        headline=(
            f"{n_target - n_unknown:,} of {n_target:,} images got one of {len(known)} known "
            f"labels; {n_unknown:,} fit none of them and are unknown."
        ),
        how=("Labelled by moving-means: nothing is trained.", "Columns: as ranks."),
        n_source=2817,
        n_target=n_target,
        counts=tuple(counts),
        openness=Openness(
            0.369,
            0.31,
            0.43,
            kind="estimated",
            sentence="Estimated without labels, from how the known scores fall into two groups.",
            true=0.331 if truth else None,
            looked_at=((0.41, "score so"), (0.34, "score otherwise"), (0.39, "fit worse")),
        ),
        warnings=(
            "The source has only 12 samples of the class mug: its labels are less certain.",
            "3 images could not be read and are not in this report.",
        ),
        metrics=(
            {"HOS": 0.844, "OS*": 0.909, "UNK": 0.788, "OS": 0.891, "ALL": 0.85, "AUROC": 0.941}
            if truth
            else None
        ),
        panels=make_panels(n_steps),
        map=make_map(known, new, **{**options, **map_options}),
        histogram=ScoreHistogram(edges, total * ~rejected, total * rejected, 0.52),
        what_if=make_what_if(n_target, len(known), sizes, n_unknown, map_options),
        refit=Refit("osda fit amazon webcam --openness ", " --out run-", "", True),
        confusion=(
            Confusion((*known, *new), (*known, "unknown"), matrix, len(known)) if truth else None
        ),
        galleries=tuple(galleries),
        groups=tuple(groups),
        groups_note="All unknowns, put into 4 groups of samples that look alike.",
        border=make_samples("unknown", known, 6, sure=False, seed=7, **samples_options)
        + make_samples(known[0], known, 6, sure=False, seed=9, **options),
        facts={
            "Command": {"": "osda fit amazon webcam --out run --labels webcam.csv"},
            "Settings": {"method": "moving-means", "steps": str(n_steps), "seed": "0"},
            "Environment": {"machine": "x86_64, 2 cores", "Python": "3.11.7"},
            "Time and memory": {"fitting and labelling": "21.4 s", "peak memory": "812 MB"},
        },
        run="run",
    )


def make_what_if(
    n_target: int, n_classes: int, sizes: Sequence[int], n_unknown: int, options: dict[str, Any]
) -> WhatIf:
    """Return labels by share; every class loses the same part of its targets."""
    shares = sorted([n_unknown / n_target, *(percent / 100 for percent in range(100))])
    used = shares.index(n_unknown / n_target)
    known = n_target - n_unknown
    counts = np.zeros((len(shares), n_classes + 1), dtype=np.intp)
    for place, share in enumerate(shares):
        left = n_target - round(share * n_target)
        counts[place, :-1] = sizes if place == used else np.array(sizes) * left // known
        counts[place, -1] = n_target - counts[place].sum()
    shown = options.get("n_target", 300)
    return WhatIf(
        shares=tuple(shares),
        cuts=tuple(np.linspace(0.1, 0.95, len(shares)).tolist()),
        used=used,
        counts=counts,
        order=np.random.default_rng(5).permutation(shown),
        nearest=np.arange(shown) % n_classes,
        below=tuple(round(share * shown) for share in shares),
    )


def hostile_report(**options: Any) -> Report:
    """Return a report whose names try to be more than names."""
    report = make_report(known=HOSTILE, names=HOSTILE, **options)
    return dataclasses.replace(
        report,
        title=HOSTILE[0],
        headline=f"All of {HOSTILE[1]}",
        how=HOSTILE[:1],
        warnings=HOSTILE,
        run=HOSTILE[1],
        groups_note=HOSTILE[0],
        facts={HOSTILE[0]: {HOSTILE[1]: HOSTILE[0]}, "Command": {"": HOSTILE[1]}},
    )


def empty_report() -> Report:
    """Return a report of a method without steps, on rows without truth or pictures."""
    report = make_report(truth=False, pictures=False)
    return dataclasses.replace(
        report, warnings=(), panels=(), galleries=(), groups=(), border=(), facts={}
    )
