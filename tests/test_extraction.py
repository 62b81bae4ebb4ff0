"""Image files to features: right, in order, once each, whatever is broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from extraction_helpers import eager, make_images, make_recipe, run
from opensetda.backbones import engines
from opensetda.backbones import extraction as extraction_module
from opensetda.backbones.extraction import extract
from opensetda.backbones.recipe import Recipe
from opensetda.backbones.registry import resolve


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Recipe:
    return make_recipe(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> list[str]:
    return make_images(tmp_path_factory.mktemp("images"), 30)


@pytest.mark.parametrize("engine", ["torch", "auto"])
def test_features_are_those_of_eager_torch_in_order(recipe, paths, engine):
    extraction = run(recipe, paths, None, engine=engine)
    assert extraction.engine == ("torch" if engine == "torch" else "onnx")
    assert not extraction.warnings
    assert extraction.rows.tolist() == list(range(30))
    expected = eager(recipe, paths)
    assert engines.relative_difference(extraction.X, expected) < 1e-3
    assert engines.relative_difference(extraction.X[::-1], expected) > 1e-2


@pytest.mark.parametrize("name", ["timm:test_vit", "timm:test_resnet"])
def test_other_kinds_of_networks_are_exported(tmp_path, paths, name):
    recipe = make_recipe(tmp_path, name)
    extraction = run(recipe, paths[:3], None, engine="onnx")
    assert engines.relative_difference(extraction.X, eager(recipe, paths[:3])) < 1e-3


def test_the_embedded_backbone(paths):
    recipe = resolve(size=64)
    extraction = run(recipe, paths[:4], None)
    assert extraction.engine == "onnx"
    assert engines.relative_difference(extraction.X, eager(recipe, paths[:4])) < 1e-3


def test_an_image_alone_has_the_features_it_has_in_company(recipe, paths):
    together = run(recipe, paths, None).X
    alone = run(recipe, paths[7:8], None).X
    np.testing.assert_array_equal(together[7:8], alone)


def test_torch_gets_its_threads_back(recipe, paths):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run(recipe, paths[:4], None, engine="torch")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# A backbone without timm, which would take most of the time to import.
THREADS = """
import sys
from opensetda.backbones import extraction as extraction_module
from opensetda.backbones.extraction import extract
from opensetda.backbones.extractor import Extractor
from opensetda.backbones.recipe import Recipe
assert "torch" not in sys.modules
ready_engine = Extractor._ready_engine
def with_another_backbone(extractor):
    import torch
    from opensetda.backbones import engines
    class Mean(torch.nn.Module):
        recipe = extractor.recipe
        def forward(self, images):
            return images.mean(dim=(1, 2, 3))[:, None].expand(-1, self.recipe.width)
    engines.load_backbone = lambda recipe, state: Mean()
    return ready_engine(extractor)
