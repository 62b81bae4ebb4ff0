"""The scripts beside an exported model: they use it without torch and without this package."""

from __future__ import annotations

import inspect

from opensetda.backbones.model import resized
from opensetda.backbones.recipe import Preprocessing

_START = """\
import os
import sys
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before the import
import numpy as np
import onnxruntime
"""

ROWS = f'''\
"""Label rows: python use.py TABLE.csv, or ROWS.npy (needs onnxruntime and numpy)."""

import csv
import json
{_START}
session = onnxruntime.InferenceSession(Path(__file__).with_name("model.onnx"))
about = session.get_modelmeta().custom_metadata_map
if sys.argv[1].endswith(".npy"):
    rows = np.load(sys.argv[1], allow_pickle=False)
else:
    names, categories = json.loads(about["feature_names"]), json.loads(about["categories"])
    values = [(name, value) for name, kinds in categories.items() for value in kinds]
    numbers = names[: len(names) - len(values)]
    with Path(sys.argv[1]).open(newline="") as table:
        rows = [[float(row[name] or "nan") for name in numbers] + [row[c] == v for c, v in values]
                for row in csv.DictReader(table)]  # fmt: skip
rows = np.array(rows, np.float32)
for start in range(0, len(rows), 64):  # More at a time need more memory, and no less time.
    found = session.run(["label", "confidence"], {{"rows": rows[start : start + 64]}})
    for number, (name, share) in enumerate(zip(*found), start=start + 1):
        print(number, name, f"{{share:.3f}}")
'''


def image_script(how: Preprocessing) -> str:
    """Return the script for images, which resizes them with the function that `fit` used."""
    arguments = f"{how.size}, {how.shorter_side}, {how.resize!r}, {how.interpolation!r}"
    return f'''\
"""Label images: python use.py IMAGES... (needs onnxruntime, numpy and pillow)."""

{_START}from PIL import Image, ImageOps


{inspect.getsource(resized)}

options = onnxruntime.SessionOptions()
options.add_free_dimension_override_by_name("n", 1)  # faster, one image at a time
session = onnxruntime.InferenceSession(Path(__file__).with_name("model.onnx"), options)
for path in sys.argv[1:]:
    image = ImageOps.exif_transpose(Image.open(path))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    pixels = np.asarray(resized(image.convert("RGB"), {arguments}))
    label, confidence = session.run(["label", "confidence"], {{"pixels": pixels[None]}})
    print(path, label[0], f"{{confidence[0]:.3f}}")
'''
