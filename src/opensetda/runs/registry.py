"""The methods by the names they have on the command line and in a run folder."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from opensetda.errors import InputError, choice
from opensetda.methods import rivals

if TYPE_CHECKING:
    from opensetda.methods.base import OpenSetClassifier
    from opensetda.training.settings import FineTuneSettings

FINETUNE = "finetune."
"""The names of settings for the training of a backbone begin with this, for every method."""

METHODS = {
    "committee": "opensetda.methods.committee:Committee",
    "moving-means": "opensetda.methods.means.estimator:MovingMeans",
    "smoothed-means": "opensetda.methods.means.estimator:SmoothedMeans",
    "class-means": "opensetda.methods.means.estimator:ClassMeans",
    "pgl": "opensetda.pgl.estimator:PGLClassifier",
    "daod": "opensetda.methods.daod",
} | {
    # Every module of `rivals` is a method.
    module.name.replace("_", "-"): f"{rivals.__name__}.{module.name}"
    for module in pkgutil.iter_modules(rivals.__path__)
    if not module.ispkg
}
"""Each method's name and its module, with its class where there are several; the default first."""


def method_class(method: str) -> type[OpenSetClassifier]:
    """Return the class of a method; only its own module is imported."""
    from opensetda.methods.base import OpenSetClassifier

    place, _, name = METHODS[split_rejector(method)[0]].partition(":")
    module = importlib.import_module(place)
    own = [found for found in vars(module).values() if getattr(found, "__module__", "") == place]
    for found in own:
        is_method = isinstance(found, type) and issubclass(found, OpenSetClassifier)
        if is_method and name in ("", found.__name__):
            return cast("type[OpenSetClassifier]", found)
    raise InputError(f"{module.__file__}: no subclass of OpenSetClassifier in it; add the method")


def method_name(classifier: OpenSetClassifier) -> str:
    """Return the name of the method that a classifier is of."""
    home = type(classifier).__module__
    name = type(classifier).__name__
    for method, place in METHODS.items():
        if place in (home, f"{home}:{name}"):
            return method
    raise InputError(f"{name}: not a method of this package")


def split_rejector(method: str) -> tuple[str, str | None]:
    """Split `dann+osvm` into the method and its rejector, None where none is named."""
    name, plus, rejector = method.partition("+")
    if name not in METHODS:
        raise InputError(f"method {name!r} does not exist; {choice(name, METHODS)}")
    return name, rejector if plus else None


def build_method(
    method: str,
    *,
    openness: float | str,
    preset: str | None = None,
    changes: Mapping[str, Any] | None = None,
    seed: int = 0,
    unknown_label: str = "unknown",
    scaling: str | None = None,
) -> OpenSetClassifier:
    """Return an unfitted classifier with checked settings.

    `method` is a key of `METHODS`, perhaps with a rejector: `dann+osvm`. `changes` are its
    settings by name, whose values may be text from a command line; those of fine-tuning are left
    out. `preset` (of PGL) and `scaling` None are the method's default.
    """
    from opensetda.features.scaling import check_scaling
    from opensetda.share.report import check_openness

    cls = method_class(method)
    parameters = _parameters(cls, method, preset, changes or {})
    if cls.is_random:
        parameters["random_state"] = seed
    if scaling is not None:
        parameters["scaling"] = scaling
    classifier = cls(openness=openness, unknown_label=unknown_label, **parameters)
    check_openness(classifier._given_openness())
    check_scaling(classifier.scaling, classifier.scalings)
    try:
        classifier._validate_params()
    except ValueError as error:
        raise InputError(str(error)) from None
    return classifier


def full_settings(method: str, preset: str | None, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return every setting of a method as it is used, for the record."""
    cls = method_class(method)
    parameters = _parameters(cls, method, preset, changes)
    if cls.presets:
        return cls.settings_of(parameters["preset"], parameters["settings"] or {})
    return _own_defaults(cls) | parameters


def check_finetuning(method: str, changes: Mapping[str, Any], is_asked_for: bool) -> None:
    """Raise an `InputError` for settings of fine-tuning that are wrong, or without it."""
    if is_asked_for:
        finetune_settings(method, changes)
    elif found := [name for name in changes if name.startswith(FINETUNE)]:
        raise InputError(f"setting {found[0]}: for a backbone that is trained; add --finetune")


def finetune_settings(method: str, changes: Mapping[str, Any]) -> FineTuneSettings:
    """Return how a backbone is trained for a method."""
    from opensetda.training.settings import OF_ROUNDS, FineTuneSettings

    cls = method_class(method)
    named = [name for name in changes if name.startswith(FINETUNE)]
    own = {name.removeprefix(FINETUNE): changes[name] for name in named}
    if cls.trains_backbone and (found := [name for name in own if name in OF_ROUNDS]):
        reason = f"{method} trains the backbone by its own settings"
        raise InputError(f"setting {FINETUNE}{found[0]}: {reason}; leave it out")
    return FineTuneSettings.of(own)


def _own_defaults(cls: type[OpenSetClassifier]) -> dict[str, Any]:
    """Return the defaults of a method's settings; the common ones have arguments of their own."""
    common = ("openness", "scaling", "unknown_label", "random_state")
    return {k: v for k, v in cls().get_params(deep=False).items() if k not in common}


def _parameters(
    cls: type[OpenSetClassifier], method: str, preset: str | None, changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Check the settings of a method, and return them as parameters."""
    defaults = _own_defaults(cls)
    name, rejector = split_rejector(method)
    changes = {k: v for k, v in changes.items() if not k.startswith(FINETUNE)}
    if rejector is not None:
        if "rejector" not in defaults:
            reason = f"{name} rejects in its own way"
            raise InputError(f"method {method!r}: {reason}; leave out '+{rejector}'")
        changes["rejector"] = rejector
    if cls.presets:
        preset = preset or defaults["preset"]
        cls.settings_of(preset, changes)  # Refuses wrong ones.
        return {"preset": preset, "settings": changes or None}
    if preset is not None:
        raise InputError(f"preset {preset!r}: {name} has no presets; leave it out")
    for setting in changes:
        if setting not in defaults:
            there = choice(setting, defaults) if defaults else f"{name} has no settings"
            raise InputError(f"setting {setting!r} does not exist; {there}")
    return {k: _parsed(k, v, defaults[k]) for k, v in changes.items()}


def _parsed(name: str, value: Any, default: Any) -> Any:
    """Return text from a command line as a number or None, if it is not text by nature."""
    if isinstance(default, str) or not isinstance(value, str):
        return value
    try:
        return None if value.lower() == "none" else ast.literal_eval(value)
    except (ValueError, SyntaxError):
        raise InputError(f"setting {name}={value}: give a number") from None
