"""The documentation does what it says: code and commands run, links lead somewhere."""

from __future__ import annotations

import doctest
import importlib
import re
import runpy
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pytest
import yaml

import adapting
import suites
from opensetda.cli.main import main

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NOT_RUN = "# not run:"

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(
    r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)|<(?:img|a)\b[^>]*?(?:src|href)=\"([^\"]+)\""
)
_HEADING = re.compile(r"^#+\s+(.*?)\s*$", re.MULTILINE)


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, match.start(2)) + 1, match[1], match[2])
        for match in _FENCE.finditer(text)
    ]


def commands(page: Path) -> list[tuple[int, str]]:
    """Lines that start with ``$ osda``, with their line number; a backslash joins the next."""
    found = []
    for block in blocks(page):
        if block.language not in {"console", "bash"}:
            continue
        lines = block.text.replace("\\\n", " \x00").splitlines()
        number = block.line
        for line in lines:
            if line.startswith("$ osda ") and NOT_RUN not in line:
                found.append((number, line.replace("\x00", "").removeprefix("$ ")))
            number += 1 + line.count("\x00")
    return found


PYTHON = [
    block
    for page in PAGES
    for block in blocks(page)
    if block.language == "python" and NOT_RUN not in block.text
]


def a_table(seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    which = np.arange(60) % 3
    X = 4 * np.eye(3, 8)[which] + 1 + rng.normal(0, 0.4, (60, 8))
    return X.astype(np.float32), np.array(["cup", "pen", "sun"])[which]


@pytest.fixture(scope="module")
def a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder called ``run``, for pages that read one."""
    folder = tmp_path_factory.mktemp("docs")
    X, y = a_table(0)
    known = y != "sun"
    np.savez(folder / "a.npz", X=X[known], y=y[known])
    X, y = a_table(1)
    np.savez(folder / "b.npz", X=X)
    np.savez(folder / "truth.npz", y=y)
    fit = f"fit {folder}/a.npz {folder}/b.npz --out {folder}/run --openness 0.33"
    assert main([*shlex.split(fit), "--method", "class-means", "--no-report"]) == 0
    assert main(["evaluate", f"{folder}/run", "--labels", f"{folder}/truth.npz"]) == 0
    return folder


def test_there_is_documentation():
    assert ROOT / "README.md" in PAGES
    assert PYTHON


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_of_the_documentation_runs(block, a_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    (tmp_path / "run").symlink_to(a_run / "run")
    # Blocks share nothing with each other; only new samples are given.
    namespace = {"__name__": "__main__", "X_new": a_table(2)[0]}
    # Blank lines before the code, so that a traceback names the page's own line.
    code = compile("\n" * (block.line - 1) + block.text, str(block.page), "exec")
    exec(code, namespace)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if commands(page)], ids=lambda page: page.name
)
def test_commands_of_the_documentation_run(page, tmp_path, monkeypatch, quick_maps):
    monkeypatch.chdir(tmp_path)
    for line, command in commands(page):
        arguments = shlex.split(command, comments=True)[1:]
        assert main(arguments) == 0, f"{page.name}:{line}: {command}"


def anchors(page: Path) -> set[str]:
    """The addresses of a page's headings, as GitHub and MkDocs make them."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    plain = (re.sub(r"[^\w\- ]", "", heading).lower() for heading in _HEADING.findall(text))
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_lead_somewhere(page):
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    lost = []
    for match in _LINK.finditer(text):
        link = match[1] or match[2]
        if re.match(r"[a-z]+:", link):  # http, https, mailto
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in anchors(target)
        ):
            lost.append(link)
    assert lost == []


def test_the_example_of_the_estimator():
    from opensetda.pgl import estimator

    result = doctest.testmod(estimator)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(example, monkeypatch, capsys, quick_maps):
    really_run = subprocess.run

    def run(command, **options):
        if command[0] != "osda":  # Libraries ask the system about its processors.
            return really_run(command, **options)
        assert options == {"check": True}
        assert main(command[1:]) == 0, command
        return None

    monkeypatch.setattr(subprocess, "run", run)
    runpy.run_path(str(example), run_name="__main__")
    assert "unknown" in capsys.readouterr().out


def test_every_page_is_in_the_navigation_and_in_the_index():
    configuration = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    listed = re.findall(r"[\w-]+\.md", str(configuration["nav"]))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert sorted(listed) == sorted(pages)
    index = (ROOT / "docs" / "index.md").read_text()
    assert {page for page in pages if f"({page})" not in index} == {"index.md"}


def test_the_api_reference_has_every_public_name():
    import opensetda

    written = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    for name in written:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name
    public = {f"opensetda.{name}" for name in opensetda.__all__ if name != "__version__"}
    assert public <= set(written)


def test_the_tables_have_the_figures_that_were_measured():
    for page, tables in suites.pages(suites.read_figures()).items():
        text = page.read_text(encoding="utf-8")
        assert text == suites.fill(text, tables), f"{page}: run suites.py --show --write"


def test_the_tables_of_adapting_have_the_figures_that_were_measured():
    text = adapting.PAGE.read_text(encoding="utf-8")
    tables = adapting.tables(adapting.Figures())
    assert text == adapting.fill(text, tables), "run adapting.py --show --write"


def test_the_sdist_has_all_that_its_tests_read():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    missing = [path for path in included if not (ROOT / path.lstrip("/")).exists()]
    assert missing == []
    assert {f"/{page.name}" for page in ROOT.glob("*.md")} <= set(included)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_are_in_plain_english(page):
    """The phrases that `style.md` of the project lists, and their like."""
    odd = re.compile(
        r"\b(?:one|a) (?:folder|file|row|entry|line|image|graph|step|idea)"
        r" an? (?:class|domain|step|image|task|sample|row|file|process|run)\b"
        r"|\b(?:at|by) the door\b|installed along|told nothing|in company"
    )
    assert odd.findall(page.read_text(encoding="utf-8")) == []
