"""`show` in a notebook, and the tutorial notebooks of the documentation."""

from __future__ import annotations

import html
import os
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import yaml

from opensetda import show
from opensetda.usecases import RunFolder, fit

ROOT = Path(__file__).parent.parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))


@pytest.fixture(scope="module")
def run(task, tmp_path_factory):
    names = {"ant": "ant", "bee": "</iframe><b>", "cat": '" onload="x', "dog": "dog"}
    labels = np.array([names[label] for label in task.labels])
    folder = tmp_path_factory.mktemp("shown") / "run"
    return fit((task.source, labels), task.target, folder, method="class-means", openness=1 / 3)


@pytest.mark.usefixtures("quick_maps")
def test_a_run_is_shown_and_no_name_gets_out_of_the_frame(run):
    shown = show(run, height=300)
    assert str(shown).startswith("Of 72 rows")
    for same in (run.path, str(run.path), RunFolder.open(run.path)):
        assert show(same, height=300) == shown
    # One element, whose attributes hold no quote of their own.
    frame = re.fullmatch(r'<iframe( [a-z]+="[^"]*")+></iframe>', shown._repr_html_())
    assert frame
    assert ' sandbox="allow-scripts" ' in frame[0]
    assert ' height="300" ' in frame[0]
    assert html.unescape(re.search(r'srcdoc="([^"]*)"', frame[0])[1]) == shown.page
    assert "<b>" not in shown.page.replace("&lt;b&gt;", "")


def words(cell):
    """The text that a cell printed, without its numbers, and the kinds of what it showed."""
    text = "".join(output.get("text", "") for output in cell.outputs)
    kinds = {kind for output in cell.outputs for kind in output.get("data", {})}
    return " ".join(re.sub(r"[-\d.,]+", "#", text).split()), kinds


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_tutorials_run_and_show_what_is_stored(path, tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat", reason="needs the extra 'dev'")
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    stored = nbformat.read(path, as_version=4)
    run_notebooks = runpy.run_path(str(ROOT / "docs" / "run_notebooks.py"))
    fresh = run_notebooks["executed"](path, tmp_path)
    pairs = zip(stored.cells, fresh.cells, strict=True)
    code = [(old, new) for old, new in pairs if old.cell_type == "code"]
    assert code
    for old, new in code:
        assert words(old) == words(new), "run 'make notebooks'"


def test_tutorials_are_listed_and_lead_somewhere():
    nbformat = pytest.importorskip("nbformat", reason="needs the extra 'dev'")
    nav = str(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    index = (ROOT / "docs" / "index.md").read_text()
    assert len(NOTEBOOKS) == 3
    for path in NOTEBOOKS:
        assert f"tutorials/{path.name}" in nav
        assert f"(tutorials/{path.name})" in index
        cells = nbformat.read(path, as_version=4).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        for link in re.findall(r"\]\(([^):#]+)", text):
            assert (path.parent / link).exists(), link
