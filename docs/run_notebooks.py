"""Execute the tutorial notebooks and store their outputs: ``make notebooks``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent / "tutorials").glob("*.ipynb"))


def executed(path: Path, folder: Path) -> Any:
    """Return a notebook with the outputs of all cells, run in `folder`; the file stays as it is."""
    notebook = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(folder)}}
    options = {"resources": place, "timeout": 300, "record_timing": False}
    NotebookClient(notebook, kernel_name="python3", **options).execute()
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        # A report has hundreds of KB; its one line of text says what was found.
        if "<iframe" in output.get("data", {}).get("text/html", ""):
            del output.data["text/html"]
    # Versions of this machine's Python say nothing, and would change with every run.
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


if __name__ == "__main__":
    for path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(executed(path, Path(folder)), path)
