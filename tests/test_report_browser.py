"""The report in a browser: it is drawn, it answers, and it asks for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser_helpers import Watched, axe_findings
from opensetda.report.page import render_page
from report_helpers import HOSTILE, hostile_report, make_report

# A copy is read, as the map's own canvas is not made for it, and Chromium says so.
_PIXELS = """
  const canvas = document.getElementById("map-canvas");
  const copy = new OffscreenCanvas(canvas.width, canvas.height);
  const context = copy.getContext("2d", { willReadFrequently: true });
  context.drawImage(canvas, 0, 0);
  const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
"""
# The share of pixels that something is drawn on.
_INKED = f"""() => {{ {_PIXELS}
  let inked = 0;
  for (let i = 3; i < pixels.length; i += 4) {{ inked += pixels[i] > 40 ? 1 : 0; }}
  return inked / (pixels.length / 4);
}}"""
# The colours there are, roughly.
_COLORS = f"""() => {{ {_PIXELS}
  const seen = new Set();
  for (let i = 0; i < pixels.length; i += 4) {{
    const color = [pixels[i] >> 5, pixels[i + 1] >> 5, pixels[i + 2] >> 5];
    if (pixels[i + 3] > 200) {{ seen.add(color.join()); }}
  }}
  return Array.from(seen).sort();
}}"""


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render_page(make_report()), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "report.html"
    path.write_text(render_page(hostile_report()), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def opened(browser: Any, full: Path) -> Iterator[Watched]:
    """The full report, opened once: what a test changes, it changes back."""
    with Watched(browser, full) as watched:
        yield watched


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small report with more classes than colours."""
    path = tmp_path_factory.mktemp("many") / "report.html"
    known = [f"class {number:02d}" for number in range(12)]
    made = make_report(known=known, new=["pen"], pictures=False, n_source=60, n_target=80)
    path.write_text(render_page(made), encoding="utf-8")
    return path


def point_at(page: Any, index: int) -> None:
    """Move the mouse to a sample of the map."""
    box = page.locator("#map-canvas").bounding_box()
    x, y = page.evaluate(f"osdaMap.screenPosition({index})")
    # One pixel of border.
    page.mouse.move(box["x"] + 1 + x, box["y"] + 1 + y)


def picked_sample(page: Any) -> int:
    """Return a target that has a picture and no other sample near it."""
    index = page.evaluate(
        """() => {
          const data = JSON.parse(document.getElementById("map-data").textContent);
          const at = Array.from({ length: data.n }, (_, i) => osdaMap.screenPosition(i));
          let best = null, widest = 0;
          for (let i = data.nSource; i < data.n; i += 1) {
            if (!data.pictures[i]) { continue; }
            let room = Infinity;
            for (let j = 0; j < data.n; j += 1) {
              const apart = Math.hypot(at[i][0] - at[j][0], at[i][1] - at[j][1]);
              if (j !== i) { room = Math.min(room, apart); }
            }
            if (room > widest) { widest = room; best = i; }
          }
          return best;
        }"""
    )
    return int(index)


def test_it_says_nothing_and_asks_for_nothing(opened, full):
    page = opened.page
    page.locator("footer").scroll_into_view_if_needed()
    opened.settle()
    assert opened.said == []
    assert opened.asked == [full.as_uri()]
    broken = page.evaluate(
        "[...document.images].filter(i => !(i.complete && i.naturalWidth > 0)).length"
    )
    assert broken == 0
    assert page.locator(".contents a[aria-current]").inner_text() == "Settings"


def test_the_map_is_drawn(opened):
    opened.settle()
    assert opened.page.evaluate("osdaMap.pointCount()") == 460
    assert opened.page.evaluate(_INKED) > 0.01


def test_colours_follow_what_is_asked(opened):
    page = opened.page
    seen = {}
    for mode in ("prediction", "domain", "confidence", "truth"):
        page.locator("#map-colour").select_option(mode)
        opened.settle()
        assert page.evaluate("osdaMap.colourBy()") == mode
        seen[mode] = page.evaluate(_COLORS)
        assert page.locator("#map-ringed").is_visible() == (mode == "truth")
    assert len({tuple(colors) for colors in seen.values()}) == 4
    assert page.locator("#map-legend li").count() == 12  # all true classes
    page.locator("#map-colour").select_option("prediction")
    assert opened.said == []


