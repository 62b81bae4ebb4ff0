"""The scene of the robustness checks: small valid files of every kind that the program reads.

input/, images/input/    empty, for mutated files
tables/    source and target in every format, a folder of parts; truth; corrections
images/    shop (one folder per class), street (flat), lists, manifests, a tar shard, formats
run, pictures-run    finished runs of both, evaluated, with report and decisions
run-b      another finished run of the tables, for files of another run
left.unfinished, pictures-left.unfinished    runs that were interrupted after a checkpoint
cache/     the feature cache of the images
weights.safetensors, weights.pth    weights of a tiny network
benchmark/ the folder of a small grid
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

CLASSES = ("ant", "bee", "cat")
FORMATS = ("png", "jpg", "gif", "tiff", "webp", "bmp", "ppm", "avif")
QUICK = ("--set", "steps=2")
# With checkpoints, after every step but the last.
TRAINED = ("--method", "pgl", "--set", "steps=3", "--set", "epochs=1", "--set", "edge_width=8",
           "--set", "node_width=8")  # fmt: skip
TINY = "timm:test_efficientnet"


def main(*arguments: object) -> int:
    """Run a command without its output."""
    from opensetda.cli.main import main

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as e:
        code = main([str(argument) for argument in arguments])
    if code:
        raise RuntimeError(f"{arguments}: exit code {code}: {e.getvalue()}")
    return code


def make_scene(folder: Path, small: bool = False) -> None:
    """Make all of it; a small one has no backbone, report or benchmark, and takes a few seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(folder):
        Path("input").mkdir()
        _tables(Path("tables"))
        _pictures(Path("images"))
        main(*_fit_tables("run"), *QUICK)
        _interrupted(_fit_tables("left"))
        if not small:
            main("evaluate", "run", "--labels", "tables/truth.csv", "--label-column", "y")
            main("report", "run")
        _decide(Path("run"))
        if small:
            return
        main(*_fit_tables("run-b"), "--set", "steps=3")
        main(*benchmark("benchmark"))
        main(*fit_images("pictures-run"), *QUICK)
        main("evaluate", "pictures-run", "--labels", "images/truth.txt")
        main("report", "pictures-run")
        _decide(Path("pictures-run"))
        _interrupted(fit_images("pictures-left"))
        _weights()


def _fit_tables(out: str) -> list[str]:
    return ["fit", "tables/source.csv", "tables/target.csv", "--out", out, "--id-column", "id",
            "--no-report", "--quiet"]  # fmt: skip


def fit_images(out: str) -> list[str]:
    """Return the command that fits to the images."""
    return ["fit", "images/shop", "images/street", "--out", out, "--image-size", "32",
            "--cache", "cache", "--no-report", "--quiet"]  # fmt: skip


def benchmark(out: str, *more: str) -> list[str]:
    """Return the command of a small grid."""
    return ["benchmark", "demo", "--method", "source-only", "--method", "class-means",
            "--seeds", "1", "--jobs", "1", "--openness", "true", "--out", out, *more]  # fmt: skip


def _interrupted(fit: list[str]) -> None:
    """Press Ctrl-C after the last checkpoint."""
    from opensetda.errors import RunPausedError
    from opensetda.runs import fitting, unfinished

    environment = fitting.environment

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    fitting.environment = stop
    try:
        with contextlib.suppress(RunPausedError, RuntimeError):
            main(*fit, *TRAINED)
    finally:
        fitting.environment = environment
    left = unfinished.unfinished_path(Path(fit[fit.index("--out") + 1]))
    if not (left / "checkpoint").exists():
        raise RuntimeError(f"{left}: no checkpoint was left behind")


def _decide(run: Path) -> None:
    """Write a review of a few decisions and its table of corrections."""
    from opensetda.review.session import BORDER, ReviewSession

    session = ReviewSession(run)
    try:
        rows = [sample["row"] for sample in session.page(BORDER, 0, 4)["samples"]]
        for row, label in zip(rows, ("ant", None, "newt", "unknown"), strict=False):
            session.decide(row, BORDER, label)
        session.undo()
    finally:
        session.close()


