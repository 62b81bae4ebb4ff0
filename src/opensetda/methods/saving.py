"""A fitted classifier as JSON and arrays: what `predict` needs, and nothing to unpickle."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from opensetda.errors import InputError
from opensetda.share.decision import Decision, Rejection

STATE_VERSION = 6

T = TypeVar("T")
Arrays = dict[str, npt.NDArray[Any]]


def part(arrays: Mapping[str, T], prefix: str) -> dict[str, T]:
    """Return the arrays whose names begin with a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def tensors(arrays: Mapping[str, npt.NDArray[Any]], prefix: str) -> dict[str, Tensor]:
    """Return the arrays whose names begin with a prefix as tensors, as precise as they were."""
    found = {name: torch.tensor(array) for name, array in part(arrays, prefix).items()}
    return {
        name: value.double() if value.is_floating_point() else value
        for name, value in found.items()
    }


def compact(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array in single precision if that loses nothing, as of rows that were read so."""
    if array.dtype != np.float64:
        return array
    with np.errstate(over="ignore"):
        single = array.astype(np.float32)
    return single if np.array_equal(single.astype(np.float64), array) else array


def rejection_numbers(decision: Decision) -> dict[str, float | str] | None:
    """Return what a `Rejection` is made from, as JSON can hold it; None for other decisions."""
    if not isinstance(decision, Rejection):
        return None
    return {
        "threshold": json_float(decision.threshold),
        "slope": float(decision.slope),
        "base": float(decision.base),
    }


def pack(classifier: Any) -> dict[str, Any]:
    """Return the JSON-safe part of a fitted classifier."""
    given = classifier.get_params(deep=False).items()
    plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in given}
    state = {
        "state_version": STATE_VERSION,
        "class": type(classifier).__name__,
        # Not, for example, a random generator, which later predictions do not need.
        "parameters": {name: value for name, value in plain.items() if _is_json(value)},
        "classes": classifier.classes_.tolist(),
        "classes_dtype": classifier.classes_.dtype.str,
        "n_features": int(classifier.n_features_in_),
        "has_target": bool(classifier.has_target_),
        "scaling": classifier.scaler_.name,
        "openness": float(classifier.openness_),
        "rejection": rejection_numbers(classifier.decision_),
    }
    if hasattr(classifier, "feature_names_in_"):
        state["feature_names"] = classifier.feature_names_in_.tolist()
    return state


def unpack(cls: Any, state: Mapping[str, Any]) -> Any:
    """Return a classifier with the fitted attributes that every method has."""
    if (found := state.get("state_version")) != STATE_VERSION:
        version = f"version {found!r} is not {STATE_VERSION}"
        raise InputError(f"saved model: {version}; fit again with this release")
    if state["class"] != cls.__name__:
        raise InputError(f"saved model: it is a {state['class']}, not a {cls.__name__}")
    dtype = np.dtype(state["classes_dtype"])
    if dtype.kind not in "biufU":
        raise InputError(f"saved model: classes of type {dtype} are not supported")
    classifier = cls(**state["parameters"])
    classifier.classes_ = np.array(state["classes"], dtype=dtype)
    classifier.n_features_in_ = int(state["n_features"])
    classifier.has_target_ = bool(state["has_target"])
    classifier.openness_ = float(state["openness"])
    classifier.history_ = []
    classifier.step_labels_ = None
    if "feature_names" in state:
        classifier.feature_names_in_ = np.array(state["feature_names"], dtype=object)
    return classifier


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def json_float(value: float) -> float | str:
    """JSON has no infinity; `float` reads its name."""
    return float(value) if math.isfinite(value) else str(float(value))
