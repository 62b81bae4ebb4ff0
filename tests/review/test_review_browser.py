"""A walk through the review in a real browser: by keyboard, through a kill, and by touch."""

from __future__ import annotations

import csv
import json
import signal
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from browser_helpers import Watched, axe_findings
from cli_helpers import FEW_STEPS, FIT, blobs
from opensetda.cli.main import main
from opensetda.review.session import ReviewSession
from opensetda.runs.folder import RunFolder
from review_helpers import OsdaReview, corrections, make_run, serving

HOSTILE = "<script>alert(1)</script>"
VIEWS = {
    "useful/1": "Most useful",
    "audit/1": "Audit",
    "border/1": "Near",
    "class-0": "ant",
    "1": "Group 1",
}


class Tab(Watched):
    """A review in a browser."""

    def __init__(self, browser, address, *size, **options):
        super().__init__(browser, address, *size, **options)
        self.page.wait_for_selector("#main:not([hidden])")

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)

    def name(self, key, text):
        """Press a key that asks for a name, and answer."""
        self.page.keyboard.press(key)
        self.page.wait_for_selector("#picker[open]")
        self.page.keyboard.type(text)
        self.page.keyboard.press("Enter")
        self.page.wait_for_selector("#picker:not([open])", state="attached")

    def text(self, selector):
        return self.page.inner_text(selector)


def test_what_was_decided_by_keyboard_survives_a_kill(tmp_path, browser):
    run = make_run(tmp_path / "run").path
    with OsdaReview(run, "--audit", "6") as osda, Tab(browser, osda.address) as tab:
        walk_by_keyboard(tab)
        assert tab.said == []
        osda.end(signal.SIGKILL)
        tab.press("[", "k")
        tab.wait_for("#trouble", "nothing more is saved")
    before = corrections(run)
    lines = [json.loads(line) for line in (run / "review.jsonl").read_text().splitlines()[1:]]
    assert [line["do"] for line in lines].count("undo") == 3
    assert {"cat", HOSTILE, HOSTILE.replace("1", "2"), "moth"} <= {r["label"] for r in before}
    assert {row["decision"] for row in before} >= {"kept", "corrected", "new class"}
    assert len([row for row in before if row["audit"]]) == 6
    session = ReviewSession(run, audit=6)
    with serving(session) as server, Tab(browser, server.address) as tab:
        tab.wait_for("#lists", "Group 3")
        assert corrections(run) == before
        # Only the first address has the token in it; no cookie, which other ports would get.
        assert "token" not in tab.page.url
        assert tab.context.cookies() == []
        assert [url for url in tab.asked if "token=" in url] == [server.address]
        assert {urlsplit(url).hostname for url in tab.asked} == {"127.0.0.1"}
        tab.page.click("[data-key='border']")
        tab.wait_for("#title", "Near the threshold")
        tab.until("document.querySelector('#picture img').naturalWidth > 0")
        here = tab.text("#far"), tab.text("#lists"), tab.text("#name")
        tab.page.reload()
        tab.wait_for("#lists", "Group 3")
        assert here == (tab.text("#far"), tab.text("#lists"), tab.text("#name"))
        # Refused by the server: said in the dialog, which stays.
        tab.press("n")
        tab.page.wait_for_selector("#picker[open]")
        tab.page.keyboard.type("x" * 240)
        tab.press("Enter")
        tab.wait_for("#refused", "at most 200")
        tab.press("Escape", "j")
        tab.page.keyboard.type("12")
        tab.press("Enter")
        tab.until("location.hash === '#border/12'")
        tab.page.evaluate("sessionStorage.clear()")
        tab.page.goto(server.address.split("?")[0])
        tab.wait_for("#trouble", "open the address that 'osda review' printed last")
    session.close()


