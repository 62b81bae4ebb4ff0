"""The end of a step as a checkpoint: weights, labels and history, and the way back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from opensetda.context import CheckpointStore, Record
from opensetda.errors import InputError, one_line
from opensetda.methods.inputs import TrainingInputs
from opensetda.rows import IntArray
from opensetda.system.processes import from_main


class StepCheckpoints:
    """The checkpoints of one training, which `values`, labels of the source and rows define.

    Without a store nothing is kept.
    """

    def __init__(
        self,
        store: CheckpointStore | None,
        values: Sequence[Any],
        source_labels: IntArray,
        inputs: TrainingInputs,
    ) -> None:
        self.store = store
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode())
        digest.update(np.ascontiguousarray(source_labels).data)
        if inputs.learned is None:  # Features of images change in training.
            for rows in (inputs.source, inputs.target):
                digest.update(_array(rows).data)
        self.fingerprint = digest.hexdigest()

    def write(
        self,
        trained: nn.Module,
        pseudo_labels: IntArray,
        step_labels: Sequence[IntArray],
        history: list[dict[str, Any]],
    ) -> None:
        """Keep the end of a step."""
        if self.store is None:
            return
        arrays = {name: _array(weights) for name, weights in trained.state_dict().items()}
        arrays["pseudo_labels"] = pseudo_labels.astype(np.int64)
        arrays["step_labels"] = np.stack(step_labels).astype(np.int64)
        self.store.write(Record({"fingerprint": self.fingerprint, "history": history}, arrays))

    def read(self) -> Record | None:
        """Return the end of the latest step, if there is one."""
        record = from_main(None if self.store is None else self.store.read())
        if record is not None and record.values.get("fingerprint") != self.fingerprint:
            other = "of a training with other data or settings; remove it to start anew"
            raise InputError(f"checkpoint: {other}")
        return record


def load_step(record: Record, trained: nn.Module) -> tuple[IntArray, list[IntArray]]:
    """Load the weights of a step, and return pseudo-labels and the labels of all steps."""
    try:
        arrays = dict(record.arrays)
        pseudo_labels = arrays.pop("pseudo_labels").astype(np.intp)
        step_labels = list(arrays.pop("step_labels").astype(np.intp))
        trained.load_state_dict({name: torch.tensor(array) for name, array in arrays.items()})
    except (KeyError, RuntimeError) as error:
        reason = f"damaged ({one_line(error, 120)})"
        advice = "start anew with 'osda fit ... --overwrite'"
        raise InputError(f"checkpoint: {reason}; {advice}") from None
    return pseudo_labels, step_labels


def _array(tensor: Tensor) -> npt.NDArray[Any]:
    return np.array(tensor.detach().cpu().numpy(), order="C")
