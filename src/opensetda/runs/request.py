"""What a fit was asked to do, in a form that can be written to a file and resumed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from opensetda.errors import InputError
from opensetda.runs.checked import check_value
from opensetda.runs.options import SAMPLE, FitOptions, ImageOptions, TableOptions

__all__ = ["ARRAY", "SAMPLE", "START_ANEW", "FitRequest", "ImageOptions", "TableOptions"]

START_ANEW = "start anew with 'osda fit ... --overwrite'"

ARRAY = "array"
"""Stands in place of the path of a domain that was given as an array."""


@dataclass(frozen=True)
class FitRequest(FitOptions):
    """The options of a fit and its domains; paths are absolute, so that any folder may resume it.

    `identity` distinguishes the run from any other; `report` is whether the command line writes
    the report at the end; `command` is what was typed.
    """

    identity: str
    source: str
    target: str
    report: bool = True
    command: tuple[str, ...] = ()

    @property
    def changes(self) -> Mapping[str, Any]:
        """The settings, by the name that `build_method` has for them."""
        return self.settings

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        return dataclasses.asdict(self)

    def method_arguments(self) -> dict[str, Any]:
        """Return the arguments of `opensetda.runs.methods.build_method`."""
        names = ("method", "openness", "preset", "changes", "seed", "unknown_label", "scaling")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_dict(cls, values: Any, where: Path) -> Self:
        """Build a request from what `to_dict` returned; errors name the file `where`."""
        return check_value(values, cls, where, START_ANEW)


def trained_part(choice: bool | str | None) -> Literal["last", "all"] | None:
    """Return what of a backbone is to be trained; the default depends on the device."""
    if choice is True or choice == "auto":
        from accelerate import PartialState

        return "last" if PartialState().device.type == "cpu" else "all"
    if choice == "last" or choice == "all":
        return choice
    if choice:
        raise InputError(f"finetune={choice!r}: give 'last' or 'all'")
    return None
