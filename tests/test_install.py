"""What installs the package agrees with itself: extras, pins, the page, the Dockerfile."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

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
