"""A headless Chromium for the tests of pages; where there is none, they skip in words."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

# Nothing that talks to a network, and nothing that wants a screen or a graphics card.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium_path() -> str | None:
    """Return the browser that is installed, if there is one."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


@contextlib.contextmanager
def open_browser() -> Iterator[Any]:
    """Start a browser, or skip the test."""
    api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (pip install -e '.[dev]')"
    )
    path = chromium_path()
    if path is None:
        pytest.skip("no Chromium is installed (apt install chromium)")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A page, all that it said, also in dialogs, and asked for; `options` are of its context."""

    def __init__(
        self, browser: Any, address: str, width: int = 1440, height: int = 900, **options: Any
    ) -> None:
        options.setdefault("reduced_motion", "reduce")
        self.context = browser.new_context(viewport={"width": width, "height": height}, **options)
        self.page = page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        page.on("dialog", self._dismiss)
        page.on("request", self._count)
        page.goto(address)

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *raised: object) -> None:
        self.context.close()

    def _dismiss(self, dialog: Any) -> None:
        self.said.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _count(self, request: Any) -> None:
        if not request.url.startswith("data:"):
            self.asked.append(request.url)

    def assert_fits(self) -> None:
        """Nothing is wider than the window of a phone or a desk."""
        for width in (390, 1440):
            self.page.set_viewport_size({"width": width, "height": 900})
            self.settle()
            assert self.page.evaluate("document.scrollingElement.scrollWidth") <= width

    def wait_for(self, selector: str, text: str) -> None:
        """Wait until an element shows a text."""
        shown = f"document.querySelector({json.dumps(selector)}).innerText"
        self.until(f"{shown}.includes({json.dumps(text)})")

    def until(self, expression: str, seconds: float = 30.0) -> None:
        """Wait until an expression is true.

        Playwright's own way to wait evaluates a string in the page, which its policy forbids.
        """
        stop = time.monotonic() + seconds
        while not self.page.evaluate(expression):
            assert time.monotonic() < stop, f"never true: {expression}"
            self.page.wait_for_timeout(15)

    def settle(self) -> None:
        """Wait until what was asked for has been drawn."""
        self.page.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )


def axe_findings(page: Any) -> list[str]:
    """Return the serious and critical findings of axe-core on a page, one line for each element."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright",
        reason="axe-playwright-python is not installed (pip install -e '.[dev]')",
    )
    found = axe.Axe().run(page).response["violations"]
    return [
        " ".join(
            f"{finding['id']} ({finding['impact']}) at {node['target']}: "
            f"{node['failureSummary']}".split()
        )
        for finding in found
        if finding["impact"] in ("serious", "critical")
        for node in finding["nodes"]
    ]
