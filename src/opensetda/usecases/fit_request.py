"""What a fit is asked for: made from options, and checked before any data is read.

Nothing heavy is imported as long as nothing was given that only the method can check.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from opensetda.backbones.recipe import CLIP_PREFIX
from opensetda.data.names import check_exists
from opensetda.errors import InputError, choice
from opensetda.pgl.settings import PGLSettings
from opensetda.runs import folder as files
from opensetda.runs.folder import RunFolder
from opensetda.runs.options import (
    ARRAY,
    FitOptions,
    FitRequest,
    ImageOptions,
    TableOptions,
    absolute,
    declared,
)
from opensetda.runs.registry import build_method, check_finetuning, split_rejector
from opensetda.system.files import near, plain
from opensetda.usecases.read_domains import is_image_request


def make_request(options: dict[str, Any], **own: Any) -> FitRequest:
    """Return checked options as a request; None is the default."""
    known = declared(FitOptions)
    given = {name: value for name, value in options.items() if value is not None}
    for name in given.keys() - known.keys():
        hint = choice(name, known)
        for option in (name, name.removesuffix("_column")):
            if option in declared(TableOptions):
                hint = f"did you mean tables=TableOptions({option}={given[name]!r})?"
        raise InputError(f"fit: no option {name!r}; {hint}")
    for name in given.keys() & {"corrections", "tensorboard"}:
        given[name] = absolute(given[name])
    given["settings"] = plain(dict(given.get("settings", {})))
    try:
        return TypeAdapter(FitRequest).validate_python(given | own)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        raise InputError(f"{name}={first['input']!r}: {first['msg']}") from None


def trained_part(images: ImageOptions) -> Literal["last", "all"] | None:
    """Return what of a backbone is to be trained; the default depends on the device."""
    if images.finetune != "auto":
        return images.finetune
    from opensetda.system.processes import this_process

    return "last" if this_process().device.type == "cpu" else "all"


def check_request(request: FitRequest, out: Path) -> None:
    """Raise an `InputError` for a request that cannot work, before any data is read."""
    if not request.unknown_label.strip():
        raise InputError(f"unknown label {request.unknown_label!r}: give a word that can be seen")
    if request.tensorboard is not None and find_spec("tensorboard") is None:
        raise InputError("--tensorboard: not installed; pip install 'opensetda[tensorboard]'")
    split_rejector(request.method)
    _check_paths(request, out)
    _check_prompts(request)
    if request.corrections is not None:
        from opensetda.usecases.corrections import check_corrections

        check_corrections(near(request.corrections))
    source_free = is_source_free(request.method, request.preset, request.settings)
    if request.adapts:
        from opensetda.usecases.keeping import kept_source

        kept_source(RunFolder.open(near(request.source)), source_free)
    elif source_free:
        raise InputError("source_free: starts from a run of pgl; use 'osda adapt'")
    trains = request.images.finetune is not None
    asked = (request.settings, request.preset, request.scaling, "+" in request.method)
    if trains or any(asked) or request.openness != "auto":
        # Only the method itself knows its settings, and it imports torch.
        build_method(**request.method_arguments())
        check_finetuning(request.method, request.settings, trains)


def _check_prompts(request: FitRequest) -> None:
    """Raise an `InputError` for prompts that nothing could be made of."""
    images = request.images
    if not images.prompts:
        return
    if not request.adapts and not (images.backbone or "").startswith(CLIP_PREFIX):
        backbone = images.backbone or "the default backbone"
        raise InputError(
            f"--prompts: {backbone} knows no texts; add --backbone {CLIP_PREFIX}FOLDER"
        )
    if request.method != "committee":
        raise InputError(f"--prompts: not with {request.method}; leave out --method, or --prompts")
    if images.finetune is not None:
        problem = "a backbone that is trained no longer fits its texts"
        raise InputError(f"--prompts: {problem}; leave out --finetune, or --prompts")


def is_source_free(method: str, preset: str | None, settings: Mapping[str, Any]) -> bool:
    """Return whether a method goes on from the weights of a run, without a source."""
    if method != "pgl":
        return False
    of_preset = PGLSettings.preset(preset or "default").source_free
    changes = {"source_free": settings.get("source_free", of_preset)}
    return PGLSettings().with_changes(changes).source_free


def _check_paths(request: FitRequest, out: Path) -> None:
    """Raise an `InputError` for domains that are not there, or are no domains."""
    if request.target == ARRAY:
        return
    paths = [near(request.target)]
    if not request.adapts:
        paths.insert(0, near(request.source))
    for path in paths:
        check_exists(path)
        if (path / files.SETTINGS).is_file() and (path / files.WEIGHTS).is_file():
            raise InputError(f"{path}: a run folder; give images or a feature table")
        if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
            raise InputError(f"{out}: lies in {path}, which is read; choose another --out")
    if os.path.realpath(request.source) == os.path.realpath(request.target):
        raise InputError(f"{path}: source and target are the same; give what is to be labelled")
    if not request.adapts:
        is_image_request(request)  # Refuses options for the other kind.
