"""How long a report takes and how large it is: 5,000 targets, and 100,000.

    python benchmarks/report.py                  # both
    python benchmarks/report.py --targets 5000   # one of them

Generated features and photographs (300 x 300 JPEG files, their links in the larger run), a
real `osda fit`, then `osda report`, timed as a command of its own: t-SNE over all steps,
thumbnails, the page. Writes benchmarks/results/report.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

N_CLASSES, N_UNKNOWN, WIDTH = 20, 10, 64
SIDE = 300
PHOTOS = 5000
# Steps of the training: all of them where it is quick, so that the slider has its ten planes.
STEPS = {5_000: 10, 100_000: 3}
BARS = {5_000: (60.0, 10.0), 100_000: (None, 15.0)}


def main() -> None:
    """Measure, print one line per size, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", type=int, nargs="*", default=[5_000, 100_000])
    parser.add_argument("--folder", type=Path, help="work here, and leave everything")
    arguments = parser.parse_args()
    records = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        photos = write_photos(folder / "photos")
        for n_targets in arguments.targets:
            records.append(measure(folder / str(n_targets), photos, n_targets))
            print_record(records[-1])
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / "report.json").write_text(json.dumps(records, indent=1) + "\n")


def write_photos(folder: Path) -> list[Path]:
    """Write noise of the roughness of photographs: about as large as those of Office-31."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number:05d}.jpg" for number in range(PHOTOS)]
    rng = np.random.default_rng(0)
    for path in paths:
        if not path.exists():
            coarse = rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)
            image = Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
            grain = rng.normal(0, 12, (SIDE, SIDE, 1))
            pixels = np.clip(np.asarray(image) + grain, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).filter(ImageFilter.SMOOTH).save(path, quality=85)
    return paths


def measure(folder: Path, photos: list[Path], n_targets: int) -> dict[str, Any]:
    """Fit to generated rows, make the report as a command, and look at what came out."""
    write_tables(folder, photos, n_targets)
    fit = ["fit", "source.npz", "target.npz", "--out", "run", "--id-column", "ids", "--no-report"]
    steps = STEPS.get(n_targets, 10)
    fit_seconds = osda(folder, *fit, "--overwrite", "--quiet", "--set", f"steps={steps}")
    seconds = osda(folder, "report", "run", "--images", "images", "--quiet")
    again = osda(folder, "report", "run", "--images", "images", "--quiet")
    return {
        "targets": n_targets,
        "steps": steps,
        "fit_seconds": round(fit_seconds, 1),
        "report_seconds": round(seconds, 1),
        "second_report_seconds": round(again, 1),
        "megabytes": round((folder / "run" / "report.html").stat().st_size / 1e6, 2),
    }


def write_tables(folder: Path, photos: list[Path], n_targets: int) -> None:
    """Write clusters on a sphere, the target's moved; each row is the id of a photograph."""
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(N_CLASSES + N_UNKNOWN, WIDTH))
    shift = 0.4 * rng.normal(size=WIDTH)
    n_sources = max(2000, n_targets // 2)
    folder.mkdir(exist_ok=True)
    for domain, n_rows, n_classes in (
        ("source", n_sources, N_CLASSES),
        ("target", n_targets, N_CLASSES + N_UNKNOWN),
    ):
        y = rng.integers(n_classes, size=n_rows)
        X = centres[y] + 0.7 * rng.normal(size=(n_rows, WIDTH)) + (domain == "target") * shift
        names = np.array([f"class {label:02d}" for label in range(n_classes)])
        ids = [f"{domain}/{row:06d}.jpg" for row in range(n_rows)]
        (folder / "images" / domain).mkdir(parents=True, exist_ok=True)
        for row, name in enumerate(ids):
            place = folder / "images" / name
            if not place.exists():
                # Links: 150,000 files would fill the disk and measure the same.
                os.link(photos[row % len(photos)], place)
        labels = {"y": names[y]} if domain == "source" else {}
        np.savez(folder / f"{domain}.npz", X=X.astype(np.float32), ids=ids, **labels)


def osda(folder: Path, *arguments: str) -> float:
    """Run a command and return the seconds it took."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "opensetda", *arguments]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        sys.exit(f"error: {' '.join(command)} ended with {done.returncode}")
    return time.perf_counter() - started


def print_record(record: dict[str, Any]) -> None:
    """Print a line, with the bars where there are some."""
    seconds, megabytes = BARS.get(record["targets"], (None, None))
    print(
        f"{record['targets']:>8,} targets, {record['steps']} steps: "
        f"report in {record['report_seconds']:.1f} s"
        + (f" (bar {seconds:.0f})" if seconds else "")
        + f", again in {record['second_report_seconds']:.1f} s, {record['megabytes']:.2f} MB"
        + (f" (bar {megabytes:.0f})" if megabytes else "")
        + f"; the fit took {record['fit_seconds']:.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
