"""The charts of the page: what is on them, whether it can be read, and SVG for the page."""

from __future__ import annotations

import itertools
import re
import warnings

import numpy as np
import pytest
from matplotlib import cbook
from matplotlib.text import Text
from report_helpers import HOSTILE

from opensetda.report import charts
from opensetda.report.charts import (
    curve_panels,
    draw_confusion,
    draw_lines,
    figure_bytes,
    figure_name,
    inline_svg,
    short_number,
)
from opensetda.report.content import Confusion
from opensetda.report.page import asset

FORMULAS = ("$x_1$", r"$\frac{", "$", r"a\$b$", *HOSTILE)


def texts(figure):
    return [text.get_text() for text in figure.findobj(Text) if text.get_visible()]


def overlapping(labels):
    """Pairs of words that are drawn over one another."""
    boxes = [(label.get_text(), label.get_window_extent().padded(-0.5)) for label in labels]
    return [(a, b) for (a, one), (b, two) in itertools.combinations(boxes, 2) if one.overlaps(two)]


def confusion_of(known, new):
    counts = np.random.default_rng(0).poisson(3, (len(known) + len(new), len(known) + 1))
    return Confusion((*known, *new), (*known, "unknown"), counts, len(known))


def numbered(n_known, n_unknown):
    return confusion_of(
        tuple(f"Alarm Clock {number:02d}" for number in range(n_known)),
        tuple(f"Unknown {number:02d}" for number in range(n_unknown)),
    )


def test_names_are_never_formulas_and_never_long():
    figure = draw_confusion(confusion_of(FORMULAS, ("$$", "long " * 40)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert figure_bytes(figure, "png")
    assert not any(cbook.is_math_text(text) or len(text) > 60 for text in texts(figure))
    assert r"\$x 1\$" in texts(figure)
    assert figure_name("two\nlines\tof \u202e it \udce9", 99) == "two lines of it"
    assert [short_number(value) for value in (1127.0, 79.04, 3.0, 0.2449)] == [
        *("1,127", "79", "3", "0.245")
    ]


@pytest.mark.parametrize(("n_known", "n_unknown"), [(5, 5), (25, 40), (65, 1)])
def test_all_classes_of_a_confusion_matrix_can_be_read(n_known, n_unknown):
    confusion = numbered(n_known, n_unknown)
    figure = draw_confusion(confusion)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == [*confusion.true_names]
    for labels in (axes.get_xticklabels(), axes.get_yticklabels(), axes.texts):
        assert overlapping(labels) == []
    assert figure.get_figwidth() <= 12


def test_only_a_method_that_learns_in_steps_has_curves():
    history = [{"step": step, "changed": None, "loss": {"edge": 1 / step}} for step in (1, 2, 3)]
    history[1]["changed"] = 0.2
    panels = curve_panels(history, None)
    assert [panel.title.split(":")[0] for panel in panels] == ["How settled", "What it learns"]
    assert panels[0].series[0].points == {2.0: 20.0}
    assert "edge 0.333" in texts(draw_lines(panels, ""))
    assert curve_panels(history[:1], None) == []
    assert curve_panels([{**entry, "loss": None} for entry in history], None) == []


def test_svg_has_the_colours_and_fonts_of_the_page_and_no_ids_of_others():
    chart = str(inline_svg(draw_confusion(confusion_of(("#0072B2", "<b>"), ())), 'a "chart"'))
    assert chart.startswith("<svg")
    assert 'aria-label="a &quot;chart&quot;"' in chart
    assert "var(--c0)" in chart
    assert re.findall(r"#[0-9a-fA-F]{6}\b", chart) == ["#0072B2"] * 2  # the name, not a colour
    assert "&lt;b&gt;" in chart
    assert not re.search(r"<style|DejaVu|http:|<g id", chart)


def test_charts_have_the_colours_of_the_figures_by_day():
    """The page names its colours, the figures have them: both are of one list."""
    names = re.findall(r"(--\w+): (#\w{6});", str(asset("light.css")))
    themed = {color.lower(): name[4:-1] for color, name in charts._COLORS.items()}
    of_classes = {color: name for color, name in themed.items() if name.startswith("--c")}
    assert of_classes == {color: name for name, color in names if color in of_classes}
    by_night = re.findall(r"(--[\w-]+):", str(asset("dark.css")))
    assert by_night == re.findall(r"(--[\w-]+):", str(asset("light.css")))
