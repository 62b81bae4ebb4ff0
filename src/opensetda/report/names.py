"""Names of a run as a figure writes them: short, in one line, and never read as a formula."""

from __future__ import annotations

from opensetda.report.charts import shorten


def figure_name(name: str, longest: int) -> str:
    """Return a name for matplotlib; of a long one the beginning."""
    # What has no glyph is left out: signs that turn the direction of writing, above all.
    shown = "".join(sign for sign in name.replace("_", " ") if sign.isprintable() or sign.isspace())
    # Two dollars would be the borders of a formula, which may even have errors.
    return shorten(shown, longest).replace("$", r"\$")
