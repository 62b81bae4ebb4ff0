"""Open-set unsupervised domain adaptation.

Label a target domain with the classes of a source domain, and say "unknown"
where none of them fits.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from opensetda.baselines.class_means import ProgressiveClassMeans
    from opensetda.baselines.source_only import SourceOnly
    from opensetda.errors import InputError
    from opensetda.metrics import evaluate
    from opensetda.pgl.estimator import PGLClassifier
    from opensetda.pgl.settings import PGLSettings

# Imported on first use, so that `import opensetda` and `osda --help` do not wait for torch.
_HOMES = {
    "InputError": "errors",
    "PGLClassifier": "pgl.estimator",
    "PGLSettings": "pgl.settings",
    "ProgressiveClassMeans": "baselines.class_means",
    "SourceOnly": "baselines.source_only",
    "evaluate": "metrics",
}

__all__ = [
    "InputError",
    "PGLClassifier",
    "PGLSettings",
    "ProgressiveClassMeans",
    "SourceOnly",
    "__version__",
    "evaluate",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"opensetda.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'opensetda' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
