"""What a run was made with: settings, machine, versions, command, time and memory, in words."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any


def facts_of(
    settings: Mapping[str, Any], environment: Mapping[str, Any], estimates: Mapping[str, Any]
) -> dict[str, dict[str, str]]:
    """Return heading -> name -> value; what a run of an earlier release lacks is left out."""
    how = {
        "method": settings["method"],
        "preset": settings["preset"],
        "seed": settings["seed"],
        "share of unknowns asked for": settings["openness"],
        **dict(_flat(settings["settings"])),
    }
    data = {
        f"{domain} {name}": value
        for domain, record in settings["inputs"].items()
        for name, value in record.items()
        if not isinstance(value, Mapping)
    }
    backbone = settings.get("backbone") or {}
    data |= {f"backbone {name}": value for name, value in _flat(backbone)}
    cost = {
        "reading and features": _seconds(environment.get("data_seconds")),
        "training and labelling": _seconds(environment.get("fit_seconds")),
        "peak memory": _megabytes(environment.get("peak_megabytes")),
    }
    machine = {
        name: environment.get(key)
        for name, key in {
            "python": "python",
            "system": "platform",
            "processors": "cpu_count",
        }.items()
    }
    versions = environment.get("packages", {})
    share = estimates["openness"]
    found = {
        "share of unknowns": f"{share['share']:.4f} ({share['low']:.4f} to {share['high']:.4f})",
        "threshold for later samples": estimates["rejection"]["threshold"],
    }
    sections = {
        "Command": {"command": shlex.join(settings["command"])} if settings["command"] else {},
        "Time and memory": cost,
        "Data": data,
        "Found out": found,
        "Settings": how,
        "Machine": machine,
        "Versions": versions,
    }
    written = {
        heading: {name: _written(value) for name, value in values.items() if value is not None}
        for heading, values in sections.items()
    }
    return {heading: values for heading, values in written.items() if values}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _written(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(str(part) for part in value)
    return str(value)


def _seconds(value: float | None) -> str | None:
    if value is None:
        return None
    minutes, seconds = divmod(value, 60)
    return f"{int(minutes)} min {seconds:.0f} s" if minutes else f"{seconds:.1f} s"


def _megabytes(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f} MB"
