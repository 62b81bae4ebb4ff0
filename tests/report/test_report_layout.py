"""The layout of the report: on a desk and on a phone, cards, charts and columns."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from report_helpers import make_report

from browser_helpers import Watched
from opensetda.report.page import render_page
from opensetda.runs.sample_map import MOST_GROUPS, group_rows

SIZES = {"desk": (1280, 900), "phone": (390, 844)}
_TOPS = "[...document.querySelectorAll('.checks > .sample')].map(s => s.offsetTop)"
_CHART = "[...document.querySelectorAll('.plot')].find(p => p.offsetWidth)"
_FILLS = f"[...{_CHART}.querySelectorAll('path')].map(p => getComputedStyle(p).fill)"


def with_others(report):
    border = tuple(replace(card, others=(("cat", 0.3), ("dog", 0.2))) for card in report.border)
    return replace(report, border=border)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("layout")
    made = {}
    for name, pictures in (("images", True), ("rows", False)):
        page = render_page(with_others(make_report(pictures=pictures)))
        path = Path(folder / f"{name}.html")
        path.write_text(page, encoding="utf-8")
        made[name] = path.as_uri()
    return made


@pytest.fixture(params=SIZES)
def size(request):
    return SIZES[request.param]


def test_cards_to_check_fill_their_rows(browser, pages, size):
    with Watched(browser, pages["images"], *size) as watched:
        in_row = Counter(watched.page.evaluate(_TOPS))
        assert len({*in_row.values()}) == 1


def test_the_chart_fills_its_card_and_fits_the_screen(browser, pages, size):
    with Watched(browser, pages["images"], *size) as watched:
        chart, card = watched.page.evaluate(
            f"(() => {{ const p = {_CHART}; return [p.querySelector('svg').clientWidth, "
            "p.parentElement.clientWidth]; })()"
        )
        assert 0.85 * card < chart <= card
        watched.assert_fits()


def test_unknown_has_one_colour_and_no_class_has_it(browser, pages):
    with Watched(browser, pages["images"], *SIZES["desk"]) as watched:
        page = watched.page
        color = "getComputedStyle(document.querySelector('.swatch.{}')).backgroundColor"
        unknown = page.evaluate(color.format("ku"))
        classes = {page.evaluate(color.format(kind)) for kind in ("k0", "k1", "k2")}
        drawn = {*page.evaluate(_FILLS)}
        assert unknown in drawn
        assert not drawn & classes


def test_the_confidence_of_every_class_is_on_the_phone(browser, pages):
    with Watched(browser, pages["images"], *SIZES["phone"]) as watched:
        columns = watched.page.locator(".labels .sure")
        assert columns.count() > 0
        assert all(columns.nth(place).is_visible() for place in range(columns.count()))


def test_worth_checking_shows_the_confidence_and_what_else_it_may_be(browser, pages):
    with Watched(browser, pages["rows"], *SIZES["desk"]) as watched:
        first = watched.page.locator(".checks .sample").first.inner_text()
        assert "99\u202f%" in first
        assert "cat" in first
        assert "dog" in first


def test_long_galleries_are_folded(browser, pages):
    with Watched(browser, pages["images"], *SIZES["desk"]) as watched:
        galleries = watched.page.locator("details.gallery")
        assert galleries.count() == len(make_report().galleries)
        assert not any(galleries.nth(n).get_attribute("open") for n in range(galleries.count()))


def test_file_names_break_after_separators_only():
    page = render_page(make_report(names=("site-2/run_07.final/IMG_20240131_120000.jpg",)))
    assert "IMG_<wbr>20240131_<wbr>120000.<wbr>jpg" in page


def test_groups_are_few():
    rng = np.random.default_rng(0)
    # Forty fragments of four kinds.
    kinds = np.eye(16)[np.arange(400) % 4]
    fragments = kinds + 0.2 * np.eye(16)[4 + np.arange(400) % 12]
    rows = fragments + 0.02 * rng.normal(size=(400, 16))
    groups = group_rows(rows)
    assert len(groups) <= MOST_GROUPS <= 12
    assert sum(map(len, groups)) == 400
