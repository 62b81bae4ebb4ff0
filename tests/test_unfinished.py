"""The folder of a run under way: made, found, held, removed."""

from __future__ import annotations

import fcntl
import json

import numpy as np
import pytest

from cli_helpers import names_in
from opensetda.context import Record
from opensetda.errors import InputError
from opensetda.runs import unfinished
from opensetda.runs.request import FitRequest, ImageOptions, TableOptions
from opensetda.runs.unfinished import CheckpointFile, UnfinishedRun, check_unfinished

REQUEST = FitRequest(
    identity="ab12",
    source="/größe/a b.npz",
    target="/t",
    openness=0.25,
    settings={"steps": "3"},
    tables=TableOptions(label="class", drop=("x", "y")),
    images=ImageOptions(backbone="resnet50", size=64, finetune="last"),
    command=("osda", "fit"),
)
INPUTS = {"source": {"path": "/a", "sha256": "1"}, "target": {"path": "/b", "sha256": "2"}}


def test_what_was_asked_for_comes_back(tmp_path):
    UnfinishedRun.begin(tmp_path / "run", REQUEST, overwrite=False).release()
    assert names_in(tmp_path) == ["run.unfinished"]
    found = UnfinishedRun.find(tmp_path / "run")
    assert found.request == REQUEST
    assert found.was_left_behind
    found.remove()
    assert names_in(tmp_path) == []
    assert UnfinishedRun.find(tmp_path / "run") is None


@pytest.mark.parametrize("openness", ["auto", 0.0, 0.5])
def test_requests_survive_json(tmp_path, openness):
    from dataclasses import replace

    request = replace(REQUEST, openness=openness)
    assert FitRequest.from_dict(json.loads(json.dumps(request.to_dict())), tmp_path) == request


def test_folders_above_are_removed_again(tmp_path):
    run = UnfinishedRun.begin(tmp_path / "a" / "b" / "run", REQUEST, overwrite=False)
    assert (tmp_path / "a" / "b" / "run.unfinished" / "request.json").exists()
    run.undo()
    assert names_in(tmp_path) == []
    run = UnfinishedRun.begin(tmp_path / "a" / "b" / "run", REQUEST, overwrite=False)
    (tmp_path / "a" / "other").write_text("")
    run.undo()
    assert names_in(tmp_path / "a") == ["other"]


def test_a_folder_that_cannot_be_begun_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(unfinished, "write_json", fail)
    with pytest.raises(OSError, match="no space left"):
        UnfinishedRun.begin(tmp_path / "a" / "run", REQUEST, overwrite=False)
    assert names_in(tmp_path) == []


def test_it_is_worth_keeping_once_something_is_learned_or_was_there_before(tmp_path):
    run = UnfinishedRun.begin(tmp_path / "run", REQUEST, overwrite=False)
    run.check_inputs(INPUTS)
    assert not run.is_worth_keeping
    run.checkpoints().write(Record({}, {"a": np.arange(3)}))
    assert run.is_worth_keeping
    run.remove()
    UnfinishedRun.begin(tmp_path / "run", REQUEST, overwrite=False).release()
    assert UnfinishedRun.find(tmp_path / "run").is_worth_keeping


def test_inputs_must_stay_what_they_were(tmp_path):
    run = UnfinishedRun.begin(tmp_path / "run", REQUEST, overwrite=False)
    run.check_inputs(INPUTS)
    run.check_inputs(INPUTS)
    changed = {**INPUTS, "target": {"path": "/b", "sha256": "3"}}
    with pytest.raises(InputError, match=r"^/b: the target has changed"):
        run.check_inputs(changed)


def test_one_process_at_a_time(tmp_path):
    run = UnfinishedRun.begin(tmp_path / "run", REQUEST, overwrite=False)
    with pytest.raises(InputError, match="another process is at work on it"):
        UnfinishedRun.find(tmp_path / "run")
    with pytest.raises(InputError, match="another process is at work on it"):
        UnfinishedRun.begin(tmp_path / "run", REQUEST, overwrite=True)
    assert "request.json" in names_in(run.path)
    run.release()
    UnfinishedRun.begin(tmp_path / "run", REQUEST, overwrite=True).remove()


