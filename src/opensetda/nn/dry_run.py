"""The memory that the training of a backbone will take, found by a pass that changes nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from opensetda.system.memory import check_free

# Gradients beside what a forward pass stores, and memory lost between blocks: measured at 1.24 to
# 1.32 times the stored tensors (EfficientNet-Lite0, 64 and 224 pixels, 24 to 64 images).
_PEAK = 1.25
# Gradients and the two moments of Adam.
_PER_PARAMETER = 3
_ADVICE = "take --finetune last, a smaller --image-size, or --set finetune.chunk=16"


def check_training_memory(network: nn.Module, pixels: Tensor, n_images: int) -> None:
    """Raise an `InputError` if a training step on `n_images` needs more memory than is free.

    `pixels` are a few of the images, (n, 3, S, S). On a GPU nothing is checked.
    """
    if pixels.device.type != "cpu":
        return
    trained = sum(p.nbytes for p in network.parameters() if p.requires_grad)
    per_image = stored_bytes(network, pixels) / len(pixels)
    needed = _PEAK * per_image * n_images + _PER_PARAMETER * trained
    check_free(needed, "fine-tuning", _ADVICE)


def stored_bytes(network: nn.Module, pixels: Tensor) -> int:
    """Return the size of all that a forward pass stores for the backward pass."""
    weights = {tensor.data_ptr() for tensor in network.state_dict().values()}
    stored: dict[int, int] = {}
    # Alive until the end: another tensor would get the address of one that is freed.
    kept: list[Tensor] = []

    def store(tensor: Tensor) -> Tensor:
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in weights:
            stored[memory.data_ptr()] = memory.nbytes()
            kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(store, lambda tensor: tensor):
        network(pixels)
    return sum(stored.values())
