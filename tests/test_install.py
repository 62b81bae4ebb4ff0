"""What installs the package agrees with itself: extras, pins, the page, the Dockerfile."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def plain(requirement):
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def test_every_requirement_is_pinned():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {plain(line) for line in lines if "==" in line}
    wanted = {plain(entry) for extra in EXTRAS.values() for entry in extra}
    wanted |= {plain(entry) for entry in PROJECT["dependencies"]}
    assert wanted <= pinned


def test_every_extra_is_explained():
    page = (ROOT / "docs" / "install.md").read_text()
    assert all(f"\n| `{extra}` | " in page for extra in {*EXTRAS} - {"dev", "docs"})


def test_docker_copies_what_is_there_and_not_ignored():
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    copies = [line.split()[1:-1] for line in lines if re.match(r"COPY (?!--from)", line)]
    copied = sorted(name for names in copies for name in names)
    let_in = re.findall("^!(.+)$", (ROOT / ".dockerignore").read_text(), flags=re.MULTILINE)
    assert copied == sorted(let_in)
    assert all((ROOT / name).exists() for name in let_in)


def test_the_lines_to_install_are_the_same_everywhere():
    line = "-c constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu"
    docker = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    for text in (docker, (ROOT / "docs" / "install.md").read_text()):
        assert line in " ".join(text.split())


def test_the_documentation_is_built_with_what_its_extra_lists():
    workflow = (ROOT / ".github" / "workflows" / "docs.yml").read_text()
    lines = [line for line in workflow.splitlines() if "pip install" in line]
    assert len(lines) == 2
    for line in lines:
        words = {plain(word.strip("'")) for word in line.split() if word[0] != "-"}
        assert {plain(entry) for entry in EXTRAS["docs"]} <= words


def test_nothing_is_published_without_the_tests():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    assert jobs["tests"]["uses"] == "./.github/workflows/tests.yml"
    assert "tests" in jobs["build"]["needs"]
    assert "build" in jobs["publish"]["needs"]


def test_every_folder_of_tests_that_a_workflow_names_is_there():
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        assert yaml.safe_load(path.read_text())["jobs"]
        for folder in re.findall(r"\btests/\w+", path.read_text()):
            assert (ROOT / folder).is_dir(), f"{path.name}: no {folder}"
