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

from opensetda import ClassMeans, InputError, show
from opensetda.runs import RunFolder, fit

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))


@pytest.fixture(scope="module")
def run(task, tmp_path_factory):
    names = {"ant": "ant", "bee": "</iframe><b>", "cat": '" onload="x', "dog": "dog"}
    labels = np.array([names[label] for label in task.labels])
    folder = tmp_path_factory.mktemp("shown") / "run"
    return fit((task.source, labels), task.target, folder, method="class-means", openness=1 / 3)


@pytest.mark.usefixtures("quick_maps")
def test_a_run_is_shown_by_its_path_its_folder_or_the_result_of_fit(run):
    shown = show(run)
    assert str(shown).startswith("Of 72 rows")
    for same in (run.path, str(run.path), RunFolder.open(run.path)):
        assert show(same) == shown
    frame = show(run, height=300)._repr_html_()
    assert frame.startswith('<iframe sandbox="allow-scripts" ')
    assert 'height="300"' in frame


@pytest.mark.usefixtures("quick_maps")
def test_no_name_gets_out_of_the_frame(run):
    shown = show(run)
    # One element, whose attributes hold no quote of their own.
    frame = re.fullmatch(r'<iframe( [a-z]+="[^"]*")+></iframe>', shown._repr_html_())
    assert frame
    assert html.unescape(re.search(r'srcdoc="([^"]*)"', frame[0])[1]) == shown.page
    assert "<b>" not in shown.page.replace("&lt;b&gt;", "")


@pytest.mark.usefixtures("quick_maps")
def test_a_fitted_classifier_is_shown_with_its_map(task, make, fitted_by_name):
    classifier = fitted_by_name["class-means"]
    shown = show(classifier, task.X, task.y, task.domain)
    assert "labelled by class-means" in shown.title
    n_unknown = (classifier.transduction_ == "unknown").sum()
    assert f"and {n_unknown} " in shown.headline
    assert "Map of the samples" in shown.page
    numbered = make("class-means", unknown_label=99)
    y = np.unique(task.y, return_inverse=True)[1]
    assert ">99<" in show(numbered.fit(task.X, y, task.domain), task.X, y, task.domain).page


def test_what_cannot_be_shown(task, fitted_by_name, run, tmp_path):
    classifier = fitted_by_name["class-means"]
    wrong = [
        ((3,), "int is no run"),
        ((tmp_path / "none",), "no such run folder"),
        ((ClassMeans(),), "call fit first"),
        ((classifier,), r"show\(clf, X, y, sample_domain\)"),
        ((classifier, task.X[:-1], task.y[:-1], task.domain[:-1]), "not fitted on these rows"),
        ((run, task.X), "a run has its own"),
    ]
    for arguments, message in wrong:
        with pytest.raises(InputError, match=message):
            show(*arguments)
    with pytest.raises(InputError, match="height='tall'"):
        show(run, height="tall")


def test_the_map_is_drawn_in_a_frame(run, browser, tmp_path, quick_maps):
    page = browser.new_page(viewport={"width": 1000, "height": 760})
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text))
    (tmp_path / "notebook.html").write_text(f"<p>cell</p>{show(run)._repr_html_()}")
    page.goto((tmp_path / "notebook.html").as_uri())
    frame = page.frames[1]
    frame.wait_for_selector("#map canvas")
    drawn = """() => { const c = document.querySelector('#map canvas');
        return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v) }"""
    assert frame.evaluate(drawn)
    # The page in the frame cannot reach the notebook around it.
    reach = "() => { try { return String(parent.document) } catch { return 'refused' } }"
    assert frame.evaluate(reach) == "refused"
    assert frame.evaluate("() => self.origin") == "null"
    assert problems == []
    page.close()


def words(cell):
    """The text that a cell printed, without its numbers, and the kinds of what it showed."""
    outputs = [*cell.outputs]
    text = "".join(output.get("text", "") for output in outputs)
    kinds = {kind for output in outputs for kind in output.get("data", {})}
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
        assert old.execution_count is not None


def test_tutorials_are_listed_and_lead_somewhere():
    nbformat = pytest.importorskip("nbformat", reason="needs the extra 'dev'")
    names = {path.name for path in NOTEBOOKS}
    assert names == {"images.ipynb", "tables.ipynb", "share.ipynb"}
    nav = str(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    index = (ROOT / "docs" / "index.md").read_text()
    for name in names:
        assert f"tutorials/{name}" in nav
        assert f"(tutorials/{name})" in index
    for path in NOTEBOOKS:
        for cell in nbformat.read(path, as_version=4).cells:
            for link in re.findall(
                r"\]\(([^):#]+)", cell.source if "markdown" in cell.cell_type else ""
            ):
                assert (path.parent / link).exists(), link
