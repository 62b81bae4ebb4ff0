"""A headless Chromium for the tests of pages; where there is none, they skip in words."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
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
    """A page, and all that it said, asked for and stumbled over.

    Parameters
    ----------
    browser : Browser
        Where to open it.
    address : Path or str
        A file, or an address.
    width, height : int
        Of the window.
    options
        Of the browser's context, such as ``color_scheme``.
    """

    def __init__(
        self,
        browser: Any,
        address: Path | str,
        width: int = 1440,
        height: int = 900,
        **options: Any,
    ) -> None:
        options.setdefault("reduced_motion", "reduce")
        self.context = browser.new_context(viewport={"width": width, "height": height}, **options)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.alerts: list[str] = []
        page = self.page
        page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        page.on("dialog", self._dismiss)
        page.on("request", self._count)
        page.goto(address.as_uri() if isinstance(address, Path) else address)

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *raised: object) -> None:
        self.context.close()

    def _dismiss(self, dialog: Any) -> None:
        self.alerts.append(dialog.message)
        dialog.dismiss()

    def _count(self, request: Any) -> None:
        if not request.url.startswith("data:"):
            self.asked.append(request.url)

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        return int(self.page.evaluate("document.scrollingElement.scrollWidth - window.innerWidth"))

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
