"""Small pages in the style of the report: a drift, and a comparison of two runs."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opensetda import __version__
from opensetda.report.page import asset, page_policy, template_environment
from opensetda.system.files import new_file

if TYPE_CHECKING:
    from opensetda.runs.folder import RunFolder
    from opensetda.usecases.compare_runs import RunComparison
    from opensetda.usecases.drift_of_samples import Drift

MOST_PICTURES = 200


def write_drift_page(path: Path, run: str, found: Sequence[tuple[str, Drift]]) -> None:
    """Write what was found of each file or folder, the last one at the end."""
    _write(path, "drift.html", run=run, found=found)


def write_comparison_page(path: Path, run: RunFolder, found: RunComparison) -> None:
    """Write which labels differ; `run` is the second run, whose pictures are shown."""
    from opensetda.runs.pictures import Pictures
    from opensetda.usecases.compare_runs import SHOWN

    pictures = Pictures(run)
    left = MOST_PICTURES
    groups = []
    for group in found.groups:
        samples = []
        for row in group.rows[:SHOWN].tolist():
            place = found.place(row)
            image = pictures.thumbnail(row) if left > 0 else None
            left -= 1
            samples.append(
                {
                    "id": str(found.ids[place]),
                    "before": str(found.before[place]),
                    "after": str(found.after[place]),
                    "confidence": float(found.p_after[place]),
                    "image": image and base64.b64encode(image).decode("ascii"),
                }
            )
        groups.append({"count": len(group.rows), "most": group.most, "samples": samples})
    _write(path, "comparison.html", found=found, groups=groups)


def _write(path: Path, template: str, **values: Any) -> None:
    page = (
        template_environment()
        .get_template(template)
        .render(
            styles=asset("base.css"),
            light=asset("light.css"),
            dark=asset("dark.css"),
            policy=page_policy(""),
            version=__version__,
            **values,
        )
    )
    with new_file(path) as aside:
        aside.write_text(page.encode("utf-8", "backslashreplace").decode("utf-8"), encoding="utf-8")
