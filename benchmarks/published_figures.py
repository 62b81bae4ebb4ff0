"""The published figures of benchmarks/published/, and the arithmetic of UNK and HOS.

The figures are copied as printed, in percent, each with its source. UNK is often not printed,
but follows from OS and OS* (C known classes):

    OS = (C OS* + UNK) / (C + 1)     so     UNK = (C + 1) OS - C OS*
    HOS = 2 OS* UNK / (OS* + UNK)

Both are printed with one decimal, so UNK is known to (2 C + 1) / 20 only: 2.6 with 25 classes.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

DATA = Path(__file__).resolve().parent / "published"
HALF_DIGIT = 0.05
"""How far a figure printed with one decimal may be from the one that was measured."""
PAPER = "pgl"
OFFICE_31_TASKS = ("A-D", "A-W", "D-A", "D-W", "W-A", "W-D")
TITLES = {
    "office-31": "Office-31",
    "office-home": "Office-Home",
    "visda17": "VisDA-17",
    "syn2real-o": "Syn2Real-O",
}


@dataclass(frozen=True)
class Figure:
    """What a source prints of one method on one task, in percent; None where it prints nothing.

    The task is "mean" for an average over tasks, "all" where a benchmark has one task only.
    """

    table: str
    source: str
    method: str
    task: str
    known: int
    all: float | None
    os: float | None
    os_star: float | None
    unk: float | None
    hos: float | None

    @property
    def derived_unk(self) -> float | None:
        """UNK by OS and OS*."""
        if self.os is None or self.os_star is None:
            return None
        return unknown_accuracy(self.os, self.os_star, self.known)

    @property
    def possible_unk(self) -> float | None:
        """UNK as printed, else derived, an impossible one moved to the nearest possible."""
        unk = self.derived_unk if self.unk is None else self.unk
        return None if unk is None else min(max(unk, 0.0), 100.0)

    @property
    def derived_hos(self) -> float | None:
        """HOS by OS* and UNK."""
        if self.os_star is None or self.possible_unk is None:
            return None
        return harmonic_mean(self.os_star, self.possible_unk)


def unknown_accuracy(os: float, os_star: float, n_known: int) -> float:
    """Return UNK, the accuracy on unknowns, of the two figures that most papers print."""
    return (n_known + 1) * os - n_known * os_star


def unknown_rounding(n_known: int) -> float:
    """Return how far UNK may be off because OS and OS* are printed with one decimal."""
    return (2 * n_known + 1) * HALF_DIGIT


def harmonic_mean(os_star: float, unk: float) -> float:
    """Return HOS; 0 if both are 0."""
    total = os_star + unk
    return 2 * os_star * unk / total if total else 0.0


def read_rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Read a CSV file that must have these columns."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            sys.exit(f"error: {path}: no column {', '.join(missing)}; write it anew")
        return list(reader)


def read_figures() -> list[Figure]:
    """Read all figures, in the order of their sources."""
    metrics = ("all", "os", "os_star", "unk", "hos")
    names = ("table", "source", "method", "task")
    return [
        Figure(
            *(row[name] for name in names),
            int(row["known"]),
            *(float(row[name]) if row[name] else None for name in metrics),
        )
        for row in read_rows(DATA / "figures.csv", (*names, "known", *metrics))
    ]


def of(figures: Iterable[Figure], table: str, source: str | None = None) -> list[Figure]:
    """Return the figures of one table, of one source or of all."""
    return [f for f in figures if f.table == table and source in (None, f.source)]


def methods_of(figures: Iterable[Figure]) -> dict[tuple[str, str], list[Figure]]:
    """Group figures by source and method, in order."""
    grouped: dict[tuple[str, str], list[Figure]] = {}
    for figure in figures:
        grouped.setdefault((figure.source, figure.method), []).append(figure)
    return grouped


# What cannot be right ----------------------------------------------------------------------


def impossible(figures: Iterable[Figure]) -> list[Figure]:
    """Return the figures whose OS and OS* imply an UNK below 0 or above 100."""
    return [f for f in figures if f.derived_unk is not None and not 0 <= f.derived_unk <= 100]


def disagreements(figures: Sequence[Figure]) -> list[tuple[str, str, str, str]]:
    """Return what rounding does not explain: (source, where, what is printed, what follows)."""
    found = [
        (f.source, where(f), f"OS {f.os:.1f}, OS* {f.os_star:.1f}", f"UNK {f.derived_unk:.1f}")
        for f in impossible(figures)
    ]
    for f in figures:
        slack = unknown_rounding(f.known) + HALF_DIGIT
        if None not in (f.unk, f.derived_unk) and abs(f.unk - f.derived_unk) > slack:
            found.append((f.source, where(f), f"UNK {f.unk:.1f}", f"UNK {f.derived_unk:.1f}"))
    accuracies: dict[tuple[str, str], list[float]] = {}
    for row in read_rows(DATA / "classes.csv", ("table", "method", "class", "accuracy")):
        accuracies.setdefault((row["table"], row["method"]), []).append(float(row["accuracy"]))
    for f in figures:
        values = accuracies.get((f.table, f.method)) if f.source == PAPER else None
        if values and abs(fmean(values) - f.os_star) > 2 * HALF_DIGIT + 1e-9:
            says = f"OS* {fmean(values):.1f} by its classes"
            found.append((f.source, where(f), f"OS* {f.os_star:.1f}", says))
    for own in methods_of(figures).values():
        for table in TITLES:
            found += _wrong_means([f for f in own if f.table == table])
    return found


def _wrong_means(figures: Sequence[Figure]) -> list[tuple[str, str, str, str]]:
    found = []
    tasks = [f for f in figures if f.task != "mean"]
    for mean in (f for f in figures if f.task == "mean" and tasks):
        for name, title in (("os", "OS"), ("os_star", "OS*"), ("hos", "HOS")):
            printed, values = getattr(mean, name), [getattr(f, name) for f in tasks]
            if printed is None or None in values:
                continue
            if abs(fmean(values) - printed) > 2 * HALF_DIGIT + 1e-9:
                says = f"{title} {fmean(values):.1f} by its tasks"
                found.append((mean.source, where(mean), f"{title} {printed:.1f}", says))
    return found


def where(figure: Figure) -> str:
    """Name the place of a figure."""
    task = {"all": "", "mean": ", mean"}.get(figure.task, f", {figure.task}")
    return f"{TITLES.get(figure.table, figure.table)}, {figure.method}{task}"


# Tables ----------------------------------------------------------------------------------


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cell(value: float | None, digits: int = 1) -> str:
    """Return a number of a table, "-" if there is none."""
    return "-" if value is None else f"{value:.{digits}f}"
