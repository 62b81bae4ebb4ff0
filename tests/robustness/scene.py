"""Commands in forks of this process, and small files of every kind that they read."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from PIL import Image

from opensetda.cli.main import main

FORK = multiprocessing.get_context("fork")
_LONGEST_LINE, _MOST_BYTES = 1500, 4 * 2**30
_WARNING = re.compile(r"^\S+:\d+: \w*Warning: .*", re.MULTILINE)
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
SHOP, STREET = "images/mnist", "images/scikit-learn"
FIT = "fit tables/source.csv tables/target.csv --id-column id --no-report --quiet --out"
FIT_IMAGES = f"fit {SHOP} {STREET} --image-size 32 --cache cache --no-report --quiet --out"
GRID = "benchmark demo --method source-only --seeds 1 --jobs 1 --out"
# Several checkpoints in a second or two.
PGL = "--method pgl --set steps=4 --set epochs=2 --set edge_width=8 --set node_width=8"


class Ended(NamedTuple):
    """How a command ended; its code is None if it was killed, -N if it died of a signal."""

    command: str
    code: int | None
    out: str
    errors: str

    def fault(self, names: tuple[str, ...] = ()) -> str:
        """Return what is wrong with this end, or ""; an error has one of `names` in it."""
        lines = [line for line in self.errors.split("\n") if line.startswith("error: ")]
        text = (lines or [self.errors[-300:]])[-1]
        is_foreign = any(words in text for words in ("(run again with --debug", "out of memory"))
        faults = {
            "hangs": self.code is None,
            "foreign error": is_foreign or self.code not in (0, 1, 2),
            "foreign warning": _WARNING.search(self.errors),
            "control characters": _CONTROLS.search(self.out + "".join(lines)),
            "no error line, or a long one": self.code and (not lines or len(text) > _LONGEST_LINE),
            "no file is named": self.code and names and not any(name in text for name in names),
        }
        found = next((fault for fault, is_so in faults.items() if is_so), "")
        return found and f"{found}: exit code {self.code}, {self.errors[-1000:]!r}"


def run(
    command: str,
    folder: Path,
    seconds: float = 30,
    is_time: Callable[[str], bool] | None = None,
    before: Callable[[], object] = lambda: None,
) -> Ended:
    """Run a command in `folder`, after `before`; kill it once `is_time`, or the time is over.

    `is_time` is asked with stdout. Without it, a review that has told its address is interrupted.
    """
    files = [folder.with_suffix(f".{name}") for name in ("output", "errors")]
    for file in files:
        file.write_bytes(b"")

    def be_the_command() -> None:
        os.chdir(folder)
        for number, file in enumerate(files, 1):
            os.dup2(os.open(file, os.O_WRONLY | os.O_APPEND), number)
        how = {"errors": "backslashreplace", "closefd": False}
        sys.stdout, sys.stderr = (open(n, "w", 1, **how) for n in (1, 2))  # noqa: SIM115, PTH123
        signal.signal(signal.SIGINT, signal.default_int_handler)
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + _MOST_BYTES, taken + _MOST_BYTES))
        before()
        sys.exit(main([*command.split(), "--debug"]))

    child = FORK.Process(target=be_the_command)
    child.start()
    until, serves, is_killed = time.monotonic() + seconds, command.startswith("review"), False
    while child.is_alive():
        out = files[0].read_text("utf-8", "replace")
        if (is_time and is_time(out)) or time.monotonic() > until:
            is_killed = True
            child.kill()
        elif serves and not is_time and "token=" in out:
            os.kill(child.pid, signal.SIGINT)
            serves = False
        time.sleep(0.001)
    code = None if is_killed else child.exitcode
    return Ended(command, code, *(file.read_text("utf-8", "replace") for file in files))


def make_scene(folder: Path, small: bool = False) -> None:
    """Make all files; a small scene has neither images nor a grid."""
    folder.mkdir()
    if not small:
        _do("data digits images --every 150", folder)
    # In a process of its own: its threads must not be in those that are forked.
    made = FORK.Process(target=_make_inputs, args=(folder, small))
    made.start()
    made.join()
    _do(f"{FIT} run", folder)
    _do("evaluate run --labels tables/truth.csv --label-column y", folder)
    _begin(f"{FIT} left {PGL}", folder / "left.unfinished")
    if not small:
        _do(f"{FIT_IMAGES} pictures-run", folder)
        _do(f"{GRID} grid", folder)
        _begin(f"{FIT_IMAGES} pictures-left {PGL}", folder / "pictures-left.unfinished")


def _do(command: str, folder: Path) -> None:
    if (ended := run(command, folder, 120)).code:
        raise RuntimeError(f"{ended}")


def _begin(fit: str, place: Path) -> None:
    """Kill a fit after its first checkpoint."""
    while not place.is_dir():
        shutil.rmtree(place.with_suffix(""), ignore_errors=True)  # It was too fast.
        run(fit, place.parent, 120, lambda _: any(place.glob("checkpoint*")))


def _make_inputs(folder: Path, small: bool) -> None:
    (tables := folder / "tables").mkdir()
    rng, names = np.random.default_rng(0), np.array(["ant", "bee", "cat", "dog"])
    for domain, classes in {"source": np.arange(24) % 3, "target": np.arange(32) % 4}.items():
        X = 4 * np.eye(4, 9)[classes] + rng.normal(0.5, 0.4, (len(classes), 9))
        own = {"id": np.array([f"{domain}-{row}" for row in range(len(X))])}
        own |= {"y": names[classes]} if domain == "source" else {}
        path = tables / domain
        np.savez(path.with_suffix(".npz"), X=X.astype(np.float32), **own)
        pandas = pd.DataFrame({**own, **{f"f{column}": X[:, column] for column in range(9)}})
        pandas.to_parquet(path.with_suffix(".parquet"))
        pandas.to_feather(path.with_suffix(".feather"))
        pandas.to_csv(path.with_suffix(".csv"), index=False)
        pandas.to_csv(path.with_suffix(".tsv"), index=False, sep="\t")
        pandas.to_json(path.with_suffix(".jsonl"), orient="records", lines=True)
        pandas.to_excel(path.with_suffix(".xlsx"), index=False)
    np.save(tables / "target.npy", X.astype(np.float32))
    truth = "".join(f"target-{row},{names[row % 4]}\n" for row in range(32))
    (tables / "truth.csv").write_text(f"id,y\n{truth}")
    (tables / "corrections.csv").write_text("id,label\ntarget-3,newt\ntarget-5,unknown\n")
    if not small:
        _make_lists(folder / "images")


def _make_lists(folder: Path) -> None:
    """Name the images of the source in a list, manifests and a shard; write one in all formats."""
    files = sorted((folder / "mnist").rglob("*.png"))
    listed = [(str(file.relative_to(folder)), file.parent.name) for file in files]
    (folder / "list.txt").write_text("".join(f"{path} {name}\n" for path, name in listed))
    table = pd.DataFrame(listed, columns=["path", "label"])
    table.to_parquet(folder / "manifest.parquet")
    table.to_csv(folder / "manifest.csv", index=False)
    with tarfile.open(folder / "shard.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for number, file in enumerate(files):
            note = folder / f"{number}.json"
            note.write_text(json.dumps({"label": file.parent.name}))
            tar.add(file, f"{number}.png")
            tar.add(note, note.name)
            note.unlink()
    (formats := folder / "formats").mkdir()
    frames = [Image.open(file).convert("RGB").resize((24, 24)) for file in files[::4]]
    for form in ("png", "jpg", "gif", "tiff", "webp", "bmp"):
        more = {"save_all": True, "append_images": frames[1:]} if form in ("gif", "tiff") else {}
        frames[0].save(formats / f"whole.{form}", **more)
