"""Small valid files of every kind that the program reads, made by its own commands."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pandas as pd
from commands import Command, run
from PIL import Image

CLASSES = ("ant", "bee", "cat")
FORMATS = ("png", "jpg", "gif", "tiff", "webp", "bmp")
QUIET, SMALL = ("--no-report", "--quiet"), ("--image-size", "32", "--cache", "cache")
# Several checkpoints in a second or two.
PGL = ("--method", "pgl", "--set", "steps=4", "--set", "epochs=2", "--set", "edge_width=8",
       "--set", "node_width=8")  # fmt: skip


def fit_tables(out: str, form: str = "csv") -> Command:
    """Return the command that fits to the tables; an .npy file has neither labels nor ids."""
    if form == "npy":
        return ["fit", "tables/source.npz", "tables/target.npy", "--out", out, *QUIET]
    names = (f"tables/{domain}.{form}" for domain in ("source", "target"))
    return ["fit", *names, "--out", out, "--id-column", "id", *QUIET]


def fit_images(out: str, source: str = "images/shop") -> Command:
    """Return the command that fits to the images."""
    return ["fit", source, "images/street", "--out", out, *SMALL, *QUIET]


def benchmark(out: str) -> Command:
    """Return the command of a small grid."""
    methods = ("--method", "source-only", "--method", "class-means", "--openness", "true")
    return ["benchmark", "demo", *methods, "--seeds", "1", "--jobs", "1", "--out", out]


def make_scene(folder: Path, small: bool = False) -> None:
    """Make all files; a small scene has neither runs on images nor a grid."""
    # In a process of its own: its threads must not be in those that are forked.
    made = multiprocessing.get_context("fork").Process(target=_make_inputs, args=(folder,))
    made.start()
    made.join()
    evaluate = ["evaluate", "run", "--labels", "tables/truth.csv", "--label-column", "y"]
    of_images = [] if small else [fit_images("pictures-run"), benchmark("grid")]
    for command in (fit_tables("run"), evaluate, *of_images):
        ended = run(command, folder, 120)
        if ended.code:
            raise RuntimeError(f"{ended}")
    _begin(fit_tables("left"), folder)
    if not small:
        _begin(fit_images("pictures-left"), folder)


def _begin(fit: Command, folder: Path) -> None:
    """Kill a fit after its first checkpoint."""
    place = folder / f"{fit[4]}.unfinished"
    while not place.is_dir():
        shutil.rmtree(folder / fit[4], ignore_errors=True)  # It was too fast.
        run([*fit, *PGL], folder, 120, lambda: any(place.glob("checkpoint*")))


def _make_inputs(folder: Path) -> None:
    for place in ("tables", "images/street", "images/formats"):
        (folder / place).mkdir(parents=True)
    _make_tables(folder / "tables")
    _make_images(folder / "images")


def _make_tables(folder: Path) -> None:
    rng, names = np.random.default_rng(0), np.array([*CLASSES, "dog"])
    for domain, classes in {"source": np.arange(24) % 3, "target": np.arange(32) % 4}.items():
        X = 4 * np.eye(4, 9)[classes] + rng.normal(0.5, 0.4, (len(classes), 9))
        own = {"id": np.array([f"{domain}-{row}" for row in range(len(X))])}
        own |= {"y": names[classes]} if domain == "source" else {}
        path = folder / domain
        np.savez(path.with_suffix(".npz"), X=X.astype(np.float32), **own)
        np.save(path.with_suffix(".npy"), X.astype(np.float32))
        pandas = pd.DataFrame({**own, **{f"f{column}": X[:, column] for column in range(9)}})
        pandas.to_parquet(path.with_suffix(".parquet"))
        pandas.to_feather(path.with_suffix(".feather"))
        pandas.to_csv(path.with_suffix(".csv"), index=False)
        pandas.to_csv(path.with_suffix(".tsv"), index=False, sep="\t")
        pandas.to_json(path.with_suffix(".jsonl"), orient="records", lines=True)
        pandas.to_excel(path.with_suffix(".xlsx"), index=False)
    truth = "".join(f"target-{row},{names[row % 4]}\n" for row in range(32))
    (folder / "truth.csv").write_text(f"id,y\n{truth}")
    (folder / "corrections.csv").write_text("id,label\ntarget-3,newt\ntarget-5,unknown\n")


def _draw(number: int, seed: int) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 90, (24, 24, 3), dtype=np.uint8)
    return Image.fromarray(noise + np.array([[150, 0, 0, 90], [0, 150, 0, 90], [0, 0, 150, 0]],
                                            dtype=np.uint8)[:, number])  # fmt: skip


def _make_images(folder: Path) -> None:
    listed = [(f"shop/{name}/{copy}.png", name) for name in CLASSES for copy in range(4)]
    for place, (path, name) in enumerate(listed):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        _draw(CLASSES.index(name), place).save(folder / path)
    for place in range(16):
        _draw(place % 4, 100 + place).save(folder / f"street/{place}.png")
    (folder / "list.txt").write_text("".join(f"{path} {name}\n" for path, name in listed))
    table = pd.DataFrame(listed, columns=["path", "label"])
    table.to_parquet(folder / "manifest.parquet")
    table.to_csv(folder / "manifest.csv", index=False)
    with tarfile.open(folder / "shard.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for number, (path, name) in enumerate(listed):
            note = folder / f"{number}.json"
            note.write_text(json.dumps({"label": name}))
            tar.add(folder / path, f"{number}.png")
            tar.add(note, note.name)
            note.unlink()
    frames = [_draw(number, 1) for number in range(3)]
    for form in FORMATS:
        more = {"save_all": True, "append_images": frames[1:]} if form in ("gif", "tiff") else {}
        frames[0].save(folder / "formats" / f"whole.{form}", **more)
