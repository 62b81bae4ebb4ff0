"""Whole runs: `fit`, `adapt`, `predict`, `evaluate`, `export`, and the run folder they write.

>>> from opensetda.usecases import fit, predict
>>> run = fit("shop/", "street/", "run")  # doctest: +SKIP
>>> predict(run, "later/").labels  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opensetda.progress import RunListener
    from opensetda.runs.folder import RunFolder
    from opensetda.runs.options import FitOptions, ImageOptions, TableOptions
    from opensetda.usecases.adapt_run import adapt
    from opensetda.usecases.compare_runs import RunComparison, compare
    from opensetda.usecases.detect_drift import drift
    from opensetda.usecases.drift_of_samples import Drift
    from opensetda.usecases.evaluate_run import Evaluation, evaluate
    from opensetda.usecases.export_model import ExportedModel, export
    from opensetda.usecases.fit_run import FittedRun, fit
    from opensetda.usecases.predict_samples import WrittenLabels, extract_features, predict
    from opensetda.usecases.resume_run import resume
    from opensetda.usecases.suggest_samples import Suggested, suggest

__all__ = ["Drift", "Evaluation", "ExportedModel", "FitOptions", "FittedRun", "ImageOptions",
           "RunComparison", "RunFolder", "RunListener", "Suggested", "TableOptions",
           "WrittenLabels", "adapt", "compare", "drift", "evaluate", "export",
           "extract_features", "fit", "predict", "resume", "suggest"]  # fmt: skip

_HOMES = (
    "progress",
    "runs.options",
    "runs.folder",
    "usecases.fit_run",
    "usecases.resume_run",
    "usecases.predict_samples",
    "usecases.evaluate_run",
    "usecases.export_model",
    "usecases.adapt_run",
    "usecases.detect_drift",
    "usecases.drift_of_samples",
    "usecases.compare_runs",
    "usecases.suggest_samples",
)


def __getattr__(name: str) -> Any:
    # Imported on first use: the command line imports light modules of this package for its help.
    if name in __all__:
        for home in _HOMES:
            module = importlib.import_module(f"opensetda.{home}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module 'opensetda.usecases' has no attribute {name!r}")
