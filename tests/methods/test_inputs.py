"""What a network learns from: fixed rows, and images whose backbone is trained."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from opensetda.features.alignment import Alignment
from opensetda.methods.inputs import FixedRows, TunedImages, features_of
from opensetda.rows import Domains, Rows
from training_helpers import N_SOURCE, N_TARGET, C, TinyImages

NO_IMAGES = torch.zeros(10, dtype=torch.bool)


def both(images):
    """Both domains, in the order of the images."""
    X = images.features()
    return Domains(
        source=Rows(X, np.arange(N_SOURCE)),
        y=images.labels[:N_SOURCE],
        target=Rows(X, np.arange(N_SOURCE, len(X))),
        classes=np.arange(C),
    )


def alignment_of(domains, components):
    if components == 0:
        return None
    return Alignment.fit(domains.source, domains.target, components)


def tuned(images, components=6):
    domains = both(images)
    return TunedImages(domains, alignment_of(domains, components), images)


@pytest.mark.parametrize("components", [6, None, 0])
def test_tensors_are_aligned_as_rows_are(components):
    images = TinyImages(dropout=0.0)
    inputs = tuned(images, components)
    index = torch.tensor([0, 0, 5, 7])
    is_target = torch.tensor([False, True, False, True])
    images.augmented = lambda rows, rng: images.images[rows]
    x = inputs.of_graph(index, is_target, np.random.default_rng(0))
    expected = torch.stack([inputs.source[0], inputs.target[0], inputs.source[5], inputs.target[7]])
    torch.testing.assert_close(x, expected, rtol=1e-4, atol=1e-5)
    assert x.requires_grad


@pytest.mark.parametrize("components", [6, 0])
def test_frozen_features_and_images_start_alike(components):
    images = TinyImages()
    domains = both(images)
    fixed = FixedRows(domains, alignment_of(domains, components))
    inputs = tuned(images, components)
    torch.testing.assert_close(inputs.source, fixed.source)
    torch.testing.assert_close(inputs.target, fixed.target)
    np.testing.assert_array_equal(inputs.raw_targets(7), fixed.raw_targets(7))
    assert not fixed.parameters()
    index = torch.tensor([3, 1])
    x = fixed.of_graph(index, torch.tensor([True, False]), np.random.default_rng(0))
    assert torch.equal(x, torch.stack([fixed.target[3], fixed.source[1]]))


def test_features_are_the_mean_over_the_fixed_views():
    images = TinyImages(averaged=2)
    inputs = tuned(images)
    with torch.no_grad():
        mirrored = images.backbone(images.images.flip(3)).numpy()
    expected = (images.features() + mirrored) / 2
    np.testing.assert_allclose(inputs.features, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(inputs.raw_targets(N_TARGET), inputs.features[N_SOURCE:])
    some = features_of(images, np.array([4, 2]), torch.device("cpu"))
    np.testing.assert_allclose(some, expected[[4, 2]], rtol=1e-5, atol=1e-6)


def test_the_principal_map_stays_and_the_means_move():
    images = TinyImages()
    inputs = tuned(images)
    alignment = inputs.alignment
    projection, mean = alignment.projection.clone(), alignment.target_mean.clone()
    with torch.no_grad():
        images.backbone[-1].bias += 1
    inputs.refresh()
    assert torch.equal(inputs.alignment.projection, projection)
    assert (inputs.alignment.target_mean - mean).abs().max() > 1e-3
    np.testing.assert_allclose(inputs.features, images.features(), rtol=1e-5)


def test_statistics_of_batch_normalisation_stay():
    images = TinyImages(norm=True)
    before = images.backbone[1].running_mean.clone()
    inputs = tuned(images)
    inputs.of_graph(torch.arange(10), NO_IMAGES, np.random.default_rng(0))
    assert torch.equal(images.backbone[1].running_mean, before)


def test_a_fresh_start_forgets_what_the_backbone_learned():
    images = TinyImages()
    inputs = tuned(images)
    before = images.features()
    with torch.no_grad():
        images.backbone[-1].weight.zero_()
    inputs.start_anew()
    np.testing.assert_array_equal(images.features(), before)