def walk_by_keyboard(tab):
    tab.wait_for("#title", "Most useful")
    tab.press("]")
    tab.wait_for("#title", "Audit")
    tab.wait_for("#share-run", "50 % estimated by the run")
    # The label of the run would be an answer.
    assert not tab.page.is_visible("#given")
    tab.press("k", "x", "k", "u", "Enter")
    tab.wait_for("#said", "Say known (K) or unknown (X)")
    assert "by 1 of 2 and the scores" in tab.text("#share-words")
    tab.press("s", "0", "2")
    tab.wait_for("#share-left", "1 skipped: the share is less reliable")
    tab.name("n", "moth")
    # Back to what was skipped; after the last mark the labels are next.
    tab.wait_for("#far", "5 of 6")
    assert tab.page.input_value("#place") == "3"
    tab.page.click("#known")
    tab.wait_for("#title", "Near the threshold")
    tab.wait_for("#lists", "Group 3")
    before = int(tab.text("#far").split()[0])
    tab.press("Enter", "k", "k", "k", "u", "Control+z")  # however fast the keys come
    tab.wait_for("#said", "Undone")
    tab.press("1", "2", "3", "0", "k")
    tab.name("c", "cat")
    tab.name("/", "script")  # the class with the hostile name
    tab.name("n", "<img src=x onerror=alert(2)>")
    tab.press("ArrowLeft")
    tab.wait_for("#decided", "<img src=x onerror=alert(2)>")
    assert tab.page.evaluate("document.querySelectorAll('img[src=x], main script').length") == 0
    assert int(tab.text("#far").split()[0]) > before + 5
    tab.page.click("[data-key='1']")
    tab.wait_for("#title", "Group 1")
    done, size = map(int, tab.text("#far").replace(" of", "").split()[:2])
    tiles = tab.page.evaluate("[...document.querySelectorAll('.pick')].map(t => t.innerText)")
    tab.press(*["ArrowRight"] * (tiles.index("") + 1), " ")  # the first open one is taken out
    tab.wait_for("#hint", f"{size - done - 1} of {size} samples selected")
    tab.name("g", HOSTILE.replace("1", "2"))
    tab.wait_for("#far", f"{size - 1} of {size}")
    tab.press("k")  # the one that was left out stays unknown
    tab.wait_for("#title", "Group 2")
    tab.press("o")
    tab.page.wait_for_selector("#one:not([hidden])")
    tab.press("2", "Escape")
    tab.wait_for("#title", "Group 2")
    tab.press("5")  # the others of the group as a known class
    tab.wait_for("#title", "Group 3")
    tab.press("0")
    tab.page.wait_for_selector("[data-key='3'].done")


def test_searches_and_a_slow_disk(tmp_path, browser):
    names = ("a\x1b[2Jnt", "be\u200be", "cat", "dog", "👨\u200d👩 <i>")
    run = make_run(tmp_path / "it's <i>run", n=160, images=False, classes=names).path
    session = ReviewSession(run, audit=0)
    decide = session.decide
    session.decide = lambda *asked: time.sleep(0.3) or decide(*asked)
    with serving(session) as server, Tab(browser, server.address) as tab:
        tab.page.click("[data-key='border']")
        tab.wait_for("#title", "Near the threshold")
        # What cannot be seen is shown as an escape.
        assert tab.text("#run") == "it's <i>run"
        for name in ("a\\u{1b}[2Jnt", "be\\u{200b}e", names[-1]):
            assert name in tab.text("#bars")
        tab.wait_for("#lists", "Group 3")
        tab.press("k", "n", "o", "w", "l")  # typed before the dialog is there
        tab.page.wait_for_selector("#picker[open]")
        assert tab.page.input_value("#typed") == "owl"
        tab.press("Enter")
        tab.wait_for("#far", "2 of 160")
        tab.press("f")
        tab.wait_for("#about", "160 samples found")
        tab.page.keyboard.type('"15')
        tab.press("Enter")
        tab.wait_for("#about", "11 samples found")
        tab.page.select_option("#find-order", "row")
        tab.until("location.hash.includes('order=row')")
        tab.page.reload()
        tab.page.wait_for_selector("#main:not([hidden])")
        assert tab.page.input_value("#find-text") == '"15'
        tab.page.fill("#find-text", "")
        tab.page.click("#find button")
        tab.wait_for("#pages", "1 to 60 of 160")
        tab.page.click("#pages button:last-child")
        tab.wait_for("#pages", "61 to 120 of 160")
        assert tab.said == []
    session.close()
    assert [row["label"] for row in corrections(run)].count("owl") == 1


def test_touch_on_a_phone_and_no_serious_finding_of_axe(tmp_path, browser):
    run = make_run(tmp_path / "run", n=24).path
    look = {"has_touch": True, "is_mobile": True, "color_scheme": "dark"}
    session = ReviewSession(run)
    with serving(session) as server, Tab(browser, server.address, 390, 844, **look) as tab:
        tab.page.wait_for_selector("#go option[value='1']", state="attached")
        tab.page.select_option("#go", "audit")
        tab.wait_for("#title", "Audit")
        tab.page.tap("#unknown")
        tab.wait_for("#far", "1 of 24 marked")
        tab.page.select_option("#go", "border")
        tab.page.tap("#keep")
        tab.wait_for("#far", "1 of 24 decided")
        tab.page.tap("#undo")
        tab.wait_for("#far", "0 of 24")
        tab.page.select_option("#go", "1")
        tab.wait_for("#title", "Group 1")
        tab.page.tap("#grid .tile:nth-child(2) .pick")
        tab.page.tap("#create")
        tab.page.fill("#typed", "wasp")
        tab.page.tap("#found li")
        tab.page.wait_for_selector("#picker:not([open])", state="attached")
        # Each view once, in the light or in the dark.
        for number, (place, title) in enumerate({**VIEWS, "find?order=row": "Search"}.items()):
            tab.page.evaluate("place => { location.hash = place }", place)
            tab.wait_for("#title", title)
            tab.assert_fits()
            tab.page.emulate_media(color_scheme=("light", "dark")[number % 2])
            assert axe_findings(tab.page) == [], place
        for key, dialog in (("?", "#keys"), ("c", "#picker")):
            tab.press(key)
            tab.page.wait_for_selector(f"{dialog}[open]")
            assert axe_findings(tab.page) == [], dialog
            tab.press("Escape")
        assert tab.said == []
    session.close()
    assert "wasp" in [row["label"] for row in corrections(run)]


