"""PGL on feature rows: what a difference from the paper costs, and what learning adds.

    python benchmarks/pgl.py differences        # A-D and D-A of Office-31; docs/paper.md
    python benchmarks/pgl.py learning           # against its ranker alone; docs/pgl.md
    python benchmarks/pgl.py learning --suites office31-lite0 --seeds 3
    python benchmarks/pgl.py differences learning --show --write

`differences`: Lite0, oracle openness, one seed, networks narrower than the paper's (`NARROW`). OS,
OS* and UNK are by the paper's rule, HOS by ours, of the same scores.
`learning`: the preset "default" and `MovingMeans`, which ranks its targets, on the same rows, of
which no domain has more than ROWS. Columns are scaled as `SCALING` says for both. Finished
lines of figures/pgl.csv are not measured again.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch

from opensetda import MovingMeans, PGLClassifier
from opensetda.data.benchmarks.protocols import OpenSetTask
from opensetda.methods.base import OpenSetClassifier
from opensetda.metrics.open_set import evaluate
from opensetda.pgl.presets import AUTHORS_RATES
from opensetda.usecases.fit_rows import read_rows_of
from published import append, fill, markdown
from suites import DATA, OFFICE31, OPENNESS, SUITES, find_suite

FOLDER = Path(__file__).resolve().parent
FIGURES = FOLDER / "figures" / "pgl.csv"
DOCS = FOLDER.parent / "docs"
PAGES = {"differences": DOCS / "paper.md", "learning": DOCS / "pgl.md"}
NARROW = {"edge_width": 64, "node_width": 128}
DIFFERENCES: dict[str, dict[str, Any]] = {
    "paper, and the authors' code where it is silent": {},
    "4 epochs at every step": {"epochs_per_step": 0},
    "rates never halved": {"decay": 1.0},
    "halved every 4 epochs at every step": {"slower_decay": False},
    "the authors' rates": AUTHORS_RATES,
    "weights go on from step to step": {"fresh_start": False},
    "queries with their pseudo-labels (authors)": {"query_labels": True},
}
COMPARED = ("amazon-dslr", "dslr-amazon")
ROWS = 800
SCALING = dict.fromkeys((*OFFICE31, "pacs"), "none")
"""Images have columns of one unit; those of other suites are taken as ranks."""
COLUMNS = (
    *("study", "suite", "task", "run", "openness", "seed"),
    *("hos", "os_star", "unk", "paper_os", "paper_os_star", "paper_unk", "seconds"),
)
Line = dict[str, str]


def read_lines() -> list[Line]:
    """Return what was measured."""
    if not FIGURES.is_file():
        return []
    with FIGURES.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def capped(task: OpenSetTask, rows: int | None) -> OpenSetTask:
    """Return a task with at most so many rows of each domain, drawn at random."""
    rng = np.random.default_rng(0)
    source = np.sort(rng.permutation(len(task.source_labels))[:rows])
    target = np.sort(rng.permutation(len(task.target_truth))[:rows])
    return OpenSetTask(
        source_features=task.source_features[source],
        source_labels=task.source_labels[source],
        target_features=task.target_features[target],
        target_truth=task.target_truth[target],
        split=task.split,
    )


def measure(classifier: OpenSetClassifier, task: OpenSetTask, place: tuple[str, ...]) -> None:
    """Fit, and append a line, if there is none of this study, suite, task, run, share and seed."""
    where = dict(zip(COLUMNS[: len(place)], place, strict=True))
    if any(where.items() <= line.items() for line in read_lines()):
        return
    started = time.process_time()
    domains = read_rows_of(task.source_features, task.source_labels, task.target_features)
    classifier.fit_domains(domains)
    seconds = time.process_time() - started
    found = evaluate(task.target_truth, classifier.transduction_, classifier.classes_)
    figures = {name: f"{getattr(found, name):.4f}" for name in ("hos", "os_star", "unk")}
    if isinstance(classifier, PGLClassifier):
        by_paper = classifier.labels_by_paper()
        found = evaluate(task.target_truth, by_paper, classifier.classes_)
        names = ("os", "os_star", "unk")
        figures |= {f"paper_{name}": f"{getattr(found, name):.4f}" for name in names}
    append(FIGURES, COLUMNS, [{**where, **figures, "seconds": f"{seconds:.0f}"}])
    print(*place, figures["hos"], f"{seconds:.0f} s", flush=True)


def measure_differences(options: argparse.Namespace) -> None:
    """Run the preset of the paper, and one change of it at a time."""
    tasks = find_suite("office31-lite0", options.data)
    assert tasks is not None, options.data
    for run, changes in DIFFERENCES.items():
        for name in COMPARED:
            task = tasks.read(name)
            classifier = PGLClassifier(
                task.openness,
                preset="office-home",
                settings={**NARROW, "reject": "all", **changes},
                random_state=0,
            )
            measure(classifier, task, ("differences", tasks.name, name, run, "true", "0"))


def measure_learning(options: argparse.Namespace) -> None:
    """Run PGL, and its ranker alone."""
    for suite in options.suites:
        tasks = find_suite(suite, options.data)
        if tasks is None:
            continue
        # Spread over the list, whose first tasks share a source.
        names = tasks.tasks[:: max(1, len(tasks.tasks) // options.tasks)][: options.tasks]
        scaling = SCALING.get(suite, "ranks")
        for openness in options.openness:
            for seed in range(options.seeds):
                for name in names:
                    task = capped(tasks.read(name), ROWS)
                    share = task.openness if openness == "true" else "auto"
                    runs: dict[str, OpenSetClassifier] = {
                        "pgl": PGLClassifier(share, scaling=scaling, random_state=seed)
                    }
                    if not seed:
                        runs["moving-means"] = MovingMeans(share, scaling=scaling)
                    for run, classifier in runs.items():
                        place = ("learning", suite, name, run, openness, str(seed))
                        measure(classifier, task, place)


def difference_table(lines: Sequence[Line]) -> Iterator[str]:
    """Return figures by the paper's rule and HOS by ours, for each change."""
    rows = []
    for run in DIFFERENCES:
        own = [line for line in lines if (line["study"], line["run"]) == ("differences", run)]
        by_task = [line for task in COMPARED for line in own if line["task"] == task]
        if len(by_task) == len(COMPARED):
            names = ("paper_os", "paper_os_star", "paper_unk", "hos")
            cells = [f"{100 * float(line[name]):.1f}" for line in by_task for name in names]
            rows.append([run, *cells])
    heads = [f"{task} {name}" for task in ("A-D", "D-A") for name in ("OS", "OS*", "UNK", "HOS")]
    yield markdown(["run", *heads], rows)


