"""Which files one has to open to follow one training step of PGL.

    python benchmarks/house_step.py

A file counts if one of its functions is called during `Trainer.train_step` on feature rows.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

import opensetda
from opensetda.nn.inputs import FixedRows
from opensetda.pgl.settings import PGLSettings
from opensetda.pgl.trainer import LabelledSamples, Position, Trainer
from opensetda.rows import Rows

PRESETS = ("default", "paper-office-home")
N_CLASSES, WIDTH = 3, 8


def files_of_a_training_step(preset: str) -> list[str]:
    """Return the files of `opensetda` whose code runs in the second step of a small training."""
    settings = PGLSettings.preset(preset).with_changes(
        {"optimiser.iterations_per_epoch": 2, "graph.edge_width": 4, "graph.node_width": 4}
    )
    rng = np.random.default_rng(0)
    y, pseudo_labels = np.arange(30) % N_CLASSES, np.arange(40) % (N_CLASSES + 1)
    X = rng.normal(size=(len(y) + len(pseudo_labels), WIDTH)).astype(np.float32)
    place = np.arange(len(X))
    inputs = FixedRows(Rows(X, place[: len(y)]), Rows(X, place[len(y) :]), settings.alignment)
    trainer = Trainer(inputs, N_CLASSES, settings, rng)
    labels = torch.from_numpy(y), torch.from_numpy(pseudo_labels)
    samples = LabelledSamples(inputs.source, labels[0], inputs.target, labels[1], progress=0.5)
    package = Path(opensetda.__file__).parent
    called: set[str] = set()

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            called.add(frame.f_code.co_filename)

    # The backward pass may run in threads of its own.
    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        trainer.train_step(samples, 2, Position(step=1), progress=lambda event: None)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    ours = [Path(name) for name in called if Path(name).is_relative_to(package)]
    return sorted(str(path.relative_to(package)) for path in ours)


def main() -> None:
    """Print the files of each preset, and how many there are in all."""
    every: set[str] = set()
    for preset in PRESETS:
        files = files_of_a_training_step(preset)
        every |= set(files)
        print(f"{preset}: {len(files)}: {', '.join(files)}")
    print(f"files to open for one training step: {len(every)}")


if __name__ == "__main__":
    main()
