"""The folder of a run under way: made, found, held, removed."""

from __future__ import annotations

import numpy as np
import pytest

from cli_helpers import names_in
from opensetda.context import Record
from opensetda.errors import InputError
from opensetda.runs import integrity
from opensetda.runs.options import FitRequest
from opensetda.runs.unfinished import CheckpointFile, UnfinishedRun

REQUEST = FitRequest(identity="ab12", source="/größe/a b.npz", target="/t", openness=0.25)
INPUTS = {"target": {"path": "/b", "sha256": "2"}, "settings": {"steps": 3}}


def test_what_was_asked_for_comes_back(tmp_path):
    UnfinishedRun.begin(tmp_path / "run", REQUEST, overwrite=False).release()
    assert names_in(tmp_path) == ["run.unfinished"]
    found = UnfinishedRun.find(tmp_path / "run")
    assert found.request == REQUEST
    assert found.is_worth_keeping
    found.remove()
    assert names_in(tmp_path) == []
    assert UnfinishedRun.find(tmp_path / "run") is None


def test_nothing_is_left_of_a_run_that_comes_to_nothing(tmp_path, monkeypatch):
    run = UnfinishedRun.begin(tmp_path / "a" / "b" / "run", REQUEST, overwrite=False)
    run.check_inputs(INPUTS)
    assert not run.is_worth_keeping
    run.remove()
    assert names_in(tmp_path / "a" / "b") == []
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(integrity, "write_json", lambda *_: (_ for _ in ()).throw(full))
    with pytest.raises(OSError, match="no space left"):
        UnfinishedRun.begin(tmp_path / "c" / "run", REQUEST, overwrite=False)
    assert names_in(tmp_path / "c") == []


def test_what_is_in_the_way(tmp_path):
    path = tmp_path / "run.unfinished"
    # Killed before the request was in its place: nothing to go on with.
    path.mkdir()
    (path / ".request.json.partial-0").mkdir()
    assert UnfinishedRun.find(tmp_path / "run") is None
    with pytest.raises(InputError, match="go on with 'osda resume"):
        UnfinishedRun.begin(tmp_path / "run", REQUEST, overwrite=False)
    run = UnfinishedRun.begin(tmp_path / "run", REQUEST, overwrite=True)
    assert names_in(path) == ["request.json"]
    run.release()


def test_a_record_comes_back_as_it_was(tmp_path):
    file = CheckpointFile(tmp_path / "checkpoint")
    assert file.read() is None
    arrays = {"a": np.arange(6.0).reshape(2, 3).T, "n": np.array(7)}
    for step in (1, 2):
        file.write(Record({"step": step, "text": "größe"}, arrays))
    found = file.read()
    assert found.values == {"step": 2, "text": "größe"}
    for name, values in arrays.items():
        np.testing.assert_array_equal(found.arrays[name], values)
    assert names_in(tmp_path) == ["checkpoint"]
