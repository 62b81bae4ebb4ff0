"""`osda data`: published benchmarks, and whether a download of one is complete."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opensetda.cli import console
from opensetda.cli.options import Overwrite, other, output, with_output_options
from opensetda.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from opensetda.data.benchmarks.catalogue import Benchmark
    from opensetda.data.benchmarks.completeness import BenchmarkCheck, DomainCheck

_SHOWN = 10

data_app = typer.Typer(
    name="data",
    help="Published benchmarks: what they are, whether a download is complete; digits to try.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@data_app.command("list")
@with_output_options
def list_benchmarks() -> None:
    """Show the benchmarks: domains, classes, open-set protocol, where they are published.

    [bold]Example[/bold]

      osda data list
    """
    from opensetda.data.benchmarks.catalogue import BENCHMARKS

    columns = {"name": "left", "domains": "left"} | dict.fromkeys(("images", "known"), "right")
    columns |= {"unknown": "right", "published at": "left"}
    table = console.new_table("Benchmarks", columns)
    for spec in BENCHMARKS.values():
        totals = [domain.images for domain in spec.domains if domain.images is not None]
        table.add_row(
            spec.name,
            ", ".join(domain.name for domain in spec.domains),
            f"{sum(totals):,}" if totals else console.DASH,
            str(len(spec.known)),
            "any other" if spec.others_unknown else str(len(spec.unknown)),
            "\n".join(spec.urls),
        )
    console.show(table)
    console.result({"benchmarks": [_published(spec) for spec in BENCHMARKS.values()]})


@data_app.command("check")
@with_output_options
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
    classes: Annotated[
        bool, output("--classes", "Show every class, not only those that differ.")
    ] = False,
    unreadable: Annotated[
        Path | None,
        output(
            "--list FILE",
            "Write the images that cannot be read, with the reason, to this .csv file.",
        ),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Compare a download with what was published: counts, class folders, unreadable images.

    [bold]Example[/bold]

      osda data check office-home OfficeHomeDataset

    Exit code 0 if all is well, 1 if something is missing, misspelt or broken.
    """
    from opensetda.data.benchmarks.completeness import check_benchmark
    from opensetda.runs.outputs import check_new_file

    if unreadable is not None:
        check_new_file("--list", unreadable, (".csv",), overwrite)
    with _reading() as progress:
        found = check_benchmark(name, path, decode=not no_decode, progress=progress)
    if unreadable is not None:
        _write_unreadable(found, unreadable)
    console.show(_domain_table(found, decoded=not no_decode))
    for domain in found.domains:
        if classes or any(row.remark for row in domain.classes):
            _show_classes(domain, everything=classes)
    _show_unreadable(found)
    if found.extra:
        console.note(f"other folders, not looked at: {', '.join(found.extra)}")
    _verdict(found, decoded=not no_decode)
    console.result(_found(found, decoded=not no_decode, listed=unreadable))
    if found.problems:
        raise typer.Exit(code=1)


@data_app.command("digits")
@with_output_options
def digits(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to make.")],
    every: Annotated[int, other("--every NUMBER", "Write every NUMBER-th digit only.", min=1)] = 1,
) -> None:
    """Write the bundled digits as two folders of images, to try commands on.

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
    """Yield a listener: one bar per domain, or lines in a log."""
    from opensetda.cli.counting import CountingProgress, counting_progress, on_terminal

    with ExitStack() as stack:
        under_way: dict[str, CountingProgress] = {}

        def listen(domain: str, done: int, total: int) -> None:
            if domain not in under_way:
                # Domains are read one after the other.
                stack.close()
                progress = counting_progress(f"reading {domain}")
                under_way[domain] = stack.enter_context(progress)
            under_way[domain](done, total)
            if done == total and not on_terminal():
                console.note(f"{domain}: {total:,} images read")

        yield listen


def _published(spec: Benchmark) -> dict[str, Any]:
    """Return a benchmark as published, for programs."""
    return {
        "name": spec.name,
        "title": spec.title,
        "domains": {domain.name: domain.images for domain in spec.domains},
        "known": spec.known,
        "unknown": spec.unknown,
        "others_unknown": spec.others_unknown,
        "urls": spec.urls,
    }


def _found(found: BenchmarkCheck, decoded: bool, listed: Path | None) -> dict[str, Any]:
    """Return what was found, for programs."""
    from opensetda.data.images.lists import printable

    return {
        "benchmark": found.benchmark.name,
        "as_published": not found.problems,
        "problems": found.problems,
        "read": decoded,
        "domains": {
            row.domain.name: {
                "folder": row.folder,
                "images": row.images,
                "published": row.domain.images,
                "unreadable": [[printable(path), reason] for path, reason in row.unreadable],
            }
            for row in found.domains
        },
        "files": {"unreadable": listed},
    }


def _domain_table(found: BenchmarkCheck, decoded: bool) -> Table:
    columns = {"domain": "left", "images": "right", "published": "right"}
    columns |= {"class folders": "right", "unreadable": "right", "": "left"}
    table = console.new_table(found.benchmark.title, columns)
    for row in found.domains:
        there = sum(1 for check in row.classes if check.images and check.kind != "extra")
        missing = row.folder is None
        table.add_row(
            row.domain.name,
            console.DASH if missing else f"{row.images:,}",
            console.DASH if row.domain.images is None else f"{row.domain.images:,}",
            console.DASH if missing else str(there),
            f"{len(row.unreadable):,}" if decoded and not missing else console.DASH,
            "missing" if missing else "differs" if row.problems else "ok",
            style="bold" if row.problems else None,
        )
    return table


def _show_classes(domain: DomainCheck, everything: bool) -> None:
    columns = {"class": "left", "kind": "left", "images": "right", "published": "right"}
    table = console.new_table(f"{domain.domain.name}: classes", {**columns, "": "left"})
    for row in domain.classes:
        if everything or row.remark:
            table.add_row(
                row.name,
                row.kind,
                f"{row.images:,}",
                console.DASH if row.expected is None else f"{row.expected:,}",
                row.remark,
                style="bold" if everything and row.remark else None,
            )
    console.show(table)


def _show_unreadable(found: BenchmarkCheck) -> None:
    from opensetda.data.images.lists import printable

    broken = [pair for domain in found.domains for pair in domain.unreadable]
    for path, reason in broken[:_SHOWN]:
        console.say(f"cannot be read: {printable(path)}: {reason}")
    if len(broken) > _SHOWN:
        console.say(f"... {len(broken):,} in all; --list FILE writes them to a file")


def _write_unreadable(found: BenchmarkCheck, path: Path) -> None:
    import csv

    from opensetda.data.images.lists import printable
    from opensetda.system.files import new_file

    with new_file(path) as aside, aside.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["path", "reason"])
        for domain in found.domains:
            writer.writerows([printable(broken), reason] for broken, reason in domain.unreadable)


def _verdict(found: BenchmarkCheck, decoded: bool) -> None:
    problems = found.problems
    title = found.benchmark.title
    if not problems:
        read = "all can be read" if decoded else "not read (--no-decode)"
        console.say(f"{title}: as published: {found.images:,} images, {read}")
        return
    first = problems[0] if len(problems) == 1 else f"{len(problems)} problems, first {problems[0]}"
    console.say(f"{title}: not as published: {first}")
    console.say(f"originals: {' '.join(found.benchmark.urls)}")
