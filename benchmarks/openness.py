"""No target label anywhere: how well openness, step and confidence are estimated.

    python benchmarks/openness.py                        # everything, about 20 minutes on 2 cores
    python benchmarks/openness.py --parts office         # the six tasks at six openness values
    python benchmarks/openness.py --parts closed digits shifts
    python benchmarks/openness.py --seeds 0 --backbones resnet50      # a smaller grid
    python benchmarks/openness.py --set stopping.band=1  # with changed settings

Parts: `office` (Office-31 features, the target subsampled to openness 0.1, 0.25, 0.5, 0.75, 0.9,
and as given), `closed` (the same without unknowns), `digits` (the embedded digits in the same
way) and `shifts` (the shift generator: features rotated, noisy, moved; digits thickened ...).
Every case is fitted with nothing told and with the true openness told, to PGL and to the class
means. Target labels make the cases and score them; the fits of the first kind never see any of it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from feature_shifts import FEATURE_SHIFTS, feature_task
from office31 import BACKBONES, DATA, TASKS, fit_and_evaluate, load_task
from opensetda.base import OpenSetClassifier
from opensetda.data.benchmarks.digits import DIGIT_SHIFTS, digit_task
from opensetda.data.benchmarks.protocols import OpenSetTask, with_openness
from opensetda.metrics.open_set import evaluate
from opensetda.runs.methods import build_method
from opensetda.system.files import plain

SWEEP = (None, 0.1, 0.25, 0.5, 0.75, 0.9)
PARTS = ("office", "closed", "digits", "shifts")
Record = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One target: where it comes from, and how its rows are chosen."""

    part: str
    group: str
    name: str
    asked: float | None
    """Openness to subsample to; None leaves the target as it is."""
    seed: int
    load: Callable[[], OpenSetTask]

    def task(self) -> OpenSetTask:
        """Return source and target."""
        task = self.load()
        return task if self.asked is None else with_openness(task, self.asked, self.seed)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """List all cases that were asked for."""
    for seed in arguments.seeds:
        for backbone in arguments.backbones:
            for name, domains in TASKS.items():
                load = _OfficeTask(arguments.data / backbone, domains)
                if "office" in arguments.parts:
                    for asked in SWEEP:
                        yield Case("office", backbone, name, asked, seed, load)
                if "closed" in arguments.parts:
                    yield Case("closed", backbone, name, 0.0, seed, load)
        if "digits" in arguments.parts:
            for asked in (*SWEEP, 0.0):
                yield Case("digits", "digits", "none", asked, seed, _Digits("none"))
        if "shifts" in arguments.parts:
            for asked in (None, 0.1, 0.25, 0.75):
                for name in DIGIT_SHIFTS:
                    if name != "none":
                        yield Case("shifts", "digits", name, asked, seed, _Digits(name))
            for openness in (0.0, 0.1, 0.25, 0.5, 0.75, 0.9):
                for name in FEATURE_SHIFTS:
                    load = _Features(name, openness, seed)
                    yield Case("shifts", "features", name, None, seed, load)


@dataclass(frozen=True)
class _OfficeTask:
    folder: Path
    domains: tuple[str, str]

    def __call__(self) -> OpenSetTask:
        return load_task(self.folder, *self.domains)


@dataclass(frozen=True)
class _Digits:
    shift: str

    def __call__(self) -> OpenSetTask:
        return digit_task(self.shift)


@dataclass(frozen=True)
class _Features:
    shift: str
    openness: float
    seed: int

    def __call__(self) -> OpenSetTask:
        return feature_task(10, 10, 128, self.shift, self.openness, self.seed)


def run(case: Case, changes: dict[str, str]) -> list[Record]:
    """Fit a case, nothing told and told, and measure both."""
    import torch

    torch.set_num_threads(1)
    task = case.task()
    records = []
    variants: list[tuple[str, str, float | str]] = [
        ("auto", "pgl", "auto"),
        ("told", "pgl", task.openness),
    ]
    if case.part in ("office", "digits"):
        variants.append(("rival told", "class-means", task.openness))
    for label, method, openness in variants:
        own = changes if method == "pgl" else {}
        classifier = build_method(method, openness=openness, changes=own, seed=case.seed)
        records.append(
            {
                "part": case.part,
                "group": case.group,
                "task": case.name,
                "asked": case.asked,
                "seed": case.seed,
                "variant": label,
                "true": task.openness,
            }
            | measure(classifier, task)
        )
    return records


