"""Shell completion: a script for each shell, and the words that it asks for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

OSDA = [sys.executable, "-m", "opensetda"]


def asked(shell, line):
    """What `osda` answers to the script of a shell, for a line up to the cursor."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    typer = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    variables = {**os.environ, **words, **typer, "_OSDA_COMPLETE": f"complete_{shell}"}
    done = subprocess.run(OSDA, env=variables, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script(shell):
    variables = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [*OSDA, "--show-completion", shell]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert f"_OSDA_COMPLETE=complete_{shell}" in done.stdout
    if shutil.which(shell):
        subprocess.run([shell, "-n", "-c", done.stdout], check=True)


def test_commands_options_and_methods_are_completed():
    assert asked("bash", "osda fi").split() == ["fit"]
    assert asked("fish", "osda fit --openn").startswith("--openness\t")
    assert '"class-means"' in asked("zsh", "osda fit a b --method class")


def test_paths_are_left_to_the_shell():
    assert asked("bash", "osda fit s").split() == []
