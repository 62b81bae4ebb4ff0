"""What it takes to go on after a crash, as if nothing had happened.

Two kinds of records. A step's record holds the scores of the targets and the weights at its
end; the share of unknowns and the step to keep follow from the scores again. The latest record
holds all that moves within a step: weights, optimiser, random generators.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from opensetda.context import Arrays, CheckpointStore, Record
from opensetda.pgl.trainer import Position, Trainer
from opensetda.rows import IntArray
from opensetda.system.team import Team

LATEST = "latest"


class TeamStore:
    """The store of a team: the first process writes and reads, everybody gets what it read."""

    def __init__(self, store: CheckpointStore, team: Team) -> None:
        self.store, self.team = store, team

    def due(self) -> bool:
        """Whether the latest record is old enough; only the first process's answer counts."""
        return self.team.is_first and self.store.due()

    def write(self, name: str, record: Record) -> None:
        """Keep a record."""
        if self.team.is_first:
            self.store.write(name, record)

    def read(self, name: str) -> Record | None:
        """Return a record, None if there is none; all processes ask together."""
        if self.team.size == 1:
            return self.store.read(name)
        from safetensors.numpy import load, save

        found = self.store.read(name) if self.team.is_first else None
        values = b"" if found is None else json.dumps(found.values).encode()
        values = self.team.from_first(values)
        if not values:
            return None
        arrays = (
            {} if found is None else {k: np.asarray(v, order="C") for k, v in found.arrays.items()}
        )
        return Record(json.loads(values), load(self.team.from_first(save(arrays))))


def step_name(step: int) -> str:
    """Return the name of a step's record; steps count from 0 here, from 1 in the name."""
    return f"step-{step + 1:03d}"


def weights_of(trainer: Trainer) -> Arrays:
    """Return the weights of network and backbone, and the state of the inputs."""
    arrays = {f"network.{k}": _numpy(v) for k, v in trainer.network.state_dict().items()}
    if trainer.inputs.learned is not None:
        backbone = trainer.inputs.learned.state_dict()
        arrays |= {f"backbone.{k}": _numpy(v) for k, v in backbone.items()}
    return arrays | {f"inputs.{k}": v.copy() for k, v in trainer.inputs.state().items()}


def load_weights(trainer: Trainer, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Go back to what `weights_of` returned."""
    trainer.network.load_state_dict(_tensors(arrays, "network."))
    if trainer.inputs.learned is not None:
        trainer.inputs.learned.load_state_dict(_tensors(arrays, "backbone."))
    trainer.inputs.load_state(_part(arrays, "inputs."))


def fingerprint(trainer: Trainer, source_labels: IntArray, seed: int) -> str:
    """Return what tells a training from others: settings, seed, labels and aligned rows."""
    digest = hashlib.sha256(json.dumps(trainer.settings.to_dict(), sort_keys=True).encode())
    digest.update(f"{seed} {trainer.n_classes}".encode())
    digest.update(np.ascontiguousarray(source_labels).data)
    for rows in (trainer.inputs.source, trainer.inputs.target):
        digest.update(np.ascontiguousarray(rows.cpu().numpy()).data)
    return digest.hexdigest()


def latest_record(trainer: Trainer, position: Position, of: str) -> Record:
    """Return all that moves in training, at this moment; `of` is the training's fingerprint."""
    arrays = weights_of(trainer)
    for number, state in trainer.optimiser.state_dict()["state"].items():
        arrays |= {f"optimiser.{number}.{k}": _numpy(v) for k, v in state.items()}
    values = {
        "fingerprint": of,
        "step": position.step,
        "iteration": position.iteration,
        "sums": dict(position.sums),
        "streams": trainer.streams.states(),
    }
    return Record(values, arrays)


def go_back(trainer: Trainer, record: Record) -> Position:
    """Put trainer and random generators where they were; returns how far they had come."""
    load_weights(trainer, record.arrays)
    states: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in _tensors(record.arrays, "optimiser.").items():
        number, _, key = name.partition(".")
        states.setdefault(int(number), {})[key] = tensor
    groups = trainer.optimiser.state_dict()["param_groups"]
    trainer.optimiser.load_state_dict({"state": states, "param_groups": groups})
    trainer.streams.load_states(record.values["streams"])
    return Position(
        int(record.values["step"]), int(record.values["iteration"]), dict(record.values["sums"])
    )


def _numpy(tensor: torch.Tensor) -> npt.NDArray[Any]:
    return np.array(tensor.detach().cpu().numpy())


def _part(arrays: Mapping[str, npt.NDArray[Any]], prefix: str) -> Arrays:
    return {
        name.removeprefix(prefix): np.array(values)
        for name, values in arrays.items()
        if name.startswith(prefix)
    }


def _tensors(arrays: Mapping[str, npt.NDArray[Any]], prefix: str) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(values) for name, values in _part(arrays, prefix).items()}
