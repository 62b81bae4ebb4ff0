"""The files of an analysis: each appears whole or not at all."""

from __future__ import annotations

from pathlib import Path

from opensetda.analyses.contract import AnalysisResult
from opensetda.runs.figure_style import figure_bytes
from opensetda.system.files import new_file


def write_analysis(folder: Path, name: str, result: AnalysisResult, command: str) -> list[Path]:
    """Write table and figure, and the single runs if there is a grid; earlier ones are replaced.

    Parameters
    ----------
    folder : Path
        Is made if need be.
    name : str
        The analysis: the files are called so.
    command : str
        What makes them again; the Markdown file says so.

    Returns
    -------
    list of Path
        What was written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    table = result.table
    page = f"{table.to_markdown()}\n![{table.title}]({name}.png)\n\nMade by `{command}`.\n"
    contents = {
        ".csv": table.to_csv().encode(),
        ".md": page.encode(),
        ".png": figure_bytes(result.figure, "png"),
        ".pdf": figure_bytes(result.figure, "pdf"),
    }
    written = []
    for ending, content in contents.items():
        path = folder / f"{name}{ending}"
        with new_file(path) as aside:
            aside.write_bytes(content)
        written.append(path)
    if result.runs is not None:
        path = folder / f"{name}.parquet"
        result.runs.write_parquet(path)
        written.append(path)
    return written
