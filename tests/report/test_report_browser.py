"""The report in a browser: it is drawn, it answers, and it asks for nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_helpers import HOSTILE, hostile_report, make_report

from browser_helpers import Watched, axe_findings
from opensetda.report.page import render_page

_DRAWN = "document.getElementById('map-canvas').toDataURL()"
_OPEN_ALL = "document.querySelectorAll('details').forEach(d => d.open = true)"
_BACKGROUND = "getComputedStyle(document.body).backgroundColor"


def written(folder: Path, report: Any) -> Path:
    path = folder / "report.html"
    path.write_text(render_page(report), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("report"), make_report())


def assert_fits(watched: Watched) -> None:
    """Nothing is wider than the window of a phone or a desk."""
    watched.page.evaluate(_OPEN_ALL)
    for width in (390, 1440):
        watched.page.set_viewport_size({"width": width, "height": 900})
        watched.settle()
        assert watched.overflow() <= 0, width


def test_a_walk_through_the_report(browser, full):
    with Watched(browser, full, color_scheme="light") as watched:
        page = watched.page
        watched.settle()
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
        assert_fits(watched)
        page.locator("footer").scroll_into_view_if_needed()
        watched.settle()
        assert page.locator(".contents a[aria-current]").inner_text() == "Settings"
        assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth)")
        assert watched.said == []
        assert set(watched.asked) == {full.as_uri()}


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


def test_hostile_names_are_text_and_fit(browser, tmp_path):
    path = written(tmp_path, hostile_report())
    with Watched(browser, path) as watched:
        page = watched.page
        assert_fits(watched)
        assert page.locator("h1").inner_text() == HOSTILE[0]
        assert page.locator("#map-legend .entry .name").first.inner_text() == HOSTILE[0]
        page.evaluate("document.getElementById('map-canvas').focus()")
        page.keyboard.press("ArrowRight")
        page.locator("#map-colour").select_option("truth")
        watched.settle()
        assert (watched.alerts, watched.said, watched.asked) == ([], [], [path.as_uri()])
        assert page.locator("main img[src='x']").count() == 0


def test_a_tap_on_a_phone_and_a_page_without_scripts(browser, full):
    with Watched(browser, full, 390, 844, has_touch=True, is_mobile=True) as watched:
        page, canvas = watched.page, watched.page.locator("#map-canvas")
        canvas.scroll_into_view_if_needed()
        box, (x, y) = canvas.bounding_box(), page.evaluate("osdaMap.screenPosition(200)")
        page.touchscreen.tap(box["x"] + 1 + x, box["y"] + 1 + y)
        page.locator("#map-tip").wait_for(state="visible")
    with Watched(browser, full, java_script_enabled=False) as watched:
        page = watched.page
        assert page.locator("noscript").first.is_visible()
        assert page.locator("#map-box").is_hidden()
        assert page.locator("#confusion svg").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser, tmp_path, scheme):
    """In the light, of more classes than colours, on a phone."""
    known = [f"class {number:02d}" for number in range(12 if scheme == "light" else 3)]
    known[-1] = "a long name " * 4
    report = make_report(known=known, new=["pen"], n_source=30, n_target=40)
    width = 390 if scheme == "light" else 1440
    with Watched(browser, written(tmp_path, report), width, color_scheme=scheme) as watched:
        watched.page.evaluate(_OPEN_ALL)
        assert axe_findings(watched.page) == []
        looks = watched.page.evaluate(
            """[...document.querySelectorAll("#map-legend .swatch")].map(e => {
              const style = getComputedStyle(e);
              return style.backgroundColor + style.clipPath;
            })"""
        )
        assert len(set(looks)) == len(looks) == len(known) + 1
