"""Small files of every kind that commands read, and what makes them."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pandas as pd
from commands import FORK, run
from PIL import Image

SHOP, STREET = "images/mnist", "images/scikit-learn"
FIT_REPORT = "fit tables/source.csv tables/target.csv --id-column id --quiet --out"
FIT = FIT_REPORT.replace("--quiet", "--no-report --quiet")
FIT_IMAGES_REPORT = f"fit {SHOP} {STREET} --image-size 32 --cache cache --quiet --out"
FIT_IMAGES = FIT_IMAGES_REPORT.replace("--quiet", "--no-report --quiet")
GRID = "benchmark demo --method source-only --seeds 1 --jobs 1 --out"
# Several checkpoints in a second or two.
PGL = "--method pgl --set steps=4 --set epochs=2 --set edge_width=8 --set node_width=8"


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


def copy(scene: Path, place: Path) -> None:
    """Make `place` a fresh copy of the scene, with an empty folder for outputs."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(scene, place, symlinks=True)
    (place / "out").mkdir()
