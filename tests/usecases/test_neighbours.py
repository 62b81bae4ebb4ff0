"""Datasets of other libraries as source and target, and labels for other programs."""

from __future__ import annotations

import json
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pyarrow.csv
import pytest
import torch
from PIL import Image

from opensetda import ClassMeans
from opensetda.data.neighbours import write_images
from opensetda.errors import InputError
from opensetda.runs.labels_out import write_labels
from opensetda.usecases import TableOptions, fit, predict

NAMES = ["cup", "pen"]
HOW = {"method": "class-means", "openness": 1 / 3}
needs_datasets = pytest.mark.skipif(
    find_spec("datasets") is None, reason="Hugging Face's datasets is not installed"
)


class Pairs(torch.utils.data.Dataset):
    """Rows, or images, with numbers of classes or without."""

    def __init__(self, samples, labels=None, classes=None):
        self.samples, self.labels = samples, labels
        if classes is not None:
            self.classes = classes

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, number):
        sample = self.samples[number]
        return sample if self.labels is None else (sample, self.labels[number])


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    kind = np.arange(90) % 3
    X = (5 * np.eye(3, 6)[kind] + rng.normal(size=(90, 6))).astype(np.float32)
    return X[kind < 2], kind[kind < 2], X + 0.2


@pytest.fixture(scope="module")
def expected(rows, tmp_path_factory):
    X, y, target = rows
    source = X, np.array(NAMES)[y]
    return fit(source, target, tmp_path_factory.mktemp("arrays") / "run", **HOW).folder


def test_datasets_of_torch(rows, expected, tmp_path):
    X, y, target = (torch.from_numpy(part) for part in rows)
    run = fit(Pairs(X, y, NAMES), Pairs(target), tmp_path / "run", **HOW)
    assert run.folder.predictions().labels.tolist() == expected.predictions().labels.tolist()
    later = predict(run, Pairs(target))
    assert later.labels.tolist() == run.folder.predictions().labels.tolist()
    # Labels of a target are dropped.
    other = fit(Pairs(X, y, NAMES), Pairs(target, y[:1].repeat(90)), tmp_path / "b", **HOW)
    first, second = run.folder.predictions(), other.folder.predictions()
    np.testing.assert_array_equal(first.proba, second.proba)


@needs_datasets
@pytest.mark.parametrize("as_vectors", [True, False])
def test_datasets_of_hugging_face(rows, expected, tmp_path, as_vectors):
    import datasets

    X, y, target = rows
    label = datasets.ClassLabel(names=NAMES)

    def made(rows, labels=None):
        columns = {f"c{n}": column for n, column in enumerate(rows.T)}
        columns = {"embedding": rows.tolist()} if as_vectors else columns
        if labels is None:
            return datasets.Dataset.from_dict(columns)
        dataset = datasets.Dataset.from_dict({**columns, "kind": labels})
        return dataset.cast_column("kind", label)

    tables = TableOptions(label="kind")
    how = {} if as_vectors else {"tables": tables}
    run = fit(made(X, y), made(target), tmp_path / "run", **HOW, **how)
    assert run.folder.predictions().labels.tolist() == expected.predictions().labels.tolist()
    assert predict(run, made(target)).labels.tolist() == expected.predictions().labels.tolist()


def test_frames_of_pandas(rows, expected, tmp_path):
    X, y, target = rows
    names = [f"c{n}" for n in range(6)]
    source = pd.DataFrame(X, columns=names).assign(y=np.array(NAMES)[y])
    run = fit(source, pd.DataFrame(target, columns=names), tmp_path / "run", **HOW)
    assert run.folder.predictions().labels.tolist() == expected.predictions().labels.tolist()


# Images ----------------------------------------------------------------------------------------


def pictures(count=4):
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (count, 8, 6, 3)).astype(np.uint8)


def read_back(manifest):
    table = pyarrow.csv.read_csv(manifest).to_pydict()
    pixels = [np.asarray(Image.open(manifest.parent / path)) for path in table["path"]]
    return np.stack(pixels), table.get("label")