def test_marks_by_keys_a_refit_and_its_report(workplace, browser):
    """The path of a person, without a command: open, mark, refit, look, go on, undo."""
    assert main([word for word in [*FIT, *FEW_STEPS] if word != "--no-report"]) == 0
    _, truth = blobs(1)
    keys = {"cat": "1", "dog": "2", "horse": "0"}
    with OsdaReview("run") as osda, Tab(browser, osda.address) as tab:
        tab.wait_for("#title", "Most useful")
        tab.wait_for("#useful", "0 samples marked")
        assert tab.page.is_disabled("#refit")
        waited = []
        for count in range(1, 31):
            row = int(tab.text("#name").removeprefix("Row ")) - 1
            started = time.monotonic()
            tab.press(keys[truth[row]])
            tab.wait_for("#useful", f"{count} sample{'s' * (count > 1)} marked")
            waited.append(time.monotonic() - started)
        assert max(waited) < 2
        tab.wait_for("#useful", "% are unknown (")
        # Nothing that passes covers the progress.
        said, meter = (tab.page.locator(name).bounding_box() for name in ("#said", "#meter"))
        assert said["y"] > meter["y"] + meter["height"]
        with tab.page.expect_navigation(timeout=120_000):
            tab.press("r")
            tab.page.wait_for_selector("#fitting:not([hidden])")
            assert "Fitting run-2" in tab.text("#fitting")
        tab.page.wait_for_selector("#main:not([hidden])")
        tab.wait_for("#run", "run-2")
        tab.wait_for("#useful", "30 samples marked")
        # Votes that have learned the marks agree with them: the interval stays that of the fit.
        used = RunFolder.open("run-2").estimates()["openness"]
        low, high = round(100 * used["low"]), round(100 * used["high"])
        tab.wait_for("#useful", f"({low} to {high} %)")
        assert low < high
        assert (
            RunFolder.open("run-2").labels() == np.where(truth == "horse", "unknown", truth)
        ).mean() > 0.95
        with tab.context.expect_page() as opened:
            tab.page.click("#report")
        report = opened.value
        report.wait_for_load_state()
        assert "run-2" in report.content()
        # It can reach nothing of the review.
        assert report.evaluate("origin") == "null"
        report.close()
        tab.press("u")
        tab.wait_for("#useful", "29 samples marked")
        tab.page.click("#finish")
        tab.wait_for("#done-commands", "osda predict")
        assert "--out run-3 " in tab.text("#done-commands")
        assert [line for line in tab.said if line.startswith("error")] == []
    assert len(corrections("run")) == 30
    assert len(corrections("run-2")) == 29
    assert len(csv_lines("run-2/predictions.csv", "corrected")) == 30


def csv_lines(path, column):
    with Path(path).open(newline="", encoding="utf-8") as stream:
        return [row for row in csv.DictReader(stream) if row[column] == "true"]


def test_two_tabs_do_not_overwrite_each_other(tmp_path, browser):
    run = make_run(tmp_path / "run", n=24, images=False).path
    session = ReviewSession(run)
    with (
        serving(session) as server,
        Tab(browser, server.address) as first,
        Tab(browser, server.address) as second,
    ):
        for tab in (first, second):
            tab.wait_for("#title", "Most useful")
        name = first.text("#name")
        assert second.text("#name") == name
        first.press("1")
        first.wait_for("#useful", "1 sample marked")
        second.press("2")
        second.wait_for("#said", "another tab has decided this meanwhile")
        second.wait_for("#marked", "Marked ant")
        second.press("s")
        second.until(f"document.querySelector('#name').innerText !== {json.dumps(name)}")
        second.press("2")
        second.wait_for("#useful", "2 samples marked")
        first.press("u")
        first.wait_for("#said", "another tab has decided more")
    session.close()
    assert {row["label"] for row in corrections(run)} == {"ant", "bee"}
