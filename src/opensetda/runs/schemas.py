"""What the JSON files of a run hold, checked when they are read; other entries are kept as is."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, FiniteFloat
from typing_extensions import TypedDict

_OPEN = ConfigDict(extra="allow")

Share = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(min_length=1)]
# JSON has no infinity: it is a word.
Threshold = FiniteFloat | Literal["inf", "-inf"]


class _Input(TypedDict):
    """A domain: a path, or the name of bundled data."""

    __pydantic_config__ = _OPEN  # type: ignore[misc]

    path: NotRequired[str]
    embedded: NotRequired[str]
    rows: NotRequired[int]
    images: NotRequired[int]


class _Inputs(TypedDict):
    __pydantic_config__ = _OPEN  # type: ignore[misc]

    source: _Input
    target: _Input


class _Columns(TypedDict):
    """Names of columns, and what was done with those of tables."""

    __pydantic_config__ = _OPEN  # type: ignore[misc]

    left_out: NotRequired[dict[str, str]]
    medians: NotRequired[dict[str, FiniteFloat]]
    categories: NotRequired[dict[str, list[str]]]


class Settings(TypedDict):
    """``settings.json``."""

    __pydantic_config__ = _OPEN  # type: ignore[misc]

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


class Environment(TypedDict):
    """``environment.json``."""

    __pydantic_config__ = _OPEN  # type: ignore[misc]

    packages: dict[str, str | None]
    data_seconds: FiniteFloat | None
    fit_seconds: FiniteFloat | None
    peak_megabytes: FiniteFloat | None


class _Interval(TypedDict):
    share: Share
    low: Share
    high: Share


class _Evidence(TypedDict):
    __pydantic_config__ = _OPEN  # type: ignore[misc]

    hidden: Share
    hidden_moved: Share
    below: Share


class _Openness(TypedDict):
    __pydantic_config__ = _OPEN  # type: ignore[misc]

    share: Share
    low: Share
    high: Share
    confidence: Share
    estimates: dict[str, _Interval]
    evidence: NotRequired[_Evidence]
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


class Step(TypedDict):
    """A line of ``history.jsonl``: numbers that need no target label."""

    __pydantic_config__ = _OPEN  # type: ignore[misc]

    step: Annotated[int, Field(ge=1)]
    n_known: NotRequired[int | None]
    n_unknown: NotRequired[int | None]
    changed: NotRequired[FiniteFloat | None]
    mean_score: NotRequired[FiniteFloat | None]
    seconds: NotRequired[FiniteFloat | None]
    loss: NotRequired[dict[str, FiniteFloat | None] | None]
