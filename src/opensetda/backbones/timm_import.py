"""The library timm, imported when it is needed and where it can be."""

from __future__ import annotations

import importlib
import sys
import threading
from types import ModuleType
from typing import Any

TIMM_PREFIX = "timm:"  # marks a backbone that is given by its name in timm
_declared: list[Any] = []  # torch forgets operators whose Library object is gone
_importing = threading.Lock()


def import_timm() -> ModuleType:
    """Return timm; nothing else imports it.

    timm imports torchvision. A torchvision whose compiled part does not load, for example the CUDA
    build beside a CPU-only torch, fails with "operator torchvision::nms does not exist". None of
    its compiled operators is used here, so declaring the two that it asks for is enough.
    """
    import torch

    with _importing:
        try:
            importlib.import_module("torchvision")
        except RuntimeError as error:
            if "torchvision::nms" not in str(error):
                raise
            for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
                del sys.modules[name]  # half imported
            library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
            for operator in ("nms", "qnms"):
                library.define(f"{operator}(Tensor a, Tensor b, float c) -> Tensor")
            _declared.append(library)
        return importlib.import_module("timm")
