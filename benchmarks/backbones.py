"""Backbones side by side: HOS with the same methods, and seconds per image.

    python benchmarks/backbones.py features        # into the cache; continues where it was
    python benchmarks/backbones.py quality         # methods on what is missing in the figures
    python benchmarks/backbones.py marked          # the committee, at most 800 rows of a domain,
                                                   # without marks and with 30 (benchmarks/marks.py)
    python benchmarks/backbones.py speed           # images per second, in turns
    python benchmarks/backbones.py show --write    # the table, into docs/images.md and choose.md

Office-31 is measured whole, with the classes of the benchmark. PACS are its images at 160 pixels,
4 known and 3 unknown classes; of each class every `--take`-th image (by default every second). Rows
that benchmarks/figures/backbones.csv has are not measured again.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from images import JUDGED, OFFICE31, OTHERS, PACS_IMAGES, PACS_KNOWN, sample_paths
from marks import Task, _asked, _line, groups_of
from marks import _fitted as fitted_task
from opensetda.backbones.extraction import Extractor, FeatureCache, extract
from opensetda.backbones.registry import resolve
from opensetda.benchmark.grid import OK, grid_cells, run_grid
from opensetda.benchmark.tasks import TaskSet, find_tasks, own_task
from opensetda.benchmark.variants import make_variants
from opensetda.data.images.loading import read_images
from opensetda.runs.options import ImageOptions
from published import append, fill, markdown

FOLDER = Path(__file__).resolve().parent
FIGURES = FOLDER / "figures" / "backbones.csv"
PAGES = (FOLDER.parent / "docs" / "images.md", FOLDER.parent / "docs" / "choose.md")
SUITES = {"office31": "Office-31", "pacs": "PACS, 160 pixels"}
COMPARED = ("efficientnet-lite0", "efficientnet-lite2")
METHODS = ("committee", "moving-means")
OPENNESS = {"true": "oracle openness", "auto": "estimated openness"}
MARKED = {"0": "no marks", "30": "30 marks"}
MOST_ROWS = 800
PACS_TASKS = {**JUDGED, **OTHERS}
COLUMNS = (
    *("suite", "task", "take", "backbone", "method", "openness"),
    *("hos", "os_star", "unk", "share", "true_share", "seconds"),
)
Row = dict[str, str]


def compute_features(options: argparse.Namespace) -> None:
    """Put the features of all images into the cache."""
    folders = [options.office31, linked(options.pacs, options.take, options.results)]
    for name in options.backbones:
        recipe = resolve(name)
        for folder in folders:
            for domain in sorted(path for path in folder.iterdir() if path.is_dir()):
                images = read_images(domain)
                with FeatureCache(options.cache, recipe.key, recipe.width) as cache:
                    found = extract(recipe, images.ids.tolist(), list(images.paths), cache)
                print(f"{name} {domain.name}: {len(found.X)} in {found.seconds:.0f} s", flush=True)


def linked(images: Path, take: int, results: Path) -> Path:
    """Return a folder with links to every `take`-th image of each class of each domain."""
    made = results / f"pacs-{take}"
    for label in images.glob("*/*"):
        folder = made / label.relative_to(images)
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(label.iterdir())[::take]:
            link = folder / path.name
            if not link.exists():
                link.symlink_to(path.resolve())
    return made


def task_sets(suite: str, backbone: str, options: argparse.Namespace) -> Iterator[TaskSet]:
    """Yield the tasks of a suite, as features of a backbone."""
    images = ImageOptions(backbone=backbone, cache=str(options.cache))
    if suite == "office31":
        yield find_tasks("office31", options.office31, images=images)
        return
    folder = linked(options.pacs, options.take, options.results)
    for name, (source, target) in PACS_TASKS.items():
        if not options.tasks or name in options.tasks:
            yield own_task(folder / source, folder / target, images=images, known=PACS_KNOWN)


def measure_quality(options: argparse.Namespace) -> None:
    """Run the methods where no figure is there yet."""
    variants = make_variants(options.methods)
    takes = {"office31": "1", "pacs": str(options.take)}
    for suite in options.suites:
        for backbone in options.backbones:
            for tasks in task_sets(suite, backbone, options):
                for openness in options.openness:
                    where = {"suite": suite, "take": takes[suite], "backbone": backbone}
                    done = {
                        (row["task"], row["method"])
                        for row in read_figures()
                        if where.items() <= row.items() and row["openness"] == openness
                    }
                    cells = [
                        cell
                        for cell in grid_cells(variants, tasks.tasks, [openness], [0])
                        if (cell.task, cell.variant.label) not in done
                    ]
                    out = options.results / backbone / f"{suite}-{tasks.name}"
                    rows = run_grid(tasks, cells, out, 1, _tell)
                    found = [where | _figures(row) for row in rows if row["status"] == OK]
                    append(FIGURES, COLUMNS, found)


def measure_marked(options: argparse.Namespace) -> None:
    """Fit the committee where no figure is there yet, and mark 30 targets of each task."""
    for suite in options.suites:
        for backbone in options.backbones:
            where = {"suite": suite, "take": f"{MOST_ROWS} rows", "backbone": backbone}
            done = {row["task"] for row in read_figures() if where.items() <= row.items()}
            for tasks in task_sets(suite, backbone, options):
                for name in [name for name in tasks.tasks if name not in done]:
                    task = fitted_task(tasks.read(name), name, MOST_ROWS)
                    lines = [nothing_marked(task), *useful_marks(task, suite)]
                    found = [
                        {**where, "task": name, "method": "committee", "openness": MARKED[count]}
                        | {"hos": f"{float(line['hos']) / 100:.4f}"}
                        for line in lines
                        if (count := line["marks"]) in MARKED
                    ]
                    append(FIGURES, COLUMNS, found)
                    print(backbone, name, [row["hos"] for row in found], flush=True)


def useful_marks(task: Task, suite: str) -> list[Row]:
    """Return the figures of marks that the review asks for."""
    groups = groups_of(task, "pacs" if suite == "pacs" else "office31-lite0")
    return _asked(task, groups, "useful", 0)


def nothing_marked(task: Task) -> Row:
    """Return the figures of the committee alone."""
    return _line("none", 0, 0, task, task.votes.argmax(axis=1))


def _tell(done: int, total: int, row: dict[str, Any] | None) -> None:
    if row is not None:
        what = row["error"] or f"HOS {100 * row['hos']:.1f} in {row['seconds']:.0f} s"
        print(f"{done}/{total}: {row['method']} {row['task']} {row['openness']} {what}", flush=True)


def _figures(row: dict[str, Any]) -> Row:
    own = {name: row[name] for name in ("task", "method", "openness")}
    numbers = ("hos", "os_star", "unk", "share", "true_share", "seconds")
    return own | {name: f"{row[name]:.4f}" for name in numbers}


def read_figures() -> list[Row]:
    """Return all rows measured so far."""
    if not FIGURES.exists():
        return []
    with FIGURES.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def measure_speed(options: argparse.Namespace) -> None:
    """Print the seconds per image of each backbone, from files, without the time to load it."""
    paths = sample_paths(options.office31 / "webcam", options.images)
    extractors = {name: Extractor(resolve(name)) for name in options.backbones}
    seconds: dict[str, list[float]] = {name: [] for name in extractors}
    for extractor in extractors.values():
        extractor.features(paths[:4])  # builds the engine
    for _ in range(options.rounds):
        for name, extractor in extractors.items():
            started = time.perf_counter()
            extractor.features(paths)
            seconds[name].append((time.perf_counter() - started) / len(paths))
    first = next(iter(seconds))
    for name, own in seconds.items():
        ratios = [mine / other for mine, other in zip(own, seconds[first], strict=True)]
        print(
            f"{name}: {1000 * statistics.median(own):.0f} ms per image, "
            f"{statistics.median(ratios):.2f} times {first}"
        )


def tables(rows: Sequence[Row]) -> str:
    """Return the mean HOS in % of each backbone over tasks, in Markdown."""
    found: dict[tuple[str, ...], dict[str, dict[str, float]]] = {}
    for row in rows:
        group = row["suite"], row["take"], row["method"], row["openness"]
        own = found.setdefault(group, {}).setdefault(row["backbone"], {})
        own[row["task"]] = 100 * float(row["hos"])
    names = list(dict.fromkeys(row["backbone"] for row in rows))
    lines = []
    for (suite, take, method, openness), own in sorted(found.items()):
        tasks = set(own.get(names[0], {}))
        if any(set(own.get(name, {})) != tasks for name in names):
            continue  # not finished
        means = [fmean(own[name][task] for task in tasks) for name in names]
        worst = min(own[names[-1]][task] - own[names[0]][task] for task in tasks)
        told = OPENNESS.get(openness, openness)
        size = {"1": "whole"}.get(take, take if "rows" in take else f"1 of {take} images")
        texts = [f"{mean:.1f}" for mean in means]
        lines.append([SUITES[suite], method, told, size, str(len(tasks)), *texts, f"{worst:+.1f}"])
    return markdown(["images", "method", "", "size", "tasks", *names, "worst task"], lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure a part, and print its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("part", choices=("features", "quality", "marked", "speed", "show"))
    add("--office31", type=Path, default=OFFICE31, help="images of Office-31")
    add("--pacs", type=Path, default=PACS_IMAGES, help="images of PACS")
    add("--take", type=int, default=2, help="of PACS: 2 is every second image of a class")
    add("--tasks", nargs="+", default=[], choices=PACS_TASKS, help="of PACS")
    add("--suites", nargs="+", default=["office31", "pacs"], choices=("office31", "pacs"))
    add("--backbones", nargs="+", default=list(COMPARED))
    add("--methods", nargs="+", default=list(METHODS))
    add("--openness", nargs="+", default=list(OPENNESS), choices=OPENNESS)
    add("--cache", type=Path, default=FOLDER / "results" / "cache")
    add("--results", type=Path, default=FOLDER / "results" / "backbones")
    add("--images", type=int, default=128, help="of 'speed'")
    add("--rounds", type=int, default=5, help="of 'speed'")
    add("--write", action="store_true", help="write the tables into docs/images.md")
    options = parser.parse_args(arguments)
    options.cache.mkdir(parents=True, exist_ok=True)
    parts = {
        "features": compute_features,
        "quality": measure_quality,
        "marked": measure_marked,
        "speed": measure_speed,
    }
    if options.part in parts:
        parts[options.part](options)
    if options.part in ("quality", "marked", "show"):
        text = tables(read_figures())
        print(text)
        for page in PAGES if options.write else ():
            content = fill(page.read_text(encoding="utf-8"), {"backbones": f"\n{text}"})
            page.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
