"""`osda export`: the model of a run as an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from opensetda.cli import console
from opensetda.cli.options import Overwrite, OwnBackbone, RunArgument, output

_TO_HELP = (
    "The .onnx file to make, a folder for it, its description and a script, or a .json file of "
    "tasks for Label Studio: the samples to label next."
)


def export(
    run: RunArgument,
    to: Annotated[Path, output("--to PLACE", _TO_HELP)],
    overwrite: Overwrite = False,
    backbone: OwnBackbone = None,
) -> None:
    """Write the model of a run as ONNX, to label samples without torch and OpenSetDA.

    [bold]Examples[/bold]

      osda export run --to model.onnx

      osda export run --to model && python model/use.py photo.jpg

    The file takes resized RGB images, or rows of features, and returns label,
    confidence, probabilities (unknown last) and known score; use.py in the folder
    resizes images. It is compared with 'osda predict' before it is written.

    A .json file gets the 100 samples whose labels would help most, as tasks of Label
    Studio with the labels of the run; 'osda review run --marks EXPORT.json' reads its export.
    """
    if to.suffix.lower() == ".json":
        from opensetda.usecases.label_studio import write_tasks

        count = write_tasks(run, to, overwrite=overwrite)
        console.say(f"{console.counted(count, 'task')} for Label Studio.")
        console.say_places(tasks=to, learn=f"osda review {run} --marks EXPORT.json")
        console.result({"samples": count, "files": {"tasks": to}})
        return
    from opensetda.usecases.export_model import export as export_model

    written = export_model(run, to, overwrite=overwrite, backbone=backbone)
    many = console.counted(written.n_checked, "image" if written.has_images else "row")
    console.say(
        f"Same labels as 'osda predict' for {many}; "
        f"probabilities differ by at most {written.difference:.0e}."
    )
    use = f"python {written.path / 'use.py'} FILE" if written.path != written.model else None
    console.say_places(model=written.model, try_it=use)
    console.result(
        {
            "samples": written.n_checked,
            "difference": written.difference,
            "files": {"model": written.model},
        }
    )
