"""Exported models against `predict`: the same labels, probabilities within 1e-4, not slower.

    python benchmarks/export.py                            # 10,000 rows; --methods
    python benchmarks/export.py --images photos cartoons   # a run on two folders; --finetune last

Rows are the bundled digits with noise; of images loading the model counts. Processor time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before the imports
import numpy as np
import onnxruntime

from opensetda.backbones.model import resize_image
from opensetda.data.benchmarks.digits import load_digits_task
from opensetda.data.images.decoding import decode_image
from opensetda.runs.predictions import PredictionTable
from opensetda.runs.registry import METHODS, build_method
from opensetda.usecases import ImageOptions, export, fit, predict
from opensetda.usecases.export_model import to_onnx

BLOCK, ROUNDS = 64, 3


def session_of(model: Any, block: int) -> Any:
    """Open an ONNX model; return what labels one feed."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    if block == 1:
        settings.add_free_dimension_override_by_name("n", 1)  # as in use.py
    session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    return partial(session.run, ["label", "probabilities"])


def compare(name: str, exported: Any, old: Any) -> bool:
    """Print a row of the table, and return whether the bar is missed."""
    times = []
    for _ in range(ROUNDS):
        begun, table, between = time.process_time(), old(), time.process_time()
        found, proba = map(np.concatenate, zip(*exported(), strict=True))
        times.append((between - begun, time.process_time() - between))
    differing, largest = int((found != table.labels).sum()), np.abs(proba - table.proba).max()
    own, new = (statistics.median(column) for column in zip(*times, strict=True))
    times_of = f"{own:.2f} s | {new:.2f} s | {own / new:.2f}"
    print(f"| {name} | {len(found):,} | {differing} | {largest:.0e} | {times_of} |", flush=True)
    return differing > 0 or not largest <= 1e-4 or new > own


def rows(method: str) -> bool:
    """Compare a method on 10,000 rows."""
    task = load_digits_task()
    X = np.concatenate([task.source_features, task.target_features])
    y = [*task.source_labels.tolist(), *[""] * len(task.target_features)]
    classifier = build_method(method, openness=task.openness)
    classifier.fit(X, y, sample_domain=np.where(np.array(y) == "", -1, 1))
    noise = np.random.default_rng(0).normal(1, 0.01, (10_000, X.shape[1]))
    later = (np.resize(task.target_features, noise.shape) * noise).astype(np.float32)
    blocks = [{"rows": later[start : start + BLOCK]} for start in range(0, len(later), BLOCK)]
    label = session_of(to_onnx(classifier), BLOCK)
    old = partial(PredictionTable.of_samples, classifier, later, None)
    return compare(method, lambda: map(label, blocks), old)


def images(source: str, target: str, finetune: str | None) -> bool:
    """Compare the default method behind the default backbone."""
    files = sorted(str(path) for path in Path(target).rglob("*.*") if path.is_file())[:1000]
    with tempfile.TemporaryDirectory() as place:
        how_tuned = ImageOptions(finetune=finetune)
        run = fit(source, target, f"{place}/run", images=how_tuned).folder
        model, how = export(run, f"{place}/model.onnx").model, run.recipe().preprocessing

        def exported() -> Any:
            images = (resize_image(decode_image(path), how)[None] for path in files)
            feeds = ({"pixels": image.permute(0, 2, 3, 1).numpy()} for image in images)
            return list(map(session_of(model, 1), feeds))

        return compare(finetune or "frozen", exported, partial(predict, run, files))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--images", nargs=2, metavar=("SOURCE", "TARGET"))
    parser.add_argument("--finetune", choices=["last", "all"])
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| model | samples | other labels | largest difference | predict | exported | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    own = given.images
    raise SystemExit(images(*own, given.finetune) if own else sum(map(rows, given.methods)))
