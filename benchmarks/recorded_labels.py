"""The labels of every single method, recorded before a change and compared after it.

    python benchmarks/recorded_labels.py --out before.json                     # five to ten minutes
    python benchmarks/recorded_labels.py --out after.json --compare before.json

Every method of `METHODS` but the committee labels the bundled digits, Office-31 A-D (features in
--data; left out if they are not there) and a few bundled images, as `osda fit` does, with seed 0,
one thread, and the share of unknowns told and estimated. What is kept of each: SHA-256 of the
labels of `fit` and of `predict` for the same targets, the number of unknowns, and the scaling.
Networks learn from few batches and PGL in two steps, on the digits and the images only: the labels
have to stay the same, not to be good. Labels of networks depend on the machine and its packages.
The exit code is 1 if labels differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from opensetda.benchmark.tasks import find_tasks
from opensetda.data.benchmarks.digits import load_digits_task, write_image_folders
from opensetda.data.benchmarks.protocols import OpenSetTask
from opensetda.runs.registry import METHODS, build_method, method_class
from opensetda.usecases import ImageOptions, fit, predict

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
TOGETHER = ("committee",)
"""Methods that are made of others: not recorded."""
DIGITS, OFFICE31, IMAGES = "digits", "office31 A-D", "images"
REJECTORS = ("osnn", "osvm")
BATCHES = 100
"""From which a network learns."""
SHARES = ("told", "auto")
PGL = {"steps": 2, "epochs": 1, "edge_width": 64, "node_width": 64}
STORED = {"finetune.stored": 4}
TRAINED = {
    "class-means": STORED | {"finetune.rounds": 2, "finetune.iterations": 2},
    "osbp": STORED | {"iterations": 2},
    "pgl": STORED | {"steps": 2, "edge_width": 32, "node_width": 32},
}
"""Methods with which a backbone is trained on the images, and settings of their own."""
EVERY = 20
"""The images are every n-th of the bundled digits."""
UNKNOWN = "unknown"
PACKAGES = ("numpy", "scikit-learn", "scipy", "torch")
SAME = ("fit", "predict", "unknowns", "predict_unknowns")
"""What has to be the same in two records."""
Record = dict[str, Any]
Changes = dict[str, Any]


def single_methods() -> list[str]:
    """Return the methods that decide alone, and the ways to reject after one of them."""
    return [name for name in METHODS if name not in TOGETHER]


def small_settings(method: str) -> Changes:
    """Return settings with which a method takes seconds."""
    if method == "pgl":
        return PGL
    is_network = "batch_size" in method_class(method)().get_params(deep=False)
    return {"iterations": BATCHES} if is_network else {}


def digest(labels: Sequence[Any]) -> dict[str, Any]:
    """Return a hash of labels in their order, and how many of them are unknown."""
    text = "\n".join(str(label) for label in labels)
    found = hashlib.sha256(text.encode()).hexdigest()
    return {"sha256": found, "unknowns": sum(str(label) == UNKNOWN for label in labels)}


def kept(fitted: Sequence[Any], predicted: Sequence[Any], scaling: str | None) -> Record:
    """Return what is kept of the labels of `fit` and `predict`."""
    of_fit, of_predict = digest(fitted), digest(predicted)
    return {
        "fit": of_fit["sha256"],
        "predict": of_predict["sha256"],
        "unknowns": of_fit["unknowns"],
        "predict_unknowns": of_predict["unknowns"],
        "rows": len(fitted),
        "scaling": scaling,
    }


def variants(task: str) -> Iterator[tuple[str, str, str | None]]:
    """Yield method, share and scaling of each fit on rows; None is the method's own scaling."""
    for method in single_methods():
        if method == "pgl" and task != DIGITS:
            continue
        for share in SHARES:
            yield method, share, None
        if method == "moving-means":
            for scaling in ("none", "standard", "ranks"):
                yield method, "auto", scaling
    for rejector in REJECTORS:
        yield f"dann+{rejector}", "told", None


def labels_of_rows(task: OpenSetTask, method: str, share: str, scaling: str | None) -> Record:
    """Fit a method to the rows of a task, and label its targets twice."""
    classifier = build_method(
        method,
        openness=task.openness if share == "told" else "auto",
        changes=small_settings(method.partition("+")[0]),
        seed=0,
        unknown_label=UNKNOWN,
        scaling=scaling,
    )
    X = np.concatenate([task.source_features, task.target_features]).astype(np.float32)
    # No method sees the labels of targets; the column wants some.
    invented = np.repeat(task.source_labels[:1], len(task.target_features))
    y = np.concatenate([task.source_labels, invented])
    domain = np.repeat([0, -1], [len(task.source_labels), len(task.target_features)])
    with warnings.catch_warnings():
        # How uncertain the share is does not matter here.
        warnings.simplefilter("ignore", UserWarning)
        classifier.fit(X, y, sample_domain=domain)
    predicted = classifier.predict(task.target_features.astype(np.float32))
    return kept(classifier.transduction_, predicted, classifier.scaler_.name)


