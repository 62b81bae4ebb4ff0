"""`osda report`: an HTML file that shows a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from opensetda.cli import console
from opensetda.cli.bars import counting_progress
from opensetda.cli.options import Overwrite, RunArgument, SampleImages, output
from opensetda.errors import RunPausedError, one_line

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

    One HTML file that needs no network; after 'osda evaluate' with the metrics.
    """
    from opensetda.system.files import check_new_file
    from opensetda.usecases.predict_samples import with_run

    if out is not None:
        check_new_file("--out", out, (".html", ".htm"), overwrite)
    page = with_run(run, lambda folder: make_report(folder, out, images)).resolve()
    console.say_places(report=page)
    console.result({"run": run, "report": page})


def make_report(run: RunFolder, out: Path | None = None, images: Path | None = None) -> Path:
    """Write the report of a run and return its path."""
    from opensetda.report import write_report
    from opensetda.report.collect import Progress

    with counting_progress("map", "iteration") as of_map, counting_progress("thumbnails") as of_all:
        return write_report(run, out, images, Progress(of_map, of_all))


def report_at_end(path: Path) -> Path | None:
    """Write the report of a run that has just been completed; an error is only a warning."""
    from opensetda.system.files import in_shell
    from opensetda.usecases.predict_samples import with_run

    advice = f"the run is complete; make its report with 'osda report {in_shell(path)}'"
    try:
        return with_run(path, make_report)
    except KeyboardInterrupt as error:
        raise RunPausedError(advice) from error
    except Exception as error:
        console.warn(f"no report ({one_line(error)}); {advice}")
        return None
