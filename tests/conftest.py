"""Shared by all tests: one thread, no deadlines, and a small open-set task."""

from __future__ import annotations

import os
import shutil

# Before torch is imported: on a busy machine OpenMP threads that spin cost more than they bring.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from dataclasses import dataclass
from typing import Any

import hypothesis
import numpy as np
import pytest

from estimator_helpers import METHODS, FittedClassifiers, make_classifier

hypothesis.settings.register_profile("opensetda", deadline=None, max_examples=60)
hypothesis.settings.load_profile("opensetda")

KNOWN = ("ant", "bee", "cat", "dog")
UNKNOWN = ("elk", "fox")


@dataclass(frozen=True)
class Task:
    """Gaussian classes in 16 dimensions; the target is shifted and has two classes more."""

    X: np.ndarray[Any, Any]
    y: np.ndarray[Any, Any]
    """Source labels, and "" for every target."""
    domain: np.ndarray[Any, Any]
    truth: np.ndarray[Any, Any]
    """Labels of the targets, "unknown" where they are."""
    openness: float

    @property
    def source(self) -> np.ndarray[Any, Any]:
        return self.X[self.domain > 0]

    @property
    def target(self) -> np.ndarray[Any, Any]:
        return self.X[self.domain < 0]

    @property
    def labels(self) -> np.ndarray[Any, Any]:
        return self.y[self.domain > 0]


def make_task(per_class: int = 12, width: int = 16, seed: int = 0) -> Task:
    rng = np.random.default_rng(seed)
    names = np.array([*KNOWN, *UNKNOWN])
    centres = 3 * rng.normal(size=(len(names), width))
    shift = 1.5 * rng.normal(size=width)
    source_class = np.repeat(np.arange(len(KNOWN)), per_class)
    target_class = rng.permutation(np.repeat(np.arange(len(names)), per_class))
    source = centres[source_class] + rng.normal(size=(len(source_class), width))
    target = centres[target_class] + shift + rng.normal(size=(len(target_class), width))
    truth = names[target_class]
    arrays = (
        np.concatenate([source, target]).astype(np.float32),
        np.concatenate([names[source_class], np.full(len(truth), "")]),
        np.repeat([1, -1], [len(source), len(target)]),
        np.where(np.isin(truth, KNOWN), truth, "unknown"),
    )
    for array in arrays:
        array.flags.writeable = False
    return Task(*arrays, openness=len(UNKNOWN) / len(names))


@pytest.fixture(scope="session")
def task() -> Task:
    return make_task()


@pytest.fixture(scope="session")
def quick() -> dict[str, Any]:
    """Settings that keep every part of the method and take less than a second."""
    return {
        **{"steps": 3, "stop_step": None, "epochs": 8, "episodes": 2, "draws": 2},
        **{"edge_width": 8, "node_width": 8, "graph_rate": 1e-2},
    }


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    """The name of every method in turn."""
    return request.param


@pytest.fixture
def make(quick: dict[str, Any]) -> Any:
    """Make a method by its name, with settings that are quick and a third unknown."""

    def make(method: str, **parameters: Any) -> Any:
        own = {"settings": quick} if method == "pgl" else {}
        return make_classifier(method, **{"openness": 1 / 3, **own, **parameters})

    return make


@pytest.fixture(scope="session")
def fitted_by_name(task: Task, quick: dict[str, Any]) -> FittedClassifiers:
    """One fitted classifier per method, for tests that change nothing."""
    return FittedClassifiers(task, quick)


@pytest.fixture
def fitted(fitted_by_name: FittedClassifiers, method: str) -> Any:
    return fitted_by_name[method]


def fit_task(classifier: Any, task: Any, every_other: bool = False) -> Any:
    """Fit to an `OpenSetTask`, without its truth; `every_other` leaves half the targets out."""
    target = task.target_features[:: 2 if every_other else 1]
    X = np.concatenate([task.source_features, target])
    y = np.concatenate([task.source_labels, np.full(len(target), "")])
    return classifier.fit(X, y, np.repeat([1, -1], [len(X) - len(target), len(target)]))


@pytest.fixture
def quick_maps(monkeypatch):
    """Maps after a few rounds, for tests that do not look at where the samples are."""
    from opensetda.report import plane

    for name, rounds in {"_EARLY": 10, "_LATE": 10, "_PART": 10}.items():
        monkeypatch.setattr(plane, name, rounds)


@pytest.fixture(scope="session")
def stepper():
    """The name of a method of several random steps, with checkpoints."""
    import stepping_method
    from opensetda.runs.registry import METHODS

    METHODS[stepping_method.NAME] = stepping_method.PLACE
    yield stepping_method.NAME
    del METHODS[stepping_method.NAME]


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with source.npz, target.npz (both as CSV too) and truth.csv, made current."""
    from cli_helpers import blobs, write_csv

    monkeypatch.chdir(tmp_path)
    X, y = blobs(0)
    known = y != "horse"
    np.savez("source.npz", X=X[known], y=y[known])
    write_csv(tmp_path / "source.csv", X[known], y=y[known])
    X, y = blobs(1)
    ids = np.array([f"image_{row}.jpg" for row in range(len(X))])
    np.savez("target.npz", X=X, file_name=ids)
    write_csv(tmp_path / "target.csv", X, file_name=ids)
    order = np.random.default_rng(2).permutation(len(X))
    (tmp_path / "truth.csv").write_text(
        "file_name,y\n" + "".join(f"{ids[row]},{y[row]}\n" for row in order)
    )
    np.savez("truth.npz", y=y)
    return tmp_path


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Folders of small images: shop (class folders), street (flat), and street's truth.

    With them a full feature cache and a run. No test may change them.
    """
    from cli_helpers import KNOWN_COLOURS, QUICK_IMAGES, UNKNOWN_COLOURS, image_fit, make_images
    from opensetda.cli.main import main

    folder = tmp_path_factory.mktemp("pictures")
    make_images(folder / "shop", KNOWN_COLOURS, 6, seed=0)
    made = make_images(folder / "street", (*KNOWN_COLOURS, *UNKNOWN_COLOURS), 5, seed=1, flat=True)
    (folder / "truth.txt").write_text("".join(f"{path} {name}\n" for path, name in made))
    assert main(image_fit(folder, folder / "run", *QUICK_IMAGES)) == 0
    return folder


@pytest.fixture(scope="module")
def evaluated(pictures, tmp_path_factory):
    """A run on images, evaluated; its tests must leave it as it is."""
    from opensetda.cli.main import main
    from opensetda.runs.folder import RunFolder

    path = tmp_path_factory.mktemp("evaluated") / "run"
    shutil.copytree(pictures / "run", path)
    assert main(["evaluate", str(path), "--labels", str(pictures / "truth.txt")]) == 0
    return RunFolder.open(path)


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium; without one, the tests that need it are skipped."""
    from browser_helpers import open_browser

    with open_browser() as opened:
        yield opened


@pytest.fixture
def clock(monkeypatch):
    """The time, which passes only when a test says so."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now
