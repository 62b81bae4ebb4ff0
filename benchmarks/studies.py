"""The paper's studies of PGL on Office-31 features: what each part is worth.

    python benchmarks/studies.py                       # all studies; hours, goes on where it was
    python benchmarks/studies.py --studies ablations --backbones efficientnet-lite0
    python benchmarks/studies.py --show --write        # measured figures into docs/analyses.md

Oracle openness, one seed, six tasks. The figures that are there are of the earlier method: 4 epochs
at every step, rates never halved. The networks are narrower than the paper's (`NARROW`), which
takes less time. A run is fitted once for all studies that contain it; its line for each
step in figures/studies.csv means that it is finished. PGL itself runs all 20 steps, the others up
to step 7. Tables have the mean HOS in % over the tasks; as one step changes it by a point or two,
runs are compared by the mean of steps 5 to 7.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from opensetda.analyses.bound import measure_steps
from opensetda.analyses.request import FittedTask
from opensetda.benchmark.grid import fit_task
from opensetda.benchmark.tasks import TaskSet, find_tasks
from opensetda.benchmark.variants import Variant
from opensetda.data.benchmarks.protocols import with_openness
from opensetda.metrics.open_set import evaluate
from opensetda.pgl.presets import ABLATIONS
from opensetda.report.run_parts import codes_of
from published import append, fill, markdown

FOLDER = Path(__file__).resolve().parent
DATA = FOLDER.parents[1] / "shared" / "data" / "office31-features"
# Of the earlier method, commit 31c248e: to measure the present one, begin another file.
FIGURES = FOLDER / "figures" / "studies.csv"
PAGE = FOLDER.parent / "docs" / "analyses.md"
BACKBONES = {"efficientnet-lite0": "Lite0", "resnet50": "ResNet-50"}
TASKS = {
    f"{one[0].upper()}-{two[0].upper()}": f"{one}-{two}"
    for one in ("amazon", "dslr", "webcam")
    for two in ("amazon", "dslr", "webcam")
    if one != two
}
NARROW = {"edge_width": 128, "node_width": 256}
STOP = 7
SETTLED = (5, 6, STOP)
BOUND = {"target_error": "error", "bound": "Theorem 1", "progressive_bound": "Theorem 2"}
COLUMNS = ("backbone", "run", "task", "step", "steps", "hos", "os_star", "unk", "seconds", *BOUND)
Line = dict[str, str]


@dataclass(frozen=True)
class Run:
    """A method with settings, perhaps with another share of unknowns in the target."""

    name: str
    changes: Mapping[str, Any]
    method: str = "pgl"
    openness: float | None = None


def _pgl(name: str, openness: float | None = None, **changes: Any) -> Run:
    return Run(name, NARROW | changes, openness=openness)


WHOLE = _pgl("pgl", stop_step=None)
PARTS = {name: _pgl(name, **changes) for name, changes in ABLATIONS.items()}
# Each with the step after which about as many targets have labels as after 7 of 20.
ALPHAS = {
    1.0: (PARTS["no-progressive-steps"], 1),
    0.5: (_pgl("alpha .5", steps=2, stop_step=None), 1),
    0.2: (_pgl("alpha .2", steps=5, stop_step=None), 2),
    0.1: (_pgl("alpha .1", steps=10, stop_step=None), 4),
    0.05: (WHOLE, STOP),
}
SHARES = (0.25, 0.5, 0.75, 0.9)
RIVALS = ("osbp", "source-only")
SWEPT = {
    (method, share): Run(f"{method} openness {share}", {}, method, share)
    if method != "pgl"
    else _pgl(f"pgl openness {share}", openness=share)
    for method in ("pgl", *RIVALS)
    for share in SHARES
}
WEIGHTS = {
    "edge_weight": {0.0: PARTS["no-edge-loss"], 0.3: WHOLE},
    "adversary_weight": {0.0: PARTS["no-adversary"], 0.4: WHOLE},
}
for _setting, _values in (("edge_weight", (0.1, 1.0)), ("adversary_weight", (0.1, 1.0))):
    WEIGHTS[_setting] |= {v: _pgl(f"{_setting}={v}", **{_setting: v}) for v in _values}

STUDIES: dict[str, list[Run]] = {
    "ablations": [WHOLE, *PARTS.values()],
    "alpha": [run for run, _ in ALPHAS.values()],
    "openness": [*SWEPT.values()],
    "weights": [run for values in WEIGHTS.values() for run in values.values()],
    "curve": [WHOLE],
    "bound": [WHOLE],
}


def measure(run: Run, backbone: str, task: str, tasks: TaskSet) -> None:
    """Fit a run, and append the figures of each of its steps."""
    data = tasks.read(TASKS[task])
    if run.openness is not None:
        data = with_openness(data, run.openness, 0)
    changes = tuple(sorted(run.changes.items()))
    preset = "office-home" if run.method == "pgl" else None
    classifier = Variant(run.name, run.method, preset, changes).build(data.openness)
    seconds = fit_task(classifier, data)
    steps = [classifier.transduction_]
    if classifier.step_labels_ is not None:
        steps = [classifier.decode_labels(labels) for labels in classifier.step_labels_]
    where = {"backbone": backbone, "run": run.name, "task": task, "steps": len(steps)}
    lines = []
    for step, labels in enumerate(steps, start=1):
        found = evaluate(data.target_truth, labels, classifier.classes_)
        figures = {name: f"{getattr(found, name):.4f}" for name in ("hos", "os_star", "unk")}
        lines.append({**where, "step": step, **figures, "seconds": f"{seconds:.0f}"})
    if run is WHOLE:
        classes = classifier.classes_.tolist()
        places = [codes_of(y, classes) for y in (data.source_labels, data.target_truth)]
        fitted = FittedTask(run.name, classifier, data, task, 0, len(classes), *places)
        for line, terms in zip(lines, measure_steps(fitted), strict=True):
            line |= {name: f"{terms[name]:.4f}" for name in BOUND}
    print(f"{backbone} {run.name} {task}: HOS {lines[-1]['hos']}, {seconds:.0f} s", flush=True)
    append(FIGURES, COLUMNS, lines)


def read_lines() -> list[Line]:
    """Return all lines of finished runs; the steps of a run were written at once."""
    if not FIGURES.exists():
        return []
    with FIGURES.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    done = {_place(line) for line in lines if line["step"] == line["steps"]}
    return [line for line in lines if _place(line) in done]


def _place(line: Line) -> tuple[str, str, str]:
    return line["backbone"], line["run"], line["task"]


class Figures:
    """HOS by backbone, run, task and step; means are over the tasks of all ablations."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.hos = {(*_place(line), int(line["step"])): 100 * float(line["hos"]) for line in lines}
        self.last = {_place(line): int(line["steps"]) for line in lines}
        self.lines = {(*_place(line), int(line["step"])): line for line in lines}
        self.tasks = {
            backbone: [
                task
                for task in TASKS
                if all((backbone, run.name, task) in self.last for run in STUDIES["ablations"])
            ]
            for backbone in BACKBONES
        }
        self.there = [backbone for backbone, tasks in self.tasks.items() if tasks]

    def of_study(self, study: str) -> Figures:
        """Return the same with the backbones alone for which all runs of a study are there."""
        found = copy(self)
        found.there = [
            backbone
            for backbone in self.there
            if all(
                (backbone, run.name, task) in self.last
                for run in STUDIES[study]
                for task in self.tasks[backbone]
            )
        ]
        return found

    def at(self, backbone: str, run: Run, task: str, steps: Sequence[int] = SETTLED) -> float:
        """Return the mean of some steps, with the last one for those that there are not."""
        last = self.last[backbone, run.name, task]
        return fmean(self.hos[backbone, run.name, task, min(step, last)] for step in steps)

    def mean(self, backbone: str, run: Run, steps: Sequence[int] = SETTLED) -> float:
        """Return the mean of the tasks."""
        return fmean(self.at(backbone, run, task, steps) for task in self.tasks[backbone])

    def row(self, name: str, run: Run) -> list[str]:
        """Return a row of a table: a column for each backbone."""
        return [name, *(f"{self.mean(backbone, run):.1f}" for backbone in self.there)]

    def header(self, first: str) -> list[str]:
        """Return the header of such a table."""
        return [first, *(BACKBONES[name] for name in self.there)]


