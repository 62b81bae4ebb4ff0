"""Networks of the user's own, and of Hugging Face: fit, later commands, refusals."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from opensetda import use_backbone
from opensetda.backbones import own
from opensetda.backbones.model import load_backbone
from opensetda.backbones.recipe import IMAGENET, Preprocessing
from opensetda.backbones.registry import import_timm, resolve
from opensetda.cli.main import main
from opensetda.errors import InputError, RunPausedError
from opensetda.progress import RunListener
from opensetda.runs.folder import RunFolder
from opensetda.usecases import ImageOptions, export, fit, predict, resume

SMALL = Preprocessing(32, "squash", 32, "bilinear", *IMAGENET)
CODE = """
import torch
from torch import nn
from opensetda.backbones.recipe import IMAGENET, Preprocessing

def make():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 4, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    return nn.Sequential(*layers), Preprocessing(32, "squash", 32, "bilinear", *IMAGENET)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with images of two classes and one more, made current, and nothing known."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(own, "_known", {})
    rng = np.random.default_rng(0)
    colours = {"red": (220, 20, 20), "blue": (20, 20, 220), "green": (20, 220, 20)}
    for domain, names in (("shop", ["red", "blue"]), ("street", [*colours])):
        for name in names:
            folder = tmp_path / domain / name
            folder.mkdir(parents=True)
            for number in range(6):
                noise = rng.normal(0, 25 if domain == "shop" else 45, (24, 24, 3))
                pixels = np.clip(np.array(colours[name]) + noise, 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{domain}{number}.png")
    return tmp_path


@pytest.fixture
def name(place, monkeypatch):
    """The name of a function that makes a network, in a file of the current folder."""
    (place / "own_net.py").write_text(CODE)
    yield "own_net:make"
    sys.modules.pop("own_net", None)


def tiny(width=8):
    torch.manual_seed(0)
    first, pool = nn.Conv2d(3, width, 4, stride=4), nn.AdaptiveAvgPool2d(2)
    return nn.Sequential(first, nn.ReLU(), pool, nn.Flatten())


def fit_here(out, backbone, **more):
    images = ImageOptions(backbone=backbone, cache=more.pop("cache", None), **more.pop("how", {}))
    return fit("shop", "street", out, images=images, method="class-means", openness=1 / 3, **more)


def test_a_network_named_on_the_command_line(place, name, capsys):
    command = ["fit", "shop", "street", "--out", "run", "--backbone", name, "--cache", "cache"]
    assert main([*command, "--method", "class-means", "--no-report", "--quiet"]) == 0
    first = (place / "run" / "predictions.csv").read_text().splitlines()[1:]
    labels = {line.split(",")[0]: line.split(",")[1] for line in first}
    assert main(["predict", "run", "street", "--out", "a.csv", "--backbone", name]) == 0
    later = [line.split(",")[:2] for line in (place / "a.csv").read_text().splitlines()[1:]]
    assert dict(later) == labels
    assert main(["export", "run", "--to", "m.onnx", "--backbone", name]) == 0
    adapted = ["adapt", "run", "street", "--out", "run2", "--no-report", "--backbone"]
    assert main([*adapted, name]) == 0
    assert main([*adapted, "resnet50"]) == 2
    # A run never names code to import: it is given again.
    own._known.clear()
    sys.modules.pop("own_net")
    capsys.readouterr()
    assert main([*adapted[:4], "run3", "--no-cache"]) == 2
    assert f"--backbone {name}" in capsys.readouterr().err
    assert main(["predict", "run", "street", "--out", "b.csv"]) == 2
    assert f"--backbone {name}" in capsys.readouterr().err
    assert "own_net" not in sys.modules


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("own_net:other", "AttributeError"),
        ("no_such_module:make", "ModuleNotFoundError"),
        ("own_net:torch.rand", "TypeError"),
        ("own_net:torch.get_num_threads", "int; give a network"),
    ],
)
def test_names_that_lead_nowhere(place, name, given, told):
    with pytest.raises(InputError, match=told):
        resolve(given)


class Interrupted(RunListener):
    """Ctrl-C in the second round of training."""

    @contextmanager
    def training(self, method):
        def stop(event):
            if event.entry is not None and event.step == 3:
                raise KeyboardInterrupt

        yield stop


def test_an_interrupted_run_is_resumed(place, name, monkeypatch):
    settings = {"finetune.rounds": 2, "finetune.iterations": 2}
    how = {"how": {"finetune": "all"}, "settings": settings}
    expected = fit_here("whole", name, **how).folder.predictions()
    with pytest.raises(RunPausedError):
        fit_here("run", name, listener=Interrupted(), **how)
    monkeypatch.setattr(own, "_known", {})
    found = resume("run").folder.predictions()
    assert found.labels.tolist() == expected.labels.tolist()
    assert found.proba.tolist() == expected.proba.tolist()


def test_a_module_in_python(place):
    network = tiny()
    before = {key: value.clone() for key, value in network.state_dict().items()}
    done = fit_here("run", (network, SMALL))
    recipe = done.folder.recipe()
    assert recipe.backbone.startswith("own:Sequential-")
    assert recipe.width == 32
    labels = done.folder.predictions().labels
    assert set(labels.tolist()) == {"red", "blue", "unknown"}
    own._known.clear()
    with pytest.raises(InputError, match="use_backbone"):
        predict("run", "street")
    assert predict("run", "street", backbone=(network, SMALL)).labels.tolist() == labels.tolist()
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())


