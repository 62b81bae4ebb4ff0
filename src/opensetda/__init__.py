"""Open-set unsupervised domain adaptation.

Label a target domain with the classes of a source domain, and say "unknown"
where none of them fits.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# ONNX Runtime reports its use to its maker, unless told not to before it is imported: here, and in
# the processes that this one starts. Nothing leaves this machine.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from opensetda.baselines.ati import ATI
    from opensetda.baselines.dann import DANN
    from opensetda.baselines.daod import DAOD
    from opensetda.baselines.mmd import MMD
    from opensetda.baselines.osbp import OSBP
    from opensetda.baselines.oslpp import OSLPP
    from opensetda.baselines.ovanet import OVANet
    from opensetda.baselines.source_only import SourceOnly
    from opensetda.baselines.sta import STA
    from opensetda.baselines.uniot import UniOT
    from opensetda.errors import InputError
    from opensetda.means.estimator import ClassMeans, MovingMeans, SmoothedMeans
    from opensetda.metrics.model_selection import TargetKFold, hos_scorer
    from opensetda.metrics.open_set import evaluate
    from opensetda.pgl.estimator import PGLClassifier
    from opensetda.pgl.settings import PGLSettings
    from opensetda.report.notebook import show
    from opensetda.runs.folder import load, save

# Imported on first use, so that `import opensetda` and `osda --help` do not wait for torch.
_HOMES = {
    "ATI": "baselines.ati",
    "DANN": "baselines.dann",
    "DAOD": "baselines.daod",
    "MMD": "baselines.mmd",
    "OSBP": "baselines.osbp",
    "OSLPP": "baselines.oslpp",
    "OVANet": "baselines.ovanet",
    "STA": "baselines.sta",
    "UniOT": "baselines.uniot",
    "ClassMeans": "means.estimator",
    "InputError": "errors",
    "MovingMeans": "means.estimator",
    "PGLClassifier": "pgl.estimator",
    "PGLSettings": "pgl.settings",
    "SmoothedMeans": "means.estimator",
    "SourceOnly": "baselines.source_only",
    "TargetKFold": "metrics.model_selection",
    "evaluate": "metrics",
    "hos_scorer": "metrics.model_selection",
    "load": "runs.folder",
    "save": "runs.folder",
    "show": "report.notebook",
}

__all__ = [
    "ATI",
    "DANN",
    "DAOD",
    "MMD",
    "OSBP",
    "OSLPP",
    "STA",
    "ClassMeans",
    "InputError",
    "MovingMeans",
    "OVANet",
    "PGLClassifier",
    "PGLSettings",
    "SmoothedMeans",
    "SourceOnly",
    "TargetKFold",
    "UniOT",
    "__version__",
    "evaluate",
    "hos_scorer",
    "load",
    "save",
    "show",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"opensetda.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'opensetda' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
