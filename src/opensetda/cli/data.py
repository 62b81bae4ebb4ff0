"""`osda data`: published benchmarks, and whether a download of one is complete."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opensetda.cli import console
from opensetda.cli.benchmark import option
from opensetda.cli.options import OUTPUT_PANEL, Debug, Json, Overwrite, Quiet, check_new_file
from opensetda.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from opensetda.data.benchmarks.completeness import BenchmarkCheck, DomainCheck

_SHOWN = 10
_CLASSES_HELP = "Show every class, not only those that differ."
_LIST_HELP = "The .csv file to make: images that cannot be read, with the reason."

data_app = typer.Typer(
    name="data",
    help="Published benchmarks: what they are, whether a download is complete; digits to try.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@data_app.command("list")
def list_benchmarks(quiet: Quiet = False, as_json: Json = False, debug: Debug = False) -> None:
    """Show the benchmarks: domains, classes, open-set protocol, where they are published.

    [bold]Example[/bold]

      osda data list
    """
    from opensetda.data.benchmarks.catalogue import BENCHMARKS

    columns = {"name": "left", "domains": "left", "images": "right", "known": "right"}
    table = console.new_table("Benchmarks", columns | {"unknown": "right", "published at": "left"})
    published = []
    for spec in BENCHMARKS.values():
        domains = {domain.name: domain.images for domain in spec.domains}
        totals = [images for images in domains.values() if images is not None]
        unknown = "any other" if spec.others_unknown else str(len(spec.unknown))
        counts = _count(sum(totals) if totals else None), str(len(spec.known)), unknown
        table.add_row(spec.name, ", ".join(domains), *counts, "\n".join(spec.urls))
        more = {key: getattr(spec, key) for key in ("known", "unknown", "others_unknown", "urls")}
        published.append({"name": spec.name, "title": spec.title, "domains": domains, **more})
    console.show(table)
    console.result({"benchmarks": published})


@data_app.command("check")
def check(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The benchmark; see 'osda data list'.")
    ],
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="The folder that holds its domains.")
    ],
    no_decode: Annotated[
        bool, typer.Option("--no-decode", help="Count the images without reading them.")
    ] = False,
    classes: Annotated[bool, option("--classes", _CLASSES_HELP, panel=OUTPUT_PANEL)] = False,
    unreadable: Annotated[Path | None, option("--list", _LIST_HELP, "FILE", OUTPUT_PANEL)] = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare a download with what was published: counts, class folders, unreadable images.

    [bold]Example[/bold]

      osda data check office-home OfficeHomeDataset

    Exit code 0 if all is well, 1 if something is missing, misspelt or broken.
    """
    from opensetda.data.benchmarks.completeness import check_benchmark
    from opensetda.data.images.lists import printable
    from opensetda.system.files import check_writable, new_file

    if unreadable is not None:
        check_new_file("--list", unreadable, (".csv",), overwrite)
        check_writable(unreadable)
    with _reading() as progress:
        found = check_benchmark(name, path, decode=not no_decode, progress=progress)
    # As people read them: a path may have bytes that are no text.
    broken = {
        row.domain.name: [[printable(image), reason] for image, reason in row.unreadable]
        for row in found.domains
    }
    every = [pair for pairs in broken.values() for pair in pairs]
    if unreadable is not None:
        with new_file(unreadable) as aside, aside.open("w", encoding="utf-8", newline="") as stream:
            csv.writer(stream).writerows([["path", "reason"], *every])
    console.show(_domain_table(found, decoded=not no_decode))
    for domain in found.domains:
        if classes or any(row.remark for row in domain.classes):
            _show_classes(domain, everything=classes)
    for image, reason in every[:_SHOWN]:
        console.say(f"cannot be read: {image}: {reason}")
    if len(every) > _SHOWN:
        console.say(f"... {len(every):,} in all; --list FILE writes them to a file")
    if found.extra:
        console.note(f"other folders, not looked at: {', '.join(found.extra)}")
    spec, problems = found.benchmark, found.problems
    if problems:
        first = f"{len(problems)} problems, first " if len(problems) > 1 else ""
        console.say(f"{spec.title}: not as published: {first}{problems[0]}")
        console.say(f"originals: {' '.join(spec.urls)}")
    else:
        read = "not read (--no-decode)" if no_decode else "all can be read"
        console.say(f"{spec.title}: as published: {found.images:,} images, {read}")
    domains = {}
    for row in found.domains:
        counts = {"folder": row.folder, "images": row.images, "published": row.domain.images}
        domains[row.domain.name] = {**counts, "unreadable": broken[row.domain.name]}
    verdict = {"as_published": not problems, "problems": problems, "read": not no_decode}
    files = {"unreadable": unreadable}
    console.result({"benchmark": spec.name, **verdict, "domains": domains, "files": files})
    if problems:
        raise typer.Exit(code=1)


