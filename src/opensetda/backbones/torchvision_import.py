"""Import timm where torchvision's wheel does not fit the torch beside it.

timm imports torchvision. A torchvision whose compiled part does not load, for example
the CUDA build beside a CPU-only torch, fails with "operator torchvision::nms does not
exist". None of its compiled operators is used here, so that declaring the two it asks
for is enough.
"""

from __future__ import annotations

import importlib
import sys
import threading
from types import ModuleType
from typing import Any

_OPERATORS = ("nms", "qnms")
_SCHEMA = "{}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

_importing = threading.Lock()
_declared: list[Any] = []  # torch forgets operators whose Library object is gone


def import_timm() -> ModuleType:
    """Return timm; the one place that imports it."""
    with _importing:
        _import_torchvision()
        return importlib.import_module("timm")


def _import_torchvision() -> None:
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        _forget_half_imported()
        _declare_operators()
        importlib.import_module("torchvision")


def _forget_half_imported() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]


def _declare_operators() -> None:
    import torch

    library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for operator in _OPERATORS:
        library.define(_SCHEMA.format(operator))
    _declared.append(library)