def learning_table(lines: Sequence[Line]) -> Iterator[str]:
    """Return HOS of both methods on each task, the mean over the seeds with its deviation."""
    rows = []
    own = [line for line in lines if line["study"] == "learning"]
    places = sorted({(line["openness"], line["suite"], line["task"]) for line in own}, reverse=True)
    for place in places:
        cells = [place[1], place[2], OPENNESS[place[0]]]
        names = ("openness", "suite", "task")
        there = [line for line in own if tuple(line[name] for name in names) == place]
        for run in ("moving-means", "pgl"):
            hos = [100 * float(line["hos"]) for line in there if line["run"] == run]
            spread = f" ± {stdev(hos):.1f}" if len(hos) > 1 else ""
            cells.append(f"{fmean(hos):.1f}{spread}" if hos else "-")
        seconds = [float(line["seconds"]) for line in there if line["run"] == "pgl"]
        rows.append([*cells, f"{fmean(seconds):.0f}" if seconds else "-"])
    yield markdown(["suite", "task", "share", "moving-means", "pgl", "seconds"], rows)


TABLES = {"differences": difference_table, "learning": learning_table}
MEASURES = {"differences": measure_differences, "learning": measure_learning}


def main() -> None:
    """Measure what is missing, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("studies", nargs="+", choices=TABLES)
    add("--data", type=Path, default=DATA)
    add("--suites", nargs="+", default=list(SUITES), choices=SUITES)
    add("--openness", nargs="+", default=["true"], choices=("true", "auto"))
    add("--seeds", type=int, default=1)
    add("--tasks", type=int, default=6, help="of each suite, spread over its list")
    add("--show", action="store_true", help="measure nothing")
    add("--write", action="store_true", help="write the tables into the docs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for study in options.studies:
        if not options.show:
            MEASURES[study](options)
        text = "\n".join(TABLES[study](read_lines()))
        print(f"\n{text}")
        if options.write:
            page = PAGES[study]
            page.write_text(fill(page.read_text(encoding="utf-8"), {f"pgl-{study}": text}))


if __name__ == "__main__":
    main()
