"""The rows of a table: methods, one of them with other settings, without a part, or over values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from opensetda.errors import InputError
from opensetda.runs.options import usual_preset
from opensetda.runs.registry import build_method, full_settings

if TYPE_CHECKING:
    from opensetda.methods.base import OpenSetClassifier

COMPARED = ("moving-means", "pgl", "smoothed-means", "daod", "osbp", "source-only")
"""The methods of the table, unless others are named."""
OPENNESS = "openness"
"""Swept, it is no setting: targets are dropped until that share is unknown."""


@dataclass(frozen=True)
class Variant:
    """A method with its settings, as `build_method` takes them: the row `label` of a table."""

    label: str
    method: str
    preset: str | None = None
    changes: tuple[tuple[str, Any], ...] = ()
    scaling: str | None = None
    """Of the columns; None: the method's default."""

    def build(self, openness: float | str, seed: int = 0) -> OpenSetClassifier:
        """Return the unfitted classifier; wrong settings are an `InputError`."""
        how: Any = {"openness": openness, "preset": self.preset, "seed": seed}
        return build_method(self.method, changes=dict(self.changes), scaling=self.scaling, **how)


def make_variants(
    names: Sequence[str],
    preset: str | None = None,
    changes: Mapping[str, Any] | None = None,
    ablations: bool = False,
    sweep: tuple[str, Sequence[str]] | None = None,
    protocol: str = "",
    trains_backbone: bool = False,
) -> list[Variant]:
    """Return the rows of a table; all but the names is for the first method.

    `ablations` adds a row without each of its parts; `sweep`, a setting and its values, one row
    for each value, in place of the row of the method itself. Unless another is named, PGL has the
    preset of the `protocol`, or its usual one.
    """
    from opensetda.data.benchmarks.protocols import plain_name
    from opensetda.pgl.presets import ABLATIONS, PRESETS

    name, *others = dict.fromkeys(names)
    presets = {plain_name(own): own for own in PRESETS} | {"office31": "office-home"}
    of_protocol = presets.get(plain_name(protocol))
    usual = {"pgl": of_protocol or usual_preset("pgl", trains_backbone)}
    preset = preset or usual.get(name)
    # HOS of all methods by one rule: the share of unknowns is labelled unknown.
    fair = {"pgl": {"reject": "all"}}
    own = fair.get(name, {}) | dict(changes or {})
    first = Variant(name, name, preset, tuple(sorted(own.items())))
    rows = [first]
    if sweep is not None and sweep[0] != OPENNESS:
        name, values = sweep
        rows = [_changed(first, f"{first.label} {name}={v}", {name: v}) for v in values]
    if ablations:
        if first.method != "pgl":
            raise InputError(f"--ablations: {first.method} has none; name --method pgl first")
        without = [_changed(first, name, parts) for name, parts in ABLATIONS.items()]
        own = _settings(first)
        # A preset may be without a part already.
        rows += [variant for variant in without if _settings(variant) != own]
    rows += [
        Variant(other, other, usual.get(other), tuple(fair.get(other, {}).items()))
        for other in others
    ]
    for variant in rows:
        variant.build("auto")
    return rows


def _settings(variant: Variant) -> dict[str, Any]:
    return full_settings(variant.method, variant.preset, dict(variant.changes))


def _changed(variant: Variant, label: str, changes: Mapping[str, Any]) -> Variant:
    settings = dict(variant.changes) | dict(changes)
    return replace(variant, label=label, changes=tuple(sorted(settings.items())))
