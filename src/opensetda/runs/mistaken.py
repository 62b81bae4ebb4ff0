"""Requests that cannot work: found before any data is read."""

from __future__ import annotations

from pathlib import Path

from opensetda.errors import InputError
from opensetda.runs import folder as files
from opensetda.runs.corrections import check_corrections
from opensetda.runs.methods import FINETUNE, build_method, finetune_settings
from opensetda.runs.request import ARRAY, FitRequest
from opensetda.runs.tensorboard import check_log
from opensetda.system.files import near


def check_request(request: FitRequest, out: Path) -> None:
    """Raise an `InputError` for wrong settings, and for places that are mixed up."""
    if request.tensorboard is not None:
        check_log(Path(request.tensorboard))
    if request.corrections is not None:
        check_corrections(near(request.corrections))
    build_method(**request.method_arguments())
    if request.images.finetune:
        finetune_settings(request.method, request.changes)
    elif found := [name for name in request.changes if name.startswith(FINETUNE)]:
        raise InputError(f"setting {found[0]}: for a backbone that is trained; add --finetune")
    if request.source != ARRAY:
        _check_places(near(request.source), near(request.target), out)


def _check_places(source: Path, target: Path, out: Path) -> None:
    for path in (source, target):
        if (path / files.SETTINGS).is_file() and (path / files.PREDICTIONS).is_file():
            advice = "give images or a feature table ('osda predict' uses a run)"
            raise InputError(f"{path}: a run folder of 'osda fit'; {advice}")
        if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
            advice = "later fits would read its pictures; choose another --out"
            raise InputError(f"{out}: lies in {path}; {advice}")
    if source.exists() and target.exists() and source.samefile(target):
        raise InputError(f"{target}: source and target are the same; give what is to be labelled")