def test_pointing_at_a_sample_shows_it(opened, full):
    page = opened.page
    page.locator("#map-canvas").scroll_into_view_if_needed()
    index = picked_sample(page)
    point_at(page, index)
    tip = page.locator("#map-tip")
    tip.wait_for(state="visible")
    assert page.evaluate("osdaMap.chosen()") == index
    assert f"frame_{index:04d}.jpg" in tip.inner_text()
    assert "labelled" in tip.inner_text()
    assert "confidence" in tip.inner_text()
    opened.until("document.querySelector('#map-tip img').naturalWidth > 0")
    page.mouse.move(5, 5)
    tip.wait_for(state="hidden")
    assert opened.asked == [full.as_uri()]


def test_classes_are_hidden_and_shown_alone(opened):
    page = opened.page
    entries = page.locator("#map-legend .entry")
    entries.first.click()
    hidden = page.evaluate("osdaMap.visibleCount()")
    assert 0 < hidden < 460
    assert entries.first.get_attribute("aria-pressed") == "false"
    only = page.locator("#map-legend .only").first
    only.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("osdaMap.visibleCount()") == 460 - hidden
    page.locator("#map-all").click()
    assert page.evaluate("osdaMap.visibleCount()") == 460
    assert page.locator("#map-all").is_hidden()


def test_keys_reach_the_map_and_lead_through_it(opened):
    page = opened.page
    page.locator("#map-reset").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "map-canvas"
    seen = []
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
        seen.append(page.evaluate("osdaMap.chosen()"))
    assert None not in seen
    assert len(set(seen)) == 3
    page.locator("#map-tip").wait_for(state="visible")
    page.keyboard.press("+")
    assert page.evaluate("osdaMap.zoom()") > 1
    page.keyboard.press("0")
    assert page.evaluate("osdaMap.zoom()") == 1
    page.keyboard.press("Escape")
    page.locator("#map-tip").wait_for(state="hidden")


