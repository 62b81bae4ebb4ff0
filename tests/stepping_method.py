"""A method of several random steps with a checkpoint after each, for tests of `osda resume`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from opensetda.context import FitContext, Record
from opensetda.features.alignment import unit
from opensetda.methods.means.estimator import ClassMeans
from opensetda.progress import ProgressEvent

NAME = "stepper"
PLACE = f"{__name__}:Stepper"
ITERATIONS = 2


@dataclass(eq=False, repr=False, kw_only=True)
class Stepper(ClassMeans):
    """Class means that move a little at random in every step."""

    random_state: Any = 0
    is_random = True

    def _learn(self, domains, share, context):
        super()._learn(domains, share, FitContext())
        store = context.checkpoints
        self.history_ = []
        moved = np.zeros(tuple(self.scorer_.means.shape))
        if store is not None and (record := store.read()) is not None:
            self.history_, moved = record.values["history"], record.arrays["moved"]
        for step in range(len(self.history_) + 1, self.steps + 1):
            rng = np.random.default_rng([self.random_state, step])
            loss = rng.random(ITERATIONS)
            for number in range(ITERATIONS):
                if context.progress is not None:
                    place = step, self.steps, number + 1, ITERATIONS
                    context.progress(ProgressEvent(*place, float(loss[number])))
            moved = moved + 0.01 * rng.normal(size=moved.shape)
            self._finish_step(moved, context, self.steps, loss={"some": float(loss.mean())})
            if store is not None:
                store.write(Record({"history": self.history_}, {"moved": moved}))
        self.scorer_.means = unit(self.scorer_.means + torch.from_numpy(moved))
        self.step_labels_ = self.step_labels_[: self.steps]
