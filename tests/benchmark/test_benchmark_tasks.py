"""Tasks of a benchmark: which files are taken, what they become, what is wrong with them."""

from __future__ import annotations

import numpy as np
import pytest

from benchmark_helpers import DIGITS, domain, write_domains
from cli_helpers import write_csv
from opensetda.benchmark.tasks import find_tasks
from opensetda.errors import InputError


@pytest.fixture
def folder(tmp_path):
    return write_domains(tmp_path / "data")


def test_the_published_directions_are_the_tasks_and_others_may_be_asked_for(folder):
    assert find_tasks("digits", folder).tasks == ("svhn-mnist", "usps-mnist", "mnist-usps")
    assert len(find_tasks("demo").tasks) == 4
    assert find_tasks("Digits", folder, ["MNIST_SVHN", "mnist-svhn"]).tasks == ("mnist-svhn",)
    assert find_tasks("digits", folder, only_first=True).tasks == ("svhn-mnist",)


def test_the_protocol_is_applied(folder):
    task = find_tasks("digits", folder).read("svhn-mnist")
    X, y = domain(2)
    assert (task.source_features == X[y < 5]).all()
    assert task.source_labels.tolist() == DIGITS[y[y < 5]].tolist()
    X, y = domain(0)
    assert (task.target_features == X).all()
    assert task.target_truth.tolist() == DIGITS[y].tolist()
    assert task.openness == 0.5


def test_classes_may_be_spelt_in_other_ways(tmp_path):
    from opensetda.data.benchmarks.protocols import BENCHMARKS

    spec = BENCHMARKS["office-home"]
    spelt = np.array([name.replace("_", " ").upper() for name in spec.classes])
    for name in ("art", "real_world"):
        np.savez(tmp_path / f"{name}.npz", X=np.ones((65, 2)), y=spelt)
    task = find_tasks("office-home", tmp_path, ["art-real-world"]).read("art-real-world")
    assert set(task.source_labels) == set(spec.known)
    assert set(task.target_truth) == set(spec.classes)


def test_every_other_class_is_unknown_where_the_protocol_says_so(tmp_path):
    from opensetda.data.benchmarks.protocols import BENCHMARKS

    known = np.array(BENCHMARKS["syn2real-o"].known)
    np.savez(tmp_path / "train.npz", X=np.ones((12, 2)), y=known)
    np.savez(tmp_path / "validation.npz", X=np.ones((14, 2)), y=np.array([*known, "cup", "sky"]))
    found = find_tasks("syn2real-o", tmp_path)
    assert found.tasks == ("train-validation",)
    assert found.read("train-validation").split.unknown == ("cup", "sky")


# what tells data apart ------------------------------------------------------------------------


def test_a_fingerprint_is_of_the_content_of_the_tasks_own_domains(folder, tmp_path):
    tasks = find_tasks("digits", folder)
    copy = find_tasks("digits", write_domains(tmp_path / "copy"))
    assert copy.fingerprints["usps-mnist"] == tasks.fingerprints["usps-mnist"]
    X, y = domain(7)
    np.savez(tmp_path / "copy" / "svhn.npz", X=X, y=y, classes=DIGITS)
    copy = find_tasks("digits", tmp_path / "copy")
    assert copy.fingerprints["svhn-mnist"] != tasks.fingerprints["svhn-mnist"]
    assert copy.fingerprints["usps-mnist"] == tasks.fingerprints["usps-mnist"]


# what is wrong --------------------------------------------------------------------------------


def labels_of(y):
    return lambda folder: np.savez(folder / "mnist.npz", X=domain(0)[0], y=y)


@pytest.mark.parametrize(
    ("damage", "arguments", "words"),
    [
        (None, ("office32",), "office31.*demo"),
        (None, ("digits", ["svhn-svhn"]), "svhn-mnist"),
        (lambda folder: (folder / "svhn.npz").unlink(), ("digits",), "svhn: missing"),
        (
            lambda folder: write_csv(folder / "mnist.csv", np.ones((2, 2)), y=["0", "1"]),
            ("digits",),
            r"mnist\.csv: mnist\.npz is mnist, too",
        ),
        (labels_of(np.arange(60) % 4), ("digits", ["mnist-usps"]), "no sample of the class '4'"),
        (labels_of(np.arange(59)), ("digits", ["usps-mnist"]), "59 labels for 60 rows"),
    ],
)
def test_wrong_data_is_named_in_one_line(folder, damage, arguments, words):
    if damage is not None:
        damage(folder)
    with pytest.raises(InputError, match=words):
        find_tasks(arguments[0], folder, *arguments[1:])