@pytest.mark.parametrize("form", ["pillow", "bytes", "floats"])
def test_images_of_torch_are_written_as_they_are(tmp_path, form):
    pixels = pictures()
    samples = {
        "pillow": [Image.fromarray(one) for one in pixels],
        "bytes": torch.from_numpy(pixels).permute(0, 3, 1, 2),
        "floats": torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255,
    }[form]
    manifest = write_images(Pairs(samples, [0, 1, 0, 1], NAMES), tmp_path / "made")
    found, labels = read_back(manifest)
    np.testing.assert_array_equal(found, pixels)
    assert labels == ["cup", "pen", "cup", "pen"]
    assert read_back(write_images(Pairs(samples), tmp_path / "bare"))[1] is None


@needs_datasets
def test_images_of_hugging_face_are_written_as_they_are(tmp_path):
    import datasets

    columns = {"kind": [1, 0, 1, 0], "photo": [Image.fromarray(one) for one in pictures()]}
    dataset = datasets.Dataset.from_dict(columns)
    dataset = dataset.cast_column("kind", datasets.ClassLabel(names=NAMES))
    found, labels = read_back(write_images(dataset, tmp_path / "made"))
    np.testing.assert_array_equal(found, pictures())
    assert labels == ["pen", "cup", "pen", "cup"]


def test_what_cannot_be_written_or_fitted_is_named(rows, tmp_path):
    images = torch.from_numpy(pictures()).permute(0, 3, 1, 2)
    with pytest.raises(InputError, match=r"source: .*write_images"):
        fit(Pairs(images, [0, 1, 0, 1]), Pairs(images), tmp_path / "run", **HOW)
    with pytest.raises(InputError, match="before they are normalised"):
        write_images(Pairs(images / 255 - 0.5), tmp_path / "made")
    assert not (tmp_path / "made").exists()
    assert not (tmp_path / "run").exists()


# Labels ----------------------------------------------------------------------------------------


def test_labels_as_coco(expected, tmp_path):
    coco = pytest.importorskip("pycocotools.coco", reason="pycocotools is not installed")
    path = write_labels(expected.path, tmp_path / "labels.json")
    read, table = coco.COCO(str(path)), expected.predictions()
    names = {one["id"]: one["name"] for one in read.loadCats(read.getCatIds())}
    assert [*names.values()] == ["cup", "pen", "unknown"]
    found = {
        image["file_name"]: read.loadAnns(read.getAnnIds(imgIds=image["id"]))
        for image in read.loadImgs(read.getImgIds())
    }
    for name, label, confidence in zip(table.ids, table.labels, table.confidence, strict=True):
        (annotation,) = found[str(name)]
        assert names[annotation["category_id"]] == label
        assert annotation["score"] == confidence


def test_labels_for_fiftyone(expected, tmp_path):
    path = write_labels(expected.predictions(), tmp_path / "labels.json", style="fiftyone")
    content = json.loads(path.read_text())
    found = [content["classes"][index] for index in content["labels"].values()]
    assert found == expected.predictions().labels.tolist()
    with pytest.raises(InputError, match="exists already"):
        write_labels(expected.path, path)


# scikit-learn ----------------------------------------------------------------------------------


def test_named_columns_come_out_of_a_pipeline(rows):
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X, y, target = rows
    both = pd.DataFrame(np.concatenate([X, target])).rename(columns=str)
    labels = np.array([*np.array(NAMES)[y], *[""] * len(target)])
    domain = np.repeat([1, -1], [len(X), len(target)])
    pipeline = make_pipeline(StandardScaler(), ClassMeans()).set_output(transform="pandas")
    pipeline.fit(both, labels, classmeans__sample_domain=domain)
    assert pipeline[-1].feature_names_in_.tolist() == both.columns.tolist()
    assert "unknown" in pipeline.predict(both)
    moved = pipeline.transform(both)
    assert isinstance(moved, pd.DataFrame)
    assert moved.columns[0] == "classmeans0"
    pipeline.set_output(transform="default")
    np.testing.assert_array_equal(moved, pipeline.transform(both))
