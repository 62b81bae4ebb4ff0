"""From a wheel to the first result on two folders of images, in an empty environment.

    python benchmarks/first_result.py                     # the bundled digits, as images
    python benchmarks/first_result.py photos drawings     # labelled and unlabelled images

Builds the wheel, then runs the four commands of the README (`python -m venv`, `pip install` with
constraints.txt and the CPU build of torch, `osda fit`, `osda predict`) in a temporary folder, and
prints the seconds of each, those of the processors, and the size of the environment. Nothing is
cached but pip's downloads.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CPU = "https://download.pytorch.org/whl/cpu"


def main() -> None:
    """Measure, and print a table."""
    options = _options()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        wheel = _built(place / "wheels")
        if options.extras:
            wheel = f"{wheel}[{options.extras}]"
        indices = [] if options.index == "none" else ["--extra-index-url", options.index]
        pip = [_program(place, "pip"), "install", "-q", "--disable-pip-version-check"]
        seconds = {
            "venv": _timed(place, [sys.executable, "-m", "venv", "env"]),
            "install": _timed(
                place,
                [*pip, *options.pip, "-c", str(ROOT / "constraints.txt"), *indices, wheel],
            ),
        }
        installed = _megabytes(place / "env")
        osda, data = _program(place, "osda"), [options.source, options.target]
        if options.source is None:
            _timed(place, [osda, "data", "digits", "digits", "--every", "10", "--quiet"])
            data = ["digits/mnist", "digits/scikit-learn"]
        source, target = (str(Path(path).absolute()) if options.source else path for path in data)
        seconds["fit"] = _timed(place, [osda, "fit", source, target, "--out", "run"])
        seconds["predict"] = _timed(place, [osda, "predict", "run", target, "--out", "labels.csv"])
        used = _megabytes(place / "env")
        labelled = len((place / "labels.csv").read_text().splitlines()) - 1
    print("\n| command | seconds | of processors |\n| --- | --- | --- |")
    for command, (spent, used_up) in seconds.items():
        print(f"| {command} | {spent:.0f} | {used_up:.0f} |")
    totals = [sum(column) for column in zip(*seconds.values(), strict=True)]
    print(f"| all | {totals[0]:.0f} | {totals[1]:.0f} |")
    print(f"\n{labelled:,} images labelled; environment: {installed:,} MB, after use {used:,} MB")
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", nargs="?", help="folder with one folder per class")
    parser.add_argument("target", nargs="?", help="folder of images to label")
    parser.add_argument(
        "--index", default=CPU, help="second index of pip, or none; default: %(default)s"
    )
    parser.add_argument("--extras", default="", help="extras of the package, for example onnx")
    parser.add_argument("--pip", nargs="*", default=["--no-compile"], help="options of pip install")
    options = parser.parse_args()
    if options.source is not None and options.target is None:
        parser.error("give both folders, or none")
    return options


def _built(folder: Path) -> str:
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "-w",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    return str(wheel)


def _program(place: Path, name: str) -> str:
    return str(place / "env" / ("Scripts" if sys.platform == "win32" else "bin") / name)


def _timed(place: Path, command: list[str]) -> tuple[float, float]:
    """Run a command as in a new shell, and return its seconds, and those of processors."""
    ours = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
    environment = {name: text for name, text in os.environ.items() if name not in ours}
    environment["OSDA_CACHE"] = str(place / "cache")
    begun, before = time.perf_counter(), os.times()
    subprocess.run(command, cwd=place, env=environment, check=True)
    seconds, after = time.perf_counter() - begun, os.times()
    return seconds, sum(after[2:4]) - sum(before[2:4])


def _megabytes(folder: Path) -> int:
    """Return what a folder takes on disk, as `du -sm`: in blocks, hard links once."""
    found = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        found[status.st_ino] = getattr(status, "st_blocks", -(-status.st_size // 512))
    return 512 * sum(found.values()) // 2**20


if __name__ == "__main__":
    main()
