"""How easy the code is to find, read and change: the bars of issue 15, before and now.

    python benchmarks/house.py            # seconds
    python benchmarks/house.py --tests    # and the processor time of `make test`

`tests/test_house.py` fails where a bar on rooms, imports, names or lengths is broken. Whether
results are the same bits as before is what `benchmarks/same_bits.py` tells.
"""

from __future__ import annotations

import argparse
import ast
import resource
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "opensetda"

# Rooms (packages, and modules at the root) from bottom to top: imports go downwards only,
# and not between two rooms of one line.
ORDER = """
errors
rows progress
system
data metrics
openness
nn
context
state
base
backbones
rejection
pgl
baselines
export
runs
report
benchmark
review
analyses
cli
__init__ __main__
"""
LEVELS = {room: level for level, line in enumerate(ORDER.split("\n")) for room in line.split()}

MOST_AT_ROOT = 8
MOST_LINES = 400
# Modules that do the same job in two rooms; a file of the CLI may be named as its use case is.
SHARED_NAMES = {
    "__init__",
    "__main__",
    "base",
    "checkpoints",
    "loading",
    "network",
    "page",
    "registry",
    "settings",
    "view",
}


def modules() -> dict[str, Path]:
    """Map dotted names within the package to files; a package is its `__init__`."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[-1] == "__init__" and len(parts) > 1:
            parts = parts[:-1]
        found[".".join(parts)] = path
    return found


def imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yield modules of ours that a file imports, in functions and under TYPE_CHECKING too."""

    def ours(name: str) -> str:
        return name.removeprefix("opensetda").removeprefix(".") or "__init__"

    package = ("opensetda", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (ours(a.name) for a in node.names if a.name.split(".")[0] == "opensetda")
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package[: len(package) - node.level + 1], *base.split()])
            if base.split(".")[0] != "opensetda":
                continue
            for alias in node.names:
                module = ours(f"{base}.{alias.name}")
                # The version is a constant of the root that depends on nothing.
                if module != "__version__":
                    yield module if module in known else ours(base)


def graph() -> dict[str, set[str]]:
    """Map each module to the modules that it imports."""
    known = modules()
    return {name: set(imports(path, known)) - {name} for name, path in known.items()}


def room(module: str) -> str:
    """Return the package, or the module at the root, that a module is in."""
    return module.split(".")[0]


def upward_imports() -> list[str]:
    """List imports of a room that is not below the module's own."""
    return [
        f"{one} -> {other}"
        for one, others in graph().items()
        for other in sorted(others)
        if room(one) != room(other) and LEVELS[room(one)] <= LEVELS[room(other)]
    ]


def cycles() -> list[str]:
    """List groups of modules that reach each other by imports (Tarjan's components)."""
    edges, number, low = graph(), {}, {}
    stack: list[str] = []
    found = []

    def visit(module: str) -> None:
        number[module] = low[module] = len(number)
        stack.append(module)
        for other in sorted(edges.get(module, ())):
            if other not in number:
                visit(other)
            if other in stack:
                low[module] = min(low[module], low[other])
        if low[module] == number[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1:
                found.append(" <-> ".join(sorted(group)))

    for module in sorted(edges):
        if module not in number:
            visit(module)
    return found


def at_root() -> list[str]:
    """List modules that are in no package."""
    return sorted(path.name for path in PACKAGE.glob("*.py"))


def repeated_names() -> dict[str, list[str]]:
    """Find names that several modules have, and should not."""
    by_name = defaultdict(list)
    for path in modules().values():
        where = path.relative_to(PACKAGE)
        if where.parts[0] != "cli" and path.stem not in SHARED_NAMES:
            by_name[path.stem].append(str(where))
    return {name: places for name, places in by_name.items() if len(places) > 1}


def lines() -> dict[str, int]:
    """Count the lines of every file."""
    return {
        str(path.relative_to(PACKAGE)): len(path.read_text().splitlines())
        for path in modules().values()
    }


# The table --------------------------------------------------------------------------------


def step_files() -> str:
    """Count the files to open for one training step."""
    try:
        from house_step import files_of_a_training_step
    except ImportError:
        return "not counted: benchmarks/house_step.py is missing"
    return " and ".join(
        f"{len(files_of_a_training_step(preset))} ({preset})"
        for preset in ("default", "paper-office-home")
    )


def duplicate_pairs() -> str:
    """Count the pairs of repeated places in `baselines/`."""
    command = shutil.which("duplicates")
    if command is None:
        return "not counted: no command 'duplicates'"
    folder = str(PACKAGE / "baselines")
    done = subprocess.run(
        [command, "--repo", folder, "--most", "60"], capture_output=True, text=True, check=False
    )
    return done.stdout.split(" ")[0].strip() or "0"


def test_minutes() -> str:
    """Measure the processor time of `make test`, all its processes together."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(["make", "test"], cwd=PACKAGE.parent.parent, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return f"{seconds / 60:.1f} min" + (" (failed)" if done.returncode else "")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="The bars of issue 15, before and now.")
    parser.add_argument("--tests", action="store_true", help="time `make test` (minutes)")
    timed = parser.parse_args().tests
    length = lines()
    bars = [
        ("modules at the root", "21", str(len(at_root())), "8"),
        ("files in src", "209", str(len(length)), "170"),
        ("lines in src", "34,345", f"{sum(length.values()):,}", "28,000"),
        ("files to open for one training step", "20", step_files(), "6"),
        ("upward imports", "2", str(len(upward_imports())), "0"),
        # Issue 15 says 9; counted in groups of modules, as here, there were 5.
        ("groups of modules in a cycle", "5", str(len(cycles())), "0"),
        ("repeated places in baselines/", "52", duplicate_pairs(), "15"),
        ("processor time of `make test`", "29 min", test_minutes() if timed else "--tests", "12"),
        ("same bits", "-", "see benchmarks/same_bits.py", "all"),
    ]
    print(f"{'bar':<37}{'before':>8}  {'at most':>8}  now")
    for name, before, now, bar in bars:
        print(f"{name:<37}{before:>8}  {bar:>8}  {now}")
    for problem in (*upward_imports(), *cycles()):
        print(problem)


if __name__ == "__main__":
    main()