def test_features_are_cached_by_the_weights(place):
    used = [resolve(use_backbone((network, SMALL))) for network in (tiny(), tiny(), tiny(9))]
    assert used[0].key == used[1].key != used[2].key
    changed = tiny()
    with torch.no_grad():
        changed[0].weight[0, 0, 0, 0] += 1e-3
    assert resolve(use_backbone((changed, SMALL))).key != used[0].key


def test_other_weights_under_the_same_name_are_refused(place, name):
    recipe = resolve(name)
    (place / "own_net.py").write_text(CODE.replace("seed(0)", "seed(1)"))
    sys.modules.pop("own_net")
    use_backbone(name)
    with pytest.raises(InputError, match="SHA-256 differs"):
        load_backbone(recipe)


def test_a_function_is_cached_by_what_it_returns(place):
    def colours(images):
        return images.mean(dim=(2, 3))

    def spread(images):
        return images.std(dim=(2, 3))

    done = fit_here("run", (colours, SMALL), cache="cache")
    assert done.folder.recipe().width == 3
    assert done.folder.predictions().labels.tolist().count("unknown") == 6
    assert resolve(use_backbone((spread, SMALL))).key != done.folder.recipe().key
    with pytest.raises(InputError, match="no parameters to train"):
        fit_here("tuned", (colours, SMALL), how={"finetune": "all"})


def test_stages_that_are_named_are_trained(place):
    network = nn.Sequential()
    network.add_module("early", tiny())
    network.add_module("late", nn.Linear(32, 16))
    settings = {"finetune.rounds": 1, "finetune.iterations": 2, "finetune.stages": "late"}
    with pytest.raises(InputError, match="no known last stages"):
        fit_here("last", (network, SMALL), how={"finetune": "last"})
    wrong = settings | {"finetune.stages": "lte"}
    with pytest.raises(InputError, match="no such module"):
        fit_here("wrong", (network, SMALL), how={"finetune": "all"}, settings=wrong)
    done = fit_here("run", (network, SMALL), how={"finetune": "all"}, settings=settings)
    state = RunFolder.open(done.path).backbone_state()
    same = {
        key: torch.equal(value, state[f"network.{key}"])
        for key, value in network.state_dict().items()
    }
    assert same["early.0.weight"]
    if done.training.fitted.classifier.history_[-1].get("undone") is None:
        labels = predict("run", "street", backbone=(network, SMALL)).labels
        assert labels.tolist() == done.folder.predictions().labels.tolist()


def test_an_export_without_an_equal_in_onnx_is_refused(place):
    class Odd(nn.Module):
        def forward(self, images):
            return torch.fft.rfft(images.mean(dim=(1, 2))).abs()[:, :6]

    with pytest.warns(UserWarning, match="cannot be exported"):
        fit_here("run", (Odd(), SMALL))
    with pytest.raises(InputError, match="ONNX"):
        export("run", "m.onnx", backbone=(Odd(), SMALL))


@pytest.mark.parametrize(
    "given",
    [3, nn.Linear, (tiny(), "squash"), (lambda images: images, SMALL)],
    ids=["number", "class", "preprocessing in words", "function without weights"],
)
def test_what_is_no_network_is_refused(given, place):
    with pytest.raises(InputError, match=r"give a network|return \(2, width\)"):
        use_backbone(given)


# Hugging Face ----------------------------------------------------------------------------------


@pytest.fixture
def stored(place) -> Path:
    if find_spec("transformers") is None:
        pytest.skip("transformers is not installed (the extra hf)")
    import_timm()
    from transformers import ViTConfig, ViTImageProcessor, ViTModel

    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = ViTConfig(image_size=32, patch_size=8, intermediate_size=32, **small)
    ViTModel(config, add_pooling_layer=False).save_pretrained(place / "vit")
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(place / "vit")
    return place / "vit"


def test_a_model_of_hugging_face(stored, place):
    from transformers import ViTModel

    name = f"hf:{stored}"
    done = fit_here("run", name, cache="cache")
    recipe = done.folder.recipe()
    assert (recipe.width, recipe.preprocessing.size) == (16, 32)
    assert recipe.preprocessing.mean == (0.5, 0.5, 0.5)
    images = torch.randn(2, 3, 32, 32)
    # Without weights for a pooler the first token is the feature, not a random projection of it.
    model = ViTModel.from_pretrained(stored, add_pooling_layer=False).eval()
    with torch.no_grad():
        expected = model(pixel_values=images).last_hidden_state[:, 0]
        torch.testing.assert_close(load_backbone(recipe)(images), expected)
    own._known.clear()
    labels = predict("run", "street").labels
    assert labels.tolist() == done.folder.predictions().labels.tolist()
    assert export("run", "m.onnx").difference < 1e-3


def test_models_of_hugging_face_that_are_refused(stored):
    import safetensors.torch

    path = stored / "model.safetensors"
    state = safetensors.torch.load_file(path)
    short = {key: value for key, value in state.items() if "layernorm" not in key}
    safetensors.torch.save_file(short, path, {"format": "pt"})
    with pytest.raises(InputError, match="no weights for"):
        resolve(f"hf:{stored}")
    # A pickle is not read.
    path.unlink()
    torch.save(state, stored / "pytorch_model.bin")
    with pytest.raises(InputError, match="safetensors"):
        resolve(f"hf:{stored}")