def labels_of_images(
    folders: tuple[Path, Path], work: Path, method: str, share: str, changes: Changes, trained: bool
) -> Record:
    """Fit a method to folders of images as `osda fit` does, and label the targets again."""
    source, target = folders
    images = ImageOptions(size=64, cache=str(work / "cache"), finetune="last" if trained else None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        run = fit(
            source,
            target,
            work / "run",
            images=images,
            method=method,
            openness=0.5 if share == "told" else "auto",
            settings=changes,
            seed=0,
            unknown_label=UNKNOWN,
            overwrite=True,
        )
        again = predict(run, target)
    settings = json.loads((work / "run" / "settings.json").read_text(encoding="utf-8"))
    return kept(run.folder.predictions().labels, again.labels, settings.get("scaling"))


def image_variants() -> Iterator[tuple[str, str, Changes, bool]]:
    """Yield method, share, settings and whether the backbone is trained, of each fit on images."""
    for method in single_methods():
        for share in SHARES:
            yield method, share, small_settings(method), False
    for method, changes in TRAINED.items():
        yield method, "told", changes, True


def read_tasks(data: Path) -> dict[str, OpenSetTask]:
    """Return the tasks on rows that are there, and say which is not."""
    tasks = {DIGITS: load_digits_task()}
    folder = data / "office31-features" / "efficientnet-lite0"
    if folder.is_dir():
        found = find_tasks("office31", folder, ["amazon-dslr"])
        tasks[OFFICE31] = found.read("amazon-dslr")
    else:
        print(f"{OFFICE31}: left out, there is no {folder}; name its folder with --data")
    return tasks


def record(data: Path, found: dict[str, Record]) -> Iterator[None]:
    """Fit everything that is not `found` yet, and add what is kept by the name of the fit."""
    for name, task in read_tasks(data).items():
        for method, share, scaling in variants(name):
            own = f"{name}: {method}, {share}" + (f", {scaling}" if scaling else "")
            if own in found:
                continue
            started = time.perf_counter()
            with threadpool_limits(1):
                found[own] = labels_of_rows(task, method, share, scaling)
            _tell(own, found[own], started)
            yield
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        folders = write_image_folders(work, EVERY)
        for method, share, changes, trained in image_variants():
            own = f"{IMAGES}: {method}, {share}" + (", trained" if trained else "")
            if own in found:
                continue
            started = time.perf_counter()
            with threadpool_limits(1):
                found[own] = labels_of_images(folders, work, method, share, changes, trained)
            _tell(own, found[own], started)
            yield


def _tell(name: str, one: Record, started: float) -> None:
    seconds = time.perf_counter() - started
    share = f"{one['unknowns']} of {one['rows']} unknown"
    print(f"{name}: {share}, {one['fit'][:8]}, {seconds:.1f} s", flush=True)


def circumstances() -> dict[str, str]:
    """Return what labels may depend on besides the code."""
    return {"machine": platform.machine()} | {name: version(name) for name in PACKAGES}


def differences(before: dict[str, Record], now: dict[str, Record]) -> list[str]:
    """Return a line for each fit whose labels are not those of before."""
    lines = []
    for name, old in before.items():
        new = now.get(name)
        if new is None:
            lines.append(f"{name}: not recorded now")
            continue
        changed = [key for key in SAME if old[key] != new[key]]
        if not changed:
            continue
        which = " and ".join(key for key in ("fit", "predict") if key in changed)
        unknowns = f"unknowns of fit {old['unknowns']} -> {new['unknowns']}"
        scaling = f"scaling {old['scaling']} -> {new['scaling']}"
        lines.append(f"{name}: labels of {which} differ, {unknowns}, {scaling}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the labels, and compare them; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="the record, a new JSON file")
    add("--compare", type=Path, help="an older record")
    add("--resume", action="store_true", help="keep what --out has, of the same code")
    add("--data", type=Path, default=DATA)
    options = parser.parse_args(arguments)
    before = None
    if options.compare:
        before = json.loads(options.compare.read_text(encoding="utf-8"))
    # Sums in another order are other numbers.
    torch.set_num_threads(1)
    now: dict[str, Any] = {"circumstances": circumstances(), "labels": {}}
    if options.resume:
        now = json.loads(options.out.read_text(encoding="utf-8"))
    for _ in record(options.data, now["labels"]):
        options.out.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
    if before is None:
        return 0
    if before["circumstances"] != now["circumstances"]:
        print(f"the records were made by {before['circumstances']} and {now['circumstances']}")
    for name in now["labels"].keys() - before["labels"].keys():
        print(f"{name}: new, there is nothing to compare it with")
    lines = differences(before["labels"], now["labels"])
    print(*(lines or [f"all {len(before['labels'])} are the same"]), sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
