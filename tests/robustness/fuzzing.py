"""Files that are mutated, and the commands that read them."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from commands import run
from mutations import damage
from scene import FIT, FIT_IMAGES, GRID, SHOP, STREET, copy

_FEATURES = "--out out/f.npz --image-size 32 --cache"
_TO_LABELS = "{file} --out out/labels.csv"
# Files, the first pattern that fits, and the commands that read them.
READERS = {
    "tables/truth.csv": ["evaluate run --labels {file}"],
    "tables/corrections.csv": [f"{FIT} out/run --corrections {{file}}"],
    "tables/*.npy": ["fit tables/source.npz {file} --out out/run", f"predict run {_TO_LABELS}"],
    "tables/*": [f"{FIT} out/run".replace("csv", "{form}"), f"predict run {_TO_LABELS}"],
    "images/*/*": [f"features {{folder}} {_FEATURES} cache"],
    "images/*": [f"features {{file}} {_FEATURES} cache", f"predict pictures-run {_TO_LABELS}",
                 f"{FIT_IMAGES} out/run".replace(SHOP, "{file}")],
    "cache/*": [f"features {STREET} {_FEATURES} cache"],
    "grid/*": [f"{GRID} grid"],
    "*.unfinished/*": ["resume {run} --quiet"],
    "*": ["predict {run} {samples} --out out/labels.csv", "review {run} --no-browser",
          "report {run} --out out/report.html", "export {run} --to out/model.onnx"],
}  # fmt: skip


def mutated(scene: Path, place: Path, path: str, number: int) -> str:
    """Let a command read mutation `number` of a file."""
    copy(scene, place)
    file, run_folder = Path(path), path.split("/")[0].removesuffix(".unfinished")
    samples = STREET if run_folder == "pictures-run" else "tables/target.csv"
    own = {"file": path, "folder": file.parent, "form": file.suffix[1:], "run": run_folder}
    commands = next(READERS[pattern] for pattern in READERS if fnmatch(path, pattern))
    command = commands[number % len(commands)].format(samples=samples, **own)
    ended = run(command, place, before=lambda: damage(file, number))
    # Of an unfinished run, an error may be about data that it no longer fits.
    return ended.fault((file.name, run_folder, "since the run began"))


def mutations(scene: Path, count: int) -> Iterator[tuple[str, int]]:
    """Yield files and numbers of mutations, a mutation of every file before the next of any."""
    files = sorted(str(path.relative_to(scene)) for path in scene.rglob("*") if path.is_file())
    # Pages for people and locks: nothing reads them.
    files = [path for path in files if not path.endswith((".html", "lock"))]
    for number in range(count):
        yield files[number % len(files)], number // len(files)
