"""Label Studio: the queue of a run as its tasks, and its export as marks.

A task has the sample in ``data``, and the labels of the run as a prediction, for the labelling
interface ``<Choices name="label" toName="sample">``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from opensetda.errors import InputError
from opensetda.runs.folder import CORRECTIONS, RunFolder
from opensetda.runs.pictures import Pictures
from opensetda.system.files import check_new_file, new_file, open_regular
from opensetda.usecases.corrections import labels_in
from opensetda.usecases.predict_samples import Run, open_run
from opensetda.usecases.suggest_samples import suggest

TASKS = 100
_FROM, _TO = "label", "sample"


def write_tasks(run: Run, to: Path, n: int = TASKS, overwrite: bool = False) -> int:
    """Write the next targets of the queue to a JSON file, and return how many."""
    check_new_file("--to", to, (".json",), overwrite)
    folder = open_run(run)
    tasks = tasks_of(folder, n)
    with new_file(to) as aside:
        aside.write_text(json.dumps(tasks, ensure_ascii=False, indent=1), encoding="utf-8")
    return len(tasks)


def tasks_of(folder: RunFolder, n: int) -> list[dict[str, Any]]:
    """Return the tasks of Label Studio for the next targets of a run."""
    table = folder.predictions()
    own = folder.path / CORRECTIONS
    asked = suggest(folder, n, labels_in(own) if own.exists() else {})
    place = {name: row for row, name in enumerate(table.ids.tolist())}
    pictures = Pictures(folder) if folder.has_images else None
    tasks = []
    for rank, name in enumerate(asked.ids, start=1):
        row = place[name]
        data: dict[str, Any] = {"id": name, "rank": rank}
        if pictures is not None and (path := pictures.file(row)) is not None:
            data["image"] = f"/data/local-files/?d={path.as_posix().lstrip('/')}"
        choice = {
            "from_name": _FROM,
            "to_name": _TO,
            "type": "choices",
            "value": {"choices": [str(table.labels[row])]},
        }
        prediction = {
            "model_version": str(folder.settings["identity"]),
            "score": round(float(table.confidence[row]), 6),
            "result": [choice],
        }
        tasks.append({"data": data, "predictions": [prediction]})
    return tasks


def labels_of_tasks(path: Path) -> dict[str, str]:
    """Return the labels of an export of Label Studio (JSON or JSON-MIN) by the samples' names.

    Of several annotations of a task, the last one that was not skipped counts.
    """
    try:
        with open_regular(path) as file:
            tasks = json.loads(file.read().decode("utf-8-sig"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; export one from Label Studio") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a JSON file that can be read ({error})") from None
    found: dict[str, str] = {}
    if not isinstance(tasks, list):
        raise InputError(f"{path}: not an export of Label Studio; choose the format JSON there")
    for number, task in enumerate(tasks, start=1):
        try:
            # JSON-MIN has the columns of the data beside the label.
            name = str(task["data"]["id"] if "data" in task else task["id"])
            label = _label_of(task)
        except (KeyError, TypeError, IndexError, AttributeError):
            problem = "no task that 'osda export RUN --to tasks.json' wrote"
            raise InputError(f"{path}: task {number} is {problem}") from None
        if label:
            found[name] = label
    return found


def _label_of(task: dict[str, Any]) -> str:
    """Return the choice of a task, or nothing."""
    if "data" not in task:
        return str(task.get(_FROM) or "")
    label = ""
    for annotation in task.get("annotations", []):
        if annotation.get("was_cancelled"):
            continue
        for result in annotation["result"]:
            if result["from_name"] == _FROM:
                label = str(result["value"]["choices"][0])
    return label
