"""Data of several fields: every suite, method and share of unknowns; an interrupted run goes on.

    python benchmarks/suites.py                      # every cell that the file lacks, then tables
    python benchmarks/suites.py --suites gas digits --methods pgl daod --seeds 0    # some of them
    python benchmarks/suites.py --show               # the tables of the file, nothing is measured
    python benchmarks/suites.py --write              # write them into docs/suites.md

A cell is one fit: suite, task, method, scaling of the columns, kind of share, openness and seed.
Its figures are appended to --out when it ends. Shares: `told` (the true one), `estimated` ("auto")
and `constant` (0.4, whatever the truth). Openness: `given` (the target as it is), or a number, to
which the target is subsampled; 0 leaves no unknowns, where only the estimate is of interest.
Without --methods, all methods run on the targets as given. The share is estimated before the
first step of any method, so `pgl-share`, one step without training, is enough for the others.

Leave one suite out: the weights of the evidence (`openness/share_model.py`) are fitted again
without the suite that a cell is of, from the tasks that `shares.py` has measured.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from joblib import Parallel, delayed

import suites_tables
from office31 import fit_and_evaluate
from opensetda.base import OpenSetClassifier
from opensetda.data.benchmarks.protocols import OpenSetTask, with_openness
from opensetda.errors import InputError
from opensetda.runs.methods import METHODS as ALL_METHODS
from opensetda.runs.methods import build_method, method_class
from opensetda.system.memory import peak_megabytes, reset_peak
from shares import use_weights_without
from suites_data import DATA, PARTIAL, SUITES, is_there, read_task, task_names
from suites_tables import CONSTANT, GIVEN, METHODS, SHARE_ONLY, UNTRAINED, Record

FOLDER = Path(__file__).resolve().parent
OUT = FOLDER / "figures" / "suites.csv"
PAGE = FOLDER.parent / "docs" / "suites.md"
README = FOLDER.parent / "README.md"
SHARES = ("told", "estimated", "constant")
OPENNESS = (GIVEN, "0.1", "0.25", "0.5", "0.75", "0.9", "0")
SETTINGS = {UNTRAINED: {"graph.scatter_ridge": None}, SHARE_ONLY: {"steps": 1}}
"""Settings of PGL for names that are no methods by themselves."""
DEFAULT = "default"
"""The scaling of PGL, which may choose by itself: `scaling_used` says which it was."""
RIVAL_SCALINGS = ("none", "ranks")
"""Each rival runs with both: the tables take the better one, in its favour."""


class Cell(NamedTuple):
    """One fit; the fields are its first columns in the file."""

    suite: str
    task: str
    method: str
    scaling: str
    """As asked for; PGL has its default."""
    share: str
    openness: str
    seed: int

    @property
    def key(self) -> tuple[str, ...]:
        """The fields as text, as the file has them."""
        return tuple(map(str, self))


FIGURES = (
    *("scaling_used", "true_share", "used_share", "low", "high", "warnings"),
    *("hos", "os_star", "unk", "rejected", "found_unknowns", "seconds", "memory_mb", "error"),
)
COLUMNS = (*Cell._fields, *FIGURES)


# Which cells ---------------------------------------------------------------------------------


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    """List all cells that were asked for, the targets as given first."""
    for openness in sorted(options.openness, key=OPENNESS.index):
        for suite in options.suites:
            for task in task_names(suite, options.data):
                for method in _methods(options.methods, suite, openness):
                    yield from _cells_of(suite, task, method, openness, options)


def _methods(asked: Sequence[str] | None, suite: str, openness: str) -> Sequence[str]:
    if suite == PARTIAL and openness != GIVEN:
        return ()
    if asked is not None:
        return asked
    if suite == PARTIAL:
        return METHODS[:1]
    return (*METHODS, SHARE_ONLY) if openness == GIVEN else (SHARE_ONLY,)


def _cells_of(
    suite: str, task: str, method: str, openness: str, options: argparse.Namespace
) -> Iterator[Cell]:
    shares = options.shares
    if float_of(openness) == 0 or method == SHARE_ONLY:
        # Given 0, nothing is rejected; given a constant, that share is.
        shares = [share for share in shares if share == "estimated"]
    if suite == PARTIAL:
        shares = [share for share in shares if share != "constant"]
    # Without random numbers only the subsampling differs from seed to seed.
    varies = openness != GIVEN or method_class(_base(method)).is_random
    for scaling in scalings_of(method):
        for share in shares:
            for seed in options.seeds if varies else options.seeds[:1]:
                yield Cell(suite, task, method, scaling, share, openness, seed)


def scalings_of(method: str) -> tuple[str, ...]:
    """Return the scalings to run a method with: PGL chooses its own."""
    return (DEFAULT,) if _base(method) == "pgl" else RIVAL_SCALINGS


def float_of(openness: str) -> float | None:
    """Return the openness to subsample to, or None for the target as given."""
    return None if openness == GIVEN else float(openness)


def _base(method: str) -> str:
    return "pgl" if method in SETTINGS else method


# One cell ------------------------------------------------------------------------------------


def run(cell: Cell, data: Path) -> dict[str, Any]:
    """Fit a cell and return its line of the file."""
    import torch

    torch.set_num_threads(1)
    line: dict[str, Any] = cell._asdict()
    try:
        task = read_task(cell.suite, cell.task, data)
        asked = float_of(cell.openness)
        if asked is not None:
            task = with_openness(task, asked, cell.seed)
    except InputError as error:  # Too few unknowns for this openness.
        return line | {"error": str(error)}
    use_weights_without(cell.suite)
    return line | measure(build(cell, task), task)


def build(cell: Cell, task: OpenSetTask) -> OpenSetClassifier:
    """Return the classifier of a cell."""
    by_share: dict[str, float | str] = {
        "told": task.openness,
        "estimated": "auto",
        "constant": CONSTANT,
    }
    changes = SETTINGS.get(cell.method)
    classifier = build_method(
        _base(cell.method), openness=by_share[cell.share], changes=changes, seed=cell.seed
    )
    if cell.scaling != DEFAULT:
        classifier.set_params(scaling=cell.scaling)
    return classifier


def measure(classifier: OpenSetClassifier, task: OpenSetTask) -> dict[str, Any]:
    """Fit, then score with the truth what was said without it."""
    reset_peak()
    started = time.perf_counter()
    metrics = fit_and_evaluate(classifier, task)
    seconds = time.perf_counter() - started
    report = classifier.openness_report_
    rejected = (classifier.transduction_ == classifier.unknown_label).mean()
    return {
        "scaling_used": classifier.scaling_,
        "true_share": _text(task.openness),
        "used_share": _text(report.share),
        "low": _text(report.low),
        "high": _text(report.high),
        "warnings": len(report.warnings),
        **{name: _text(getattr(metrics, name)) for name in ("hos", "os_star", "unk")},
        "rejected": _text(rejected),
        "found_unknowns": int(report.found_unknowns),
        "seconds": f"{seconds:.2f}",
        "memory_mb": f"{peak_megabytes():.0f}",
    }


def _text(value: float) -> str:
    return f"{value:.5f}"


# The file ------------------------------------------------------------------------------------


class Store:
    """A CSV file of cells. A line that a killed run has left unfinished does not count."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[dict[str, str]]:
        """Return all finished lines."""
        return list(csv.DictReader(io.StringIO(self._finished())))

    def done(self) -> set[tuple[str, ...]]:
        """Return the keys of all finished cells."""
        return {tuple(line[name] for name in Cell._fields) for line in self.lines()}

    def append(self, line: dict[str, Any]) -> None:
        """Add a cell, on the disk when this returns."""
        finished = self._finished()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.truncate(len(finished.encode()))
            text = io.StringIO()
            writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
            if not finished:
                writer.writeheader()
            writer.writerow(line)
            file.write(text.getvalue())
            file.flush()
            os.fsync(file.fileno())

    def _finished(self) -> str:
        if not self.path.is_file():
            return ""
        text = self.path.read_text(encoding="utf-8")
        text = text[: text.rfind("\n") + 1]
        if text and text.splitlines()[0] != ",".join(COLUMNS):
            sys.exit(f"error: {self.path} has other columns; name another file with --out")
        return text


