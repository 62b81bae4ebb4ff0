"""CLIP: features of images, and the names of classes as texts; with a small random model."""

from __future__ import annotations

import json
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from opensetda.backbones import own
from opensetda.backbones.model import load_backbone
from opensetda.backbones.registry import import_timm, resolve
from opensetda.cli.main import main
from opensetda.errors import InputError
from opensetda.methods.committee import TEXTS
from opensetda.progress import RunListener
from opensetda.runs.folder import RunFolder
from opensetda.usecases import ImageOptions, adapt, export, fit, predict, resume

DEFAULT = "a photo of a {}."


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with images of two classes and one more, made current, and nothing known."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(own, "_known", {})
    rng = np.random.default_rng(0)
    colours = {"red_cup": (220, 20, 20), "blue_cup": (20, 20, 220), "green": (20, 220, 20)}
    for domain, names in (("shop", ["red_cup", "blue_cup"]), ("street", [*colours])):
        for name in names:
            folder = tmp_path / domain / name
            folder.mkdir(parents=True)
            for number in range(6):
                noise = rng.normal(0, 25 if domain == "shop" else 45, (24, 24, 3))
                pixels = np.clip(np.array(colours[name]) + noise, 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{domain}{number}.png")
    return tmp_path


@pytest.fixture
def name(place) -> str:
    """A small CLIP with random weights on disk, as open_clip stores it."""
    if find_spec("open_clip") is None:
        pytest.skip("open_clip is not installed (the extra clip)")
    import_timm()
    import open_clip
    import safetensors.torch

    text = {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
    model = {
        "embed_dim": 12,
        "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "patch_size": 8},
        "text_cfg": text,
    }
    # Not the size and means by default.
    preprocess = {"size": 32, "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
    folder = place / "tiny"
    folder.mkdir()
    config = {"model_cfg": model, "preprocess_cfg": preprocess}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    state = open_clip.model.CLIP(**model).state_dict()
    safetensors.torch.save_file(state, folder / "open_clip_model.safetensors")
    return f"clip:{folder}"


def direct(name):
    """The model and its tokenizer, without our code."""
    import open_clip

    address = "local-dir:" + name.removeprefix("clip:")
    return open_clip.create_model(address).eval(), open_clip.get_tokenizer(address)


def fit_here(out, name, prompts=(DEFAULT,), unknown_prompts=(), how=None, **more):
    images = ImageOptions(name, prompts=prompts, unknown_prompts=unknown_prompts, **(how or {}))
    return fit("shop", "street", out, images=images, openness=1 / 3, **more)


def text_rows_of(run):
    scorer = RunFolder.open(Path(run)).model().scorer_
    return [rows.numpy() for rows in (scorer.scorers[-1].classes, scorer.scorers[-1].unknowns)]


def test_features_are_those_of_the_image_tower(name):
    recipe = resolve(name)
    assert (recipe.width, recipe.preprocessing.size, recipe.preprocessing.mean[0]) == (12, 32, 0.5)
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    model, _ = direct(name)
    with torch.no_grad():
        expected = model.encode_image(images, normalize=True)
        torch.testing.assert_close(load_backbone(recipe)(images), expected)


def test_names_vote_as_texts(name):
    templates = (DEFAULT, "a drawing of a {}.")
    done = fit_here("run", name, prompts=templates, unknown_prompts=("green", "a lamp"))
    classifier = done.folder.model()
    assert classifier.members_[-1] == TEXTS
    with pytest.raises(InputError, match="is a class"):
        fit_here("run2", name, unknown_prompts=("red_cup",))
    model, tokenize = direct(name)
    # Classes are sorted, and a folder's name is said as words.
    for found, names in zip(
        text_rows_of("run"), (["blue cup", "red cup"], ["green", "a lamp"]), strict=True
    ):
        with torch.no_grad():
            rows = [
                model.encode_text(tokenize([t.replace("{}", one) for t in templates]), True).mean(0)
                for one in names
            ]
        expected = torch.nn.functional.normalize(torch.stack(rows), dim=1)
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)
    own._known.clear()
    labels = predict("run", "street").labels
    assert labels.tolist() == done.folder.predictions().labels.tolist()
    # The texts are part of the exported model.
    assert export("run", "m.onnx").difference < 1e-3


def test_a_run_that_is_adapted_keeps_its_prompts(name):
    fit_here("run", name, unknown_prompts=("green",))
    done = adapt("run", "street", "run2")
    assert done.folder.model().members_[-1] == TEXTS
    for first, second in zip(text_rows_of("run"), text_rows_of("run2"), strict=True):
        np.testing.assert_array_equal(first, second)
    with pytest.raises(InputError, match="those of the run"):
        adapt("run", "street", "run3", images=ImageOptions(prompts=(DEFAULT,)))
    other = adapt("run", "street", "run3", method="class-means")
    assert not hasattr(other.folder.model(), "members_")


class Fails(RunListener):
    """An error once features are there, in the first process only."""

    @contextmanager
    def training(self, method):
        raise RuntimeError("stopped")
        yield


def test_a_run_is_resumed_with_its_prompts(name, place, monkeypatch):
    from opensetda.runs import unfinished

    (place / "words.txt").write_text("green\na lamp\n")
    monkeypatch.setattr(unfinished.UnfinishedRun, "is_worth_keeping", True)
    command = ["--backbone", name, "--unknown-prompts", "words.txt", "--openness", "0.33"]
    whole = ["fit", "shop", "street", "--out", "whole", "--no-report", "--quiet", *command]
    assert main(whole) == 0
    (place / "words.txt").write_text("green\n")
    images = ImageOptions(name, unknown_prompts=("green", "a lamp"))
    with pytest.raises(RuntimeError, match="stopped"):
        fit("shop", "street", "run", images=images, openness=0.33, listener=Fails())
    own._known.clear()
    found = resume("run").folder.predictions()
    expected = RunFolder.open(Path("whole")).predictions()
    assert found.proba.tolist() == expected.proba.tolist()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"method": "class-means"}, "not with class-means"),
        ({"how": {"finetune": "all"}}, "no longer fits its texts"),
        ({"prompts": ("a photo",)}, "write {}"),
    ],
)
def test_prompts_that_do_not_fit_the_rest(place, more, told):
    with pytest.raises(InputError, match=told):
        fit_here("run", "clip:tiny", **more)
    assert not Path("run").exists()


def test_prompts_need_a_network_of_texts(place, capsys):
    command = ["fit", "shop", "street", "--out", "run", "--prompts", DEFAULT]
    assert main(command) == 2
    assert "--backbone clip:" in capsys.readouterr().err
    Path("a.csv").write_text("y,a,b\n1,2,3\n2,3,4\n")
    Path("b.csv").write_text("a,b\n1,2\n2,3\n")
    assert main(["fit", "a.csv", "b.csv", "--out", "run", "--unknown-prompts", "lamp"]) == 2
    assert "option is for images" in capsys.readouterr().err


def test_models_that_are_refused(name):
    folder = Path(name.removeprefix("clip:"))
    with pytest.raises(InputError, match="its folder"):
        resolve(f"clip:{folder.parent}")
    weights = folder / "open_clip_model.safetensors"
    state = {key: torch.zeros(2) for key in ("visual.proj", "other")}
    weights.unlink()
    # A file with more than tensors is not unpickled.
    torch.save({"state_dict": state, "args": Path("x")}, folder / "open_clip_pytorch_model.bin")
    with pytest.raises(InputError, match="its folder"):
        resolve(name)
    (folder / "open_clip_pytorch_model.bin").unlink()
    with pytest.raises(InputError, match="its folder"):
        resolve(name)
