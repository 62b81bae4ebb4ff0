"""What `benchmarks/scaling.py` measures within a process: alone, or one of several of torchrun.

    python benchmarks/scaling_child.py train '{"n_classes": 12, ...}'
    torchrun --nproc-per-node 2 benchmarks/scaling_child.py extract '{...}'

The first process prints one line of JSON.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from opensetda.system.memory import peak_megabytes, reset_peak
from opensetda.system.team import this_team
from scaling_tools import draw_domains


def train(options: dict[str, Any]) -> dict[str, Any]:
    """Time updates of the training, after a warm-up; memory is its growth over that before.

    `queries` have no pseudo-labels: the first step of a training.
    """
    import torch

    from opensetda.nn.inputs import FixedRows
    from opensetda.pgl.episodes import EpisodeSampler
    from opensetda.pgl.settings import PGLSettings
    from opensetda.pgl.trainer import Trainer
    from opensetda.rows import Rows

    torch.manual_seed(0)
    n_classes, updates = options["n_classes"], options["updates"]
    settings = PGLSettings().with_changes(options["settings"])
    n_source, n_target = n_classes * options.get("per_class", 20), options["n_target"]
    X_s, y, X_t, _ = draw_domains(n_source, n_target, n_classes, options["width"], n_classes)
    X = np.concatenate([X_s, X_t])
    place = np.arange(len(X))
    inputs = FixedRows(Rows(X, place[:n_source]), Rows(X, place[n_source:]), settings.alignment)
    trainer = Trainer(inputs, n_classes, settings, np.random.default_rng(0))
    # Half of the targets have pseudo-labels, as in the middle of a training.
    labels = np.where(np.arange(n_target) % 2, np.arange(n_target) % (n_classes + 1), -1)
    sampler = EpisodeSampler(y, labels, n_classes, 0.5, settings.episodes)
    drawn = sampler.draw(np.random.default_rng(0))
    support = drawn.labels[: drawn.n_support]
    reset_peak()
    before = peak_megabytes()

    def update_often(count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            trainer.backward(sampler, 1.0)
            trainer.optimiser.step()
            trainer.optimiser.zero_grad(set_to_none=True)
        return time.perf_counter() - started

    update_often(max(2, updates // 10))
    seconds = update_often(updates)
    return {
        "seconds": seconds,
        "ms_a_graph": 1000 * seconds / updates,
        "nodes": len(drawn.index),
        "classes_in_graph": len(np.unique(support)),
        "peak_growth_mb": peak_megabytes() - before,
        "threads": torch.get_num_threads(),
    }


def extract(options: dict[str, Any]) -> dict[str, Any]:
    """Time an extraction whose engine has been built and used before."""
    from opensetda.backbones import engines
    from opensetda.backbones.extraction import extract
    from opensetda.backbones.extractor import usable_cores
    from opensetda.backbones.registry import DEFAULT_BACKBONE, resolve

    team = this_team()
    # One engine for both calls: what is measured is the extraction, not the export.
    build, built = engines.make_engine, []

    def build_once(*arguments: Any, **more: Any) -> Any:
        if not built:
            built.append(build(*arguments, **more))
        return built[0]

    engines.make_engine = build_once
    recipe = resolve(DEFAULT_BACKBONE, None, None, None)
    paths = sorted(str(path) for path in Path(options["images"]).rglob("*.jpg"))
    scratch = Path(options["scratch"])
    warm = paths[: 2 * team.size]
    extract(recipe, warm, warm, scratch=scratch, team=team)
    team.wait()
    started = time.perf_counter()
    result = extract(recipe, paths, paths, scratch=scratch, team=team)
    seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "images": len(result.rows),
        "images_a_second": len(result.rows) / seconds,
        "engine": result.engine,
        "threads_a_process": usable_cores(),
    }


def _timed(seconds: dict[str, float], name: str, function: Any) -> Any:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            seconds[name] += time.perf_counter() - started

    return call


def fit(options: dict[str, Any]) -> dict[str, Any]:
    """Fit as the command does; seconds by what is done, and peak memory."""
    from opensetda import PGLClassifier
    from opensetda.metrics.open_set import evaluate
    from opensetda.pgl import estimator, training
    from opensetda.pgl.trainer import Trainer

    seconds: dict[str, float] = defaultdict(float)
    estimator.FixedRows = _timed(seconds, "align", estimator.FixedRows)
    Trainer.train_step = _timed(seconds, "train", Trainer.train_step)
    training.transduce_once = _timed(seconds, "score", training.transduce_once)
    training.transduce = _timed(seconds, "score", training.transduce)
    n_source, n_target, n_classes = (
        options[name] for name in ("n_source", "n_target", "n_classes")
    )
    X_s, y_s, X_t, y_t = draw_domains(
        *(n_source, n_target, n_classes, options["width"], options.get("n_unknown", n_classes)),
        unknown_share=options.get("unknown_share", 0.5),
        noise=options.get("noise", 1.0),
        seed=1 + options.get("seed", 0),
    )
    X = np.concatenate([X_s, X_t])
    y = np.concatenate([y_s, np.zeros(n_target, dtype=int)])
    domain = np.repeat([1, -1], [n_source, n_target])
    truth = np.minimum(y_t, n_classes)
    share = float((truth == n_classes).mean()) if options.get("told") else "auto"
    classifier = PGLClassifier(
        share,
        settings=options["settings"],
        random_state=options.get("seed", 0),
        unknown_label=n_classes,
    )
    del X_s, X_t
    _warm_up()
    reset_peak()
    before = peak_megabytes()
    seconds.clear()
    started = time.perf_counter()
    classifier.fit(X, y, sample_domain=domain)
    total = time.perf_counter() - started
    metrics = evaluate(
        truth, classifier.transduction_, list(range(n_classes)), unknown_label=n_classes
    )
    peak = peak_megabytes()
    return {
        "seconds": total,
        "seconds_of": {**seconds, "rest": total - sum(seconds.values())},
        "peak_mb": peak,
        "peak_growth_mb": peak - before,
        "accuracy": float(np.mean(classifier.transduction_ == truth)),
        "hos": float(metrics.hos),
    }


def _warm_up() -> None:
    """Fit to a few rows: what is imported at the first use takes seconds."""
    from opensetda import PGLClassifier

    X_s, y_s, X_t, _ = draw_domains(40, 40, 4, 16, 4)
    few = {"steps": 2, "optimiser.iterations_per_epoch": 4}
    classifier = PGLClassifier(0.5, settings=few, random_state=0, unknown_label=4)
    labels, domain = np.concatenate([y_s, y_s]), np.repeat([1, -1], 40)
    classifier.fit(np.concatenate([X_s, X_t]), labels, sample_domain=domain)


def main() -> None:
    """Do one task."""
    tasks = {"train": train, "extract": extract, "fit": fit}
    answer = tasks[sys.argv[1]](json.loads(sys.argv[2]))
    if this_team().is_first:
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