def assert_fits(watched: Watched) -> None:
    """Nothing is wider than the window of a phone or a desk."""
    page = watched.page
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    for width in (390, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        watched.settle()
        assert watched.overflow() <= 0, width


def test_nothing_is_wider_than_the_window(opened):
    assert_fits(opened)


def test_wheel_and_double_click_zoom(opened):
    page = opened.page
    canvas = page.locator("#map-canvas")
    canvas.scroll_into_view_if_needed()
    canvas.hover()
    top = page.evaluate("window.scrollY")
    page.mouse.wheel(0, 40)
    opened.until(f"window.scrollY > {top}")
    assert page.evaluate("osdaMap.zoom()") == 1
    canvas.click()
    page.mouse.wheel(0, -300)
    opened.until("osdaMap.zoom() > 1.2")
    before = page.evaluate("osdaMap.screenPosition(0)")
    page.mouse.down()
    page.mouse.move(600, 300)
    page.mouse.up()
    assert page.evaluate("osdaMap.screenPosition(0)") != before
    canvas.dblclick()
    assert page.evaluate("osdaMap.zoom()") == 1


def test_a_tap_on_a_phone_shows_a_sample(browser, full):
    with Watched(browser, full, 390, 844, has_touch=True, is_mobile=True) as watched:
        page = watched.page
        canvas = page.locator("#map-canvas")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        x, y = page.evaluate("osdaMap.screenPosition(200)")
        page.touchscreen.tap(box["x"] + 1 + x, box["y"] + 1 + y)
        tip = page.locator("#map-tip")
        tip.wait_for(state="visible")
        shown = tip.bounding_box()
        assert shown["x"] >= box["x"]
        assert shown["x"] + shown["width"] <= box["x"] + box["width"]


def test_the_theme_is_switched_and_stays(browser, many):
    background = "getComputedStyle(document.body).backgroundColor"
    with Watched(browser, many, color_scheme="light") as watched:
        page = watched.page
        light = page.evaluate(background)
        colors = page.evaluate(_COLORS)
        page.locator(".theme").click()
        watched.settle()
        dark = page.evaluate(background)
        assert dark != light
        assert page.evaluate(_COLORS) != colors
        page.reload()
        assert page.evaluate(background) == dark
        page.emulate_media(media="print")
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"
    with Watched(browser, many, color_scheme="dark") as watched:
        assert watched.page.evaluate(background) == dark
        watched.page.locator(".theme").click()
        assert watched.page.evaluate(background) == light


def test_hostile_names_are_text_and_fit(browser, hostile):
    with Watched(browser, hostile) as watched:
        page = watched.page
        assert_fits(watched)
        assert page.locator("h1").inner_text() == HOSTILE[0]
        legend = page.locator("#map-legend .entry .name").all_inner_texts()
        assert legend[0] == HOSTILE[0]
        page.evaluate("document.getElementById('map-canvas').focus()")
        for key in ("ArrowRight", "ArrowDown", "ArrowLeft"):
            page.keyboard.press(key)
        for mode in ("truth", "prediction"):
            page.locator("#map-colour").select_option(mode)
        watched.settle()
        assert watched.alerts == []
        assert watched.said == []
        assert watched.asked == [hostile.as_uri()]
        assert page.locator("main img[src='x']").count() == 0


def test_without_scripts_all_but_the_map_reads(browser, full):
    with Watched(browser, full, java_script_enabled=False) as watched:
        page = watched.page
        assert page.locator("noscript").first.is_visible()
        assert page.locator("#map-box").is_hidden()
        assert page.locator(".theme").is_hidden()
        assert page.locator("#confidence svg").is_visible()
        assert page.locator("#confusion svg").is_visible()


def test_the_slider_labels_by_another_share(opened):
    page = opened.page
    words, slider = page.locator("#share-words"), page.locator("#share-slider")
    command, counts = page.locator("#share-command"), page.locator("#share-counts .count")
    assert "as in the run" in words.inner_text()
    before = counts.all_inner_texts()
    assert page.locator("#share-back").is_hidden()
    slider.focus()
    for _ in range(8):
        page.keyboard.press("ArrowRight")
    # The run has 36.7 %, a position of its own.
    assert "44\u202f% unknown" in words.inner_text()
    assert "labelled otherwise than in the run" in words.inner_text()
    assert "44\u202f% unknown" in slider.get_attribute("aria-valuetext")
    assert command.inner_text() == "osda fit amazon webcam --openness 0.44 --out run-44"
    after = counts.all_inner_texts()
    assert int(after[-1].replace(",", "")) > int(before[-1].replace(",", ""))
    assert page.locator("#share-counts .change").first.inner_text().startswith("\N{MINUS SIGN}")
    above, below = (page.locator(f"#share-{side} .sample") for side in ("above", "below"))
    assert (above.count(), below.count()) == (6, 6)
    assert set(below.locator(".given").all_inner_texts()) == {"unknown"}
    assert "unknown" not in above.locator(".given").all_inner_texts()
    assert page.locator("#share-threshold").inner_text() == "if 44\u202f%"
    page.keyboard.press("Home")
    assert below.count() == 0
    assert int(counts.last.inner_text()) < 10  # rounded, in this report
    page.locator("#share-back").click()
    assert counts.all_inner_texts() == before
    assert page.evaluate("document.activeElement.id") == "share-slider"
    assert page.locator("#share-threshold").is_hidden()
    assert opened.said == []


def test_more_than_ten_classes_have_shapes(browser, many):
    with Watched(browser, many, 390) as watched:
        page = watched.page
        looks = page.evaluate(
            """[...document.querySelectorAll("#map-legend .swatch")].map(e => {
              const style = getComputedStyle(e);
              return style.backgroundColor + style.clipPath;
            })"""
        )
        assert len(set(looks)) == len(looks) == 13
        assert page.locator("#map-box .marks").inner_text().split() == [
            *("source", "(hollow)", "target", "(filled)")
        ]
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert axe_findings(page) == []


def test_axe_finds_nothing_serious_in_the_dark(browser, tmp_path):
    path, known = tmp_path / "report.html", ["ant", "bee", "a long name " * 4]
    made = make_report(known=known, new=["pen"], n_source=30, n_target=40)
    path.write_text(render_page(made), encoding="utf-8")
    with Watched(browser, path, color_scheme="dark") as watched:
        watched.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert axe_findings(watched.page) == []
