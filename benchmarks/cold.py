"""From a wheel to the first labels, in an empty environment: seconds, and processor seconds.

    python -m build --wheel && python benchmarks/cold.py dist/*.whl

Two commands: `pip install` of the wheel with the extra onnx, and `osda fit` on two folders of 100
images of Office-31 (five known classes, two unknown), without a cache of features. pip keeps no
cache, either. PIP_EXTRA_INDEX_URL chooses the CPU build of torch, see docs/install.md.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from images import OFFICE31

ROOT = Path(__file__).resolve().parents[1]
KNOWN = ("back_pack", "bike", "mouse", "mug", "pen")
UNKNOWN = ("ruler", "scissors")
SOURCE_EACH, TARGET_EACH = 20, 15


def timed(*command: object) -> None:
    """Run a command, and print what it took."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([str(word) for word in command], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    worked = sum(getattr(after, n) - getattr(before, n) for n in ("ru_utime", "ru_stime"))
    name = " ".join(Path(str(word)).name for word in command[:4])
    print(f"{name}: {time.perf_counter() - started:.0f} s, {worked:.0f} s of processor time")


def copy_images(data: Path, folder: Path) -> None:
    """Copy a hundred images of each domain."""
    for name in (*KNOWN, *UNKNOWN):
        target = sorted((data / "webcam" / name).iterdir())[:TARGET_EACH]
        (folder / "street").mkdir(exist_ok=True)
        for path in target:
            shutil.copy(path, folder / "street" / f"{name}-{path.name}")
        if name in KNOWN:
            (folder / "shop" / name).mkdir(parents=True)
            for path in sorted((data / "amazon" / name).iterdir())[:SOURCE_EACH]:
                shutil.copy(path, folder / "shop" / name)


def main() -> None:
    """Measure both commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--data", type=Path, default=OFFICE31, help="images of Office-31")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_images(options.data, folder)
        subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
        programs = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
        wheel = f"{options.wheel.resolve()}[onnx]"
        usual = ("-q", "--no-compile", "--no-cache-dir", "-c", ROOT / "constraints.txt")
        timed(programs / "python", "-m", "pip", "install", *usual, wheel)
        pair = folder / "shop", folder / "street"
        timed(programs / "osda", "fit", *pair, "--out", folder / "run", "--no-cache", "--quiet")


if __name__ == "__main__":
    main()
