"""Runs that follow their target: adapt without the source, chains, drift, time.

    python benchmarks/adapting.py drift adapt chain      # an hour; an interrupted call goes on
    python benchmarks/adapting.py time --images FOLDER   # 1,000 images, 10^6 rows
    python benchmarks/adapting.py --show --write         # tables, into docs/adapting.md

Nothing is told. Targets have up to 800 rows, sources up to 1,600; six tasks of each suite of
`benchmarks/suites.py`, the first ones. Figures are kept in figures/adapting.csv.

drift   a run is fitted (moving-means) to half of a domain; 200 rows of the other half, of another
        domain, and of the other half with a tenth of an unknown class that the run never saw
adapt   HOS of a fit with the source, and of `adapt` from a run on another target, by what it kept
chain   the last target of a chain: step by step, from the first run, and fitted with the source
source-free   SF-PGL from a run of pgl on another target, and from one on source rows held out (the
        weights know the source alone), beside pgl with the source and from rows that were kept
"""

from __future__ import annotations

import argparse
import csv
import resource
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from opensetda.benchmark.tasks import TaskSet
from opensetda.metrics.open_set import evaluate
from opensetda.usecases import Drift, FittedRun, ImageOptions, adapt, drift, fit
from published import fill, markdown
from suites import DATA, SUITES, find_suite

FOLDER = Path(__file__).resolve().parent
FIGURES = FOLDER / "figures" / "adapting.csv"
PAGE = FOLDER.parent / "docs" / "adapting.md"
COLUMNS = ("part", "suite", "task", "method", "how", "value")
TASKS, TARGETS, SOURCES, LATER = 6, 800, 1600, 200
METHODS = ("committee", "moving-means")
GAS = ["batch1", "batch3", "batch4", "batch5", "batch6", "batch8", "batch9"]
# Source and targets of chains.
CHAINS = {
    "office31-lite0": ["amazon", "webcam", "dslr"],
    "office31-resnet50": ["amazon", "webcam", "dslr"],
    "gas": GAS,
}
# What is changed of the preset sf-pgl.
CHANGES: dict[str, dict[str, float]] = {
    "sf-pgl": {},
    "sf-pgl, eta .02": {"entropy_weight": 0.02},
    "sf-pgl, rates x 10": {"graph_rate": 5e-4, "backbone_rate": 1e-4},
}
SOURCE_FREE = ("source", "rows", *CHANGES, "sf-pgl from the source")
Key = tuple[str, str, str, str, str]


