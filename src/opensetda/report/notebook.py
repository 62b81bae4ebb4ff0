"""The report inline in a notebook."""

from __future__ import annotations

import html
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from opensetda.base import OpenSetClassifier
from opensetda.errors import InputError
from opensetda.metrics.source_labels import source_labels
from opensetda.report.collect import collect
from opensetda.report.content import Report
from opensetda.report.page import render_page
from opensetda.rows import split_domains
from opensetda.runs.fitting import write_run
from opensetda.runs.methods import method_name
from opensetda.runs.predicting import open_run
from opensetda.runs.view import view_of
from opensetda.system.files import plain

# Scripts of the page run, but see nothing of the notebook around it.
_FRAME = (
    '<iframe sandbox="allow-scripts" title="{title}" width="100%" height="{height}" '
    'srcdoc="{page}" '
    'style="box-sizing: border-box; border: 1px solid #8884; border-radius: 6px"></iframe>'
)


@dataclass(frozen=True)
class ShownReport:
    """A report that a notebook shows; `page` is its HTML file, `str` gives the result in words."""

    title: str
    headline: str
    page: str = field(repr=False)
    height: int = field(repr=False)

    def _repr_html_(self) -> str:
        title, page = html.escape(self.title), html.escape(self.page)
        return _FRAME.format(title=title, page=page, height=self.height)

    def __str__(self) -> str:
        return self.headline


def show(
    run: Any,
    X: Any = None,
    y: Any = None,
    sample_domain: Any = None,
    *,
    images: str | Path | None = None,
    height: int = 640,
) -> ShownReport:
    """Show the report of a run, with its map, in a notebook.

    Parameters
    ----------
    run : str, Path, RunFolder, FittedRun or fitted classifier
        A run folder, what `opensetda.runs.fit` returned, or a classifier.
    X, y, sample_domain : arrays, optional
        What the classifier was fitted on, for its map. Labels of targets are not read.
    images : str or Path, optional
        Folder of the images of a feature table, as in `osda report --images`.
    height : int
        Height of the frame in pixels.

    Returns
    -------
    ShownReport
        A notebook shows it if it is the last line of a cell.
    """
    if not isinstance(height, int) or height < 1:
        raise InputError(f"height={height!r}: give the height of the frame in pixels")
    if isinstance(run, OpenSetClassifier):
        report = _of_classifier(run, X, y, sample_domain)
    elif X is not None or y is not None or sample_domain is not None:
        raise InputError("show: X, y and sample_domain are for a classifier; a run has its own")
    else:
        try:
            folder = open_run(run)
        except TypeError:
            kind = type(run).__name__
            raise InputError(f"show: {kind} is no run; give a folder, or a classifier") from None
        report = collect(folder, None if images is None else Path(images))
    return ShownReport(report.title, report.headline, render_page(report), height)


def _of_classifier(classifier: OpenSetClassifier, X: Any, y: Any, sample_domain: Any) -> Report:
    """Collect the report of a classifier by way of a run folder that is removed afterwards."""
    name = type(classifier).__name__
    if not getattr(classifier, "has_target_", False):
        raise InputError(f"show: {name} has not been fitted with target rows; call fit first")
    if X is None or y is None or sample_domain is None:
        raise InputError(f"show: give what {name} was fitted on: show(clf, X, y, sample_domain)")
    rows = np.asarray(X, dtype=np.float32)
    source, target = split_domains(sample_domain, len(rows))
    if len(target) != len(classifier.transduction_) or rows.shape[1] != classifier.n_features_in_:
        raise InputError(
            f"show: {name} was not fitted on these rows; give X, y, sample_domain of fit"
        )
    labels = source_labels(y, source, domain_given=True)
    seed, method = classifier.get_params().get("random_state"), name
    with suppress(InputError):
        # One that is not of this package has none.
        method = method_name(classifier)
    domains = {"source": len(source), "target": len(target)}
    record = {
        "method": method,
        "openness": plain(classifier.openness),
        "unknown_label": str(classifier.unknown_label),
        "seed": seed if isinstance(seed, int) else None,
        "settings": {},
        "inputs": {name: {"embedded": name, "rows": count} for name, count in domains.items()},
        "command": [],
    }
    with tempfile.TemporaryDirectory(prefix="opensetda-") as folder:
        view = view_of(classifier, rows[source], labels, rows[target])
        run = write_run(Path(folder), classifier, record, None, view=view)
        return replace(collect(run), run="RUN")
