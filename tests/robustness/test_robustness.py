"""A small seeded part of `run.py`, and that the harness finds what is planted."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import links
import overwrites
import pairs
import pytest
from commands import Ended

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it forks, and reads /proc")


def test_a_small_part_of_every_attack_finds_nothing(tmp_path):
    # In a process of its own: it forks, which one with threads must not.
    options = ["--small", "--count", "45", "--kills", "1", "--every", "60"]
    options += ["--step", "7", "--pairs", "3", "--overwrites", "2"]
    command = [sys.executable, Path(__file__).with_name("run.py"), *options]
    own = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=own)
    assert done.returncode == 0, done.stdout + done.stderr
    for attacked in ("fuzz: 45 cases", "pairs: 3 cases", "overwrites: 2 cases"):
        assert f"{attacked}, 0 findings" in done.stdout


@pytest.mark.parametrize(
    ("code", "errors", "fault"),
    [
        (2, "error: a.csv: empty\n", ""),
        (2, "error: empty\n", "no file is named"),
        (2, "error: a.csv: \x1b[2J\n", "control characters"),
        (1, "error: KeyError: 'a' (run again with --debug for the traceback)\n", "foreign error"),
        (0, "/a/b.py:3: RuntimeWarning: overflow\n", "foreign warning"),
        (None, "", "hangs"),
    ],
)
def test_how_a_command_ends_is_judged(code, errors, fault):
    assert Ended("fit", code, "", errors).fault(("a.csv",)).partition(":")[0] == fault


@pytest.mark.parametrize("kind", links.KINDS)
def test_a_write_through_a_planted_link_is_seen(tmp_path, kind):
    place, outside, after = (tmp_path / name for name in ("scene", "outside", "after"))
    for folder in (place, outside, after):
        folder.mkdir()
    (after / "labels").write_text("id,label\n")
    assert links.plant(place, "labels", kind, outside, after)
    before, name = links.contents(outside), place / "labels"
    assert links.contents(outside) == before
    (name / "new" if kind == "folder" else name).write_text("overwritten")
    assert links.contents(outside) != before


def test_a_folder_in_which_files_of_two_writers_are_mixed_is_seen():
    def after(run, labels, report=""):
        return {"run/predictions.csv": run, "out/labels.csv": labels, "run/report.html": report}

    none, one, other = after("a", ""), after("a", "1"), after("b", "", "b")
    orders = [
        pairs.Order((False, False), none),
        pairs.Order((True, False), one),
        pairs.Order((False, True), other),
        pairs.Order((True, True), after("b", "1", "b")),
        pairs.Order((True, True), after("b", "2", "b")),
    ]
    both = (True, True)
    assert pairs.unlike(after("b", "2", "b"), both, orders) == ""
    assert pairs.unlike(one, (True, False), orders) == ""
    assert "out/labels.csv" in pairs.unlike(after("b", "12", "b"), both, orders)
    assert "out/labels.csv" in pairs.unlike(other, both, orders)
    assert "of another run" in pairs.unlike(after("b", "1", "a"), both, orders)


def test_a_file_that_a_manifest_lacks_or_lists_wrongly_is_seen(tmp_path):
    (run := tmp_path / "run").mkdir()
    (run / "settings.json").write_text("{}")
    (run / "report.html").write_text("")
    right = f"2:{hashlib.sha256(b'{}').hexdigest()}"
    for files, fault in (({"settings.json": right}, ""), ({"settings.json": "2:0"}, "listed 2:0")):
        (run / "manifest.json").write_text(json.dumps({"files": files}))
        assert fault in pairs.broken_manifest(tmp_path)
        assert bool(fault) == bool(pairs.broken_manifest(tmp_path))
    (run / "manifest.json").write_text(json.dumps({"files": {}}))
    assert "settings.json" in pairs.broken_manifest(tmp_path)
    assert pairs.left_behind(tmp_path, tmp_path / "scene") == ""
    (run / ".report.partial.html").write_text("")
    assert "report" in pairs.left_behind(tmp_path, tmp_path / "scene")


def test_decisions_that_are_lost_or_beside_another_run_are_seen(tmp_path):
    (run := tmp_path / "run").mkdir()
    (run / "settings.json").write_text(json.dumps({"identity": "new"}))
    (run / "review.jsonl").write_text('{"identity": "old"}\n{"label": "newt"}\n')
    assert "1 of 2" in overwrites.lost(tmp_path, tmp_path / "scene", ["newt", "toad"], 0)
    assert "another run" in overwrites.lost(tmp_path, tmp_path / "scene", ["newt"], 0)
