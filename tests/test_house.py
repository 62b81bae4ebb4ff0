"""The rooms of the package: imports go down, no cycles, few modules at the root, short files."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "opensetda"

# Rooms (packages, and modules at the root) from bottom to top: imports go downwards only,
# and not between two rooms of one line.
ORDER = """
errors
rows progress
labels
system
cluster
data metrics
features
share
context
methods
backbones
training
pgl
runs
usecases
report
benchmark
review
analyses
cli
__init__ __main__
"""
LEVELS = {room: level for level, line in enumerate(ORDER.split("\n")) for room in line.split()}
# Modules that do the same job in two rooms; a file of the CLI may be named as its use case is.
SHARED_NAMES = (
    "__init__ __main__ base estimator loading network page registry request settings view"
)


def modules(package: Path = PACKAGE) -> dict[str, Path]:
    """Map dotted names within the package to files; a package is its `__init__`."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts
        found[".".join(parts)] = path
    return found


def imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yield modules of ours that a file imports, in functions and under TYPE_CHECKING too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            ours = name.removeprefix("opensetda.")
            # The version is a constant of the root that depends on nothing.
            if name.split(".")[0] == "opensetda" and ours != "__version__":
                found = ours if ours in known else ours.rpartition(".")[0]
                yield found if found in known else "__init__"


def graph(package: Path = PACKAGE) -> dict[str, set[str]]:
    """Map each module to the modules that it imports."""
    known = modules(package)
    return {name: {*imports(path, known)} - {name} for name, path in known.items()}


def room(module: str) -> str:
    """Return the package, or the module at the root, that a module is in."""
    return module.split(".")[0]


def upward(edges: dict[str, set[str]]) -> list[str]:
    """List imports of a room that is not below the module's own."""
    pairs = [(one, other) for one, others in edges.items() for other in sorted(others)]
    between = [(one, other) for one, other in pairs if room(one) != room(other)]
    return [f"{a} -> {b}" for a, b in between if LEVELS[room(a)] <= LEVELS[room(b)]]


def test_imports_go_down_and_never_in_a_circle():
    edges = graph()
    assert {*map(room, edges)} <= {*LEVELS}, "add the room to ORDER"
    assert upward(edges) == []
    TopologicalSorter(edges).prepare()


def test_modules_are_short_have_a_room_and_a_name_of_their_own():
    lines = {name: len(path.read_text().splitlines()) for name, path in modules().items()}
    rooms: Counter[str] = Counter()
    for name, n in lines.items():
        rooms[room(name) if (PACKAGE / room(name)).is_dir() else "(root)"] += n
    print(*(f"{name:12}{n:7,}" for name, n in rooms.most_common()), sep="\n")  # noqa: T201
    assert {name: n for name, n in lines.items() if n > 400} == {}
    assert len([*PACKAGE.glob("*.py")]) <= 8
    places = defaultdict(list)
    for name, path in modules().items():
        if room(name) != "cli" and path.stem not in SHARED_NAMES.split():
            places[path.stem].append(name)
    assert {stem: names for stem, names in places.items() if len(names) > 1} == {}


def test_a_lazy_import_is_one_too(tmp_path):
    (tmp_path / "rows.py").write_text("def f():\n    import opensetda.methods.saving\n")
    (tmp_path / "methods/saving.py").write_text("from opensetda import __version__, rows\n")
    edges = graph(tmp_path)
    assert upward(edges) == ["rows -> state"]
    with pytest.raises(CycleError):
        TopologicalSorter(edges).prepare()
