"""Make the report of a run, with progress: for `osda report`, and at the end of other commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from opensetda.cli import console
from opensetda.errors import InputError, RunPausedError
from opensetda.system.files import in_shell

if TYPE_CHECKING:
    from opensetda.runs.folder import RunFolder


def make_report(run: RunFolder, out: Path | None = None, images: Path | None = None) -> Path:
    """Write the report of a run and return its path."""
    from opensetda.cli.counting import counting_progress
    from opensetda.report.collect import Progress
    from opensetda.report.page import write_report

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

    advice = f"the run is complete; make its report with 'osda report {in_shell(path)}'"
    try:
        return make_report(RunFolder.open(path))
    except KeyboardInterrupt as error:
        raise RunPausedError(advice) from error
    except (InputError, OSError, MemoryError) as error:
        reason = "out of memory" if isinstance(error, MemoryError) else error
        console.warn(f"no report ({reason}); {advice}")
    except Exception:
        console.note(f"{advice[0].upper()}{advice[1:]}")
        raise
    return None


def make_figures(run: RunFolder, folder: Path, overwrite: bool) -> list[Path]:
    """Write the figures of a run into a folder, PDF and PNG, and return their paths."""
    from opensetda.cli.counting import counting_progress
    from opensetda.report.figures import write_figures

    with counting_progress("map", "iteration") as of_map:
        return write_figures(run, folder, overwrite, of_map)
