"""What a network is trained on: fixed feature rows, or images whose backbone is trained."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from opensetda.context import TrainableImages
from opensetda.features.alignment import Alignment
from opensetda.rows import Domains, IntArray, Rows
from opensetda.system.processes import in_shares

REFRESHED_IMAGES = 64  # batch size of the forward pass over all images

Features = npt.NDArray[np.float32]


class FixedRows:
    """Feature rows, aligned once.

    `source` (n_s, d) and `target` (n_t, d) are the rows of all samples as of the last `refresh`,
    aligned if there is an `alignment`; `learned` is the backbone that is trained, if there is one.
    """

    learned: nn.Module | None = None
    source: Tensor
    target: Tensor

    def __init__(self, domains: Domains, alignment: Alignment | None) -> None:
        self.domains = domains
        self.device = torch.device("cpu")
        self.align(alignment)

    def align(self, alignment: Alignment | None) -> None:
        """Align the rows from now on."""
        self.alignment = alignment
        if alignment is None:
            sources = in_memory(self.domains.source)
            targets = in_memory(self.domains.target)
        else:
            sources = alignment.source(self.domains.source)
            targets = alignment.target(self.domains.target)
        self.source = torch.from_numpy(sources).to(self.device)
        self.target = torch.from_numpy(targets).to(self.device)

    def parameters(self) -> list[nn.Parameter]:
        """Return the trained parameters of the backbone."""
        return []

    def to(self, device: torch.device) -> None:
        """Move to the device of the training."""
        self.source = self.source.to(device)
        self.target = self.target.to(device)
        self.device = device

    def of_graph(self, index: Tensor, is_target: Tensor, rng: np.random.Generator) -> Tensor:
        """Return the rows of one training graph, each by its number in its domain: (N, d)."""
        x = self.source.new_empty(len(index), self.source.shape[1])
        x[~is_target] = self.source[index[~is_target]]
        x[is_target] = self.target[index[is_target]]
        return x

    def refresh(self) -> None:
        """Compute the rows of all samples again."""

    def start_anew(self) -> None:
        """Put the first weights of the backbone back."""

    def raw_targets(self, most: int) -> Features:
        """Return the first targets as features before alignment: (at most `most`, D)."""
        return in_memory(self.domains.target.first(most))


class TunedImages(FixedRows):
    """Images whose backbone is trained; image i belongs to row i of the caller's matrix.

    The projection of the alignment stays, because what is trained on it depends on its axes; the
    means of the domains follow the features. `features` has those of all images as of the last
    `refresh`, in the caller's order; `given` has the rows of both domains by one view of each
    image, and `domains` those by the backbone as it is. Its batch normalisation keeps its
    statistics, as those of a small batch are noisy, unless it `learns_statistics`.
    """

    learned: nn.Module

    def __init__(
        self,
        domains: Domains,
        alignment: Alignment | None,
        images: TrainableImages,
        learns_statistics: bool = False,
    ) -> None:
        self.images = images
        self.learns_statistics = learns_statistics
        self.learned = images.backbone
        self.given = domains
        self._start = {k: v.detach().clone() for k, v in self.learned.state_dict().items()}
        source = domains.source
        target = domains.target
        self.features: Features = np.empty((len(source.X), source.width), dtype=np.float32)
        for rows in (source, target):
            self.features[rows.index] = in_memory(rows)
        own = replace(
            domains,
            source=Rows(self.features, source.index, source.keys),
            target=Rows(self.features, target.index, target.keys),
        )
        super().__init__(own, alignment)
        if images.averaged > 1:
            # The rows are features of the images themselves.
            self.refresh()

    def align(self, alignment: Alignment | None) -> None:
        """Align the features from now on, by the means that they have now."""
        if alignment is not None:
            alignment.refit_means(self.domains.source, self.domains.target)
        super().align(alignment)

    def parameters(self) -> list[nn.Parameter]:
        """Return the trained parameters of the backbone, and freeze the others."""
        trained = self.images.trainable_parameters()
        chosen = {id(parameter) for parameter in trained}
        for parameter in self.learned.parameters():
            parameter.requires_grad_(id(parameter) in chosen)
        return trained

    def to(self, device: torch.device) -> None:
        """Move to the device of the training."""
        super().to(device)
        self.learned.to(device)

    def of_graph(self, index: Tensor, is_target: Tensor, rng: np.random.Generator) -> Tensor:
        """Pass augmented images through the backbone and align their features."""
        targets = is_target.cpu().numpy()
        numbers = index.cpu().numpy()
        rows = np.empty(len(numbers), dtype=np.intp)
        rows[~targets] = self.domains.source.index[numbers[~targets]]
        rows[targets] = self.domains.target.index[numbers[targets]]
        self.learned.train()
        for module in self.learned.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.train(self.learns_statistics)
        pixels = self.images.augmented(rows, rng).to(self.device)
        x: Tensor = self.learned(pixels).float()
        if self.alignment is None:
            return x
        return torch.where(is_target[:, None], self.alignment(x), self.alignment(x, True))

    def refresh(self) -> None:
        """Compute the features of all images, the means of the domains and the aligned rows."""
        index = np.concatenate([self.domains.source.index, self.domains.target.index])
        self.features[index] = features_of(self.images, index, self.device)
        self.align(self.alignment)

    def start_anew(self) -> None:
        """Put the backbone's first weights back."""
        self.learned.load_state_dict(self._start)


TrainingInputs = FixedRows | TunedImages
"""Both domains as a network sees them."""


def training_inputs(
    domains: Domains,
    alignment: Alignment | None,
    images: TrainableImages | None,
    learns_statistics: bool = False,
) -> TrainingInputs:
    """Return fixed rows, or with `images` those of a backbone that is trained."""
    if images is None:
        return FixedRows(domains, alignment)
    return TunedImages(domains, alignment, images, learns_statistics)


@torch.no_grad()
def features_of(images: TrainableImages, rows: IntArray, device: torch.device) -> Features:
    """Return the features of images by their backbone, the mean over their fixed views: (n, D)."""
    images.backbone.eval()

    def compute(first: int, last: int) -> Tensor:
        parts = []
        for start in range(first, last, REFRESHED_IMAGES):
            part = rows[start : min(last, start + REFRESHED_IMAGES)]
            views = (images.view(part, number).to(device) for number in range(images.averaged))
            features = [images.backbone(view).float() for view in views]
            parts.append(torch.stack(features).mean(dim=0).cpu())
        return torch.cat(parts) if parts else torch.empty(0)  # which any shape can be joined to

    return np.asarray(in_shares(len(rows), compute).cpu().numpy())


def in_memory(rows: Rows) -> Features:
    """Return rows as one array."""
    chunks = [chunk for _, chunk in rows.chunks()]
    return np.concatenate([np.empty((0, rows.width), np.float32), *chunks])
