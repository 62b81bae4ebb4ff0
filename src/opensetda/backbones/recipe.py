"""All that determines a feature: network, weights and preprocessing, and a digest of these.

Nothing heavy is imported here: a run whose features are all cached needs only the recipe's key.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from opensetda.errors import InputError, one_line

# Increase it when decoding or resizing changes features: older ones are then not used.
_EXTRACTION_VERSION = 2
LARGEST_SIDE = 4096
CLIP_PREFIX = "clip:"  # marks a backbone that also knows texts, see `backbones.clip`
MOST_VIEWS = 4
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and std of red, green, blue

Side = Annotated[int, Field(ge=1, le=LARGEST_SIDE)]
Positive = Annotated[float, Field(gt=0)]
_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, config=_STRICT)
class Preprocessing:
    """How an image is prepared for the network.

    "squash" scales the whole image to a square; "crop" scales its shorter side to `shorter_side`
    pixels, at least `size`, and cuts the square from its centre.
    """

    size: Side  # of the square that the network gets
    resize: Literal["squash", "crop"]
    shorter_side: Side
    interpolation: Literal["bicubic", "bilinear"]
    mean: tuple[float, float, float]  # of red, green and blue in [0, 1]
    std: tuple[Positive, Positive, Positive]


BILINEAR = Preprocessing(
    size=224,
    resize="crop",
    shorter_side=256,
    interpolation="bilinear",
    mean=IMAGENET[0],
    std=IMAGENET[1],
)


@dataclass(frozen=True, config=_STRICT)
class Recipe:
    """A backbone with its weights and its preprocessing."""

    backbone: str  # name in the registry, or "timm:NAME"
    timm_name: str  # with the tag of its weights
    weights: str  # "embedded", "hub" or the path of a file
    weights_sha256: str
    width: int  # features per image
    preprocessing: Preprocessing
    timm_version: str
    views: Annotated[int, Field(ge=1, le=MOST_VIEWS)] = 1  # averaged

    @property
    def key(self) -> str:
        """Digest of everything that changes a feature; not of the path of the weights."""
        decisive = {
            "network": self.timm_name,
            "weights": self.weights_sha256,
            "width": self.width,
            "preprocessing": asdict(self.preprocessing),
            "timm": self.timm_version,
            "views": self.views,
            "version": _EXTRACTION_VERSION,
        }
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:32]

    def to_dict(self) -> dict[str, Any]:
        """Return the entries as JSON can hold them."""
        entries: dict[str, Any] = TypeAdapter(Recipe).dump_python(self, mode="json")
        return entries

    @classmethod
    def from_dict(cls, entries: Any) -> Recipe:
        """Build a recipe from the result of `to_dict`; an `InputError` if it is damaged."""
        try:
            # As JSON, which has no tuples.
            return TypeAdapter(cls).validate_json(json.dumps(entries))
        except ValidationError as error:
            raise InputError(f"recipe: {one_line(error, 200)}; the file is damaged") from None
