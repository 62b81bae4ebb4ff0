"""`osda evaluate`, `osda report` and `osda review`: how good a run is, to look at, to correct."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opensetda.cli import console
from opensetda.cli.bars import counting_progress
from opensetda.cli.options import Fields, Overwrite, RunArgument, SampleImages, other, output
from opensetda.errors import InputError, RunPausedError, one_line
from opensetda.runs.options import TableOptions

if TYPE_CHECKING:
    from opensetda.runs.folder import RunFolder
    from opensetda.usecases.evaluate_run import Evaluation

HEADINGS = {
    "os_star": ("OS*", "mean accuracy of the known classes"),
    "unk": ("UNK", "unknowns that were called unknown"),
    "hos": ("HOS", "harmonic mean of OS* and UNK"),
    "os": ("OS", "mean accuracy of the known classes and unknown"),
    "all": ("ALL", "accuracy over all samples"),
    "unk_per_class": ("UNK/class", "UNK, averaged over the true unknown classes"),
    "auroc": ("AUROC", "known before unknown, by the known score"),
    "oscr": ("OSCR", "knowns accepted and right, over accepted unknowns"),
    "ece": ("ECE", "calibration error of the labels (lower is better)"),
    "unknown_ece": ("UNK ECE", "calibration error of the probability of unknown (lower is better)"),
}
"""Heading and meaning of each metric."""
_RUN_HELP = "Run folder of 'osda fit', or, with --run, a .csv or .parquet file of 'osda predict'."
_TRUTH_HELP = (
    "True labels of all samples or of some: a table (.npz, .csv, .parquet, a folder of .parquet "
    "parts), or images (one folder per class, list, manifest, tar shards)."
)
_MADE_BY_HELP = "Run that wrote the file of 'osda predict'."
_OUT_HELP = "HTML file to write. Default: report.html in the run folder."
_PORT_HELP = "Port of the page. Default: 0, any free port."
_AUDIT_HELP = "Number of random targets to mark as known or unknown. Default: 30; 0 for none."
_NO_BROWSER_HELP = "Print the address without opening a browser."


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN|LABELS", help=_RUN_HELP)],
    labels: Annotated[Path, other("--labels TRUTH", _TRUTH_HELP)],
    columns: Annotated[TableOptions, Fields("label id", as_in_fit="label id")],
    made_by: Annotated[Path | None, other("--run RUN", _MADE_BY_HELP)] = None,
) -> None:
    """Compute metrics with 95 % intervals. The only command that reads labels of the target.

    [bold]Examples[/bold]

      osda evaluate run --labels truth.csv --label-column class

      osda evaluate labels.csv --labels truth.csv --run run

    Labels are matched by id if the samples have ids, by row otherwise; those
    without a true label (or an empty one) do not count. A label that is not a
    class of the source counts as unknown. Of a run, writes metrics.json
    into its folder, and updates its report, if there is one.
    """
    from opensetda.runs.folder import METRICS, REPORT, RunFolder
    from opensetda.usecases.evaluate_run import evaluate as evaluate_labels

    names = {"label_column": columns.label, "id_column": columns.id}
    found = evaluate_labels(run, labels, **names, made_by=made_by)
    result: dict[str, Any] = found.to_dict()
    share = f"share of unknowns: true {found.true_openness:.2f}"
    if run.is_dir():
        folder = RunFolder.open(run)
        # The existing report does not know the true labels.
        report = report_at_end(folder.path) if (folder.path / REPORT).exists() else None
        result["openness"] = folder.estimates()["openness"]
        result["files"] = {"metrics": run / METRICS, "report": report}
        share += f", used {result['openness']['share']:.2f}"
        if len(folder.history()) > 1:
            console.show_steps(folder.history(), found.steps)
    _show_tables(found)
    final = map(console.percent, (found.final.hos, found.final.os_star, found.final.unk))
    for line in ("HOS {}, OS* {}, UNK {} (%)".format(*final), share, *found.notes):
        console.say(line)
    console.say_places(**result.get("files", {}))
    console.result(result)


def _show_tables(found: Evaluation) -> None:
    from opensetda.metrics.intervals import binomial_interval

    rows = []
    for row in found.final.per_class:
        mistaken = f"{row.confused_with} ({row.confused_count})" if row.confused_count else ""
        interval = _interval(binomial_interval(row.correct, row.n) if row.n else None)
        cells = (str(row.n), console.percent(row.accuracy), interval, mistaken)
        rows.append((str(row.label), row.kind, *cells))
    columns = ["class", "kind"], ["n", "right %", "95 % interval"]
    console.show_table("Classes", *columns, rows, "taken for")
    metrics = []
    for name, (heading, meaning) in HEADINGS.items():
        value, interval = getattr(found.final, name), _interval(found.intervals[name])
        cells = (heading, console.percent(value), interval, meaning)
        metrics.append(map(console.Bold, cells) if name == "hos" else cells)
    console.show_table("Metrics", ["metric"], ["%", "95 % interval"], metrics, "meaning")


def _interval(interval: tuple[float, float] | None) -> str:
    return " to ".join(map(console.percent, interval)) if interval else console.DASH


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


def review(
    run: RunArgument,
    port: Annotated[int, other("--port NUMBER", _PORT_HELP, low=0, high=65535)] = 0,
    no_browser: Annotated[bool, other("--no-browser", _NO_BROWSER_HELP)] = False,
    images: SampleImages = None,
    audit: Annotated[int, other("--audit NUMBER", _AUDIT_HELP, low=0, high=100_000)] = 30,
) -> None:
    """Check and correct the labels of a run, on a page that only this machine can open.

    Begins with an audit: mark 30 random targets as known or unknown, and
    see the share of unknowns. Then check labels. Every decision is saved at once,
    to review.jsonl and corrections.csv in the run folder. Ctrl-C ends it.
    """
    from opensetda.review.server import ReviewServer
    from opensetda.review.session import ReviewSession
    from opensetda.usecases.corrections import refit_command

    session = ReviewSession(run, images, audit)
    try:
        with ReviewServer(session, port) as server:
            console.note("review: open the address; all decisions are saved; Ctrl-C ends it")
            console.say(server.address)
            if not no_browser:
                # In a thread: some browsers come back only when they are closed.
                Thread(None, _open_browser, "browser", (server.address,), daemon=True).start()
            server.serve_forever()
    except OSError as error:
        raise InputError(f"--port {port}: {error.strerror}; choose another") from error
    except KeyboardInterrupt:
        pass
    finally:
        session.close()
    if session.moved:
        console.warn(session.moved)
    if session.trouble:
        raise InputError(session.trouble)
    where = f": {session.corrections}" if session.corrections.exists() else ""
    console.say(f"{console.counted(len(session.decisions), 'decision')} saved{where}")
    for warning in session.formula_warning():
        console.warn(warning)
    found = session.audit()
    if found["marked"]:
        console.say(
            f"audited share of unknowns: {found['share']:.2f} ({found['low']:.2f} to "
            f"{found['high']:.2f}), by {found['unknown']} of {found['marked']} and the scores of "
            f"all targets; the run used {found['runShare']:.2f}"
        )
    if len(session.decisions):
        console.say_places(learn=refit_command(session.run, session.corrections))


def _open_browser(address: str) -> None:
    import webbrowser

    # Without a screen there are only terminal browsers, which run no scripts.
    screens = map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    if sys.platform in ("win32", "darwin") or any(screens):
        with suppress(OSError, webbrowser.Error):
            webbrowser.open(address)
