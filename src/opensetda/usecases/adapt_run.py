"""The use case adapt: a new run for a new target, from what a run kept of its source."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from opensetda.errors import InputError
from opensetda.pgl.presets import SHAPE
from opensetda.progress import RunListener
from opensetda.runs.folder import RunFolder
from opensetda.runs.options import ARRAY, ImageOptions, absolute
from opensetda.system import default_cache_folder
from opensetda.usecases.fit_request import is_source_free, make_request
from opensetda.usecases.fit_run import FittedRun, start
from opensetda.usecases.keeping import kept_source
from opensetda.usecases.predict_samples import Run, give_backbone, open_run


def adapt(
    run: Run,
    target: Any,
    out: str | Path,
    *,
    images: ImageOptions | None = None,
    report: bool = False,
    command: Sequence[str] = (),
    listener: RunListener | None = None,
    **options: Any,
) -> FittedRun:
    """Label a new target without the source, and write a run folder like that of `fit`.

    The labelled rows that the run kept take the place of the source; targets of that run that a
    person gave a class join them. Columns and backbone are those of the run, and so are method,
    settings, seed and unknown label by default. The share of unknowns is estimated anew.

    Parameters
    ----------
    run : str, Path, RunFolder or FittedRun
        The run; its folder is only read.
    target : str, Path, DataFrame or array of shape (n, d)
        The new target, of the same kind as that of the run.
    out : str or Path
        The run folder to make.
    images : ImageOptions, optional
        `cache` and `strict`, for images; the backbone is that of the run, whose name is given again
        if it is a network of your own.
    report, command, listener
        As in `fit`.
    **options
        Options of `fit`: method, openness, preset ("sf-pgl" goes on from the weights of a run of
        `pgl`, without any row of the source), settings, seed, scaling, sample, corrections (of the
        new target), keep_source, unknown_label, overwrite, and tables (a `TableOptions`).

    Raises
    ------
    InputError
        The run kept nothing of its source, or wrong input; nothing is left behind.
    """
    folder = open_run(run)
    for name in options.keys() & {"adapts", "tensorboard"}:
        raise InputError(f"adapt: no option {name!r}; leave it out")
    of_run = _as_in(folder, options)
    preset = of_run.get("preset")
    source_free = is_source_free(of_run["method"], preset, of_run.get("settings", {}))
    kept = kept_source(folder, source_free)
    if options.get("keep_source") is None:
        options["keep_source"] = kept.how
    if kept.how not in ("rows", options["keep_source"]) and options["keep_source"] != "none":
        asked = f"--keep-source {options['keep_source']}"
        only = "statistics only" if kept.how == "statistics" else "nothing of its source"
        raise InputError(f"{asked}: {folder.path} kept {only}; leave it out")
    images = images or ImageOptions(cache=absolute(default_cache_folder()))
    _check_backbone(folder, images.backbone)
    is_path = isinstance(target, str | Path)
    request = make_request(
        of_run | {"keep_source": options["keep_source"]},
        identity=secrets.token_hex(16),
        source=absolute(folder.path),
        target=absolute(target) if is_path else ARRAY,
        images=asdict(images) | _prompts_of(folder, images, options.get("method")),
        adapts=True,
        report=report,
        command=tuple(command),
    )
    return start(request, Path(out), None if is_path else target, listener)


def _prompts_of(folder: RunFolder, images: ImageOptions, method: str | None) -> dict[str, Any]:
    """Return the prompts of a run, if the method stays."""
    if images.prompts:
        raise InputError("--prompts: those of the run are used; leave it out")
    names = ("prompts", "unknown_prompts")
    if method not in (None, folder.settings["method"]):
        return {}
    return {name: tuple(folder.settings["settings"].get(name, ())) for name in names}


def _check_backbone(folder: RunFolder, given: str | None) -> None:
    """Make a network of the user's own known; another than that of the run is refused."""
    if given is not None:
        own = (folder.settings["backbone"] or {}).get("backbone")
        if given != own:
            raise InputError(f"--backbone {given}: the run has {own}; leave it out")
        give_backbone(given)


def _as_in(folder: RunFolder, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with the method of a run where no other one is named."""
    given = {name: value for name, value in options.items() if value is not None}
    given.setdefault("unknown_label", folder.unknown_label)
    given.setdefault("seed", folder.settings.get("seed"))
    if given.get("method", folder.settings["method"]) != folder.settings["method"]:
        return given
    parameters = folder.model().get_params(deep=False)
    for name in ("openness", "unknown_label", "random_state"):
        parameters.pop(name, None)
    given["method"] = folder.settings["method"]
    scaling = parameters.pop("scaling")
    preset = parameters.pop("preset", None)
    own = (parameters.pop("settings", None) or {}) if preset is not None else parameters
    given.setdefault("scaling", scaling)
    if preset is not None:
        given.setdefault("preset", preset)
    changed = given.get("preset", preset) != preset
    if is_source_free("pgl" if preset else "", given.get("preset"), given.get("settings", {})):
        # The weights decide the shape; what else was changed belongs to the preset of the run.
        shape = {name: folder.settings["settings"][name] for name in SHAPE}
        own = shape if changed else own | shape
    given["settings"] = own | given.get("settings", {})
    return given
