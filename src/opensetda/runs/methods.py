"""The methods by the names they have on the command line and in a run folder."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from opensetda import baselines
from opensetda.errors import InputError, choice

if TYPE_CHECKING:
    from opensetda.base import OpenSetClassifier

REJECTOR = "+"
"""`dann+osvm` is the method dann with the rejector osvm."""


METHODS = {"pgl": "opensetda.pgl.estimator"} | {
    module.name.replace("_", "-"): f"{baselines.__name__}.{module.name}"
    for module in pkgutil.iter_modules(baselines.__path__)
    if not module.ispkg
}
"""Each method's name, and the module that it is in: PGL, and every module of `baselines`."""


def method_class(method: str) -> type[OpenSetClassifier]:
    """Return the class of a method; only its own module is imported."""
    name, _ = split_rejector(method)
    module = importlib.import_module(METHODS[name])
    from opensetda.base import OpenSetClassifier

    for found in vars(module).values():
        if isinstance(found, type) and issubclass(found, OpenSetClassifier):
            cls: type[OpenSetClassifier] = found
            if cls.__module__ == module.__name__:
                return cls
    raise InputError(f"{module.__file__}: no subclass of OpenSetClassifier in it; add the method")


def split_rejector(method: str) -> tuple[str, str | None]:
    """Split `dann+osvm` into the method and its rejector, None where none is named."""
    name, plus, rejector = method.partition(REJECTOR)
    if name not in METHODS:
        raise InputError(f"method {name!r} does not exist; {choice(name, METHODS)}")
    return name, rejector if plus else None


def build_method(
    method: str,
    *,
    openness: float | str,
    preset: str = "default",
    changes: Mapping[str, Any] | None = None,
    seed: int = 0,
    unknown_label: str = "unknown",
    scaling: str | None = None,
) -> OpenSetClassifier:
    """Return an unfitted classifier with checked settings.

    `method` is a key of `METHODS`, perhaps with a rejector: `dann+osvm`. `preset` is of PGL;
    `changes` are settings of PGL by dotted name, or parameters of another method, whose values
    may be text from a command line. `scaling` None is the method's default.
    """
    cls = method_class(method)
    changes = dict(changes or {})
    parameters: dict[str, Any]
    if cls.presets and REJECTOR not in method:
        cls.settings_of(preset, changes)  # Refuses wrong ones.
        parameters = {"preset": preset, "settings": changes or None}
    elif preset != "default":
        raise InputError(f"preset {preset!r}: only the method pgl has presets")
    else:
        parameters = _parse_parameters(cls, method, changes)
    if cls.is_random:
        parameters["random_state"] = seed
    if scaling is not None:
        from opensetda.nn.scaling import check_scaling

        check_scaling(scaling)
        parameters["scaling"] = scaling
    return cls(openness=openness, unknown_label=unknown_label, **parameters)


def full_settings(method: str, preset: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return every setting of a method as it is used, for the record."""
    cls = method_class(method)
    if cls.presets and REJECTOR not in method:
        return cls.settings_of(preset, changes)
    return {**_own_defaults(cls), **_parse_parameters(cls, method, changes)}


def _own_defaults(cls: type[OpenSetClassifier]) -> dict[str, Any]:
    """Return the defaults of a method's settings; the common ones have arguments of their own."""
    common = ("openness", "scaling", "unknown_label", "random_state")
    return {k: v for k, v in cls().get_params(deep=False).items() if k not in common}


def _parse_parameters(
    cls: type[OpenSetClassifier], method: str, changes: Mapping[str, Any]
) -> dict[str, Any]:
    defaults = _own_defaults(cls)
    name, rejector = split_rejector(method)
    parsed: dict[str, Any] = {}
    if rejector is not None:
        if "rejector" not in defaults:
            raise InputError(f"method {method!r}: {name} rejects in its own way; leave out "
                             f"'+{rejector}'")  # fmt: skip
        changes = {**changes, "rejector": rejector}
    for setting, value in changes.items():
        if setting not in defaults:
            there_are = ", ".join(defaults)
            raise InputError(f"setting {setting!r} does not exist; {name} has {there_are}")
        parsed[setting] = _parse_value(setting, value, type(defaults[setting]))
    return parsed


def _parse_value(name: str, value: Any, kind: type) -> Any:
    if name == "rejector":
        from opensetda.rejection import make_rejector

        make_rejector(str(value))
    if kind is str:
        return str(value)
    try:
        parsed = kind(value)
        positive = 0 < parsed < float("inf")
    except (TypeError, ValueError):
        positive = False
    if not positive:
        noun = "whole number" if kind is int else "number"
        raise InputError(f"setting {name}={value}: give a {noun} above 0")
    return parsed