def test_a_file_system_without_locks_will_do(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    UnfinishedRun.begin(tmp_path / "run", REQUEST, overwrite=False).release()
    run = UnfinishedRun.find(tmp_path / "run")
    assert "request.json" in names_in(run.path)
    run.remove()
    assert not run.path.exists()


def test_what_is_in_the_way(tmp_path):
    path = tmp_path / "run.unfinished"
    check_unfinished(tmp_path / "run", overwrite=False)
    path.write_text("a file")
    with pytest.raises(InputError, match="a file is in the way"):
        check_unfinished(tmp_path / "run", overwrite=True)
    path.unlink()
    path.mkdir()
    check_unfinished(tmp_path / "run", overwrite=False)
    # Killed before the request was in its place: nothing to go on with, so nothing in the way.
    (path / "lock").write_text("")
    (path / ".request.0a1b2c3d.partial.json").write_text("{")
    assert UnfinishedRun.find(tmp_path / "run") is None
    UnfinishedRun.begin(tmp_path / "run", REQUEST, overwrite=False).release()
    with pytest.raises(InputError, match="go on with 'osda resume"):
        check_unfinished(tmp_path / "run", overwrite=False)
    check_unfinished(tmp_path / "run", overwrite=True)
    (path / "request.json").unlink()
    (path / "thesis.docx").write_text("")
    with pytest.raises(InputError, match="in the way, and not of a run"):
        check_unfinished(tmp_path / "run", overwrite=True)


def test_complete_is_what_has_the_same_identity(tmp_path):
    run = UnfinishedRun.begin(tmp_path / "run", REQUEST, overwrite=False)
    assert not run.is_complete
    (tmp_path / "run").mkdir()
    for content, complete in [("{", False), ("[]", False), ('{"identity": "ab12"}', True)]:
        (tmp_path / "run" / "settings.json").write_text(content)
        assert run.is_complete is complete


def test_what_is_replaced_comes_back_if_the_new_run_comes_to_nothing(tmp_path):
    old = UnfinishedRun.begin(tmp_path / "run", REQUEST, overwrite=False)
    old.checkpoints().write(Record({"step": 3}))
    old.release()
    new = UnfinishedRun.begin(tmp_path / "run", REQUEST, overwrite=True)
    assert new.checkpoints().read() is None
    new.undo()
    assert names_in(tmp_path) == ["run.unfinished"]
    assert old.checkpoints().read().values == {"step": 3}
    # And is gone for good if the new run has something to keep.
    UnfinishedRun.begin(tmp_path / "run", REQUEST, overwrite=True).release()
    assert names_in(tmp_path) == ["run.unfinished"]
    assert old.checkpoints().read() is None


def test_who_comes_second_disturbs_nobody(tmp_path, monkeypatch):
    def rival(path):
        path.mkdir()
        (path / "request.json").write_text("{}")
        return []

    # Between the look and the making, somebody else is faster.
    monkeypatch.setattr(unfinished, "make_parents", rival)
    with pytest.raises(InputError, match="another process is at work"):
        UnfinishedRun.begin(tmp_path / "run", REQUEST, overwrite=False)
    assert (tmp_path / "run.unfinished" / "request.json").read_text() == "{}"


def test_what_a_kill_left_of_the_removal_is_no_obstacle(tmp_path):
    path = tmp_path / "run.unfinished"
    path.mkdir()
    (path / "inputs.json").write_text("{}")
    UnfinishedRun.begin(tmp_path / "run", REQUEST, overwrite=False).remove()
    assert names_in(tmp_path) == []


def test_other_settings_are_refused(tmp_path):
    run = UnfinishedRun.begin(tmp_path / "run", REQUEST, overwrite=False)
    run.check_inputs({**INPUTS, "settings": {"release": "1", "steps": 3}})
    run.check_inputs({**INPUTS, "settings": {"release": "1", "steps": 3}})
    with pytest.raises(InputError, match="the settings of 'osda fit' have changed"):
        run.check_inputs({**INPUTS, "settings": {"release": "2", "steps": 3}})


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
