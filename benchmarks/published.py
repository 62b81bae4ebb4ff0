"""Published figures of open-set adaptation, what follows from them, and where they disagree.

    python benchmarks/published.py            # print all tables, rewrite those of docs/results.md
    python benchmarks/published.py --check    # say whether that page has the tables, write nothing

Our own figures on the same data are those of `suites.py`.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from published_figures import (
    DATA,
    OFFICE_31_TASKS,
    PAPER,
    TITLES,
    Figure,
    cell,
    disagreements,
    markdown,
    methods_of,
    of,
    read_figures,
    read_rows,
)

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER.parent / "docs" / "results.md"
_BLOCK = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def office_home(figures: Sequence[Figure]) -> str:
    """Return the paper's averages on Office-Home with the mean UNK and HOS of the twelve tasks."""
    rows = []
    for (_, method), own in methods_of(of(figures, "office-home", PAPER)).items():
        (mean,) = (f for f in own if f.task == "mean")
        tasks = [f for f in own if f.task != "mean" and f.derived_unk is not None]
        unk = fmean(f.possible_unk for f in tasks) if tasks else None
        hos = fmean(f.derived_hos for f in tasks) if tasks else None
        rows.append([method, *map(cell, (mean.os, mean.os_star, unk, hos))])
    return markdown(["method", "OS", "OS*", "UNK, derived", "HOS, derived"], rows)


def one_task(table: str) -> Callable[[Sequence[Figure]], str]:
    """Return what makes the table of a benchmark that has one task, with HOS derived."""

    def build(figures: Sequence[Figure]) -> str:
        own = of(figures, table, PAPER)
        names = [n for n in ("all", "os", "os_star", "unk") if getattr(own[0], n) is not None]
        titles = {"all": "ALL", "os": "OS", "os_star": "OS*", "unk": "UNK"}
        header = ["method", *(titles[name] for name in names)]
        if "unk" not in names:
            header.append("UNK, derived")
        rows = []
        for f in own:
            derived = [] if "unk" in names else [cell(f.derived_unk)]
            values = [cell(getattr(f, name)) for name in names]
            rows.append([f.method, *values, *derived, cell(f.derived_hos)])
        return markdown([*header, "HOS, derived"], rows)

    return build


def others(figures: Sequence[Figure]) -> str:
    """Return the mean HOS of all sources; the paper's own method derived."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for table in TITLES:
        for key, own in methods_of(of(figures, table)).items():
            if key[0] == PAPER and key[1] != "PGL":
                continue
            tasks = [f.derived_hos for f in own if f.task != "mean"]
            hos = own[-1].hos if own[-1].hos is not None else fmean(tasks)
            found.setdefault(key, {})[table] = cell(hos)
    header = ["method", "source", *TITLES.values()]
    rows = [
        [method, source, *(by_table.get(table, "-") for table in TITLES)]
        for (source, method), by_table in sorted(
            found.items(), key=lambda item: item[0][0] != PAPER
        )
    ]
    return markdown(header, rows)


def office_31(figures: Sequence[Figure]) -> str:
    """Return the published HOS of every task of Office-31."""
    rows = []
    for (source, method), own in methods_of(of(figures, "office-31")).items():
        by_task = {f.task: f.hos for f in own}
        values = [cell(by_task.get(task)) for task in (*OFFICE_31_TASKS, "mean")]
        rows.append([method, source, str(own[0].known), *values])
    return markdown(["method", "source", "known classes", *OFFICE_31_TASKS, "mean"], rows)


def disagreement_table(figures: Sequence[Figure]) -> str:
    """Return what rounding does not explain."""
    return markdown(["source", "where", "printed", "but it follows"], disagreements(figures))


def frozen(_: Sequence[Figure]) -> str:
    """Return the mean HOS of uniood, with the backbones that it kept frozen."""
    columns = ("method", "backbone", "office-31", "office-home", "visda17")
    header = ["method", "backbone", *(TITLES[name] for name in columns[2:])]
    rows = read_rows(DATA / "frozen.csv", columns)
    return markdown(header, [[row[name] for name in columns] for row in rows])


def sources(_: Sequence[Figure]) -> str:
    """Return who published what; the file also says where we read it."""
    rows = read_rows(DATA / "sources.csv", ("source", "citation", "read_in"))
    return markdown(["source", "citation"], [[row["source"], row["citation"]] for row in rows])


TABLES: dict[str, Callable[[Sequence[Figure]], str]] = {
    "office-home": office_home,
    "visda17": one_task("visda17"),
    "syn2real-o": one_task("syn2real-o"),
    "disagreements": disagreement_table,
    "others": others,
    "office-31": office_31,
    "frozen": frozen,
    "sources": sources,
}


# The page ----------------------------------------------------------------------------------


def fill(page: str, tables: dict[str, str | None]) -> str:
    """Put tables between their markers; those of other programs stay."""
    marked = [match[2] for match in _BLOCK.finditer(page)]
    for name in sorted({*tables} - {*marked}):
        sys.exit(f"error: the page has no place for the table {name!r}; add its two markers")

    def new_block(match: re.Match[str]) -> str:
        table = tables.get(match[2])
        return match[0] if table is None else f"{match[1]}\n{table}\n{match[3]}"

    return _BLOCK.sub(new_block, page)


def append(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows to a file of figures, which gets a header if it is new."""
    path.parent.mkdir(exist_ok=True)
    is_new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables and write them into the page, or check that they are there."""
    options = _options(arguments)
    figures = read_figures()
    tables: dict[str, str | None] = {name: build(figures) for name, build in TABLES.items()}
    page = options.page.read_text(encoding="utf-8")
    filled = fill(page, tables)
    if options.check:
        if filled == page:
            return 0
        print(f"error: {options.page} is not up to date; run python benchmarks/published.py")
        return 1
    for name, table in tables.items():
        print(f"{name}\n\n{table}\n")
    options.page.write_text(filled, encoding="utf-8")
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail if it differs")
    parser.add_argument("--page", type=Path, default=PAGE)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
