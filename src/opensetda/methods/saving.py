"""A fitted classifier as JSON and arrays: what `predict` needs, and nothing to unpickle."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.errors import InputError

STATE_VERSION = 4

Arrays = dict[str, npt.NDArray[Any]]


def part(arrays: Mapping[str, npt.NDArray[Any]], prefix: str) -> Arrays:
    """Return the arrays whose names begin with a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def pack(classifier: Any) -> dict[str, Any]:
    """Return the JSON-safe part of a fitted classifier."""
    given = classifier.get_params(deep=False).items()
    plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in given}
    has_target = bool(classifier.has_target_)
    state = {
        "state_version": STATE_VERSION,
        "class": type(classifier).__name__,
        # Not, for example, a random generator, which later predictions do not need.
        "parameters": {name: value for name, value in plain.items() if _is_json(value)},
        "classes": classifier.classes_.tolist(),
        "classes_dtype": classifier.classes_.dtype.str,
        "n_features": int(classifier.n_features_in_),
        "has_target": has_target,
        "scaling": classifier.scaler_.name,
        "openness": float(classifier.openness_),
        "rejection_threshold": json_float(classifier.rejection_threshold_) if has_target else None,
        "rejection_slope": float(classifier.rejection_slope_) if has_target else None,
        "rejection_sharpness": float(classifier.rejection_sharpness_) if has_target else None,
        "rejection_base": float(classifier.rejection_base_) if has_target else None,
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
    classifier.history_, classifier.step_labels_ = [], None
    if classifier.has_target_:
        classifier.rejection_threshold_ = float(state["rejection_threshold"])
        classifier.rejection_slope_ = float(state["rejection_slope"])
        classifier.rejection_sharpness_ = float(state["rejection_sharpness"])
        # A state that was saved before there was one means 0.
        classifier.rejection_base_ = float(state.get("rejection_base", 0.0))
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
