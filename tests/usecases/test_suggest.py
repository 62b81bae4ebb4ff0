"""Which samples to label next, in scripts, in Label Studio, and their labels as marks."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from cli_helpers import FEW_STEPS, FIT, blobs
from opensetda.cli.main import main
from opensetda.errors import InputError
from opensetda.runs.folder import RunFolder
from opensetda.usecases import suggest
from opensetda.usecases.label_studio import labels_of_tasks


@pytest.fixture
def run(workplace):
    assert main([*FIT, *FEW_STEPS]) == 0
    return workplace / "run"


@pytest.fixture
def truth():
    names = blobs(1)[1]
    return np.where(names == "horse", "unknown", names)


def marks_file(path, ids, truth):
    lines = [f"{name},{truth[int(name) - 1]}" for name in ids]
    path.write_text("\n".join(["id,label", *lines]) + "\n")
    return path


def test_the_queue_goes_on_from_the_marks(run, truth):
    first = suggest(run, 5)
    assert first.ids == suggest(RunFolder.open(run), 5).ids
    assert len({*first.ids}) == 5
    assert 0 < first.gain <= 1
    marks = {name: truth[int(name) - 1] for name in first.ids}
    then = suggest(run, 5, marks)
    assert not {*first.ids} & {*then.ids}
    marks |= {name: truth[int(name) - 1] for name in then.ids}
    after = suggest(run, 5, marks)
    assert after.gain < first.gain
    assert after.share.low <= 1 / 3 <= after.share.high
    for asked, words in (((0, {}), "at least one"), ((5, {"x": "cat"}), "'x' is no sample")):
        with pytest.raises(InputError, match=words):
            suggest(run, *asked)


def test_marks_of_a_file_are_learned_from(run, truth, capsys):
    path = marks_file(run.parent / "marks.csv", suggest(run, 20).ids, truth)
    assert main(["review", "run", "--marks", str(path)]) == 0
    said = capsys.readouterr().out
    assert "20 marks" in said
    assert "--corrections" in said
    with (run / "corrections.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 20
    # Those of the run are where the queue goes on.
    assert not {*suggest(run, 5).ids} & {row["id"] for row in rows}
    corrections = str(run / "corrections.csv")
    again = ["again" if word == "run" else word for word in [*FIT, *FEW_STEPS]]
    assert main([*again, "--corrections", corrections]) == 0
    assert (RunFolder.open("again").labels() == truth).mean() > 0.95


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("id,label\n99,cat", "'99' is no sample of the target"),
        ("id,label\n1,*unknown*", "says unknown"),
        ("id,label\n1,\n", "no label in it"),
        ("id,label\n1,cat\n1,dog", "row 3: '1' is there twice"),
        ("id,class\n1,cat", "needs a column id or path"),
    ],
)
def test_marks_that_do_not_fit_are_refused_whole(run, capsys, lines, words):
    (run.parent / "marks.csv").write_text(lines)
    assert main(["review", "run", "--marks", "marks.csv"]) == 2
    assert words in capsys.readouterr().err
    assert not (run / "corrections.csv").exists()


def test_label_studio_there_and_back(run, truth, capsys):
    assert main(["export", "run", "--to", "tasks.json"]) == 0
    tasks = json.loads((run.parent / "tasks.json").read_text())
    assert [task["data"]["id"] for task in tasks[:5]] == suggest(run, 5).ids
    for task in tasks:
        (prediction,) = task["predictions"]
        assert 0 <= prediction["score"] <= 1
        assert prediction["result"][0]["value"]["choices"][0] in ("cat", "dog", "unknown")
    assert main(["export", "run", "--to", "tasks.json"]) == 2
    assert "tasks.json" in capsys.readouterr().err
    # As a person answers there; one task is skipped, one has two annotations.
    for task in tasks:
        name = str(truth[int(task["data"]["id"]) - 1])
        result = [{"from_name": "label", "type": "choices", "value": {"choices": [name]}}]
        task["annotations"] = [{"was_cancelled": False, "result": result}]
    tasks[0]["annotations"][0]["was_cancelled"] = True
    wrong = [{"from_name": "label", "value": {"choices": ["cat"]}}]
    tasks[1]["annotations"].insert(0, {"result": wrong})
    answer = run.parent / "answer.json"
    answer.write_text(json.dumps(tasks))
    assert main(["review", "run", "--marks", "answer.json"]) == 0
    assert f"{len(tasks) - 1} marks" in capsys.readouterr().out
    said = labels_of_tasks(answer)
    assert tasks[0]["data"]["id"] not in said
    assert all(truth[int(name) - 1] == label for name, label in said.items())


def test_exports_of_label_studio_in_other_forms(tmp_path):
    path = tmp_path / "export.json"
    path.write_text(json.dumps([{"id": "7", "label": "cat"}, {"id": "8"}]))
    assert labels_of_tasks(path) == {"7": "cat"}
    for content, words in (
        ("{", "not a JSON file"),
        ('{"a": 1}', "choose the format JSON"),
        ('[{"data": {"text": "x"}}]', "task 1 is no task that"),
    ):
        path.write_text(content)
        with pytest.raises(InputError, match=words):
            labels_of_tasks(path)
    with pytest.raises(InputError, match="no such file"):
        labels_of_tasks(tmp_path / "nowhere.json")