def ablation_table(figures: Figures) -> Iterator[str]:
    """Return the mean without each part, its change, and on how many tasks it is lower."""
    header, rows = ["without"], [[run.name] for run in STUDIES["ablations"]]
    for backbone in figures.there:
        header += [BACKBONES[backbone], "change", "lower on"]
        for row, run in zip(rows, STUDIES["ablations"], strict=True):
            changes = [
                figures.at(backbone, run, task) - figures.at(backbone, WHOLE, task)
                for task in figures.tasks[backbone]
            ]
            row += [f"{figures.mean(backbone, run):.1f}", f"{fmean(changes):+.1f}"]
            row.append(f"{sum(change < 0 for change in changes)} of {len(changes)}")
    yield markdown(header, rows)


def alpha_table(figures: Figures) -> Iterator[str]:
    """Return HOS by the enlarging factor, when about a third of the targets has labels and all."""
    rows = [
        [
            str(alpha),
            *(f"{figures.mean(b, run, [s]):.1f}" for b in figures.there for s in (stop, 20)),
        ]
        for alpha, (run, stop) in ALPHAS.items()
    ]
    names = [f"{BACKBONES[b]}, {when}" for b in figures.there for when in ("a third", "all")]
    yield markdown(["alpha", *names], rows)


def curve_table(figures: Figures) -> Iterator[str]:
    """Return the curve over the twenty steps."""
    steps = (1, 2, 4, 7, 10, 14, 17, 20)
    rows = [
        [
            BACKBONES[backbone],
            *(f"{figures.mean(backbone, WHOLE, [step]):.1f}" for step in steps),
        ]
        for backbone in figures.there
    ]
    yield markdown(["step", *map(str, steps)], rows)


