"""The scripts beside an exported model: they use it without torch and without this package."""

from __future__ import annotations

IMAGES = '''\
"""Label images: python use.py IMAGES... (needs onnxruntime, numpy and pillow)."""

import os
import sys
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before the import
import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession(Path(__file__).with_name("model.onnx"))
for path in sys.argv[1:]:
    image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    label, confidence = session.run(["label", "confidence"], {"image": np.asarray(image)})
    print(path, label[0], f"{confidence[0]:.3f}")
'''

TABLE = '''\
"""Label the rows of a CSV table: python use.py TABLE.csv (needs onnxruntime and numpy)."""

import csv
import json
import os
import sys
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before the import
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(Path(__file__).with_name("model.onnx"))
about = {k: json.loads(v) for k, v in session.get_modelmeta().custom_metadata_map.items()
         if k in ("feature_names", "categories")}  # fmt: skip
values = [(name, v) for name, kinds in about["categories"].items() for v in kinds]
names = about["feature_names"][: len(about["feature_names"]) - len(values)]
with Path(sys.argv[1]).open(newline="") as table:
    rows = [[float(row[name] or "nan") for name in names] + [row[c] == v for c, v in values]
            for row in csv.DictReader(table)]  # fmt: skip
label, confidence = session.run(["label", "confidence"], {"rows": np.array(rows, np.float32)})
for number, (name, share) in enumerate(zip(label, confidence), start=1):
    print(number, name, f"{share:.3f}")
'''

ARRAY = '''\
"""Label rows of features: python use.py ROWS.npy (needs onnxruntime and numpy)."""

import os
import sys
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before the import
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(Path(__file__).with_name("model.onnx"))
rows = np.load(sys.argv[1], allow_pickle=False).astype(np.float32)
label, confidence = session.run(["label", "confidence"], {"rows": rows})
for number, (name, share) in enumerate(zip(label, confidence), start=1):
    print(number, name, f"{share:.3f}")
'''
