"""The report in a browser: it is drawn, it answers, and it asks for nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_helpers import HOSTILE, hostile_report, make_report

from browser_helpers import Watched, axe_findings
from opensetda.report.page import render_page
from opensetda.report.small_pages import write_drift_page

_DRAWN = "document.getElementById('map-canvas').toDataURL()"
_OPEN_ALL = "document.querySelectorAll('details').forEach(d => d.open = true)"
_BACKGROUND = "getComputedStyle(document.body).backgroundColor"


def written(folder: Path, report: Any) -> str:
    path = folder / "report.html"
    path.write_text(render_page(report), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(tmp_path_factory.mktemp("report"), make_report())


def test_a_walk_through_the_report(browser, full):
    with Watched(browser, full, color_scheme="light") as watched:
        page = watched.page
        watched.settle()
        assert axe_findings(page) == []
        walk_the_map(watched)
        walk_the_share(page)
        # The theme is switched, stays, and prints in light colours.
        light, drawn = page.evaluate(_BACKGROUND), page.evaluate(_DRAWN)
        page.locator(".theme").click()
        watched.settle()
        dark = page.evaluate(_BACKGROUND)
        assert dark != light
        assert page.evaluate(_DRAWN) != drawn
        page.reload()
        assert page.evaluate(_BACKGROUND) == dark
        page.emulate_media(media="print")
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"
        page.emulate_media(media="screen")
        page.evaluate(_OPEN_ALL)
        watched.assert_fits()
        page.set_viewport_size({"width": 390, "height": 900})
        widths = page.evaluate("[...document.querySelectorAll('.group img')].map(i => i.width)")
        assert min(widths) > 40
        page.set_viewport_size({"width": 1440, "height": 900})
        page.locator("footer").scroll_into_view_if_needed()
        watched.settle()
        assert page.locator(".contents a[aria-current]").inner_text() == "Settings"
        assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth)")
        assert watched.said == []
        assert set(watched.asked) == {full}


def walk_the_map(watched: Watched) -> None:
    page, seen = watched.page, set()
    for mode in ("truth", "domain", "confidence", "prediction"):
        page.locator("#map-colour").select_option(mode)
        watched.settle()
        seen.add(page.evaluate(_DRAWN))
        assert page.locator("#map-ringed").is_visible() == (mode == "truth")
    assert len(seen) == 4
    canvas, tip = page.locator("#map-canvas"), page.locator("#map-tip")
    canvas.scroll_into_view_if_needed()
    box, (x, y) = canvas.bounding_box(), page.evaluate("osdaMap.screenPosition(200)")
    # Places come back from the data.
    left, top = page.evaluate("osdaMap.screenPosition(300)")
    ours = make_report().map.places
    assert ((left > x), (top > y)) == (ours[300, 0] > ours[200, 0], ours[300, 1] < ours[200, 1])
    page.mouse.move(box["x"] + 1 + x, box["y"] + 1 + y)
    tip.wait_for(state="visible")
    assert f"frame_{page.evaluate('osdaMap.chosen()'):04d}.jpg" in tip.inner_text()
    watched.until("document.querySelector('#map-tip img').naturalWidth > 0")
    page.mouse.move(5, 5)
    tip.wait_for(state="hidden")
    # The wheel zooms a map that was clicked, and dragging moves it.
    canvas.click()
    page.mouse.wheel(0, -300)
    watched.until("osdaMap.zoom() > 1.2")
    before = page.evaluate("osdaMap.screenPosition(0)")
    page.mouse.down()
    page.mouse.move(600, 300)
    page.mouse.up()
    assert page.evaluate("osdaMap.screenPosition(0)") != before
    canvas.dblclick()
    assert page.evaluate("osdaMap.zoom()") == 1
    # Keys reach the map and lead through it.
    page.locator("#map-reset").focus()
    page.keyboard.press("Tab")
    chosen = set()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
        chosen.add(page.evaluate("osdaMap.chosen()"))
    assert None not in chosen
    assert len(chosen) == 3
    page.keyboard.press("+")
    assert page.evaluate("osdaMap.zoom()") > 1
    page.keyboard.press("0")
    page.keyboard.press("Escape")
    tip.wait_for(state="hidden")
    # The legend counts targets; classes are hidden and shown alone.
    samples, n_all = make_report().map, page.evaluate("osdaMap.pointCount()")
    counts = np.bincount(samples.labels[samples.is_target]).tolist()
    shown = page.locator("#map-legend .count").all_inner_texts()
    assert [int(text) for text in shown] == counts
    assert n_all == len(samples.names)
    page.locator("#map-legend .entry").first.click()
    rest = page.evaluate("osdaMap.visibleCount()")
    assert 0 < rest < n_all
    page.locator("#map-legend .only").first.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("osdaMap.visibleCount()") == n_all - rest
    page.locator("#map-all").click()
    assert page.evaluate("osdaMap.visibleCount()") == n_all


def walk_the_share(page: Any) -> None:
    words, slider = page.locator("#share-words"), page.locator("#share-slider")
    counts = page.locator("#share-counts .count")
    assert "as in the run" in words.inner_text()
    before = counts.all_inner_texts()
    slider.focus()
    for _ in range(8):
        page.keyboard.press("ArrowRight")
    # The run has 36.7 %, a position of its own.
    assert "44\u202f% unknown" in words.inner_text()
    assert "44\u202f% unknown" in slider.get_attribute("aria-valuetext")
    command = page.locator("#share-command").inner_text()
    assert command == "osda fit amazon webcam --openness 0.44 --out run-44"
    after = counts.all_inner_texts()
    assert int(after[-1].replace(",", "")) > int(before[-1].replace(",", ""))
    above, below = (page.locator(f"#share-{side} .sample") for side in ("above", "below"))
    assert (above.count(), below.count()) == (6, 6)
    assert set(below.locator(".given").all_inner_texts()) == {"unknown"}
    assert "unknown" not in above.locator(".given").all_inner_texts()
    assert page.locator("#share-threshold").inner_text() == "if 44\u202f%"
    page.locator("#share-back").click()
    assert counts.all_inner_texts() == before
    assert page.locator("#share-threshold").is_hidden()


def test_hostile_names_are_text_on_a_phone_in_the_dark(browser, tmp_path):
    address = written(tmp_path, hostile_report())
    look = {"has_touch": True, "is_mobile": True, "color_scheme": "dark"}
    with Watched(browser, address, 390, 844, **look) as watched:
        page, canvas = watched.page, watched.page.locator("#map-canvas")
        assert page.locator("h1").inner_text() == HOSTILE[0]
        assert page.locator("#map-legend .entry .name").first.inner_text() == HOSTILE[0]
        canvas.scroll_into_view_if_needed()
        box, (x, y) = canvas.bounding_box(), page.evaluate("osdaMap.screenPosition(200)")
        page.touchscreen.tap(box["x"] + 1 + x, box["y"] + 1 + y)
        page.locator("#map-tip").wait_for(state="visible")
        page.locator("#map-colour").select_option("truth")
        page.evaluate(_OPEN_ALL)
        watched.assert_fits()
        assert axe_findings(page) == []
        assert page.locator("main img[src='x']").count() == 0
        assert (watched.said, watched.asked) == ([], [address])


def test_a_small_page_uses_the_width_of_a_desk(browser, tmp_path):
    write_drift_page(tmp_path / "drift.html", "run", [])
    with Watched(browser, (tmp_path / "drift.html").as_uri(), width=1280) as watched:
        assert watched.page.locator("main").bounding_box()["width"] > 600
        watched.assert_fits()


def test_a_page_without_scripts(browser, full):
    with Watched(browser, full, java_script_enabled=False) as watched:
        page = watched.page
        assert page.locator("noscript").first.is_visible()
        assert page.locator("#map-box").is_hidden()
        assert page.locator("#confusion svg").is_visible()