def openness_table(figures: Figures) -> Iterator[str]:
    """Return HOS at several shares of unknowns, beside rivals."""
    rows = [
        [f"{method}, {BACKBONES[backbone]}"]
        + [f"{figures.mean(backbone, SWEPT[method, share]):.1f}" for share in SHARES]
        for backbone in figures.there
        for method in ("pgl", *RIVALS)
    ]
    yield markdown(["share of unknowns", *map(str, SHARES)], rows)


def weight_table(figures: Figures) -> Iterator[str]:
    """Return HOS by the weights of the edge loss and the adversary."""
    rows = [
        figures.row(f"{setting}={value}", run)
        for setting, values in WEIGHTS.items()
        for value, run in sorted(values.items())
    ]
    yield markdown(figures.header("weight"), rows)


def bound_table(figures: Figures) -> Iterator[str]:
    """Return the error and the sums of the theorems' terms after some steps."""
    rows = []
    for backbone in figures.there:
        lines = [
            line
            for (own, run, task, _), line in figures.lines.items()
            if (own, run) == (backbone, WHOLE.name) and task in figures.tasks[backbone]
        ]
        for name, heading in BOUND.items():
            means = [
                fmean(float(line[name]) for line in lines if line["step"] == str(step))
                for step in (1, 7, 14, 20)
            ]
            rows.append([f"{heading}, {BACKBONES[backbone]}", *(f"{mean:.2f}" for mean in means)])
    yield markdown(["step", "1", "7", "14", "20"], rows)


TABLES = {
    "ablations": ablation_table,
    "alpha": alpha_table,
    "curve": curve_table,
    "openness": openness_table,
    "weights": weight_table,
    "bound": bound_table,
}


def main() -> None:
    """Measure what is missing, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA, help="BACKBONE/DOMAIN.npz")
    parser.add_argument("--studies", nargs="+", default=list(STUDIES), choices=STUDIES)
    parser.add_argument("--backbones", nargs="+", default=list(BACKBONES), choices=BACKBONES)
    parser.add_argument("--show", action="store_true", help="measure nothing")
    parser.add_argument("--write", action="store_true", help="write the tables into the docs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for study in () if given.show else given.studies:
        for backbone in given.backbones:
            tasks = find_tasks("office31", given.data / backbone)
            for task, run in product(TASKS, STUDIES[study]):
                if (backbone, run.name, task) not in {_place(line) for line in read_lines()}:
                    measure(run, backbone, task, tasks)
    figures = Figures(read_lines())
    shown = {name: figures.of_study(name) for name in TABLES}
    made = {
        f"study-{name}": "\n".join(TABLES[name](part)) for name, part in shown.items() if part.there
    }
    for name, text in made.items():
        print(f"\n{name}\n\n{text}")
    if given.write:
        page = PAGE.read_text(encoding="utf-8")
        placed = {name: text for name, text in made.items() if f"table: {name} " in page}
        PAGE.write_text(fill(page, placed), encoding="utf-8")


if __name__ == "__main__":
    main()
