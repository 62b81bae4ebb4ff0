"""Which engine computes the features, and the extractor that holds one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from extraction_helpers import eager, load_image, make_images, make_recipe, run
from opensetda.backbones import engines
from opensetda.backbones.extraction import Extractor
from opensetda.backbones.model import load_backbone, normalise
from opensetda.backbones.recipe import Recipe
from opensetda.errors import InputError


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Recipe:
    return make_recipe(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> list[str]:
    return make_images(tmp_path_factory.mktemp("images"), 30)


class TestEngines:
    def test_a_network_that_differs_is_not_used(self, recipe, paths, monkeypatch):
        monkeypatch.setattr(engines, "TOLERANCE", -1.0)
        extraction = run(recipe, paths[:3], None)
        assert extraction.engine == "torch"
        assert "differ from torch's" in extraction.warnings[0]
        assert engines.relative_difference(extraction.X, eager(recipe, paths[:3])) < 1e-3
        with pytest.raises(InputError, match="differ"):
            run(recipe, paths[:3], None, engine="onnx")

    def test_a_network_that_cannot_be_exported(self, recipe, paths, monkeypatch):
        def fail(*_, **__):
            raise RuntimeError("no such operator")

        monkeypatch.setattr(torch.onnx, "export", fail)
        extraction = run(recipe, paths[:3], None)
        assert extraction.engine == "torch"
        assert "no such operator" in extraction.warnings[0]

    def test_without_onnx_runtime(self, recipe, paths, monkeypatch):
        monkeypatch.setattr(engines, "find_spec", lambda name: None)
        extraction = run(recipe, paths[:3], None)
        assert extraction.engine == "torch"
        assert "opensetda[onnx]" in extraction.warnings[0]
        with pytest.raises(InputError, match="not installed"):
            run(recipe, paths[:3], None, engine="onnx")

    def test_unknown_engine(self, recipe, paths):
        with pytest.raises(InputError, match="'abacus'"):
            run(recipe, paths[:3], None, engine="abacus")


class TestExtractor:
    def test_rows_and_reasons(self, recipe, paths, tmp_path):
        some = [paths[0], str(tmp_path / "gone.jpg"), paths[1]]
        with Extractor(recipe) as extractor:
            features, reasons = extractor.features(some)
            assert extractor.features([])[0].shape == (0, recipe.width)
        assert reasons == [None, "no such file", None]
        np.testing.assert_array_equal(features, run(recipe, paths[:2], None).X)

    @pytest.mark.parametrize("engine", ["onnx", "torch"])
    def test_fine_tuned_weights(self, recipe, paths, engine, tmp_path):
        backbone = load_backbone(recipe)
        state = {n: v * 1.1 for n, v in backbone.state_dict().items()}
        backbone.load_state_dict(state)
        pixels = torch.stack([load_image(path, recipe.preprocessing) for path in paths[:2]])
        with torch.no_grad():
            expected = backbone(normalise(pixels, recipe.preprocessing)).numpy()
        plain = run(recipe, paths[:2], tmp_path).X
        with Extractor(recipe, engine, state) as extractor:
            features, _ = extractor.features(paths[:2])
        assert engines.relative_difference(features, expected) < 1e-3
        assert engines.relative_difference(features, plain) > 1e-2

    def test_few_items_wait(self, recipe, paths):
        asked = 0

        def endless() -> Iterator[str]:
            nonlocal asked
            while True:
                asked += 1
                yield paths[asked % len(paths)]

        with Extractor(recipe) as extractor:
            results = extractor.map(str.upper, endless())
            first = [next(results) for _ in range(100)]
            results.close()
        assert asked <= 100 + 4 * len(os.sched_getaffinity(0))
        assert first[:2] == [paths[1].upper(), paths[2].upper()]

    def test_errors_of_the_network_are_not_lost(self, paths, recipe):
        Path(recipe.weights).rename(recipe.weights + ".away")
        try:
            with Extractor(recipe) as extractor, pytest.raises(InputError, match="no such file"):
                extractor.features(paths)
        finally:
            Path(recipe.weights + ".away").rename(recipe.weights)
