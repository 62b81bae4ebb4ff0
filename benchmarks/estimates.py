"""Expected against true time and memory of ten commands.

    python benchmarks/estimates.py                       # about a quarter of an hour
    python benchmarks/estimates.py --only fine-tune      # the commands whose name has this word
    python benchmarks/estimates.py --data FOLDER         # with one folder of classes per domain
    python benchmarks/estimates.py --share 0.25          # fewer images, for a busy machine

The expected seconds and the expected memory are those of `--json`, told after a few batches. The
true ones are of the whole process, from its start to its end. The bar: at most 30 % off in nine
of ten commands.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DATA = Path(__file__).parents[2] / "shared" / "data" / "pacs-images-160"
MOST_OFF = 0.3
OSDA = (sys.executable, "-m", "opensetda")


class Command(NamedTuple):
    """A command of the command line, without `osda`."""

    name: str
    arguments: tuple[str, ...]


class Measured(NamedTuple):
    """Seconds and megabytes, as expected and as they were; None if nothing was expected."""

    expected: float | None
    seconds: float
    expected_mb: float | None
    megabytes: float

    @property
    def off(self) -> float | None:
        """By how much the expected time is off, relative to the true one."""
        return None if self.expected is None else self.expected / self.seconds - 1


def run(*arguments: str) -> Measured:
    """Run a command with --json."""
    begun = time.perf_counter()
    with subprocess.Popen(
        [*OSDA, *arguments, "--json"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        out = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - begun
    if process.returncode:
        raise SystemExit(f"osda {' '.join(arguments)}: exit code {process.returncode}")
    expected = json.loads(out)["expected"] or {"seconds": None, "memory_mb": None}
    megabytes = used.ru_maxrss * 1024 / 1e6
    return Measured(expected["seconds"], seconds, expected["memory_mb"], megabytes)


def find_domains(data: Path, work: Path) -> list[Path]:
    """Return the folders of four domains, or of the digits, twice."""
    if not data.is_dir():
        subprocess.run([*OSDA, "data", "digits", str(work / "digits"), "--quiet"], check=True)
        data = work / "digits"
    domains = sorted(path for path in data.iterdir() if path.is_dir())
    return [*domains, *domains][:4]


def part(domain: Path, work: Path, per_class: float, classes: int | None = None) -> str:
    """Link to the first images of the first classes of a domain."""
    per_class = max(int(per_class), 4)
    folder = work / f"{domain.name}-{per_class}-{classes or 'all'}"
    for label in sorted(path for path in domain.iterdir() if path.is_dir())[:classes]:
        (folder / label.name).mkdir(parents=True, exist_ok=True)
        for image in sorted(label.iterdir())[:per_class]:
            link = folder / label.name / image.name
            if not link.exists():
                link.symlink_to(image.resolve())
    return str(folder)


def commands(domains: list[Path], work: Path, share: float) -> Iterator[Command]:
    """Yield the ten commands, on a share of the images; later ones use the runs of earlier ones."""
    one, two, three, four = domains
    frozen, tuned = str(work / "frozen"), str(work / "tuned")

    def pair(per_class: int, *more: Path) -> tuple[str, str]:
        source, target = more or (three, two)
        n = share * per_class
        return part(source, work, n, classes=4), part(target, work, n)

    def steps(number: int, iterations: int, *more: str) -> tuple[str, ...]:
        changes = f"steps={number}", f"optimiser.iterations_per_epoch={iterations}", *more
        return tuple(text for change in changes for text in ("--set", change))

    def out(name: str) -> tuple[str, str]:
        return "--out", str(work / name)

    fresh = ("--no-cache", "--image-size")
    photographs, drawings = part(one, work, 400 * share), part(four, work, 400 * share)
    yield Command("features, 224 pixels", ("features", photographs, *out("a.npz"), *fresh, "224"))
    yield Command("features, 320 pixels", ("features", drawings, *out("b.npz"), *fresh, "320"))
    fit = ("fit", *pair(200), "--out", frozen, *fresh, "224")
    yield Command("fit", fit)
    yield Command("predict", ("predict", frozen, photographs, *out("a.csv")))
    tiny = ("--finetune", *fresh, "64")
    fit = ("fit", *pair(60), "--out", tuned, *tiny, *steps(4, 10))
    yield Command("fine-tune, 64 pixels", fit)
    yield Command("predict, fine-tuned", ("predict", tuned, photographs, drawings, *out("b.csv")))
    fit = ("fit", *pair(100, four, three), *out("c"), "--finetune", *fresh, "96", *steps(3, 6))
    yield Command("fine-tune, 96 pixels", fit)
    fit = ("fit", *pair(60, one, two), *out("d"), *tiny, *steps(3, 12, "finetune.chunk=16"))
    yield Command("fine-tune, in chunks", fit)
    rival = ("--method", "osbp", "--set", "iterations=40", "--set", "batch_size=24")
    yield Command("fine-tune, osbp", ("fit", *pair(100, two, one), *out("e"), *tiny, *rival))
    methods = ("--method", "source-only", "--method", "pgl", "--method", "osbp")
    grid = ("benchmark", "demo", *methods, "--seeds", "4", "--jobs", "2", *out("f"))
    yield Command("benchmark", grid)


def show(name: str, found: Measured) -> None:
    """Print one row."""
    seconds = "-" if found.expected is None else f"{found.expected:.0f}"
    off = "-" if found.off is None else f"{100 * found.off:+.0f}"
    memory = "-" if found.expected_mb is None else f"{found.expected_mb:,.0f}"
    print(
        f"| {name} | {seconds} | {found.seconds:.0f} | {off} | {memory} | {found.megabytes:,.0f} |",
        flush=True,
    )


def main() -> None:
    """Run the commands and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--only", default="")
    parser.add_argument("--share", type=float, default=1.0)
    options = parser.parse_args()
    print("| command | expected s | true s | off by % | expected MB | peak MB |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        rows = []
        for command in commands(find_domains(options.data, work), work, options.share):
            if options.only in command.name:
                rows.append(run(*command.arguments))
                show(command.name, rows[-1])
    right = sum(row.off is not None and abs(row.off) <= MOST_OFF for row in rows)
    print(f"\n{right} of {len(rows)} within {100 * MOST_OFF:.0f} %")


if __name__ == "__main__":
    main()
