"""`costs`: time and memory as one quantity grows and the others stay."""

from __future__ import annotations

from typing import Any

from scaling_classes import variants
from scaling_tools import Options, child, exponent, print_table

BASE = {"n_source": 2000, "n_target": 4000, "n_classes": 10, "width": 256, "episodes": 8}
GRIDS = {
    "n_source": (2000, 8000, 32000, 128000),
    "n_target": (4000, 16000, 64000, 128000),
    "n_classes": (10, 20, 40, 80),
    "width": (64, 256, 1024, 4096),
    "episodes": (4, 8, 16, 32),
}
QUICK_GRIDS = {"n_target": (500, 1000)}
SYMBOLS = {
    "n_source": "n_s",
    "n_target": "n_t",
    "n_classes": "C",
    "width": "D",
    "episodes": "B",
}
PHASES = ("align", "train", "score", "rest")


def measure(options: Options) -> dict[str, Any]:
    """Fit at every point of the grids, each in a process of its own."""
    grids = options.choose(GRIDS, QUICK_GRIDS)
    base = options.choose(BASE, {**BASE, "n_source": 200, "n_target": 500})
    rows = [_point(options, base, name, size) for name in grids for size in grids[name]]
    figures = ("seconds", *PHASES, "peak_growth_mb")
    print_table(
        ("grows", "to", "fit, s", *(f"{p}, s" for p in PHASES), "memory, MB"),
        [[SYMBOLS[row["grows"]], row["to"], *(row[name] for name in figures)] for row in rows],
    )
    exponents = []
    for name in grids:
        some = [row for row in rows if row["grows"] == name]
        sizes = [row["to"] for row in some]
        exponents.append(
            {
                "grows": name,
                **{each: exponent(sizes, [row[each] for row in some]) for each in figures},
            }
        )
    print("\nexponents of a line through the logarithms:")
    print_table(
        ("grows", "fit", *PHASES, "memory"),
        [[SYMBOLS[row["grows"]], *(row[name] for name in figures)] for row in exponents],
    )
    print(
        f"\nbase: {base}, all classes in a graph, no node limit; "
        "memory: growth of the resident set in fit\n"
    )
    return {"base": base, "rows": rows, "exponents": exponents}


def _point(options: Options, base: dict[str, int], name: str, size: int) -> dict[str, Any]:
    sizes = {**base, name: size}
    episodes = sizes.pop("episodes")
    settings = {
        "episodes.episodes": episodes,
        "episodes.node_limit": None,
        **variants()["full"],
        **({"steps": 2} if options.quick else {}),
    }
    # The share is given: estimating it takes a time of its own.
    wanted = {**sizes, "settings": settings, "told": True}
    answer = child(options.folder, "fit", wanted)
    phases = {phase: answer["seconds_of"].get(phase, 0.0) for phase in PHASES}
    kept = ("seconds", "peak_mb", "peak_growth_mb")
    return {"grows": name, "to": size, **{key: answer[key] for key in kept}, **phases}
