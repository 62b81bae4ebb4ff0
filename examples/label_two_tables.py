"""Label a CSV table with the classes of another, evaluate, and label new samples.

    python examples/label_two_tables.py

Writes small tables of generated features to a temporary folder: three kinds of fruit were
measured in the shop; in the market the features are shifted, and there is a fourth kind that the
shop does not have.
"""

import csv
import subprocess
import tempfile
from pathlib import Path

import numpy as np

FRUITS = {"apple": 0, "pear": 1, "plum": 2, "quince": 3}
FEATURES = [f"f{i}" for i in range(12)]


def write_table(path: Path, kinds: list[str], shift: float, seed: int) -> None:
    """Write 40 rows of each kind, with its label; `osda fit` ignores the labels of the target."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "kind", *FEATURES])
        for kind in kinds:
            centre = np.roll([3.0] * 3 + [0.0] * 9, 3 * FRUITS[kind]) + shift
            for number in range(40):
                features = rng.normal(centre, 1.0)
                writer.writerow([f"{kind}-{number}", kind, *features.round(3)])


def osda(*arguments: str) -> None:
    """Run a command and show its output."""
    print("$ osda", *arguments, flush=True)
    subprocess.run(["osda", *arguments], check=True)


with tempfile.TemporaryDirectory() as folder:
    shop, market, later = (Path(folder) / f"{name}.csv" for name in ("shop", "market", "later"))
    write_table(shop, ["apple", "pear", "plum"], shift=0.0, seed=0)
    write_table(market, list(FRUITS), shift=1.5, seed=1)
    write_table(later, list(FRUITS), shift=1.5, seed=2)
    run, labels = f"{folder}/run", f"{folder}/labels.csv"
    columns = ("--label-column", "kind", "--id-column", "id")
    osda("fit", str(shop), str(market), "--out", run, *columns)
    osda("evaluate", run, "--labels", str(market), *columns)
    osda("predict", run, str(later), "--out", labels, "--drop", "kind", "--id-column", "id")
    print(*Path(labels).read_text().splitlines()[:3], sep="\n")