# The command ---------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the file lacks, and print the tables."""
    options = _options(arguments)
    store = Store(options.out)
    if not (options.show or options.markdown or options.write):
        options.suites = available(options.suites, options.data)
        run_missing(options, store)
    records = suites_tables.parse(store.lines())
    if options.write:
        short = suites_tables.short_table(records).markdown()
        for page, tables in ((options.page, markdown(records)), (options.readme, short)):
            text = suites_tables.fill(page.read_text(encoding="utf-8"), tables)
            page.write_text(text, encoding="utf-8")
    elif options.markdown:
        print(markdown(records))
    else:
        for table in suites_tables.all_tables(records):
            print(table.text())


def markdown(records: Sequence[Record]) -> str:
    """Return the tables of the documentation."""
    return "\n".join(table.markdown() for table in suites_tables.page_tables(records))


def available(names: Sequence[str], data: Path) -> list[str]:
    """Return the suites whose data is there, and say which are not."""
    there = [suite for suite in names if is_there(suite, data)]
    missing = [suite for suite in names if suite not in there]
    if missing:
        words = f"only {', '.join(there)}" if there else "nothing"
        print(f"{data} lacks {', '.join(missing)}: {words} runs; name the folder with --data")
    return there


def run_missing(options: argparse.Namespace, store: Store) -> None:
    """Run the cells that the file lacks, and add each to it as it ends."""
    done = store.done()
    todo = [cell for cell in cells(options) if cell.key not in done]
    print(f"{len(todo)} cells to run; {store.path} has {len(done)}", flush=True)
    workers = Parallel(n_jobs=options.jobs, return_as="generator_unordered")
    lines = workers(delayed(run)(cell, options.data) for cell in todo)
    for number, line in enumerate(lines, 1):
        store.append(line)
        name = " ".join(str(line[field]) for field in Cell._fields)
        print(f"{number}/{len(todo)} {name}: HOS {line.get('hos', line.get('error'))}", flush=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, default=DATA, help="folder with office31-features and suites")
    add("--suites", nargs="+", default=list(SUITES), choices=SUITES)
    add("--methods", nargs="+", choices=[*ALL_METHODS, *SETTINGS], metavar="METHOD",
        help=f"default: {', '.join(METHODS)}; {UNTRAINED} is PGL without training")  # fmt: skip
    add("--shares", nargs="+", default=list(SHARES), choices=SHARES)
    add("--openness", nargs="+", default=list(OPENNESS), choices=OPENNESS)
    add("--seeds", nargs="+", type=int, default=[0, 1, 2])
    add("--jobs", type=int, default=1, help="cells at a time (default 1)")
    add("--out", type=Path, default=OUT, help="file of the cells")
    add("--page", type=Path, default=PAGE, help="page that --write fills")
    add("--readme", type=Path, default=README, help="the same for the short table")
    add("--show", action="store_true", help="print the tables of the file, measure nothing")
    add("--markdown", action="store_true", help="the same in Markdown, for the documentation")
    add("--write", action="store_true", help="write the tables of the file into the page")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
