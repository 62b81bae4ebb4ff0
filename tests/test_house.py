"""The rooms of the package: imports go down, no cycles, few modules at the root, short files."""

from __future__ import annotations

import house


def test_every_room_has_its_place_in_the_order():
    rooms = {house.room(module) for module in house.modules()}
    assert rooms - set(house.LEVELS) == set(), "add the room to ORDER in benchmarks/house.py"


def test_imports_go_down():
    assert house.upward_imports() == []


def test_no_modules_import_each_other():
    """Nor in functions or for type checkers."""
    assert house.cycles() == []


def test_few_modules_at_the_root():
    assert len(house.at_root()) <= house.MOST_AT_ROOT, house.at_root()


def test_one_name_is_one_module():
    assert house.repeated_names() == {}


def test_files_can_be_read_in_one_sitting():
    long = {name: lines for name, lines in house.lines().items() if lines > house.MOST_LINES}
    assert long == {}


def test_the_graph_has_lazy_imports_and_those_of_type_checkers(tmp_path, monkeypatch):
    """An upward import, wherever it stands, is found, and so is the cycle that it makes."""
    files = {
        "errors.py": "",
        "rows.py": "def f():\n    import opensetda.pgl.graph\n",
        "pgl/__init__.py": "",
        "pgl/graph.py": "from .. import rows\nfrom opensetda import __version__, errors\n",
        "nn/__init__.py": "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from opensetda.pgl.graph import Graph\n",
        "nn/graph.py": "from opensetda import nn\n",
        "cli/graph.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(house, "PACKAGE", tmp_path)
    assert house.graph()["pgl.graph"] == {"rows", "errors"}
    assert sorted(house.upward_imports()) == ["nn -> pgl.graph", "rows -> pgl.graph"]
    assert house.cycles() == ["pgl.graph <-> rows"]
    assert house.at_root() == ["errors.py", "rows.py"]
    assert house.repeated_names() == {"graph": ["nn/graph.py", "pgl/graph.py"]}
    assert house.lines()["rows.py"] == 2
