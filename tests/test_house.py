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
options
rows progress
labels model_selection listeners
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
    """Return the package, or the module at the root, that a module is in.

    The table of options and their help stands below all: warnings name options.
    """
    return "options" if module == "runs.options" else module.split(".")[0]


def upward(edges: dict[str, set[str]]) -> list[str]:
    """List imports of a room that is not below the module's own."""
    pairs = [(one, other) for one, others in edges.items() for other in sorted(others)]
    between = [(one, other) for one, other in pairs if room(one) != room(other)]
    return [f"{a} -> {b}" for a, b in between if LEVELS[room(a)] <= LEVELS[room(b)]]


def test_imports_go_down_and_never_in_a_circle():
    edges = graph()
    assert {*map(room, edges)} <= {*LEVELS}, "add the room to ORDER"
    # Only a network that is given in place of a name needs torch.
    assert upward(edges) == ["runs.options -> backbones.own"]
    TopologicalSorter(edges).prepare()


def test_modules_are_short_have_a_room_and_a_name_of_their_own():
    lines = {name: len(path.read_text().splitlines()) for name, path in modules().items()}
    rooms: Counter[str] = Counter()
    for name, n in lines.items():
        first = name.split(".")[0]
        rooms[first if (PACKAGE / first).is_dir() else "(root)"] += n
    print(*(f"{name:12}{n:7,}" for name, n in rooms.most_common()), sep="\n")  # noqa: T201
    assert {name: n for name, n in lines.items() if n > 400} == {}
    assert len([*PACKAGE.glob("*.py")]) <= 9
    places = defaultdict(list)
    for name, path in modules().items():
        if room(name) != "cli" and path.stem not in SHARED_NAMES.split():
            places[path.stem].append(name)
    assert {stem: names for stem, names in places.items() if len(names) > 1} == {}


def test_a_lazy_import_is_one_too(tmp_path):
    (tmp_path / "rows.py").write_text("def f():\n    import opensetda.methods.saving\n")
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods/saving.py").write_text("from opensetda import __version__, rows\n")
    edges = graph(tmp_path)
    assert upward(edges) == ["rows -> methods.saving"]
    with pytest.raises(CycleError):
        TopologicalSorter(edges).prepare()


# clear code -----------------------------------------------------------------------------------

# What is called with a star that is a sequence: all its elements are of one kind.
OF_SEQUENCES = ("zip", "zip_longest", "min", "max", "print", "fail", "analyse")
MOST_STARS = 15
MOST_PAIRS = 80


def statements(package: Path = PACKAGE) -> Iterator[tuple[str, ast.AST]]:
    """Yield every node of every module, with the place of it."""
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            where = f"{path.relative_to(package)}:{getattr(node, 'lineno', 0)}"
            yield where, node


def star_arguments(package: Path = PACKAGE) -> list[str]:
    """List calls with a star-argument that hides the names of arguments.

    A generator is a sequence, and so is what a function passes on that it was called with.
    """
    found = []
    for path in sorted(package.rglob("*.py")):
        tree = ast.parse(path.read_text())
        passed_on = {
            node.args.vararg.arg
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.args.vararg
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func).rpartition(".")[2]
            for argument in node.args:
                if not isinstance(argument, ast.Starred) or name in OF_SEQUENCES:
                    continue
                value = argument.value
                is_sequence = isinstance(value, ast.GeneratorExp | ast.ListComp)
                if not is_sequence and ast.unparse(value) not in passed_on:
                    found.append(f"{path.relative_to(package)}:{node.lineno}")
    return found


def pairs_of_assignments(package: Path = PACKAGE) -> list[str]:
    """List statements that assign several values at once."""
    return [
        where
        for where, node in statements(package)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Tuple)
        and any(isinstance(target, ast.Tuple) for target in node.targets)
    ]


def merged_literals(package: Path = PACKAGE) -> list[str]:
    """List dict literals that are made of others, or of several dicts."""
    found = []
    for where, node in statements(package):
        if isinstance(node, ast.Dict):
            merged = [v for k, v in zip(node.keys, node.values, strict=True) if k is None]
            if len(merged) > 1 or any(isinstance(value, ast.Dict) for value in merged):
                found.append(where)
    return found


def test_arguments_have_names_and_a_statement_does_one_thing():
    stars = star_arguments()
    assert len(stars) < MOST_STARS, stars
    pairs = pairs_of_assignments()
    assert len(pairs) < MOST_PAIRS, Counter(where.partition("/")[0] for where in pairs)
    assert merged_literals() == []


def test_golf_is_found(tmp_path):
    (tmp_path / "a.py").write_text(
        "def f(*of):\n    g(*of)\n    g(*(1, 2))\n    g(*(x for x in of))\n    print(*of)\n"
        "    a, b = 1, 2\n    x, y = f()\n    return {**{1: 2}}, {**a, **b}, {**a, 1: 2}\n"
    )
    assert star_arguments(tmp_path) == ["a.py:3"]
    assert pairs_of_assignments(tmp_path) == ["a.py:6"]
    assert merged_literals(tmp_path) == ["a.py:8", "a.py:8"]
