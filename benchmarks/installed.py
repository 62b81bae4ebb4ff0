"""Size on disk of the core and of each extra, in this environment: python benchmarks/installed.py.

An extra counts the packages that it needs and the core does not, without bytecode.
"""

from __future__ import annotations

from importlib import metadata

from packaging.requirements import Requirement

PACKAGE = "opensetda"


def needed(name: str, extras: tuple[str, ...] = ()) -> set[str]:
    """Return the packages that a package needs, itself among them; `missing` ones are left out."""
    found: set[str] = set()
    waiting = [(name, extras)]
    while waiting:
        own, wanted = waiting.pop()
        key = own.lower().replace("_", "-")
        if key in found and not wanted:
            continue
        try:
            requires = metadata.requires(own) or []
        except metadata.PackageNotFoundError:
            print(f"{own}: not installed, not counted")
            continue
        found.add(key)
        for line in requires:
            requirement = Requirement(line)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": e}) for e in (*wanted, "")):
                waiting.append((requirement.name, tuple(requirement.extras)))
    return found


def megabytes(names: set[str]) -> float:
    """Return the size of packages in MB (10^6 bytes)."""
    files = [file for name in names for file in metadata.files(name) or []]
    places = {file.locate() for file in files if file.suffix != ".pyc"}
    return sum(place.stat().st_size for place in places if place.is_file()) / 1e6


def main() -> None:
    """Print a line for the core and for each extra."""
    core = needed(PACKAGE)
    print(f"core: {len(core)} packages, {megabytes(core):,.0f} MB")
    for extra in metadata.metadata(PACKAGE).get_all("Provides-Extra") or []:
        more = needed(PACKAGE, (extra,)) - core
        print(f"{extra}: {len(more)} packages more, {megabytes(more):,.0f} MB")


if __name__ == "__main__":
    main()
