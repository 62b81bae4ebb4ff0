"""The paper's analyses on Office-31 features: the figures that docs/analyses.md tells.

    python benchmarks/analyses.py                    # all eight, about ten minutes on 2 cores
    python benchmarks/analyses.py steps bound        # some of them

Tables and figures go to --out. Each is one `osda analyse NAME office31`, as a user would type it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from office31 import DATA

BOTH = ("--task", "amazon-webcam", "--task", "dslr-amazon", "--seeds", "1")
ONE = ("--task", "amazon-webcam", "--seeds", "1")
ANALYSES = {
    "steps": BOTH,
    "bound": BOTH,
    "edges": ONE,
    "embedding": ONE,
    "losses": ONE,
    "alpha": ONE,
    "openness": ONE,
    "ablation": ONE,
}


def main() -> None:
    """Run them one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*ANALYSES, []], default=[])
    parser.add_argument("--data", type=Path, default=DATA / "efficientnet-lite0")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "analyses")
    options = parser.parse_args()
    if not options.data.is_dir():
        sys.exit(f"error: {options.data} does not exist; name the features' folder with --data")
    for name in options.names or ANALYSES:
        command = [sys.executable, "-m", "opensetda", "analyse", name, "office31"]
        command += ["--data", str(options.data), "--out", str(options.out), *ANALYSES[name]]
        print(f"\n{' '.join(command[2:])}", flush=True)
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
