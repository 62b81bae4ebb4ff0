"""`osda export`: write the model of a run as one ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from opensetda.cli import console, options


def export(
    run: options.RunArgument,
    to: Annotated[
        Path,
        options.output(
            "--to PLACE",
            "The .onnx file to make, or a folder for it, its description and a script.",
        ),
    ],
    overwrite: options.Overwrite = False,
) -> None:
    """Write the model of a run as ONNX, to label samples without torch and OpenSetDA.

    [bold]Examples[/bold]

      osda export run --to model.onnx

      osda export run --to model && python model/use.py photo.jpg

    The file takes resized RGB images, or rows of features, and returns label,
    confidence, probabilities (unknown last) and known score. Scaling, backbone
    and rejection are in it; use.py in the folder resizes images. It is compared
    with 'osda predict' before it is written: same labels, probabilities within
    1e-4.
    """
    from opensetda.runs.exporting import export as export_model

    written = export_model(run, to, overwrite=overwrite)
    noun = "image" if written.has_images else "row"
    many = console.counted(written.n_checked, noun)
    console.say(
        f"Same labels as 'osda predict' for {many}, {written.n_own:,} of them of the run; "
        f"probabilities differ by at most {written.difference:.0e}."
    )
    console.say(f"  model    {written.model}")
    if written.path != written.model:
        console.say(f"  try it   python {written.path / 'use.py'} FILE")
    checked = {"samples": written.n_checked, "own": written.n_own}
    files = {"model": written.model}
    console.result({**checked, "difference": written.difference, "files": files})
