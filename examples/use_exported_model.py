"""Export the model of a run, and use the file with ONNX Runtime alone.

    python examples/use_exported_model.py

`label` is all that a program needs that labels new rows: no torch, no OpenSetDA.
"""

import json
import os
import subprocess
import tempfile

import numpy as np


def measured(kinds: list[int], seed: int) -> np.ndarray:
    """Return 40 rows of each kind."""
    rng = np.random.default_rng(seed)
    return np.concatenate([4 * np.eye(4, 12)[k] + rng.normal(size=(40, 12)) for k in kinds])


def label(model: str, rows: np.ndarray) -> None:
    """Print the label, its probability and the known classes' probabilities of each row."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before the import
    import onnxruntime

    session = onnxruntime.InferenceSession(model)
    classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
    names = ["label", "confidence", "probabilities"]
    for found, share, shares in zip(*session.run(names, {"rows": rows}), strict=True):
        print(found, f"{share:.3f}", dict(zip(classes, shares.round(3).tolist(), strict=False)))


with tempfile.TemporaryDirectory() as folder:
    shop, market, run, model = (f"{folder}/{n}" for n in ("a.npz", "b.npz", "run", "model.onnx"))
    np.savez(shop, X=measured([0, 1, 2], seed=0), y=np.repeat(["apple", "pear", "plum"], 40))
    np.savez(market, X=measured([0, 1, 2, 3], seed=1))
    subprocess.run(["osda", "fit", shop, market, "--out", run], check=True)
    subprocess.run(["osda", "export", run, "--to", model], check=True)
    label(model, measured([0, 3], seed=2)[::20].astype(np.float32))
