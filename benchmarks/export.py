"""Exported models against `predict`: the same labels and probabilities, and at least as fast.

    python benchmarks/export.py            # both parts, a few minutes
    python benchmarks/export.py rows       # 10,000 rows of the gas sensors, each method
    python benchmarks/export.py images     # 1,000 images of PACS, PGL and EfficientNet-Lite0

Both sides start from the same input and end at probabilities: rows in memory for `rows`, and
JPEG files for `images`, read by as many threads as there are cores. They take turns,
`--rounds` times (3); the figure to judge by is the median of the ratios, predict / exported.
Loading a model is not counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from opensetda.backbones.extractor import Extractor, usable_cores
from opensetda.data.images.decoding import decode_image
from opensetda.export.assembled import to_onnx
from opensetda.runs import export, fit
from opensetda.runs.methods import METHODS, build_method
from opensetda.runs.predictions import PredictionTable
from suites_data import DATA, read_task

KNOWN = ("dog", "elephant", "giraffe", "guitar")
# Images of each class that the run is fitted to.
FITTED = 60

Labels = tuple[Any, Any]


def main() -> None:
    """Run the parts that were asked for, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", nargs="*", choices=["rows", "images"])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--images", type=int, default=1_000)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| model | samples | other labels | largest difference | predict | exported | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    if not options.part or "rows" in options.part:
        rows(options)
    if not options.part or "images" in options.part:
        images(options)


def session_of(model: Any, threads: int = 0) -> Any:
    """Open an ONNX model."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])


def rows(options: argparse.Namespace) -> None:
    """Compare every method on rows of the gas sensors."""
    task = read_task("gas", "batch1-batch3", options.data)
    X = np.concatenate([task.source_features, task.target_features])
    labels = [*task.source_labels.tolist(), *[""] * len(task.target_features)]
    domain = np.repeat([1, -1], [len(task.source_features), len(task.target_features)])
    later = np.resize(task.target_features, (options.rows, X.shape[1])).astype(np.float32)
    # Not the rows of `fit` again.
    later = (later * np.random.default_rng(0).normal(1, 0.01, later.shape)).astype(np.float32)
    for method in options.methods:
        classifier = build_method(method, openness="auto").fit(X, labels, sample_domain=domain)
        session = session_of(to_onnx(classifier))

        def exported(session: Any = session) -> Labels:
            return tuple(session.run(["label", "probabilities"], {"rows": later}))

        def predicted(classifier: Any = classifier) -> Labels:
            table = PredictionTable.of_samples(classifier, later, None)
            return table.labels, table.proba

        compare(
            f"{method}, {X.shape[1]} columns {classifier.scaling_}",
            predicted,
            exported,
            options.rounds,
        )


def images(options: argparse.Namespace) -> None:
    """Compare PGL behind the default backbone, from files to probabilities."""
    folder = options.data / "pacs-images-160"
    files = {name: sorted((folder / name).glob("*/*.jpg")) for name in ("photo", "cartoon")}
    with tempfile.TemporaryDirectory() as place:
        for name, wanted in (("photo", KNOWN), ("cartoon", None)):
            listed = []
            for kind in sorted({path.parent.name for path in files[name]}):
                own = [path for path in files[name] if path.parent.name == kind]
                if wanted is None or kind in wanted:
                    listed += [f"{path} {kind}" for path in own[:FITTED]]
            Path(place, f"{name}.txt").write_text("\n".join(listed) + "\n")
        run = fit(f"{place}/photo.txt", f"{place}/cartoon.txt", f"{place}/run")
        model = export(run, f"{place}/model.onnx").model
        step = max(1, len(files["cartoon"]) // options.images)
        later = [str(path) for path in files["cartoon"][::step][: options.images]]
        classifier, recipe = run.folder.model(), run.folder.recipe()
        session, cores = session_of(model, threads=1), usable_cores()

        def predicted() -> Labels:
            features, _ = extractor.features(later)
            table = PredictionTable.of_samples(classifier, features, None)
            return table.labels, table.proba

        def one(path: str) -> Labels:
            feed = {"image": decode_image(path)}
            return tuple(session.run(["label", "probabilities"], feed))

        def exported() -> Labels:
            with ThreadPoolExecutor(cores) as threads:
                found = list(threads.map(one, later))
            return tuple(np.concatenate(values) for values in zip(*found, strict=True))

        with Extractor(recipe) as extractor:
            extractor.features(later[:2])
            compare(f"pgl, {recipe.backbone}, {cores} threads", predicted, exported, options.rounds)


def compare(
    name: str, predicted: Callable[[], Labels], exported: Callable[[], Labels], rounds: int
) -> None:
    """Let both take turns, and print a row of the table."""
    times: list[tuple[float, float]] = []
    for _ in range(rounds):
        begun = time.perf_counter()
        labels, probabilities = predicted()
        between = time.perf_counter()
        found, others = exported()
        times.append((between - begun, time.perf_counter() - between))
    differing = int((labels != found).sum())
    largest = float(np.abs(probabilities - others).max())
    ratio = statistics.median(own / new for own, new in times)
    seconds = [f"{statistics.median(column):.2f} s" for column in zip(*times, strict=True)]
    shown = [name, f"{len(labels):,}", differing, f"{largest:.0e}", *seconds, f"{ratio:.2f}"]
    print("| " + " | ".join(map(str, shown)) + " |", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    main()
