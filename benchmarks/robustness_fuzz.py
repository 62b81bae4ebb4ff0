"""`fuzz`: mutated files of every kind, read in process."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from robustness_kinds import Kind, build, kinds, restore
from robustness_outcomes import HANG_SECONDS, OK, Outcome, Work, classify, forbid_outside, run_cases
from robustness_scene import copy_tree

Case = tuple[str, int]


def choose(scene: Path, count: int, wanted: Sequence[str] = (), first: int = 0) -> list[Case]:
    """Return `count` cases, equally many of each kind whose name begins with one of `wanted`."""
    names = [name for name in kinds(scene) if not wanted or name.startswith(tuple(wanted))]
    each = max(1, -(-count // max(1, len(names))))
    return [(name, number) for name in names for number in range(first, first + each)]


def fuzz(
    scene: Path, place: Path, cases: Sequence[Case], workers: int = 2, seconds: float = HANG_SECONDS
) -> list[Outcome]:
    """Read all cases; each worker has its own copy of the scene below `place`."""
    known = kinds(scene)

    def prepare(number: int) -> Work:
        import torch

        torch.set_num_threads(1)
        own = place / f"worker-{number}"
        copy_tree(scene, own / "scene")
        (own / "tmp").mkdir(exist_ok=True)
        os.environ.update(TMPDIR=str(own / "tmp"), HOME=str(own / "tmp"), OSDA_CACHE=str(own / "c"))
        os.environ["XDG_CACHE_HOME"] = str(own / "tmp")
        # torch writes its default into the environment, which children inherit.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(own / "tmp")
        tempfile.tempdir = str(own / "tmp")
        os.chdir(own / "scene")
        # A run that was interrupted knows the path of its cache.
        forbid_outside(own, scene / "cache")
        with (own / "output").open("a") as nowhere:
            for stream in (1, 2):
                os.dup2(nowhere.fileno(), stream)
        return lambda case: _one(known[case[0]], case[1], scene, seconds)

    return run_cases(cases, prepare, lambda case: blank(case), workers, seconds)


def import_everything(small: bool = False) -> None:
    """Import what commands import, before processes are forked: it takes seconds."""
    names = ["pgl.estimator", "report.page", "review.session", "runs.fit_and_resume"]
    if not small:
        names += ["backbones.engines", "backbones.model", "runs.feature_files",
                  "benchmark.output", "cli.main", "backbones.networks"]  # fmt: skip
    modules = [importlib.import_module(f"opensetda.{name}") for name in names]
    if not small:
        modules[-1].import_timm()


def blank(case: Case) -> Outcome:
    """Return the outcome of a case before anything is known of it."""
    return Outcome(case[0], f"{case[0]}:{case[1]}", OK)


def _one(kind: Kind, number: int, scene: Path, seconds: float) -> Outcome:
    """Build a case, let every reader read it, and return the worst outcome."""
    done = build(kind, number, scene)
    path = Path(kind.place)
    names = (path.name, path.parent.name, kind.folder)
    worst = blank((kind.name, number))
    for reader in kind.read_by:
        found = classify(lambda reader=reader: reader(path, number), names, seconds)  # type: ignore[misc]
        found = replace(worst, result=found.result, done=f"{done}, {reader.__name__}",
                        where=found.where, text=found.text)  # fmt: skip
        if not found.is_good:
            worst = found
            break
        if found.result != OK:
            worst = found
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    restore(Path(kind.folder), scene)
    return worst


def parse(text: str) -> Case:
    """Read what `--only` was given."""
    kind, _, number = text.rpartition(":")
    return kind, int(number)
