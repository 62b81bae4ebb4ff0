"""What docs/security.md promises: no pickles, no network, nothing for a terminal to obey."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import opensetda
from cli_helpers import FIT, OPENNESS
from opensetda.cli import console
from opensetda.cli.main import main
from opensetda.errors import visible

SOURCE = Path(opensetda.__file__).parent
# Where network modules may be imported, and why.
NETWORK = {
    "backbones/registry.py": "fetches weights from the hub, if a backbone is named that needs it",
    "review/server.py": "listens on 127.0.0.1, in 'osda review' only",
}
NETWORK_MODULES = {"ftplib", "http", "httpx", "huggingface_hub", "requests", "smtplib", "socket"}
NETWORK_MODULES |= {"socketserver", "ssl", "telnetlib", "urllib3", "xmlrpc"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "system", "popen"}
PICKLES = {"cloudpickle", "dill", "marshal", "pickle", "shelve"}


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def calls(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            yield name, {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}


def test_nothing_is_unpickled_or_becomes_code_and_the_network_is_where_it_is_needed():
    for path in sorted(SOURCE.rglob("*.py")):
        file, tree = path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text())
        # Only the name of its error is used.
        pickles = {name for name in imported(tree) if name.split(".")[0] in PICKLES}
        assert pickles <= ({"pickle"} if file == "backbones/model.py" else set()), file
        network = {name for name in imported(tree) if name.split(".")[0] in NETWORK_MODULES}
        network |= {name for name in imported(tree) if name.startswith("urllib.request")}
        assert not network or file in NETWORK, (file, network)
        for name, options in calls(tree):
            assert not name.startswith("pickle."), (file, name)
            if name in ("np.load", "numpy.load"):
                assert options.get("allow_pickle", "False") == "False", file
            if name.endswith("torch.load"):
                assert options.get("weights_only") == "True", file
            owner, _, method = name.rpartition(".")
            if method in FORBIDDEN_CALLS:
                assert name == "re.compile" or (method == "eval" and owner), (file, name)
            assert options.get("shell") in (None, "False"), file


WATCHED = """
import sys
def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo"):
        print("CONNECTS", event, arguments, file=sys.stderr)
sys.addaudithook(watch)
from opensetda.cli.main import main
sys.exit(main({arguments!r}))
"""


def test_a_model_of_onnx_runtime_is_loaded_without_telling_its_maker(tmp_path):
    pytest.importorskip("onnxruntime")
    home = tmp_path / "home"
    (home / "images").mkdir(parents=True)
    rng = np.random.default_rng(0)
    from PIL import Image

    Image.fromarray(rng.integers(0, 255, (40, 40, 3), np.uint8)).save(home / "images" / "a.png")
    arguments = ["features", "images", "--out", "features.npz", "--cache", "cache"]
    arguments += ["--image-size", "32"]
    # The last is set by torch itself, once it was imported.
    inherited = {"OSDA_CACHE", "ORT_DISABLE_TELEMETRY", "TORCHINDUCTOR_CACHE_DIR"}
    environment = {name: text for name, text in os.environ.items() if name not in inherited}
    environment |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / "xdg")}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED.format(arguments=arguments)],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "CONNECTS" not in done.stderr
    names = sorted(path.name for path in home.iterdir())
    assert names == ["cache", "features.npz", "images", "xdg"]
    assert [path.name for path in (home / "xdg").iterdir()] == ["opensetda"]


def test_control_characters_are_shown_and_not_obeyed(workplace, capsys):
    assert visible("\x1b[2Jcat\u202e\udc80\n\x9b") == "\\x1b[2Jcat\\u202e\\udc80\\n\\x9b"
    assert visible("Käse 🧀 日本") == "Käse 🧀 日本"
    console.show_labels({"\x1b[2Jcat": 1, "[red]dog": 1, "[/]": 1}, "unknown")
    console.say("\x1b[31mred")
    console.warn(f"\x1b]0;title\x07 {'x' * 50_000} end")
    both = capsys.readouterr()
    assert len(both.err) < 1100
    assert both.err.endswith("end\n")
    assert "\x1b" not in both.out + both.err
    for shown in ("\\x1b[2Jcat", "[red]dog", "[/]", "\\x1b[31mred"):
        assert shown in both.out
    assert main([*FIT, *OPENNESS, "--unknown-label", "\x1b[2J"]) in (0, 2)
    both = capsys.readouterr()
    assert "\x1b" not in both.out + both.err


def test_a_reader_that_leaves_does_not_end_the_work(workplace):
    osda = f"{sys.executable} -m opensetda {' '.join([*FIT, *OPENNESS])}"
    done = subprocess.run(
        ["bash", "-c", f"{osda} | true; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "0\n", done.stderr
    assert "Broken" not in done.stderr
    assert (workplace / "run" / "predictions.csv").exists()
