"""Whole runs: `fit`, `resume`, `predict`, `evaluate` and `export`, and the run folder they write.

>>> from opensetda.runs import fit, predict
>>> run = fit("shop/", "street/", "run")  # doctest: +SKIP
>>> predict(run, "later/").labels  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opensetda.runs.evaluation import Evaluation, evaluate
    from opensetda.runs.exporting import ExportedModel, export
    from opensetda.runs.feature_files import extract_features
    from opensetda.runs.fit_and_resume import FittedRun, fit, resume
    from opensetda.runs.folder import RunFolder
    from opensetda.runs.listening import RunListener
    from opensetda.runs.predicting import WrittenLabels, predict
    from opensetda.runs.request import ImageOptions, TableOptions

# Imported on first use: the command line imports light modules of this package for its help.
_HOMES = {
    "Evaluation": "evaluation",
    "ExportedModel": "exporting",
    "FittedRun": "fit_and_resume",
    "ImageOptions": "request",
    "RunFolder": "folder",
    "RunListener": "listening",
    "TableOptions": "request",
    "WrittenLabels": "predicting",
    "evaluate": "evaluation",
    "export": "exporting",
    "extract_features": "feature_files",
    "fit": "fit_and_resume",
    "predict": "predicting",
    "resume": "fit_and_resume",
}

__all__ = ["Evaluation", "ExportedModel", "FittedRun", "ImageOptions", "RunFolder", "RunListener",
           "TableOptions", "WrittenLabels", "evaluate", "export", "extract_features", "fit",
           "predict", "resume"]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"opensetda.runs.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'opensetda.runs' has no attribute {name!r}")
