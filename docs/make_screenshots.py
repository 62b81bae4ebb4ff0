"""Make the pictures of the report and of the review in `docs/images`: `make screenshots`.

Runs `osda demo` into a temporary folder, or takes a run of it, and opens both pages in Chromium.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

IMAGES = Path(__file__).parent / "images"
OSDA = (sys.executable, "-m", "opensetda")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# No network access; no screen or graphics card needed.
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
WIDTH, PHONE_WIDTH, PHONE_HEIGHT = 1440, 390, 844
SCALE = 1.5
MOST_BYTES = 500_000
# Hidden, so that the map is on the first screen; the README says that the picture is a part.
LEFT_OUT = ".summary > h2.minor, .summary > .metrics, .summary > .labels { display: none }"


def main() -> None:
    """Make all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, metavar="RUN", help="a run of 'osda demo'")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, open_browser() as browser:
        run, page = arguments.run, Path(temporary) / "report.html"
        if run is None:
            run = Path(temporary) / "osda-demo"
            osda("demo", "--out", str(run))
        osda("report", str(run), "--out", str(page))
        for theme in ("light", "dark"):
            save(f"report-{theme}", picture_of_report(browser, page, theme))
        save("report-share", picture_of_share(browser, page))
        save("report-phone", picture_of_phone(browser, page))
        with reviewing(run) as address:
            save("review", picture_of_review(browser, address))


def osda(*command: str) -> None:
    """Run a command of the package, or exit if it fails."""
    done = subprocess.run([*OSDA, *command, "--quiet"], stdout=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"make_screenshots: 'osda {command[0]}' failed")


@contextlib.contextmanager
def open_browser() -> Iterator[Any]:
    """Start Chromium, or exit with one line."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sys.exit("make_screenshots: playwright is missing; pip install -e '.[dev]'")
    program = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if program is None:
        sys.exit("make_screenshots: Chromium is missing; apt install chromium")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def reviewing(run: Path) -> Iterator[str]:
    """Serve the review of a run, and yield its address."""
    command = [*OSDA, "review", str(run), "--no-browser", "--quiet"]
    unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=unbuffered) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            if not address.startswith("http://"):
                sys.exit("make_screenshots: 'osda review' failed")
            yield address
        finally:
            server.terminate()


def picture_of_report(browser: Any, page: Path, theme: str) -> bytes:
    """Return headline and map, with the pointer at an unknown."""
    # High enough that nothing scrolls, which would move the pointer off its mark.
    with opened(browser, page.as_uri(), WIDTH, 2000, SCALE, theme) as tab:
        tab.add_style_tag(content=LEFT_OUT)
        tab.wait_for_timeout(300)
        point_at_unknown(tab)
        box = tab.locator("#map-box").bounding_box()
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": box["y"] + box["height"] + 24}
        return tab.screenshot(clip=clip)


def point_at_unknown(tab: Any) -> None:
    """Put the pointer on a mark of the map, so that its thumbnail shows."""
    box = tab.locator("#map-canvas").bounding_box()
    tip = tab.locator("#map-tip")
    for row in range(8, 60):
        for column in range(70, 20, -1):
            tab.mouse.move(
                box["x"] + box["width"] * column / 80, box["y"] + box["height"] * row / 80
            )
            if tip.is_visible() and "unknown" in tip.inner_text() and tip.locator("img").count():
                tab.wait_for_timeout(200)
                return


def picture_of_share(browser: Any, page: Path) -> bytes:
    """Return the part on the share of unknowns, its slider moved by ten per cent."""
    with opened(browser, page.as_uri(), WIDTH, 1200, SCALE) as tab:
        tab.locator("#share-slider").focus()
        for _ in range(10):
            tab.keyboard.press("ArrowRight")
        tab.wait_for_timeout(300)
        return tab.locator("#share").screenshot()


def picture_of_phone(browser: Any, page: Path) -> bytes:
    """Return the top of the report as a phone shows it."""
    with opened(browser, page.as_uri(), PHONE_WIDTH, PHONE_HEIGHT, SCALE) as tab:
        return tab.screenshot()


def picture_of_review(browser: Any, address: str) -> bytes:
    """Return the first group of unknowns in the review."""
    with opened(browser, address, WIDTH, 900, SCALE) as tab:
        tab.wait_for_selector("#main:not([hidden])")
        tab.get_by_text("Unknown groups").wait_for(timeout=120_000)
        tab.click("[data-key='1']")
        tab.wait_for_selector("#grid img")
        tab.wait_for_load_state("networkidle")
        return tab.screenshot()


@contextlib.contextmanager
def opened(
    browser: Any, address: str, width: int, height: int, scale: float, theme: str = "light"
) -> Iterator[Any]:
    """Open a page in a new window."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        device_scale_factor=scale,
        color_scheme=theme,
        reduced_motion="reduce",
    )
    tab = context.new_page()
    tab.goto(address)
    tab.wait_for_timeout(500)
    try:
        yield tab
    finally:
        context.close()


def save(name: str, png: bytes) -> None:
    """Write a picture with 256 colours, which look the same and take less space.

    The usual choice of colours would drop those of small marks.
    """
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    small = picture.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    path = IMAGES / f"{name}.png"
    small.save(path, optimize=True)
    size = path.stat().st_size
    sys.stdout.write(f"{path}  {picture.width} x {picture.height}, {size / 1000:,.0f} kB\n")
    if size > MOST_BYTES:
        sys.exit(f"make_screenshots: {path} has more than {MOST_BYTES / 1000:,.0f} kB")


if __name__ == "__main__":
    main()