Extractor._ready_engine = with_another_backbone
paths = {paths!r}
assert extract(Recipe.from_dict({recipe!r}), paths, paths, engine="torch").engine == "torch"
import torch
print(torch.get_num_threads())
"""


def test_threads_that_nobody_had_asked_for_yet(recipe, paths):
    # A process of its own: here the main thread has long had a number of its own.
    code = THREADS.format(recipe=recipe.to_dict(), paths=paths[:2])
    # Other tests in this process may have left limits of threads of their own.
    inherited = {k: v for k, v in os.environ.items() if "THREADS" not in k and k[:4] != "COV_"}
    environment = {**inherited, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, env=environment
    )
    assert int(done.stdout) == 2


class TestBrokenImages:
    def test_they_are_listed_and_the_rest_goes_on(self, recipe, paths, tmp_path):
        cut = tmp_path / "cut.jpg"
        cut.write_bytes(Path(paths[1]).read_bytes()[:300])
        empty = tmp_path / "empty.png"
        empty.touch()
        broken = [str(cut), str(empty), str(tmp_path / "vanished.jpg")]
        mixed = [paths[0], broken[0], paths[1], broken[1], broken[2], paths[2]]
        for folder in (None, tmp_path / "cache", tmp_path / "cache"):
            extraction = run(recipe, mixed, folder)
            assert extraction.rows.tolist() == [0, 2, 5]
            assert [b.path for b in extraction.broken] == broken
            assert [b.reason for b in extraction.broken] == [
                "cut short",
                "empty file",
                "no such file",
            ]
            expected = run(recipe, paths[:3], None).X
            np.testing.assert_array_equal(extraction.X, expected)

    def test_copies_of_a_broken_image_are_broken(self, recipe, tmp_path):
        copies = [tmp_path / f"{number}.jpg" for number in range(5)]
        for copy in copies:
            copy.write_bytes(b"no image")
        extraction = run(recipe, [str(copy) for copy in copies], None)
        assert [b.reason for b in extraction.broken] == ["not an image"] * 5
        assert extraction.X.shape == (0, recipe.width)

    def test_names_of_them(self, recipe, tmp_path):
        extraction = extract(recipe, ["a name"], [str(tmp_path / "gone.jpg")])
        assert extraction.broken[0].id == "a name"


class TestCache:
    def test_second_run_computes_no_image(self, recipe, paths, tmp_path):
        first = run(recipe, paths, tmp_path)
        assert first.n_cached == 0
        second = run(recipe, paths[::-1], tmp_path)
        assert second.n_cached == 30
        assert second.engine is None
        np.testing.assert_array_equal(second.X, first.X[::-1])

    def test_second_run_imports_no_network(self, recipe, paths, tmp_path):
        expected = run(recipe, paths, tmp_path).X
        code = (
            "import sys; from pathlib import Path; import numpy as np\n"
            "from opensetda.backbones.recipe import Recipe\n"
            "from opensetda.backbones.cache import FeatureCache\n"
            "from opensetda.backbones.extraction import extract\n"
            f"memory, paths = Path({str(tmp_path)!r}), {paths!r}\n"
            f"recipe = Recipe.from_dict({recipe.to_dict()!r})\n"
            "with FeatureCache(memory, recipe.key, recipe.width) as cache:\n"
            "    X = extract(recipe, paths, paths, cache).X\n"
            "assert not {'torch', 'timm', 'onnxruntime', 'torchvision'} & set(sys.modules)\n"
            "sys.stdout.buffer.write(X.tobytes())"
        )
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        assert done.stdout == expected.tobytes()

    def test_content_counts_not_the_name(self, recipe, paths, tmp_path):
        first = run(recipe, paths[:5], tmp_path / "cache")
        copy = tmp_path / "copy.jpg"
        copy.write_bytes(Path(paths[3]).read_bytes())
        again = run(recipe, [str(copy)], tmp_path / "cache")
        assert again.n_cached == 1
        np.testing.assert_array_equal(again.X, first.X[3:4])

    def test_a_changed_file_is_computed_again(self, recipe, paths, tmp_path):
        path = tmp_path / "image.png"
        path.write_bytes(Path(paths[0]).read_bytes())
        first = run(recipe, [str(path)], tmp_path / "cache")
        path.write_bytes(Path(paths[2]).read_bytes())
        second = run(recipe, [str(path)], tmp_path / "cache")
        assert second.n_cached == 0
        assert not np.array_equal(first.X, second.X)

    def test_only_what_is_missing_is_computed(self, recipe, paths, tmp_path):
        run(recipe, paths[:10], tmp_path)
        extraction = run(recipe, paths, tmp_path)
        assert extraction.n_cached == 10
        np.testing.assert_array_equal(extraction.X, run(recipe, paths, None).X)

    def test_a_folder_that_cannot_be_written_costs_a_warning(self, recipe, paths, tmp_path):
        (tmp_path / "file").touch()
        extraction = run(recipe, paths[:3], tmp_path / "file")
        assert len(extraction.X) == 3
        assert any("cannot be kept" in warning for warning in extraction.warnings)


def test_progress_counts_every_image(recipe, paths, tmp_path):
    told = []
    mixed = [*paths, paths[0], str(tmp_path / "gone.jpg")]
    run(recipe, mixed, tmp_path, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (32, 32)
    assert told == sorted(told)
    told.clear()
    run(recipe, paths, tmp_path, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (30, 30)


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from opensetda.backbones import cache
cache.FLUSHED_ROWS = 4
from opensetda.backbones.recipe import Recipe
from extraction_helpers import run
def tell(done, total):
    if done >= 17:
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
run(Recipe.from_dict({recipe!r}), {paths!r}, Path({folder!r}), progress=tell, engine="torch")
"""


def test_killed_in_the_middle_the_next_run_goes_on(recipe, paths, tmp_path):
    tests = str(Path(__file__).parent)
    code = KILLED.format(
        tests=tests, recipe=recipe.to_dict(), paths=paths, folder=str(tmp_path / "cache")
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert done.returncode == -9
    extraction = run(recipe, paths, tmp_path / "cache", engine="torch")
    assert extraction.n_cached >= 12
    assert not extraction.warnings
    np.testing.assert_array_equal(extraction.X, run(recipe, paths, None, engine="torch").X)


def test_large_features_go_to_a_file_without_the_broken_ones(recipe, paths, tmp_path, monkeypatch):
    some = list(paths[:9])
    for number in (2, 7):
        some[number] = str(tmp_path / f"{number}.png")
        Path(some[number]).write_bytes(b"torn")
    in_memory = extract(recipe, some, some, engine="torch")
    assert not isinstance(in_memory.X, np.memmap)
    assert in_memory.rows.tolist() == [0, 1, 3, 4, 5, 6, 8]
    # A file of a few rows, moved by fewer at a time.
    monkeypatch.setattr(extraction_module, "LARGE_BYTES", 1)
    monkeypatch.setattr(extraction_module, "_MOVED_ROWS", 2)
    in_file = extract(recipe, some, some, engine="torch", scratch=tmp_path)
    assert isinstance(in_file.X, np.memmap)
    assert in_file.X.mode == "r"
    np.testing.assert_array_equal(in_file.X, in_memory.X)
    assert in_file.broken == in_memory.broken
    assert [Path(image.id).name for image in in_file.broken] == ["2.png", "7.png"]
