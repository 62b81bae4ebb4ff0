"""The methods of the table, and those asked for on a command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opensetda.errors import InputError
from opensetda.runs.methods import METHODS, build_method, method_class, split_rejector

OWN = "pgl"
PAPER = {"pgl-paper": "paper-office-home"}
"""PGL with the paper's own settings: minutes to an hour per run, so it runs only if named."""

# The paper's comparison (Luo et al., ICML 2020, Tables 1 to 3), in its order, with further
# methods of each kind: source only, closed-set adaptation with a rejector, open-set methods,
# and last our own.
_ORDER = (
    *("source-only", "source-only+mixture", "source-only+osnn", "source-only+osvm"),
    *("mmd+osvm", "dann+osvm", "ati+osnn", "ati+osvm"),
    *("osbp", "sta", "daod", "oslpp", "ovanet", "uniot", "class-means"),
    *("smoothed-means", "pgl"),
)


@dataclass(frozen=True)
class Variant:
    """A method with its settings, as `build_method` takes them: the row `label` of a table."""

    label: str
    method: str
    preset: str = "default"
    changes: tuple[tuple[str, Any], ...] = ()

    @property
    def draws_at_random(self) -> bool:
        """Whether the result depends on the seed."""
        return method_class(self.method).is_random


def benchmark_methods() -> tuple[str, ...]:
    """Return the methods of the paper, then every other one in `opensetda.baselines`."""
    listed = [name for name in _ORDER if name.partition("+")[0] in METHODS]
    met = {name.partition("+")[0] for name in listed}
    *rivals, own = listed
    return (*rivals, *(name for name in METHODS if name not in met), own)


def check_names(names: Sequence[str]) -> None:
    """Raise an `InputError` for a name that is not a method, without importing any."""
    for name in names:
        if name not in PAPER:
            split_rejector(name)


def make_variants(
    names: Sequence[str], preset: str = "default", changes: Mapping[str, Any] | None = None
) -> list[Variant]:
    """Return the named methods as rows of a table; preset and changes apply to `OWN` only."""
    check_names(names)
    settings = tuple(sorted((changes or {}).items()))
    if (settings or preset != "default") and OWN not in names:
        raise InputError(f"--set and --preset are for {OWN}, which is not among the methods")
    variants = []
    for name in dict.fromkeys(names):
        variant = Variant(name, name)
        if name == OWN:
            variant = Variant(name, name, preset, settings)
        elif name in PAPER:
            variant = Variant(name, OWN, PAPER[name])
        # Wrong settings are found here.
        own, changed = variant.preset, dict(variant.changes)
        build_method(variant.method, openness="auto", preset=own, changes=changed)
        variants.append(variant)
    return variants
