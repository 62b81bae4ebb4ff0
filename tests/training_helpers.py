"""Small images with a backbone of two layers."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from opensetda.training.settings import FineTuneSettings

C, SIDE, WIDTH = 3, 4, 12
N_SOURCE, N_TARGET = 30, 40


class TinyImages:
    """Coloured noise around a picture of each class, and a backbone of two layers."""

    def __init__(self, norm=False, averaged=1, dropout=0.1, **settings):
        rng = np.random.default_rng(0)
        self.labels = np.concatenate(
            [np.arange(N_SOURCE) % C, np.arange(N_TARGET) % (C + 1)]  # the last is unknown
        )
        pictures = rng.normal(size=(C + 1, 3, SIDE, SIDE))
        noise = 0.3 * rng.normal(size=(len(self.labels), 3, SIDE, SIDE))
        self.images = torch.from_numpy(pictures[self.labels] + noise).float()
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)] if norm else [nn.Conv2d(3, 6, 3)]
        layers += [nn.Dropout(dropout), nn.ReLU(), nn.Flatten(), nn.Linear(24, WIDTH)]
        self.backbone = nn.Sequential(*layers).eval()
        self.averaged, self.settings = averaged, FineTuneSettings(**settings)

    def features(self):
        with torch.no_grad():
            return self.backbone.eval()(self.images).numpy()

    def trainable_parameters(self):
        return list(self.backbone.parameters())

    def view(self, rows, number):
        return self.images[rows].flip(3) if number else self.images[rows]

    def augmented(self, rows, rng):
        noise = torch.from_numpy(rng.normal(size=(len(rows), 1, 1, 1)))
        return self.images[rows] + 0.01 * noise.float()
