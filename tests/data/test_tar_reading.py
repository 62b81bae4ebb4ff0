"""Images in tar shards are as good as the same images in folders: features, pixels, commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from cli_helpers import image_fit
from extraction_helpers import make_images, make_recipe, run
from opensetda.cli.main import main
from opensetda.data.images.decoding import BrokenImageError, decode_image, read_content
from opensetda.data.images.loading import read_images
from tar_helpers import write_tar

# reading -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return make_recipe(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The same images in a folder and in a shard."""
    folder = tmp_path_factory.mktemp("both")
    paths = make_images(folder / "plain", 10)
    files = [(Path(path).name, Path(path).read_bytes()) for path in paths]
    write_tar(folder / "shards/0.tar", *files[:6])
    write_tar(folder / "shards/1.tar", *files[6:])
    return paths, list(read_images(folder / "shards").paths)


def test_features_are_those_of_files_in_folders(recipe, both, tmp_path):
    plain, inside = both
    expected = run(recipe, plain, None).X
    np.testing.assert_array_equal(run(recipe, inside, tmp_path).X, expected)
    again = run(recipe, inside, tmp_path)
    assert again.n_cached == 10
    np.testing.assert_array_equal(again.X, expected)
    # By content: a file in a folder is known, too.
    assert run(recipe, plain, tmp_path).n_cached == 10


def test_pixels_are_those_of_files_in_folders(both):
    for plain, inside in zip(*both, strict=True):
        np.testing.assert_array_equal(decode_image(plain), decode_image(Path(inside)))
    for missing in (f"{both[1][0]}.png", both[1][0].replace("0.tar", "9.tar")):
        for read in (decode_image, read_content):
            with pytest.raises(BrokenImageError, match=r"^no such file$"):
                read(missing)
    with pytest.raises(BrokenImageError):
        decode_image("a.tar/\0.jpg")


def test_a_shard_that_changes(tmp_path):
    path = write_tar(tmp_path / "0.tar", ("1.jpg", "one"), ("2.jpg", "two"))
    image = f"{path}/2.jpg"
    assert read_content(image) == b"two"
    write_tar(path, ("1.jpg", "another"), ("0.jpg", "zero"), ("2.jpg", "second"))
    assert read_content(image) == b"second"
    write_tar(path, ("1.jpg", "one"))
    with pytest.raises(BrokenImageError, match="no such file"):
        read_content(image)


# the commands ------------------------------------------------------------------------------


def test_the_commands(pictures, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    truth = dict(line.split() for line in (pictures / "truth.txt").read_text().splitlines())
    files = sorted((pictures / "shop").rglob("*.png"))
    source = []
    for number, file in enumerate(files):
        source += [(f"{number:03}.png", file.read_bytes()), (f"{number:03}.cls", file.parent.name)]
    write_tar(tmp_path / "shop/000.tar", *source[:24])
    write_tar(tmp_path / "shop/001.tar", *source[24:])
    target = []
    for name, label in sorted(truth.items()):
        content = (pictures / "street" / name).read_bytes()
        label = json.dumps({"label": label})
        target += [(name, content), (name.replace(".png", ".json"), label)]
    write_tar(tmp_path / "street.tar", *target)
    means = ("--method", "class-means")
    shop, street = tmp_path / "shop", tmp_path / "street.tar"
    assert main(image_fit(pictures, "plain", *means)) == 0
    assert main(image_fit(pictures, "run", *means, source=shop, target=street)) == 0
    tables = [pyarrow.csv.read_csv(f"{out}/predictions.csv") for out in ("plain", "run")]
    names = tables[0]["path"].to_pylist()
    assert tables[1]["path"].to_pylist() == [f"street.tar/{name}" for name in names]
    assert tables[0].drop(["path"]) == tables[1].drop(["path"])
    assert "black" not in Path("run/settings.json").read_text()
    assert main(["evaluate", "run", "--labels", "street.tar"]) == 0
    assert json.loads(Path("run/metrics.json").read_text())["truth"]["rows"] == 30
    assert main(["predict", "run", "street.tar", "--out", "labels.csv"]) == 0
    labels = pyarrow.csv.read_csv("labels.csv")
    assert labels["path"].to_pylist() == [f"street.tar/{name}" for name in names]
    assert labels["label"].to_pylist() == tables[1]["label"].to_pylist()
    more = ["--image-size", "32", "--cache", str(pictures / "cache")]
    assert main(["features", "shop", "--out", "shop.npz", *more]) == 0
    with np.load("shop.npz") as made:
        assert made["paths"][[0, -1]].tolist() == ["000.tar/000.png", "001.tar/023.png"]
        assert made["classes"].tolist() == ["blue", "green", "red", "yellow"]