@data_app.command("digits")
def digits(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to make.")],
    every: Annotated[
        int, typer.Option("--every", metavar="NUMBER", min=1, help="Take every so many only.")
    ] = 1,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write the embedded digits as two folders of images, to try things with.

    [bold]Example[/bold]

      osda data digits digits --every 5

      osda fit digits/mnist digits/scikit-learn --out run --image-size 64
    """
    from opensetda.cli.counting import counting_progress
    from opensetda.data.benchmarks.digits import write_image_folders
    from opensetda.system.files import check_writable, new_folder

    if folder.exists():
        raise InputError(f"{folder}: exists already; choose another name")
    check_writable(folder)
    with counting_progress("digits") as progress, new_folder(folder) as aside:
        names = [path.name for path in write_image_folders(aside, every, progress)]
    source, target = (folder / name for name in names)
    console.say(f"  source   {source}")
    console.say(f"  target   {target}")
    console.result({"source": source, "target": target})


@contextmanager
def _reading() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a listener: a bar for each domain, or lines and one at the end of each."""
    from opensetda.cli.counting import CountingProgress, counting_progress, on_terminal

    with ExitStack() as stack:
        under_way: dict[str, CountingProgress] = {}

        def listen(domain: str, done: int, total: int) -> None:
            if domain not in under_way:
                # One domain after the other: so are their bars.
                stack.close()
                progress = counting_progress(f"reading {domain}")
                under_way[domain] = stack.enter_context(progress)
            under_way[domain](done, total)
            if done == total and not on_terminal():
                console.note(f"{domain}: {total:,} images read")

        yield listen


def _domain_table(found: BenchmarkCheck, decoded: bool) -> Table:
    columns = {"domain": "left", "images": "right", "published": "right"}
    columns |= {"class folders": "right", "unreadable": "right", "": "left"}
    table = console.new_table(found.benchmark.title, columns)
    for row in found.domains:
        there = sum(1 for check in row.classes if check.images and check.kind != "extra")
        missing = row.folder is None
        table.add_row(
            row.domain.name,
            _count(None if missing else row.images),
            _count(row.domain.images),
            console.DASH if missing else str(there),
            _count(len(row.unreadable) if decoded and not missing else None),
            "missing" if missing else "differs" if row.problems else "ok",
            style="bold" if row.problems else None,
        )
    return table


def _show_classes(domain: DomainCheck, everything: bool) -> None:
    columns = {"class": "left", "kind": "left", "images": "right", "published": "right"}
    table = console.new_table(f"{domain.domain.name}: classes", {**columns, "": "left"})
    for row in domain.classes:
        if everything or row.remark:
            style = "bold" if everything and row.remark else None
            counts = _count(row.images), _count(row.expected)
            table.add_row(row.name, row.kind, *counts, row.remark, style=style)
    console.show(table)


def _count(number: int | None) -> str:
    return console.DASH if number is None else f"{number:,}"
