"""The methods by the names they have on the command line and in a run folder."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from opensetda.errors import InputError

if TYPE_CHECKING:
    from opensetda.base import OpenSetClassifier
    from opensetda.pgl.checkpoints import CheckpointStore
    from opensetda.pgl.inputs import TrainableImages
    from opensetda.progress import ProgressListener

METHODS = {
    "pgl": "opensetda.pgl.estimator:PGLClassifier",
    "class-means": "opensetda.baselines.class_means:ProgressiveClassMeans",
    "source-only": "opensetda.baselines.source_only:SourceOnly",
}


def method_class(method: str) -> type[OpenSetClassifier]:
    """Return the class of a method; only its own module is imported."""
    if method not in METHODS:
        raise InputError(f"method {method!r} does not exist; choose one of {', '.join(METHODS)}")
    module, _, name = METHODS[method].partition(":")
    found: type[OpenSetClassifier] = getattr(importlib.import_module(module), name)
    return found


def build_method(
    method: str,
    *,
    openness: float | str,
    preset: str = "default",
    changes: Mapping[str, Any] | None = None,
    seed: int = 0,
    unknown_label: str = "unknown",
    progress: ProgressListener | None = None,
    images: TrainableImages | None = None,
    checkpoints: CheckpointStore | None = None,
) -> OpenSetClassifier:
    """Return an unfitted classifier, its settings checked.

    Parameters
    ----------
    method : str
        A key of `METHODS`.
    openness : float or "auto"
        Share of unknowns in the target, or "auto" to have it estimated.
    preset : str
        A preset of the settings of PGL.
    changes : mapping, optional
        Settings of PGL by dotted name, or parameters of another method. Values may be
        strings as typed on a command line.
    seed : int
        For the methods that draw at random.
    unknown_label : str
        What unknowns are called.
    progress : callable, optional
        Told what the training is doing, if the method trains.
    images : TrainableImages, optional
        Images with a backbone that is to learn; PGL only.
    checkpoints : CheckpointStore, optional
        Where a training writes down how far it is; the other methods take seconds.
    """
    cls = method_class(method)
    changes = dict(changes or {})
    if method == "pgl":
        from opensetda.pgl.settings import PGLSettings

        PGLSettings.preset(preset).with_changes(changes)
        return cls(
            openness=openness,
            preset=preset,
            settings=changes or None,
            random_state=seed,
            unknown_label=unknown_label,
            progress=progress,
            images=images,
            checkpoints=checkpoints,
        )
    if preset != "default":
        raise InputError(f"preset {preset!r}: only the method pgl has presets")
    own = _parse_parameters(cls, method, changes)
    return cls(openness=openness, unknown_label=unknown_label, **own)


def full_settings(method: str, preset: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return every setting of a method as it is used, for the record."""
    if method == "pgl":
        from opensetda.pgl.settings import PGLSettings

        return PGLSettings.preset(preset).with_changes(changes).to_dict()
    cls = method_class(method)
    return {**_own_defaults(cls), **_parse_parameters(cls, method, changes)}


def _own_defaults(cls: type[OpenSetClassifier]) -> dict[str, Any]:
    parameters: dict[str, Any] = cls().get_params(deep=False)
    return {name: parameters[name] for name in parameters if name not in _COMMON}


_COMMON = ("openness", "unknown_label")


def _parse_parameters(
    cls: type[OpenSetClassifier], method: str, changes: Mapping[str, Any]
) -> dict[str, Any]:
    defaults = _own_defaults(cls)
    parsed = {}
    for name, value in changes.items():
        if name not in defaults:
            raise InputError(f"setting {name!r} does not exist; {method} has {', '.join(defaults)}")
        kind = type(defaults[name])
        try:
            parsed[name] = kind(value)
            positive = 0 < parsed[name] < float("inf")
        except (TypeError, ValueError):
            positive = False
        if not positive:
            noun = "whole number" if kind is int else "number"
            raise InputError(f"setting {name}={value}: give a {noun} above 0")
    return parsed