def measure(classifier: OpenSetClassifier, task: OpenSetTask) -> Record:
    """Fit, then score with the truth what was said without it."""
    metrics = fit_and_evaluate(classifier, task)
    report = classifier.openness_report_
    kept = getattr(classifier, "kept_step_", None)
    names = np.array([*classifier.classes_.tolist(), classifier.unknown_label])
    steps = getattr(classifier, "step_labels_", [])
    per_step = [evaluate(task.target_truth, names[s], classifier.classes_).hos for s in steps]
    return {
        "share": report.share,
        "low": report.low,
        "high": report.high,
        "estimates": {name: e.share for name, e in report.estimates.items()},
        "found_unknowns": report.found_unknowns,
        "warnings": list(report.warnings),
        "rejected": float((classifier.transduction_ == classifier.unknown_label).mean()),
        "kept_step": kept.step if kept else None,
        "hos_by_step": per_step,
    } | {name: getattr(metrics, name) for name in ("hos", "os_star", "unk", "ece", "unknown_ece")}


def main() -> None:
    """Run all cases, print the tables and the bars, write all figures as JSON."""
    arguments = _arguments()
    wants_office = {"office", "closed"} & set(arguments.parts)
    if wants_office and not arguments.data.is_dir():
        sys.exit(f"error: {arguments.data} does not exist; name it with --data, or choose --parts")
    changes = dict(text.split("=", 1) for text in arguments.set)
    todo = list(cases(arguments))
    print(f"{len(todo)} cases", flush=True)
    done = Parallel(n_jobs=arguments.jobs, verbose=1)(delayed(run)(c, changes) for c in todo)
    records = [record for part in done for record in part]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(plain(records), indent=1, allow_nan=False))
    for part in arguments.parts:
        own = [r for r in records if r["part"] == part]
        {"office": show_sweep, "digits": show_sweep, "closed": show_closed, "shifts": show_shifts}[
            part
        ](own)
    if "office" in arguments.parts:
        show_bars([r for r in records if r["part"] == "office"])
    print(f"\nall figures: {arguments.out}")


def show_bars(records: list[Record]) -> None:
    """Print the figures that issue 3 sets bars for."""
    print("\nbars (Office-31)")
    auto = [r for r in records if r["variant"] == "auto"]
    errors = [abs(r["share"] - r["true"]) for r in auto]
    print(f"  error of the openness, mean (at most 0.08)       {np.mean(errors):6.3f}")
    print(f"  worst case (at most 0.25)                        {max(errors):6.3f}")
    for group in dict.fromkeys(r["group"] for r in records):
        for label, own in (
            ("as given", [r for r in records if r["group"] == group and r["asked"] is None]),
            ("sweep", [r for r in records if r["group"] == group]),
        ):
            means = [
                _mean([r for r in own if r["variant"] == variant], _hos)
                for variant in ("auto", "told", "rival told")
            ]
            print(f"  {group}, {label}: HOS auto {means[0]:.1f}, told {means[1]:.1f} "
                  f"({means[0] - means[1]:+.1f}), class means told {means[2]:.1f}")  # fmt: skip
    gap = _mean(auto, lambda r: max(r["hos_by_step"]) - r["hos"])
    print(f"  best step above the one kept (at most 1)         {gap:6.2f}")


def show_sweep(records: list[Record]) -> None:
    """Print a table a backbone: one row an openness."""
    for group in dict.fromkeys(r["group"] for r in records):
        own = [r for r in records if r["group"] == group]
        print(
            f"\n{group}: openness estimated and HOS in %, nothing told against true openness told"
        )
        print(f"{'openness':<10}{'error':>7}{'worst':>7}{'bias':>7}{'held':>6}{'HOS auto':>10}"
              f"{'told':>7}{'rival':>7}{'best step':>11}{'ECE':>6}{'unk ECE':>9}")  # fmt: skip
        for asked in dict.fromkeys(r["asked"] for r in own if r["asked"] != 0):
            _row("given" if asked is None else str(asked), [r for r in own if r["asked"] == asked])
        _row("all", [r for r in own if r["asked"] != 0])
        _show_tasks([r for r in own if r["asked"] is None])
        if any(r["asked"] == 0 for r in own):
            show_closed([r for r in own if r["asked"] == 0])


