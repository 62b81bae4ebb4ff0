"""Image files to features: right, in order, once each, whatever is broken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from extraction_helpers import eager, make_images, make_recipe, run
from opensetda.backbones import engines
from opensetda.backbones import extraction as extraction_module
from opensetda.backbones.extraction import Extractor, extract
from opensetda.backbones.recipe import Recipe
from opensetda.backbones.registry import resolve
from opensetda.errors import InputError


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Recipe:
    return make_recipe(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> list[str]:
    return make_images(tmp_path_factory.mktemp("images"), 30)


def test_features_are_those_of_eager_torch_in_order(recipe, paths):
    extraction = run(recipe, paths, None)
    assert not extraction.warnings
    assert extraction.rows.tolist() == list(range(30))
    alone = run(recipe, paths[7:8], None).X
    np.testing.assert_array_equal(extraction.X[7:8], alone)
    expected = eager(recipe, paths)
    assert engines.relative_difference(extraction.X, expected) < 1e-3
    assert engines.relative_difference(extraction.X[::-1], expected) > 1e-2


@pytest.mark.parametrize("name", ["timm:test_vit", "timm:test_resnet", "embedded"])
def test_other_kinds_of_networks_are_exported(tmp_path, paths, name):
    recipe = resolve(size=64) if name == "embedded" else make_recipe(tmp_path, name)
    extraction = run(recipe, paths[:3], None)
    assert not extraction.warnings
    assert engines.relative_difference(extraction.X, eager(recipe, paths[:3])) < 1e-3


def test_without_onnx_runtime_torch_gets_its_threads_back(recipe, paths, monkeypatch):
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        extraction = run(recipe, paths[:3], None)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert "opensetda[onnx]" in extraction.warnings[0]
    assert engines.relative_difference(extraction.X, eager(recipe, paths[:3])) < 1e-3


def test_second_run_computes_no_image_and_imports_no_network(recipe, paths, tmp_path):
    first = run(recipe, paths, tmp_path)
    assert first.n_cached == 0
    code = (
        "import sys; from pathlib import Path; import numpy as np\n"
        "from opensetda.backbones.recipe import Recipe\n"
        "from opensetda.backbones.extraction import FeatureCache, extract\n"
        f"memory, paths = Path({str(tmp_path)!r}), {paths[::-1]!r}\n"
        f"recipe = Recipe.from_dict({recipe.to_dict()!r})\n"
        "with FeatureCache(memory, recipe.key, recipe.width) as cache:\n"
        "    second = extract(recipe, paths, paths, cache)\n"
        "assert second.n_cached == 30\n"
        "assert not {'torch', 'timm', 'onnxruntime', 'torchvision'} & set(sys.modules)\n"
        "sys.stdout.buffer.write(second.X.tobytes())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert done.stdout == first.X[::-1].tobytes()


def test_broken_images_are_listed_and_the_rest_goes_on(recipe, paths, tmp_path, monkeypatch):
    (tmp_path / "cut.jpg").write_bytes(Path(paths[1]).read_bytes()[:300])
    (tmp_path / "empty.png").touch()
    (tmp_path / "vanished.jpg").symlink_to(tmp_path / "no.jpg")
    broken = [str(tmp_path / name) for name in ("cut.jpg", "empty.png", "vanished.jpg")]
    mixed = [paths[0], broken[0], paths[1], broken[1], broken[2], paths[2]]
    expected, told = run(recipe, paths[:3], None).X, []
    for folder in (None, tmp_path / "cache", tmp_path / "cache"):
        extraction = run(recipe, mixed, folder, progress=lambda *counts: told.append(counts))
        assert extraction.rows.tolist() == [0, 2, 5]
        assert [b.path for b in extraction.broken] == broken
        reasons = ["damaged (Truncated File Read)", "empty file", "no such file"]
        assert [b.reason for b in extraction.broken] == reasons
        np.testing.assert_array_equal(extraction.X, expected)
    assert told == 3 * [(number, 6) for number in range(1, 7)]
    # Too large for memory: into a file, without gaps for the broken ones.
    monkeypatch.setattr(extraction_module, "LARGE_BYTES", 1)
    in_file = extract(recipe, mixed, mixed, scratch=tmp_path)
    assert isinstance(in_file.X, np.memmap)
    assert in_file.X.mode == "r"
    np.testing.assert_array_equal(in_file.X, expected)
    assert in_file.broken == extraction.broken


def test_images_that_were_deleted_are_an_error(recipe, paths, tmp_path):
    gone = [str(tmp_path / "photos" / name / "a.jpg") for name in ("cups", "pens")]
    with pytest.raises(InputError, match=f"^{tmp_path}/photos: was there when the command began"):
        run(recipe, [*paths[:2], *gone], None)
    Path(gone[0]).parent.mkdir(parents=True)
    with pytest.raises(InputError, match=f"^{gone[0]}: was there when the command began"):
        run(recipe, [*paths[:2], *gone], None)


class TestEngines:
    def test_a_network_that_differs_is_not_used(self, recipe, paths, monkeypatch):
        monkeypatch.setattr(engines, "TOLERANCE", -1.0)
        extraction = run(recipe, paths[:3], None)
        assert "differ from torch's" in extraction.warnings[0]
        assert engines.relative_difference(extraction.X, eager(recipe, paths[:3])) < 1e-3

    def test_a_network_that_cannot_be_exported(self, recipe, paths, monkeypatch):
        def fail(*_, **__):
            raise RuntimeError("no such operator")

        monkeypatch.setattr(torch.onnx, "export", fail)
        assert "no such operator" in run(recipe, paths[:3], None).warnings[0]


class TestExtractor:
    def test_errors_of_the_network_are_not_lost(self, paths, recipe):
        Path(recipe.weights).rename(recipe.weights + ".away")
        try:
            with Extractor(recipe) as extractor, pytest.raises(InputError, match="no such file"):
                extractor.features(paths)
        finally:
            Path(recipe.weights + ".away").rename(recipe.weights)
