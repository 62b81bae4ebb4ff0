"""Checkpoints: a training that was interrupted continues to the same bits.

There are two kinds of records. A step's record holds the scores of the targets and the weights
at its end; the share of unknowns and the step to keep follow from the scores. The latest record
holds everything that changes within a step: weights, optimiser, random generators.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import load, save

from opensetda.context import Arrays, CheckpointStore, Record
from opensetda.errors import InputError, LostProcessError, OtherProcessError, one_line
from opensetda.nn.inputs import TunedImages
from opensetda.pgl.trainer import Position, Trainer
from opensetda.rows import IntArray
from opensetda.system.team import Team

LATEST = "latest"
START_ANEW = "start anew with 'osda fit ... --overwrite'"


def step_name(step: int) -> str:
    """Return the name of a step's record; steps count from 0 here, from 1 in the name."""
    return f"step-{step + 1:03d}"


@contextmanager
def fitting(name: str) -> Iterator[None]:
    """Turn what goes wrong with a record that does not fit the training into an `InputError`."""
    try:
        yield
    except (InputError, OtherProcessError, LostProcessError, MemoryError):
        raise
    except Exception as error:
        # torch, numpy and our own code each have errors for values that do not fit.
        raise InputError(
            f"checkpoint {name}: damaged ({one_line(error, 120)}); {START_ANEW}"
        ) from error


def read_record(
    store: CheckpointStore, name: str, team: Team, is_needed: bool = False
) -> Record | None:
    """Return a record, None if there is none; the first process reads it for all."""
    if team.size == 1:
        return store.read(name, is_needed)
    found = store.read(name, is_needed) if team.is_first else None
    values = json.loads(team.from_first(json.dumps(found and found.values).encode()))
    if values is None:
        return None
    return Record(values, _of_first({} if found is None else found.arrays, team))


def _of_first(arrays: Mapping[str, npt.NDArray[Any]], team: Team) -> Arrays:
    mine = {name: np.asarray(values, order="C") for name, values in arrays.items()}
    return load(team.from_first(save(mine if team.is_first else {})))


def share_weights(trainer: Trainer, team: Team) -> None:
    """Give all processes the weights of the first: GPUs add up in an order of their own."""
    if team.size > 1:
        load_weights(trainer, _of_first(weights_of(trainer), team))


def weights_of(trainer: Trainer) -> Arrays:
    """Return the weights of network and backbone, and the state of the inputs."""
    arrays = _named("network", trainer.network.state_dict())
    if isinstance(trainer.inputs, TunedImages):
        arrays |= _named("backbone", trainer.inputs.learned.state_dict())
        arrays |= {f"inputs.{k}": v.copy() for k, v in trainer.inputs.state().items()}
        arrays |= _named("trainer", {"class_means": trainer.class_means})
    return arrays


def load_weights(trainer: Trainer, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Go back to what `weights_of` returned."""
    trainer.network.load_state_dict(_tensors(arrays, "network."))
    if isinstance(trainer.inputs, TunedImages):
        trainer.inputs.learned.load_state_dict(_tensors(arrays, "backbone."))
        trainer.inputs.load_state(_part(arrays, "inputs."))
        trainer.class_means = _tensors(arrays, "trainer.")["class_means"].to(trainer.device)


def fingerprint(trainer: Trainer, source_labels: IntArray, seed: int) -> str:
    """Return a hash of what defines a training: settings, seed, labels and aligned rows."""
    settings = trainer.settings.to_dict()
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    digest.update(f"{seed} {trainer.n_classes}".encode())
    inputs = trainer.inputs
    for rows in (source_labels, inputs.source.cpu().numpy(), inputs.target.cpu().numpy()):
        digest.update(np.ascontiguousarray(rows).data)
    return digest.hexdigest()


def latest_record(trainer: Trainer, position: Position, of: str) -> Record:
    """Return everything that changes in training, as of now; `of` is the fingerprint."""
    arrays = weights_of(trainer)
    for number, state in trainer.optimiser.state_dict()["state"].items():
        arrays |= _named(f"optimiser.{number}", state)
    torch_state = torch.get_rng_state().numpy().tobytes().hex()
    stream = {"numpy": trainer.rng.bit_generator.state, "torch": torch_state}
    values = {"fingerprint": of, **vars(position), "stream": stream}
    return Record(values | {"sums": dict(position.sums)}, arrays)


def go_back(trainer: Trainer, record: Record) -> Position:
    """Put trainer and random generators where they were; returns how far they had come."""
    load_weights(trainer, record.arrays)
    states: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in _tensors(record.arrays, "optimiser.").items():
        number, _, key = name.partition(".")
        states.setdefault(int(number), {})[key] = tensor
    groups = trainer.optimiser.state_dict()["param_groups"]
    trainer.optimiser.load_state_dict({"state": states, "param_groups": groups})
    values = record.values
    stream = values["stream"]
    trainer.rng.bit_generator.state = stream["numpy"]
    bits = bytearray.fromhex(stream["torch"])
    torch.set_rng_state(torch.frombuffer(bits, dtype=torch.uint8))
    return Position(int(values["step"]), int(values["iteration"]), dict(values["sums"]))


def _named(prefix: str, tensors: Mapping[str, torch.Tensor]) -> Arrays:
    return {f"{prefix}.{k}": np.array(v.detach().cpu().numpy()) for k, v in tensors.items()}


def _part(arrays: Mapping[str, npt.NDArray[Any]], prefix: str) -> Arrays:
    theirs = [name for name in arrays if name.startswith(prefix)]
    return {name.removeprefix(prefix): np.array(arrays[name]) for name in theirs}


def _tensors(arrays: Mapping[str, npt.NDArray[Any]], prefix: str) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(values) for name, values in _part(arrays, prefix).items()}