def _tables(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.feather as feather
    import pyarrow.parquet as pq

    (folder / "parts").mkdir(parents=True)
    rng = np.random.default_rng(0)
    names = np.array([*CLASSES, "dog"])
    which = {"source": np.arange(24) % 3, "target": np.arange(32) % 4}
    for domain, classes in which.items():
        shift = 0.5 if domain == "target" else 0.0
        X = 4 * np.eye(4, 5)[classes] + rng.normal(shift, 0.4, (len(classes), 5))
        X = X.astype(np.float32)
        own = {"y": names[classes]} if domain == "source" else {}
        own["id"] = np.array([f"{domain}-{row}" for row in range(len(X))])
        np.savez(folder / f"{domain}.npz", X=X, **own)
        np.savez_compressed(folder / f"{domain}-packed.npz", X=X, **own)
        np.save(folder / f"{domain}.npy", X)
        columns = {name: values.tolist() for name, values in own.items()}
        columns |= {f"f{column}": X[:, column] for column in range(5)}
        table = pa.table(columns)
        pq.write_table(table, folder / f"{domain}.parquet")
        lines = [",".join(table.column_names)]
        lines += [",".join(map(str, row.values())) for row in table.to_pylist()]
        (folder / f"{domain}.csv").write_text("\n".join(lines) + "\n")
        tabbed = "\n".join(lines).replace(",", "\t") + "\n"
        (folder / f"{domain}.tsv").write_text(tabbed)
        feather.write_feather(table, folder / f"{domain}.feather")
        feather.write_feather(table, folder / f"{domain}-packed.feather", "zstd")
        objects = "".join(json.dumps(row) + "\n" for row in table.to_pylist())
        (folder / f"{domain}.jsonl").write_text(objects)
        table.to_pandas().to_excel(folder / f"{domain}.xlsx", index=False)
    for part in range(2):
        pq.write_table(table.slice(16 * part, 16), folder / "parts" / f"{part}.parquet")
    truth = ["id,y", *(f"target-{row},{names[row % 4]}" for row in range(32))]
    (folder / "truth.csv").write_text("\n".join(truth) + "\n")
    (folder / "corrections.csv").write_text("id,label\ntarget-3,newt\ntarget-5,unknown\n")


def draw(number: int, seed: int) -> Any:
    """Return a picture of one of four colours."""
    from PIL import Image, ImageDraw

    rng = np.random.default_rng(seed)
    image = Image.fromarray(rng.integers(90, 160, (24, 24, 3), dtype=np.uint8))
    colour = ((220, 40, 30), (30, 180, 50), (40, 60, 220), (240, 240, 40))[number]
    ImageDraw.Draw(image).ellipse([3, 3, 17 + number, 20], fill=colour)
    return image


def _pictures(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (folder / "street").mkdir(parents=True)
    (folder / "formats").mkdir()
    (folder / "input").mkdir()
    listed, truth = [], []
    for number, name in enumerate(CLASSES):
        (folder / "shop" / name).mkdir(parents=True)
        for copy in range(5):
            path = f"shop/{name}/{copy}.png"
            draw(number, 10 * number + copy).save(folder / path)
            listed.append((path, name))
    for number, name in enumerate([*CLASSES, "dog"]):
        for copy in range(4):
            path = f"street/{name[0]}{copy}.png"
            draw(number, 100 + 10 * number + copy).save(folder / path)
            truth.append((path.removeprefix("street/"), name))
    (folder / "list.txt").write_text("".join(f"{path} {name}\n" for path, name in listed))
    (folder / "truth.txt").write_text("".join(f"{path} {name}\n" for path, name in truth))
    lines = ["path,label,id", *(f"{path},{name},{n}" for n, (path, name) in enumerate(listed))]
    (folder / "manifest.csv").write_text("\n".join(lines) + "\n")
    paths, labels = zip(*listed, strict=True)
    table = pa.table({"path": paths, "label": labels, "id": [f"i{n}" for n in range(len(paths))]})
    pq.write_table(table, folder / "manifest.parquet")
    with tarfile.open(folder / "shard.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for number, (path, name) in enumerate(listed):
            content = (folder / path).read_bytes()
            # A long name needs a pax record of its own.
            stem = f"{'long-' * 30 if number == 1 else ''}{number:04d}"
            note = (f'{{"label": "{name}"}}' if number % 2 else name).encode()
            members = ((".png", content), (".json" if number % 2 else ".cls", note))
            for ending, data in members:
                info = tarfile.TarInfo(stem + ending)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    image = draw(0, 7)
    for form in FORMATS:
        more: dict[str, Any] = {"exif": _exif()} if form in ("jpg", "webp", "png", "tiff") else {}
        image.save(folder / "formats" / f"whole.{form}", **more)
    image.convert("P").save(folder / "formats" / "palette.png", transparency=3)
    image.convert("I;16").save(folder / "formats" / "deep.png")
    image.convert("CMYK").save(folder / "formats" / "cmyk.jpg", progressive=True)
    frames = [draw(number, 1) for number in range(3)]
    for form in ("gif", "webp", "tiff"):
        frames[0].save(
            folder / "formats" / f"moving.{form}", save_all=True, append_images=frames[1:]
        )
    image.convert("F").save(folder / "formats" / "float.tiff")


def _exif() -> Any:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def _weights() -> None:
    import torch
    from safetensors.torch import save_file

    from opensetda.backbones.networks import build_network

    torch.manual_seed(0)
    network = build_network(TINY.removeprefix("timm:"), 160, n_classes=5)
    state = {name: value.contiguous() for name, value in network.state_dict().items()}
    save_file(state, "weights.safetensors")
    torch.save({"state_dict": state, "epoch": 3}, "weights.pth")


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep this process in empty folders of its own: home, caches and temporary files."""
    places = {"HOME": "home", "XDG_CACHE_HOME": "home/cache", "TMPDIR": "tmp", "OSDA_CACHE": "osda"}
    before = dict(os.environ)
    for name, place in places.items():
        (folder / place).mkdir(parents=True, exist_ok=True)
        os.environ[name] = str(folder / place)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def copy_tree(source: Path, target: Path) -> None:
    """Replace a folder by a copy of another one; links stay links."""
    if target.is_symlink() or target.is_file():
        target.unlink()
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True)
