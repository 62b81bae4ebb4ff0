"""All that determines a feature: network, weights and preprocessing, and a digest of these.

Nothing heavy is imported here: a run whose features are all cached needs only the recipe's key.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, cast

from opensetda.errors import InputError

# Increase it when decoding or resizing changes features: older ones are then not used.
_EXTRACTION_VERSION = 2
_LARGEST_SIDE = 4096
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and std of red, green, blue
TIMM_PREFIX = "timm:"  # marks a backbone that is given by its name in timm

Colours = tuple[float, float, float]


@dataclass(frozen=True)
class Preprocessing:
    """How an image is prepared for the network.

    Attributes
    ----------
    size : int
        Side of the square that the network gets, in pixels.
    resize : {"squash", "crop"}
        "squash": scale the whole image to that square. "crop": scale its shorter side to
        `shorter_side`, and cut the square from its centre.
    shorter_side : int
        See `resize`; equal to `size` for "squash".
    interpolation : {"bicubic", "bilinear"}
        How pixels are resampled, with antialiasing.
    mean, std : tuple of float
        Of red, green and blue in [0, 1]: subtracted, then divided by.
    """

    size: int
    resize: Literal["squash", "crop"]
    shorter_side: int
    interpolation: Literal["bicubic", "bilinear"]
    mean: Colours
    std: Colours

    def __post_init__(self) -> None:
        if not 1 <= self.size <= self.shorter_side <= _LARGEST_SIDE:
            raise InputError(
                f"image size {self.size} (shorter side {self.shorter_side}): sides must be "
                f"between 1 and {_LARGEST_SIDE} pixels, and the shorter side not below the size"
            )
        if self.resize not in ("squash", "crop"):
            raise InputError(f"resize {self.resize!r}: must be 'squash' or 'crop'")
        if self.interpolation not in ("bicubic", "bilinear"):
            raise InputError(f"interpolation {self.interpolation!r}: bicubic or bilinear")
        finite = all(map(math.isfinite, (*self.mean, *self.std)))
        if len(self.mean) != 3 or len(self.std) != 3 or not finite:
            raise InputError("mean and std must be three numbers each: red, green and blue")
        if min(self.std) <= 0:
            raise InputError(f"std {self.std}: must be above 0")


@dataclass(frozen=True)
class Recipe:
    """A backbone with its weights and its preprocessing."""

    backbone: str  # name in the registry, or "timm:NAME"
    timm_name: str  # with the tag of its weights
    weights: str  # "embedded", "hub" or the path of a file
    weights_sha256: str
    width: int  # features per image
    preprocessing: Preprocessing
    timm_version: str

    @property
    def key(self) -> str:
        """Digest of everything that changes a feature; not of the path of the weights."""
        decisive = {
            "network": self.timm_name,
            "weights": self.weights_sha256,
            "width": self.width,
            "preprocessing": asdict(self.preprocessing),
            "timm": self.timm_version,
            "version": _EXTRACTION_VERSION,
        }
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:32]

    def to_dict(self) -> dict[str, Any]:
        """Return the entries as JSON can hold them."""
        return cast(dict[str, Any], json.loads(json.dumps(asdict(self))))

    @classmethod
    def from_dict(cls, entries: Any) -> Recipe:
        """Build a recipe from the result of `to_dict`; an `InputError` if it is damaged."""
        values = _checked(entries, cls, "recipe")
        for name, value in values.items():
            wanted = int if name == "width" else str
            if name != "preprocessing" and type(value) is not wanted:
                raise InputError(f"recipe: {name!r} is {value!r}; the file is damaged")
        return cls(**{**values, "preprocessing": preprocessing_from(values["preprocessing"])})


@dataclass(frozen=True)
class BackboneSpec:
    """A network of timm, and where its weights are."""

    timm_name: str
    width: int
    preprocessing: Preprocessing
    patch: int = 1  # the size of images must be a multiple of it
    embedded: bool = False  # whether its weights are bundled
    hub: str | None = None  # repository of the weights on the Hugging Face hub
    hub_file: str | None = None  # name of the file there, if it is not the usual one


def preprocessing_from(entries: Any) -> Preprocessing:
    """Build a `Preprocessing` from JSON; an `InputError` if it is damaged."""
    values = _checked(entries, Preprocessing, "preprocessing")
    for name in ("size", "shorter_side"):
        if type(values[name]) is not int:
            raise InputError(f"preprocessing: {name!r} is {values[name]!r}; it is a whole number")
    for name in ("mean", "std"):
        try:
            values[name] = colours(values[name])
        except (TypeError, ValueError):
            raise InputError(f"preprocessing: {name!r} is no list of numbers") from None
    return Preprocessing(**values)


def _checked(entries: Any, kind: type, what: str) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    if not isinstance(entries, Mapping) or set(entries) != names:
        raise InputError(f"{what}: must have exactly the entries {', '.join(sorted(names))}")
    return dict(entries)


def colours(values: Any) -> Colours:
    """Return numbers as a tuple, whose length `Preprocessing` checks."""
    return cast(Colours, tuple(map(float, values)))
