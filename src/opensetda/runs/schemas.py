"""What the JSON files of a run hold, checked when they are read; other entries are kept as is."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, FiniteFloat
from typing_extensions import TypedDict

Share = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(min_length=1)]
# JSON has no infinity: it is a word.
Threshold = FiniteFloat | Literal["inf", "-inf"]


class _Open(TypedDict):
    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]


class _Input(_Open):
    """A domain: a path, or the name of bundled data."""

    path: NotRequired[str]
    embedded: NotRequired[str]
    rows: NotRequired[int]
    images: NotRequired[int]


class _Inputs(_Open):
    source: _Input
    target: _Input


class _Columns(_Open):
    """Names of columns, and what was done with those of tables."""

    left_out: NotRequired[dict[str, str]]
    medians: NotRequired[dict[str, FiniteFloat]]
    categories: NotRequired[dict[str, list[str]]]


class Settings(_Open):
    """``settings.json``."""

    method: str
    openness: float | str
    scaling: Literal["none", "standard", "ranks"]
    unknown_label: Name
    preset: str | None
    seed: int | None
    settings: dict[str, Any]
    classes: Annotated[list[Name], Field(min_length=1)]
    has_ids: bool
    columns: _Columns
    inputs: _Inputs
    backbone: dict[str, Any] | None
    command: list[str] | None
    identity: str | None
    sample: int | None


class Environment(_Open):
    """``environment.json``."""

    packages: dict[str, str | None]
    data_seconds: FiniteFloat | None
    fit_seconds: FiniteFloat | None
    peak_megabytes: FiniteFloat | None


class _Openness(_Open):
    share: Share
    low: Share
    high: Share
    confidence: Share
    estimates: dict[str, dict[str, Share]]
    evidence: NotRequired[dict[str, FiniteFloat | None]]
    told: bool
    own_boundary: bool
    audit: NotRequired[str]
    origin: str
    warnings: list[str]


class _Rejection(TypedDict):
    threshold: Threshold | None
    slope: FiniteFloat | None


class Estimates(TypedDict):
    """``estimates.json``: what was estimated without labels."""

    openness: _Openness
    rejection: _Rejection


class Model(TypedDict):
    """``model.json``; the method checks its state."""

    feature_names: list[str] | None
    state: dict[str, Any]


class SavedModel(TypedDict):
    """``model.json`` of a model that is not in a run."""

    format: Literal["opensetda-model"]
    version: Literal[1]
    method: str
    state: dict[str, Any]


class Step(_Open):
    """A line of ``history.jsonl``: numbers that need no target label."""

    step: Annotated[int, Field(ge=1)]
    n_known: NotRequired[int | None]
    n_unknown: NotRequired[int | None]
    changed: NotRequired[FiniteFloat | None]
    mean_score: NotRequired[FiniteFloat | None]
    seconds: NotRequired[FiniteFloat | None]
    loss: NotRequired[dict[str, FiniteFloat | None] | None]
