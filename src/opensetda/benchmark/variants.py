"""The methods of the table, and what is asked for on a command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opensetda.errors import InputError
from opensetda.runs.methods import METHODS, build_method, split_rejector

if TYPE_CHECKING:
    from opensetda.benchmark.grid import Variant

OWN = "pgl"

# The paper's comparison (Luo et al., ICML 2020, Tables 1 to 3), in its order, with what else
# there is of each kind: the source alone, adapters for closed sets with a rejector, open-set
# methods, and last our own.
_ORDER = (
    *("source-only", "source-only+mixture", "source-only+osnn", "source-only+osvm"),
    *("mmd+osvm", "dann+osvm", "ati+osnn", "ati+osvm"),
    *("osbp", "sta", "daod", "oslpp", "ovanet", "uniot", "class-means", "pgl"),
)


def benchmark_methods() -> tuple[str, ...]:
    """Return the methods that are compared where none is named.

    Those of the paper's comparison that are there, then every other method that has been
    added since: a new file in `opensetda.baselines` is in the next table.
    """
    listed = [name for name in _ORDER if split_name(name) in METHODS]
    met = {split_name(name) for name in listed}
    *rivals, own = listed
    return (*rivals, *(name for name in METHODS if name not in met), own)


def split_name(method: str) -> str:
    """Return the method without its rejector, whether or not there is such a method."""
    return method.partition("+")[0]


def check_names(names: Sequence[str]) -> None:
    """Raise an `InputError` for a name that is no method; nothing is imported for it."""
    for name in names:
        split_rejector(name)


def make_variants(
    names: Sequence[str], preset: str = "default", changes: Mapping[str, Any] | None = None
) -> list[Variant]:
    """Return the named methods as rows of a table; an `InputError` says what is wrong.

    Parameters
    ----------
    names : sequence of str
        Methods, perhaps with rejectors.
    preset, changes : str and mapping
        Settings of PGL; the others keep theirs.
    """
    from opensetda.benchmark.grid import AUTO, Variant

    check_names(names)
    settings = tuple(sorted((changes or {}).items()))
    if (settings or preset != "default") and OWN not in names:
        raise InputError(f"--set and --preset are for {OWN}, which is not among the methods")
    variants = []
    for name in dict.fromkeys(names):
        variant = Variant(name, name, preset, settings) if name == OWN else Variant(name, name)
        build_method(
            variant.method, openness=AUTO, preset=variant.preset, changes=dict(variant.changes)
        )
        variants.append(variant)
    return variants
