"""Label a target domain with the classes of a source domain, or "unknown" if none fits."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Nothing leaves this machine: ONNX Runtime would report its use, unless told not to before.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from opensetda.backbones.own import use_backbone as use_backbone
    from opensetda.errors import InputError as InputError
    from opensetda.methods.committee import Committee as Committee
    from opensetda.methods.daod import DAOD as DAOD
    from opensetda.methods.means.estimator import ClassMeans as ClassMeans
    from opensetda.methods.means.estimator import MovingMeans as MovingMeans
    from opensetda.methods.means.estimator import SmoothedMeans as SmoothedMeans
    from opensetda.methods.rivals.ati import ATI as ATI
    from opensetda.methods.rivals.dann import DANN as DANN
    from opensetda.methods.rivals.mmd import MMD as MMD
    from opensetda.methods.rivals.osbp import OSBP as OSBP
    from opensetda.methods.rivals.oslpp import OSLPP as OSLPP
    from opensetda.methods.rivals.ovanet import OVANet as OVANet
    from opensetda.methods.rivals.source_only import SourceOnly as SourceOnly
    from opensetda.methods.rivals.sta import STA as STA
    from opensetda.methods.rivals.uniot import UniOT as UniOT
    from opensetda.metrics.open_set import evaluate as evaluate
    from opensetda.model_selection import DomainKFold as DomainKFold
    from opensetda.pgl.estimator import PGLClassifier as PGLClassifier
    from opensetda.pgl.settings import PGLSettings as PGLSettings
    from opensetda.report import show as show
    from opensetda.runs.folder import load as load
    from opensetda.runs.folder import save as save

# Imported on first use, so that `import opensetda` and `osda --help` do not wait for torch.
_HOMES = {
    "ATI": "methods.rivals.ati",
    "ClassMeans": "methods.means.estimator",
    "Committee": "methods.committee",
    "DANN": "methods.rivals.dann",
    "DAOD": "methods.daod",
    "DomainKFold": "model_selection",
    "InputError": "errors",
    "MMD": "methods.rivals.mmd",
    "MovingMeans": "methods.means.estimator",
    "OSBP": "methods.rivals.osbp",
    "OSLPP": "methods.rivals.oslpp",
    "OVANet": "methods.rivals.ovanet",
    "PGLClassifier": "pgl.estimator",
    "PGLSettings": "pgl.settings",
    "STA": "methods.rivals.sta",
    "SmoothedMeans": "methods.means.estimator",
    "SourceOnly": "methods.rivals.source_only",
    "UniOT": "methods.rivals.uniot",
    "evaluate": "metrics",
    "load": "runs.folder",
    "save": "runs.folder",
    "show": "report",
    "use_backbone": "backbones.own",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"opensetda.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'opensetda' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