def _show_tasks(records: list[Record]) -> None:
    tasks = list(dict.fromkeys(r["task"] for r in records))
    print(f"{'as given: HOS':<16}" + "".join(f"{name:>7}" for name in tasks) + "   mean")
    for variant in ("rival told", "told", "auto"):
        own = [r for r in records if r["variant"] == variant]
        means = [_mean([r for r in own if r["task"] == name], _hos) for name in tasks]
        print(f"{variant:<16}" + "".join(f"{m:7.1f}" for m in means) + f"{np.mean(means):7.1f}")


def _row(label: str, records: Iterable[Record]) -> None:
    auto = [r for r in records if r["variant"] == "auto"]
    told = [r for r in records if r["variant"] == "told"]
    rival = [r for r in records if r["variant"] == "rival told"]
    error = np.array([r["share"] - r["true"] for r in auto])
    held = np.mean([r["low"] <= r["true"] <= r["high"] for r in auto])
    best = _mean(auto, lambda r: max(r["hos_by_step"]))
    print(
        f"{label:<10}{np.abs(error).mean():7.3f}{np.abs(error).max():7.2f}{error.mean():+7.2f}"
        f"{held:6.0%}{_mean(auto, _hos):10.1f}{_mean(told, _hos):7.1f}{_mean(rival, _hos):7.1f}"
        f"{best:11.1f}{_mean(auto, lambda r: r['ece']):6.1f}"
        f"{_mean(auto, lambda r: r['unknown_ece']):9.1f}",
        flush=True,
    )


def show_closed(records: list[Record]) -> None:
    """Print what is rejected where there are no unknowns."""
    print("\nno unknowns in the target: rejected in %, mean and worst over seeds")
    for group in dict.fromkeys(r["group"] for r in records):
        for name in dict.fromkeys(r["task"] for r in records if r["group"] == group):
            auto = [
                r
                for r in records
                if r["group"] == group and r["task"] == name and r["variant"] == "auto"
            ]
            rejected = [100 * r["rejected"] for r in auto]
            said = sum(not r["found_unknowns"] for r in auto)
            print(f"{group:<22}{name:<8}{np.mean(rejected):7.1f}{max(rejected):7.1f}"
                  f"   'no evidence of unknowns' said in {said} of {len(auto)}")  # fmt: skip


def show_shifts(records: list[Record]) -> None:
    """Print the error over the shift generator."""
    print("\nshift generator: error of the estimated openness, and HOS auto against told")
    for group in dict.fromkeys(r["group"] for r in records):
        for name in dict.fromkeys(r["task"] for r in records if r["group"] == group):
            own = [r for r in records if r["group"] == group and r["task"] == name]
            auto = [r for r in own if r["variant"] == "auto"]
            scored = [r for r in own if r["true"] > 0]
            error = np.array([r["share"] - r["true"] for r in auto])
            held = np.mean([r["low"] <= r["true"] <= r["high"] for r in auto])
            hos = [
                _mean([r for r in scored if r["variant"] == variant], _hos)
                for variant in ("auto", "told")
            ]
            print(f"{group:<10}{name:<18}{np.abs(error).mean():7.3f}{np.abs(error).max():7.2f}"
                  f"{error.mean():+7.2f}{held:6.0%}{hos[0]:8.1f}{hos[1]:7.1f}")  # fmt: skip


def _hos(record: Record) -> float:
    return float(record["hos"])


def _mean(records: Iterable[Record], value: Callable[[Record], float]) -> float:
    values = [value(r) for r in records]
    return 100 * float(np.mean(values)) if values else float("nan")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--backbones", nargs="+", default=list(BACKBONES), choices=BACKBONES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "openness.json"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
