"""What a network is trained on: fixed feature rows, or images whose backbone is trained."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from opensetda.nn import dry_run
from opensetda.nn.alignment import Alignment
from opensetda.nn.settings import AlignmentSettings, FineTuneSettings
from opensetda.rows import IntArray, Rows
from opensetda.system.team import ALONE, Team

# Batch size of the forward pass over all images.
REFRESHED_IMAGES = 64


class FixedRows:
    """Feature rows, aligned once.

    Attributes
    ----------
    source, target : tensors of shape (n_s, d) and (n_t, d)
        Aligned rows of all samples, as of the last `refresh`.
    alignment : Alignment
        How raw features become aligned rows, also those of later samples.
    learned : nn.Module or None
        The backbone that is trained, if there is one.
    refresh_seconds : float or None
        Expected time of a `refresh`, once it is known.
    """

    learned = None
    refresh_seconds: float | None = None

    def __init__(self, source: Rows, target: Rows, settings: AlignmentSettings) -> None:
        self.alignment = Alignment(settings).fit(source, target)
        self.source = torch.from_numpy(self.alignment.source(source))
        self.target = torch.from_numpy(self.alignment.target(target))
        self._raw = target

    def parameters(self) -> list[nn.Parameter]:
        """Return the trained parameters of the backbone."""
        return []

    def to(self, device: torch.device) -> None:
        """Move to the device of the training."""
        self.source, self.target = self.source.to(device), self.target.to(device)

    def of_graph(self, index: Tensor, is_target: Tensor, rng: np.random.Generator) -> Tensor:
        """Return the rows of one training graph, each by its number in its domain: (N, d)."""
        x = self.source.new_empty(len(index), self.source.shape[1])
        x[~is_target] = self.source[index[~is_target]]
        x[is_target] = self.target[index[is_target]]
        return x

    def share_gradients(self) -> None:
        """Add up the gradients of the backbone over the processes that share its images."""

    def refresh(self) -> None:
        """Compute the rows of all samples again."""

    def start_anew(self) -> None:
        """Put the first weights of the backbone back."""

    def raw_targets(self, most: int) -> npt.NDArray[np.float32]:
        """Return the first targets as features before alignment: (at most `most`, D)."""
        return np.concatenate([chunk for _, chunk in self._raw.first(most).chunks()])


class TrainableImages(Protocol):
    """Images, and the backbone that computes their features: (N, ...) -> (N, D).

    An image has `averaged` fixed views, the image itself first; the mean of their features is
    the feature of the image.
    """

    backbone: nn.Module
    averaged: int

    def trainable_parameters(self) -> list[nn.Parameter]:
        """Return the parameters to train."""

    def view(self, rows: IntArray, number: int) -> Tensor:
        """Return a fixed view of the images of some rows of X: (N, ...)."""

    def augmented(
        self, rows: IntArray, rng: np.random.Generator, settings: FineTuneSettings
    ) -> Tensor:
        """Return them with random augmentation, for training."""


class TunedImages:
    """Images whose backbone is trained with the network, in the place of `FixedRows`.

    Features of the backbone are aligned as feature rows are. The projection to principal
    components is that of the frozen features, because a trained graph depends on its axes. The
    means of the domains are updated once per step.

    Parameters
    ----------
    images : TrainableImages
        Image i belongs to row i of the matrix behind `source` and `target`.
    source, target : Rows
        Frozen features to start with.
    keep_start : bool
        Keep a copy of the first weights, for `start_anew`.
    team : Team
        Processes that share the images: of a graph (with frozen batch normalisation), and of all
        samples in `refresh`. They draw the same graphs.
    """

    def __init__(
        self,
        images: TrainableImages,
        source: Rows,
        target: Rows,
        alignment: AlignmentSettings,
        settings: FineTuneSettings,
        keep_start: bool = True,
        team: Team = ALONE,
    ) -> None:
        self.images, self.settings, self.learned = images, settings, images.backbone
        self.team = team
        first = self.learned.state_dict() if keep_start else {}
        self._start = {name: weights.detach().clone() for name, weights in first.items()}
        self._index = source.index, target.index
        self._features = np.empty((len(source.X), source.width), dtype=np.float32)
        for rows in (source, target):
            for place, chunk in rows.chunks():
                self._features[rows.index[place]] = chunk
        self.device = torch.device("cpu")
        self.refresh_seconds: float | None = None
        if images.averaged > 1:
            # The rows are features of the images themselves.
            self._look_again()
        self.alignment = Alignment(alignment).fit(*self._rows())
        self._align()

    def parameters(self) -> list[nn.Parameter]:
        """Return the trained parameters of the backbone, and freeze the others."""
        trained = self.images.trainable_parameters()
        chosen = {id(parameter) for parameter in trained}
        for parameter in self.learned.parameters():
            parameter.requires_grad_(id(parameter) in chosen)
        return trained

    def to(self, device: torch.device) -> None:
        """Move to the device of the training."""
        self.device = device
        self.learned.to(device)
        self._align()

    def of_graph(self, index: Tensor, is_target: Tensor, rng: np.random.Generator) -> Tensor:
        """Pass augmented images through the backbone and align their features."""
        targets, numbers = is_target.cpu().numpy(), index.cpu().numpy()
        rows = np.empty(len(numbers), dtype=np.intp)
        for theirs, place in zip((~targets, targets), self._index, strict=True):
            rows[theirs] = place[numbers[theirs]]
        if self.refresh_seconds is None:
            self._rehearse(len(rows))
        self.learned.train()
        if self.settings.batch_norm == "frozen":
            for module in self.learned.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        pixels = self.images.augmented(rows, rng, self.settings).to(self.device)
        if not self._shares_graphs:
            return self._aligned(self._backbone_features(pixels), is_target)
        own = self.team.rows(len(rows))
        features = self._backbone_features(pixels[own.start : own.stop]).float()
        # The features of the other processes are constants here: each trains on its own images.
        everyone = np.zeros((len(rows), features.shape[1]), dtype=np.float32)
        everyone[own.start : own.stop] = features.detach().cpu().numpy()
        x = torch.from_numpy(self.team.sum(everyone)).to(self.device)
        return self._aligned(torch.cat([x[: own.start], features, x[own.stop :]]), is_target)

    def _rehearse(self, n_images: int) -> None:
        """Check that a graph of images fits into memory, and time a part of `refresh`.

        In evaluation mode: no random number is drawn, and no statistics change.
        """
        self.learned.eval()
        rows = np.concatenate(self._index)
        if self._shares_graphs:
            n_images = len(self.team.rows(n_images))
        few = self.images.view(rows[:2], 0).to(self.device)
        n_images = min(n_images, self.settings.chunk or n_images)
        dry_run.check_training_memory(self.learned, few, n_images)
        begun, part = time.perf_counter(), rows[:REFRESHED_IMAGES]
        with torch.no_grad():
            self.learned(self.images.view(part, 0).to(self.device)).cpu()
        per_image = (time.perf_counter() - begun) / len(part)
        self.refresh_seconds = self.images.averaged * per_image * len(rows) / self.team.size

    @property
    def _shares_graphs(self) -> bool:
        # Statistics of a part of the images are not those of the whole graph.
        return self.team.size > 1 and self.settings.batch_norm == "frozen"

    def _backbone_features(self, pixels: Tensor) -> Tensor:
        if self.settings.chunk is None or not len(pixels):
            features: Tensor = self.learned(pixels)
            return features
        # Each part is computed again for its gradient, to save memory.
        parts = torch.split(pixels, self.settings.chunk)
        return torch.cat([checkpoint(self.learned, part, use_reentrant=False) for part in parts])

    def share_gradients(self) -> None:
        """Add up the gradients of the backbone over the processes that share its images."""
        if self._shares_graphs:
            for parameter in self.images.trainable_parameters():
                own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = torch.from_numpy(self.team.sum(own.cpu().numpy())).to(own)

    def _aligned(self, x: Tensor, is_target: Tensor) -> Tensor:
        """`Alignment` for tensors with a gradient: (N, D) -> (N, d)."""
        means = np.stack([self.alignment.source_mean, self.alignment.target_mean])
        normalise, projection = self.alignment.settings.normalise, self.alignment.projection
        with torch.autocast(x.device.type, enabled=False):
            x = x.float()
            x = F.normalize(x, dim=1) if normalise else x
            x = x - torch.from_numpy(means).to(x)[is_target.long()]
            x = F.normalize(x, dim=1) if normalise else x
            if projection is not None:
                x = x @ torch.from_numpy(projection).to(x)
                x = F.normalize(x, dim=1) if normalise else x
            return x

    def refresh(self) -> None:
        """Compute the features of all images, the means of the domains and the aligned rows."""
        self._look_again()
        self.alignment.fit_means(*self._rows())
        self._align()

    @torch.no_grad()
    def _look_again(self) -> None:
        team = self.team
        self.learned.eval()
        rows = np.concatenate(self._index)
        if team.size > 1:
            self._features[rows] = 0.0
        # Batches are the same for any number of processes, because their size changes bits.
        for start in range(0, len(rows), REFRESHED_IMAGES)[team.rank :: team.size]:
            part = rows[start : start + REFRESHED_IMAGES]
            views = (self.images.view(part, number) for number in range(self.images.averaged))
            features = [self.learned(view.to(self.device)).float() for view in views]
            self._features[part] = torch.stack(features).mean(dim=0).cpu().numpy()
        self._features = team.sum(self._features)

    def start_anew(self) -> None:
        """Put the backbone's first weights back."""
        self.learned.load_state_dict(self._start)

    def raw_targets(self, most: int) -> npt.NDArray[np.float32]:
        """Return the features of the first targets, by the current backbone."""
        return np.asarray(self._features[self._index[1][:most]])

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what changes besides the weights: the means, as the projection is fixed."""
        means = self.alignment.source_mean, self.alignment.target_mean
        return dict(zip(("source_mean", "target_mean"), means, strict=True))

    def load_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go back to what `state` returned."""
        self.alignment.source_mean = arrays["source_mean"]
        self.alignment.target_mean = arrays["target_mean"]

    def _rows(self) -> tuple[Rows, Rows]:
        return Rows(self._features, self._index[0]), Rows(self._features, self._index[1])

    def _align(self) -> None:
        source, target = self._rows()
        self.source = torch.from_numpy(self.alignment.source(source)).to(self.device)
        self.target = torch.from_numpy(self.alignment.target(target)).to(self.device)


TrainingInputs = FixedRows | TunedImages
"""Both domains as the network sees them."""
