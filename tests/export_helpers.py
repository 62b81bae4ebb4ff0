"""What the tests of exported and of saved models share: a small task, and scripts without torch."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnxruntime
import torch
from torch import nn

from opensetda.methods.base import OpenSetClassifier

WITHOUT_TORCH = "import sys; sys.modules.update(torch=None, opensetda=None)\n"


def rows_of(kinds, shift, seed, n=25, width=12):
    rng = np.random.default_rng(seed)
    centres = np.repeat(4 * np.eye(5, width)[list(kinds)], n, axis=0)
    return (centres + rng.normal(size=centres.shape) + shift).astype(np.float32)


SOURCE, TARGET = rows_of((0, 1, 2), 0.0, 0), rows_of((0, 1, 2, 3), 0.7, 1)
LATER = np.concatenate([rows_of((0, 1, 2, 3, 4), 0.7, 2), TARGET[:20], np.zeros((1, 12))])
LATER = LATER.astype(np.float32)
X = np.concatenate([SOURCE, TARGET])
Y = np.repeat(["cup", "pen", "sun", ""], [25, 25, 25, 100])
DOMAIN = np.repeat([1, -1], [75, 100])
QUICK = {"pgl": {"steps": 2, "epochs": 1, "edge_width": 8, "node_width": 8, "draws": 1}} | {
    name: {"iterations": 20} for name in ("dann", "mmd", "osbp", "ovanet", "sta", "uniot")
}


class Stranger(OpenSetClassifier):
    """A method of somebody else, whose scorer the exporter cannot handle."""

    class Scorer(nn.Module):
        def forward(self, rows):
            return rows[:, :3], torch.special.ndtri(torch.special.expit(rows[:, 0]))

    def _learn(self, domains, share, context):
        self.scorer_ = self.Scorer()

    def _make_scorer(self, arrays):
        return self.Scorer()


def session_of(content):
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])


def run_script(script, *arguments):
    """Run a script in a Python that cannot import torch or this package."""
    code = WITHOUT_TORCH + f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
