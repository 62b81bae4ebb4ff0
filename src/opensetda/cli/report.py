"""`osda report`: one HTML file to look at a run.

Other commands call `report_at_end`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from opensetda.cli import console
from opensetda.cli.bars import counting_progress
from opensetda.cli.options import Overwrite, RunArgument, SampleImages, output
from opensetda.errors import InputError, RunPausedError

if TYPE_CHECKING:
    from opensetda.runs.folder import RunFolder

_OUT_HELP = "HTML file to write. Default: report.html in the run folder."


def report(
    run: RunArgument,
    out: Annotated[Path | None, output("--out FILE", _OUT_HELP)] = None,
    images: SampleImages = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a report of a run: labels, confidence, unknowns, and samples to check manually.

    [bold]Examples[/bold]

      osda report run

      osda report run --out summary.html

    One HTML file that needs no network: a map of the samples, the share of
    unknowns, the most and least confident labels, groups of unknowns, and all
    settings; after 'osda evaluate' also the metrics.
    """
    from opensetda.runs.folder import RunFolder
    from opensetda.system.files import check_new_file

    if out is not None:
        check_new_file("--out", out, (".html", ".htm"), overwrite)
    folder = RunFolder.open(run)
    page = make_report(folder, out, images).resolve()
    console.say_places(report=page)
    console.result({"run": folder.path, "report": page})


def make_report(run: RunFolder, out: Path | None = None, images: Path | None = None) -> Path:
    """Write the report of a run and return its path."""
    from opensetda.report import write_report
    from opensetda.report.collect import Progress

    with (
        counting_progress("map", "iteration") as of_map,
        counting_progress("thumbnails") as of_pictures,
    ):
        return write_report(run, out, images, Progress(of_map, of_pictures))


def report_at_end(path: Path) -> Path | None:
    """Write the report of a run that has just been completed.

    A full disk or the like is only a warning: the run itself is complete.
    """
    from opensetda.runs.folder import RunFolder
    from opensetda.system.files import in_shell

    advice = f"the run is complete; make its report with 'osda report {in_shell(path)}'"
    try:
        return make_report(RunFolder.open(path))
    except KeyboardInterrupt as error:
        raise RunPausedError(advice) from error
    except (InputError, OSError, MemoryError) as error:
        reason = "out of memory" if isinstance(error, MemoryError) else error
        console.warn(f"no report ({reason}); {advice}")
        return None
    except Exception:
        console.note(f"{advice[0].upper()}{advice[1:]}")
        raise
