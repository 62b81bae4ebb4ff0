"""The conversion of Keras' ResNet-50: biases, epsilon and colours."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from opensetda.backbones.recipe import IMAGENET
from resnet50 import KERAS_EPSILON, MEANS, _layer, with_our_colours


def test_the_first_layers_give_what_they_gave_in_keras():
    rng = np.random.default_rng(0)
    arrays = {
        "conv1/kernel": rng.normal(size=(7, 7, 3, 4)),
        "conv1/bias": rng.normal(size=4),
        **{f"bn/{name}": rng.uniform(0.5, 2, size=4) for name in ("gamma", "beta")},
        **{f"bn/moving_{name}": rng.uniform(0.5, 2, size=4) for name in ("mean", "variance")},
    }
    single = {name: values.astype(np.float32) for name, values in arrays.items()}
    state = with_our_colours(_layer(single, "conv1", "bn", "conv1", "bn1"))
    pixels = torch.from_numpy(rng.uniform(0, 255, size=(1, 3, 16, 16))).float()

    kernel = torch.from_numpy(single["conv1/kernel"]).permute(3, 2, 0, 1)
    bgr = pixels.flip(1) - torch.tensor(MEANS)[:, None, None]
    convolved = F.conv2d(bgr, kernel, torch.from_numpy(single["conv1/bias"]), stride=2)
    norm = [torch.from_numpy(single[f"bn/{name}"]) for name in ("gamma", "beta")]
    running = [torch.from_numpy(single[f"bn/moving_{name}"]) for name in ("mean", "variance")]
    expected = F.batch_norm(convolved, *running, *norm, eps=KERAS_EPSILON)

    mean, deviation = (part[:, None, None] for part in torch.tensor(IMAGENET))
    ours = F.conv2d((pixels / 255 - mean) / deviation, state["conv1.weight"], stride=2)
    parts = [state[f"bn1.{name}"] for name in ("running_mean", "running_var", "weight", "bias")]
    found = F.batch_norm(ours, *parts, eps=1e-5)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-2)
