"""What reads each kind of file in process: called with the file and the number of the case.

Readers that take long skip most cases.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from robustness_scene import TINY

# The number of a case that the slow readers take, too.
SLOW = 24


def _is_skipped(number: int) -> bool:
    """Return whether a slow reader leaves a case out."""
    return number % 16 != SLOW % 16


def as_source(path: Path, number: int) -> None:
    """Read as as source."""
    from opensetda.data.images.loading import is_image_data
    from opensetda.data.tables.loading import TableColumns, read_domains

    is_image_data(path)
    suffix = path.suffix if path.suffix not in (".npz", ".npy") else ".npz"
    read_domains(path, f"tables/target{suffix}", TableColumns(id="id"))


def as_target(path: Path, number: int) -> None:
    """Read as as target."""
    from opensetda.data.tables.loading import TableColumns, read_domains

    suffix = path.suffix if path.suffix not in (".npz", ".npy") else ".npz"
    columns = None if path.suffix == ".npy" else TableColumns(id="id")
    read_domains(f"tables/source{suffix}", path, columns)


def as_samples(path: Path, number: int) -> None:
    """Read as as samples."""
    from opensetda.data.tables.loading import TableColumns, read_samples, read_truth

    names = [f"f{column}" for column in range(5)] if number % 2 else None
    with suppress_input_errors():
        read_samples(path, 5, names, None, "id")
    read_truth(path, TableColumns(id="id") if number % 3 else None)


def as_if_large(path: Path, number: int) -> None:
    """Read as as if large."""
    from opensetda.data.tables import mapped

    is_large, mapped.is_large = mapped.is_large, lambda shape: True
    try:
        as_source(path, number) if path.is_file() else parts(path / "x", number + 1)
    finally:
        mapped.is_large = is_large


def parts(path: Path, number: int) -> None:
    """Read as parts."""
    from opensetda.data.tables.loading import TableColumns, read_domains

    if number % 2:
        as_if_large(path.parent, number)
    read_domains("tables/source.parquet", path.parent, TableColumns(id="id"))


def image_domains(path: Path, number: int) -> None:
    """Read as image domains."""
    from opensetda.data.images.loading import is_image_data, read_image_domains, read_image_truth

    is_image_data(path)
    with suppress_input_errors():
        read_image_truth(path)
    with suppress_input_errors():
        read_image_domains("images/shop", path)
    read_image_domains(path, "images/street")


def members(path: Path, number: int) -> None:
    """Read as members."""
    from opensetda.data.images.decoding import BrokenImageError, decode_image
    from opensetda.data.images.loading import iterate_images

    for _, file in iterate_images([path]):
        with suppress(BrokenImageError):
            decode_image(file)


def decoded(path: Path, number: int) -> None:
    """Read as decoded."""
    from opensetda.data.images.decoding import decode_image
    from opensetda.runs.pictures import thumbnail

    thumbnail(decode_image(path, (None, 32)[number % 2]))


def showable(path: Path, number: int) -> None:
    """Read as showable."""
    from opensetda.review.page import showable

    showable(path)


def run_folder(path: Path, number: int) -> None:
    """Read as run folder."""
    from opensetda.runs.folder import RunFolder

    run = RunFolder.open(path.parent)
    readers: list[Callable[[], Any]] = [
        run.predictions, run.labels, run.steps, run.view, run.truth, run.history, run.estimates,
        run.feature_names,
    ]  # fmt: skip
    if run.has_images:
        readers += [run.recipe, run.backbone_state]
    for read in readers:
        with suppress_input_errors():
            read()
    model = run.model()
    width = int(model.n_features_in_)
    labels = model.predict(np.ones((3, width), dtype=np.float32))
    if not set(labels.tolist()) <= {*model.classes_.tolist(), model.unknown_label}:
        raise AssertionError("labels that are no classes")


def reported(path: Path, number: int) -> None:
    """Read as reported."""
    if _is_skipped(number):
        return
    from opensetda.report.collect import collect
    from opensetda.report.page import render_page
    from opensetda.runs.folder import RunFolder

    render_page(collect(RunFolder.open(path.parent)))


def evaluated(path: Path, number: int) -> None:
    """Read as evaluated."""
    from opensetda.data.images.loading import read_image_truth
    from opensetda.data.tables.loading import TableColumns, read_truth
    from opensetda.runs.evaluation import evaluate_run
    from opensetda.runs.folder import RunFolder

    run = RunFolder.open(path.parent)
    images = path.parent.name == "pictures-run"
    own = read_image_truth("images/truth.txt") if images else None
    evaluate_run(run, own or read_truth("tables/truth.csv", TableColumns(id="id")))


def reviewed(path: Path, number: int) -> None:
    """Read as reviewed."""
    from opensetda.review.session import BORDER, ReviewSession

    session = ReviewSession(path.parent)
    try:
        session._grouping.join()
        session.start()
        session.page(BORDER, 0, 9)
        session.picture(0, small=True)
        session.picture(1, small=False)
    finally:
        session.close()


def corrections_file(path: Path, number: int) -> None:
    """Read as corrections file."""
    from opensetda.runs import corrections, fit_data

    corrections.check_corrections(path)
    data = fit_data.FitData.__new__(fit_data.FitData)
    ids = np.array([f"target-{row}" for row in range(32)])
    for name, value in {"ids": ids, "target": ids, "labels": np.array(["ant", "bee"])}.items():
        object.__setattr__(data, name, value)
    corrections.read_corrections(path, data, "unknown")


def unfinished(path: Path, number: int) -> None:
    """Read as unfinished."""
    from opensetda.runs.unfinished import UnfinishedRun

    folder = Path(path.parts[0])
    run = UnfinishedRun.find(folder.with_suffix(""))
    if run is None:
        return
    try:
        with suppress_input_errors():
            run.checkpoints().read()
        if path.name == "inputs.json" and path.is_file():
            run.check_inputs({"source": {"path": str(path)}})
    finally:
        run.release()


def resumed(path: Path, number: int) -> None:
    """Read as resumed."""
    if _is_skipped(number):
        return
    from opensetda.runs.fit_and_resume import resume

    resume(Path(path.parts[0]).with_suffix(""))


def state_file(path: Path, number: int) -> None:
    """Read as state file."""
    from opensetda.backbones.networks import build_network, load_state, read_state

    global _network
    _network = _network or build_network(TINY.removeprefix("timm:"), 160)
    load_state(_network, read_state(path), path)


_network: Any = None


def cached_features(path: Path, number: int) -> None:
    """Read as a cache of features."""
    from opensetda.backbones.cache import FeatureCache

    content = Path("images/street/a0.png").read_bytes()
    with FeatureCache(Path("cache"), path.stem, 1280) as cache:
        row = cache.get(hashlib.sha256(content).digest())
    if row is not None and not np.isfinite(row).all() and not path.is_symlink():
        raise AssertionError("damaged features are used")


def features_made(path: Path, number: int) -> None:
    """Read as features made."""
    from opensetda.runs.feature_files import extract_features
    from opensetda.runs.request import ImageOptions

    if _is_skipped(number):
        return
    out = Path("input/made.npz")
    try:
        extract_features("images/street", out, ImageOptions(size=32, cache="cache"))
    finally:
        out.unlink(missing_ok=True)


def grid(path: Path, number: int) -> None:
    """Read as grid."""
    from opensetda.benchmark.grid import CELLS, _finished, check_folder
    from opensetda.benchmark.output import write_report
    from opensetda.benchmark.tasks import TaskSet

    out = Path("benchmark")
    with suppress_input_errors():
        check_folder(TaskSet("demo", lambda task: None, {"none": "x"}), out)  # type: ignore
    rows = [_finished(out, file.stem) for file in sorted((out / CELLS).glob("*.json"))]
    write_report([row for row in rows if row], Path("input"), "title")


class suppress_input_errors(suppress):  # noqa: N801 - as contextlib's
    """Suppress the error that is the contract."""

    def __init__(self) -> None:
        from opensetda.errors import InputError

        super().__init__(InputError)