class Figures:
    """Figures by part, suite, task, method and how; each is kept as soon as it is measured."""

    def __init__(self, path: Path = FIGURES) -> None:
        self.path = path
        self.values: dict[Key, float] = {}
        if path.is_file():
            with path.open(newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    self.values[_key(row)] = float(row["value"])

    def keep(self, value: float, *key: str) -> None:
        """Add a figure, and write all."""
        self.values[_key(dict(zip(COLUMNS[:-1], key, strict=True)))] = value
        print(*key, f"{value:.4f}", flush=True)
        self.path.parent.mkdir(exist_ok=True)
        with self.path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows((*own, f"{number:.4f}") for own, number in self.values.items())

    def __contains__(self, key: Key) -> bool:
        return key in self.values

    def mean(self, part: str, suite: str, method: str, how: str) -> float | None:
        """Return the mean over the tasks of a suite; None without any."""
        wanted = (part, suite, method, how)
        found = [v for k, v in self.values.items() if (k[0], k[1], k[3], k[4]) == wanted]
        return fmean(found) if found else None


def _key(row: dict[str, str]) -> Key:
    return row["part"], row["suite"], row["task"], row["method"], row["how"]


def drawn(count: int, most: int, seed: int) -> Any:
    """Return up to `most` row numbers, drawn at random."""
    return np.sort(np.random.default_rng(seed).permutation(count)[:most])


def hos(run: FittedRun, truth: Any) -> float:
    """Return the HOS of a run in percent."""
    folder = run.folder
    return 100 * evaluate(truth, folder.labels(), np.array(folder.settings["classes"])).hos


def fitted(task: Any, out: Path, **options: Any) -> FittedRun:
    """Fit to capped rows of a task."""
    rows = drawn(len(task.source_features), SOURCES, 0)
    source = task.source_features[rows], task.source_labels[rows]
    return fit(source, capped_target(task)[0], out, **options)


def capped_target(task: Any) -> tuple[Any, Any]:
    """Return capped rows of a target, and their true classes."""
    rows = drawn(len(task.target_features), TARGETS, 1)
    return task.target_features[rows], np.asarray(task.target_truth)[rows]


def measure_adapt(tasks: TaskSet, number: int, figures: Figures) -> None:
    """Compare `adapt` with a fit to the source, on one task of a suite."""
    name = tasks.tasks[number]
    task = tasks.read(name)
    # The run that is adapted is one on another target of the same source, if there is one.
    same_source = [one for one in tasks.tasks if one.split("-")[0] == name.split("-")[0]]
    earlier = tasks.read(next((one for one in same_source if one != name), name))
    X, truth = capped_target(task)
    with tempfile.TemporaryDirectory() as folder:
        bases: dict[str, FittedRun] = {}
        for method in METHODS:
            for how in ("source", "rows", "statistics"):
                key = ("adapt", tasks.name, name, method, how)
                if key in figures:
                    continue
                out = Path(folder) / f"{method}-{how}"
                if how == "source":
                    figures.keep(hos(fitted(task, out, method=method), truth), *key)
                    continue
                if how not in bases:
                    place = Path(folder) / how
                    bases[how] = fitted(earlier, place, method="class-means", keep_source=how)
                figures.keep(hos(adapt(bases[how], X, out, method=method), truth), *key)


def measure_drift(tasks: TaskSet, number: int, figures: Figures) -> None:
    """Measure alarms on the same target, on another domain, and on a new unknown class."""
    name = tasks.tasks[number]
    key = ("drift", tasks.name, name, "moving-means")
    if (*key, "done") in figures:
        return
    task = tasks.read(name)
    others = [one for one in tasks.tasks if one.split("-")[1] != name.split("-")[1]]
    X = task.target_features
    truth = np.asarray(task.target_truth)
    rng = np.random.default_rng(number)
    order = rng.permutation(len(X))
    half = len(order) // 2
    rows = drawn(len(task.source_features), TARGETS, 0)
    labelled = task.source_features[rows], task.source_labels[rows]
    found: dict[str, list[Drift]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        run = fit(labelled, X[order[:half][:TARGETS]], place / "run", method="moving-means")
        for _ in range(4):
            found["same"].append(drift(run, X[rng.permutation(order[half:])[:LATER]]))
        for other in others[:: max(len(others) // 2, 1)][:2]:
            later = tasks.read(other).target_features
            found["domain"].append(drift(run, later[rng.permutation(len(later))[:LATER]]))
        unknown = [one for one in task.split.unknown if (truth == one).any()]
        for new in rng.permutation(unknown)[:2]:
            known = order[truth[order] != new]
            half = len(known) // 2
            target = X[known[:half][:TARGETS]]
            run = fit(labelled, target, place / f"run-{new}", method="moving-means")
            most = min(LATER, len(known) - half)
            of_new = rng.permutation(np.flatnonzero(truth == new))[: most // 10]
            usual = known[half:][: most - len(of_new)]
            found["class"].append(drift(run, X[np.concatenate([usual, of_new])]))
    for what, drifts in found.items():
        figures.keep(100 * fmean(one.is_drift for one in drifts), *key, what)
        figures.keep(fmean(one.apart for one in drifts), *key, f"{what} apart")
        scores = fmean(one.p_scores is not None and one.p_scores <= 0.01 for one in drifts)
        figures.keep(100 * scores, *key, f"{what} by scores")
    figures.keep(1, *key, "done")


def measure_chain(tasks: TaskSet, figures: Figures) -> None:
    """Measure the last target of a chain, step by step, at once, and with the source."""
    names = CHAINS.get(tasks.name)
    if names is None:
        return
    first, *later = [tasks.read(f"{names[0]}-{name}") for name in names[1:]]
    X, truth = capped_target(later[-1])
    for method in METHODS:
        key = ("chain", tasks.name, "-".join(names), method)
        if (*key, "source") in figures:
            continue
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            run = base = fitted(first, place / "0", method=method)
            for step, task in enumerate(later, start=1):
                run = adapt(run, capped_target(task)[0], place / str(step))
            figures.keep(run.folder.chain[-1]["agreement"], *key, "agreement")
            figures.keep(hos(run, truth), *key, "chain")
            figures.keep(hos(adapt(base, X, place / "once"), truth), *key, "first run")
            figures.keep(
                hos(fitted(later[-1], place / "fit", method=method), truth), *key, "source"
            )


def measure_source_free(tasks: TaskSet, number: int, figures: Figures) -> None:
    """Compare SF-PGL with `pgl` from the source, and from rows that a run kept."""
    name = tasks.tasks[number]
    if not tasks.name.startswith("office31"):
        return
    task = tasks.read(name)
    same_source = [one for one in tasks.tasks if one.split("-")[0] == name.split("-")[0]]
    earlier = tasks.read(next(one for one in same_source if one != name))
    X, truth = capped_target(task)
    rows = drawn(len(task.source_features), SOURCES, 0)
    of_source = task.source_features[rows], task.source_labels[rows]

    def key(how: str) -> Key:
        return ("source-free", tasks.name, name, "pgl", how)

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        chained = ("sf-pgl", "rows", "sf-pgl, eta .02", "sf-pgl, rates x 10")
        if any(key(how) not in figures for how in chained):
            run = fitted(earlier, place / "run", method="pgl")
            for how in chained:
                if key(how) in figures:
                    continue
                options = {} if how == "rows" else {"preset": "sf-pgl", "settings": CHANGES[how]}
                adapted = adapt(run, X, place / how, **options)
                figures.keep(hos(adapted, truth), *key(how))
        if key("source") not in figures:
            figures.keep(hos(fitted(task, place / "fit", method="pgl"), truth), *key("source"))
        if key("sf-pgl from the source") not in figures:
            # Half of the source, unlabelled, is the target: no weight has seen another domain.
            half = np.random.default_rng(2).permutation(len(rows))
            target = of_source[0][half[: len(half) // 2]]
            left = half[len(half) // 2 :]
            run = fit(
                (of_source[0][left], np.asarray(of_source[1])[left]),
                target,
                place / "alone",
                method="pgl",
                openness=0.0,
            )
            adapted = adapt(run, X, place / "from-alone", preset="sf-pgl")
            figures.keep(hos(adapted, truth), *key("sf-pgl from the source"))


@contextmanager
def timed(figures: Figures, *key: str) -> Iterator[None]:
    """Keep the seconds that the block takes, on the clock and of the processors."""
    clock = time.perf_counter()
    processor = time.process_time()
    yield
    figures.keep(time.perf_counter() - clock, *key, "seconds")
    figures.keep(time.process_time() - processor, *key, "processor seconds")


def measure_rows(figures: Figures) -> None:
    """Measure seconds and memory of `drift` on a Parquet file of 10^6 rows."""
    rng = np.random.default_rng(0)
    centres = 4 * rng.normal(size=(5, 20))
    names = [f"f{number}" for number in range(20)]

    def part(count: int) -> tuple[Any, Any]:
        which = rng.integers(0, 5, count)
        X = (centres[which] + rng.normal(size=(count, 20))).astype(np.float32)
        return pa.table(dict(zip(names, X.T, strict=True))), which

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        source, which = part(1000)
        labels = pa.array(which.astype(str).tolist())
        kept = source.append_column("y", labels).filter(pa.array(which < 4))
        pyarrow.parquet.write_table(kept, place / "source.parquet")
        pyarrow.parquet.write_table(part(1000)[0], place / "target.parquet")
        run = fit(place / "source.parquet", place / "target.parquet", place / "run")
        many = place / "many.parquet"
        with pyarrow.parquet.ParquetWriter(many, part(1)[0].schema) as writer:
            for _ in range(100):
                writer.write_table(part(10_000)[0])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with timed(figures, "time", "rows", "10^6", "committee"):
            drift(run, many)
        more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        figures.keep(more, "time", "rows", "10^6", "committee", "megabytes more")


def measure_images(images: Path, figures: Figures) -> None:
    """Measure seconds of `adapt` on 1,000 images whose features are in the cache."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for domain in sorted(path for path in images.iterdir() if path.is_dir())[:2]:
            files = sorted(domain.rglob("*.jpg"))
            chosen = [files[row] for row in drawn(len(files), 1000, 0)]
            lines = "".join(f"{file} {file.parent.name}\n" for file in chosen)
            (place / f"{domain.name}.txt").write_text(lines)
        source, target = sorted(place.glob("*.txt"))
        # Small: the features come from the cache, and what is measured does not depend on them.
        options = ImageOptions(size=64, cache=str(place / "cache"))
        run = fit(source, target, place / "run", images=options)
        with timed(figures, "time", "images", "1000", "committee"):
            adapt(run, target, place / "adapted", images=ImageOptions(cache=str(place / "cache")))


def tables(figures: Figures) -> dict[str, str | None]:
    """Return the tables of the page in Markdown, by name."""
    found: dict[str, str | None] = {}
    lines = []
    for method in METHODS:
        for how in ("source", "rows", "statistics"):
            values = [figures.mean("adapt", suite, method, how) for suite in SUITES]
            lines.append([method, how, *map(_number, [*values, _mean(values)])])
    found["adapting-adapt"] = markdown(["method", "from", *SUITES, "mean"], lines)
    lines = []
    for what, title in (
        ("same", "the same target"),
        ("domain", "another domain"),
        ("class", "a tenth of an unknown class that is new"),
    ):
        values = [figures.mean("drift", suite, "moving-means", what) for suite in SUITES]
        lines.append([title, *map(_number, [*values, _mean(values)])])
    found["adapting-drift"] = markdown(["200 samples of", *SUITES, "mean"], lines)
    lines = []
    hows = ("chain", "first run", "source")
    for suite, names in CHAINS.items():
        for method in METHODS:
            keys = [("chain", suite, "-".join(names), method, how) for how in hows]
            values = [figures.values.get(key) for key in keys]
            lines.append([suite, " to ".join(names), method, *map(_number, values)])
    head = ["suite", "chain", "method", "step by step", "from the first run", "with the source"]
    found["adapting-chain"] = markdown(head, lines)
    keys = [key for key in figures.values if key[0] == "source-free"]
    lines = []
    for suite, task in dict.fromkeys((key[1], key[2]) for key in keys):
        own = [figures.values.get(("source-free", suite, task, "pgl", how)) for how in SOURCE_FREE]
        lines.append([suite, task, *map(_number, own)])
    if lines:
        found["adapting-source-free"] = markdown(["suite", "task", *SOURCE_FREE], lines)
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return fmean(there) if len(there) == len(values) else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def measure(options: argparse.Namespace, figures: Figures) -> None:
    """Measure the parts, the first task of every suite before the second."""
    sets: dict[str, TaskSet | None] = {}
    for part in options.parts:
        if part == "time":
            measure_rows(figures)
            if options.images is not None:
                measure_images(options.images, figures)
            continue
        for number in range(1 if part == "chain" else options.tasks):
            for suite in options.suites:
                if suite not in sets:
                    there = find_suite(suite, options.data)
                    sets[suite] = None if there is None else replace(there, name=suite)
                tasks = sets[suite]
                if tasks is None or number >= len(tasks.tasks):
                    continue
                if part == "chain":
                    measure_chain(tasks, figures)
                elif part == "adapt":
                    measure_adapt(tasks, number, figures)
                elif part == "source-free":
                    measure_source_free(tasks, number, figures)
                else:
                    measure_drift(tasks, number, figures)


def main() -> None:
    """Measure, show and write."""
    parser = argparse.ArgumentParser(description="Adapt, drift and chains, see the top of the file")
    parser.add_argument("parts", nargs="*", help="drift, adapt, chain, source-free, time")
    parser.add_argument("--suites", nargs="+", default=list(SUITES), choices=SUITES)
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--images", type=Path, help="a folder of domains, with a folder per class")
    parser.add_argument("--show", action="store_true", help="print the tables")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/adapting.md")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    figures = Figures()
    measure(options, figures)
    for name, text in tables(figures).items():
        if options.show:
            print(f"\n{name}\n\n{text}")
    if options.write:
        page = fill(PAGE.read_text(encoding="utf-8"), tables(figures))
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
