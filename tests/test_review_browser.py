"""The page of the review in a real browser, by keyboard, through a crash of the server."""

from __future__ import annotations

import json
import signal
import time
from urllib.parse import urlsplit

from browser_helpers import axe_findings
from opensetda.review.session import ReviewSession
from review_helpers import OsdaReview, corrections, make_run, serving

HOSTILE = "<script>alert(1)</script>"


class Tab:
    """A page, and all that it complained of and asked for."""

    def __init__(self, browser, width=1440, height=900, **options):
        size = {"width": width, "height": height}
        self.context = browser.new_context(viewport=size, **options)
        self.complaints, self.hosts = [], set()
        self.context.on("page", self._listen)
        self.page = self.context.new_page()

    def _listen(self, page):
        page.set_default_timeout(30_000)
        page.on("console", lambda m: m.type == "error" and self.complaints.append(m.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message))

    def open(self, address):
        self.page.goto(address)
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

    def wait_for(self, selector, text):
        self.page.wait_for_function(
            "([selector, text]) => document.querySelector(selector).innerText.includes(text)",
            arg=[selector, text],
        )


def test_twenty_decisions_by_keyboard_survive_a_kill(tmp_path, browser):
    run = make_run(tmp_path / "run").path
    tab = Tab(browser)
    with OsdaReview(run, "--audit", "0") as osda:
        tab.open(osda.address)
        # Not in the address bar, and in no cookie, which other ports would get.
        assert "token" not in tab.page.url
        assert tab.context.cookies() == []
        tab.wait_for("#lists", "Group 3")
        tab.press("Enter", "k", "k", "Enter", "k")  # five are kept, however fast the keys come
        tab.press("1", "2", "3", "4", "0")  # five are one of the likely classes, or unknown
        tab.wait_for("#far", "10 of 60")
        tab.name("c", "cat")
        tab.name("/", "script")  # the class with the hostile name
        tab.name("n", "Moth")
        tab.name("c", "mot")  # a name that was given is offered
        tab.press("s", "ArrowRight", "ArrowLeft", "k")  # one is skipped
        tab.press("u", "Control+z")
        tab.wait_for("#far", "13 of 60")
        tab.press("k", "k", "k")
        tab.wait_for("#far", "16 of 60")
        tab.page.click("[data-key='1']")
        tab.wait_for("#title", "Group 1")
        decided = int(tab.text("#far").split()[0])
        tiles = tab.page.evaluate("[...document.querySelectorAll('.pick')].map(t => t.innerText)")
        still_open = tiles.index("")
        tab.press(*["ArrowRight"] * (still_open + 1), " ")  # it is taken out
        tab.wait_for("#hint", f"{10 - decided - 1} of 10 samples selected")
        tab.name("g", HOSTILE.replace("1", "2"))
        tab.wait_for("#far", "9 of 10")
        tab.press("k")  # the one that was left out stays unknown
        tab.wait_for("#title", "Group 2")
        tab.press("o")
        tab.page.wait_for_selector("#one:not([hidden])")
        tab.press("2", "k", "Escape")
        tab.wait_for("#title", "Group 2")
        tab.press("5")  # a group as a known class
        tab.wait_for("#title", "Group 3")
        tab.press("0")
        tab.page.wait_for_function(
            "() => document.querySelectorAll('.list.group.done').length === 3"
        )
        osda.end(signal.SIGKILL)
        before = corrections(run)
        tab.press("[")
        tab.press("k")
        tab.wait_for("#trouble", "nothing more is saved")
    # That the server is gone is the one thing to complain of.
    assert all("net::ERR_" in complaint for complaint in tab.complaints)
    tab.complaints.clear()
    lines = [json.loads(line) for line in (run / "review.jsonl").read_text().splitlines()[1:]]
    assert sum(line["do"] == "decide" for line in lines) >= 20
    assert sum(line["do"] == "undo" for line in lines) == 2
    session = ReviewSession(run, audit=0)
    with serving(session) as server:
        tab.open(server.address)
        tab.wait_for("#lists", "Group 3")
        seen = {}
        for key, size in (("border", 60), ("1", 10), ("2", 10), ("3", 10)):
            query = f"/api/list?key={key}&start=0&count={size}"
            page = tab.page.evaluate(
                """query => fetch(query, { headers: { "X-Review-Token": sessionStorage.token } })
                .then(answer => answer.json())""",
                query,
            )
            seen |= {s["name"]: s["label"] for s in page["samples"] if s["label"] is not None}
        after = corrections(run)
        assert after == before
        assert {row["path"]: row["label"] for row in after} == seen
        kinds = {row["decision"] for row in after}
        assert kinds == {"kept", "corrected", "new class"}
        assert {"Moth", HOSTILE.replace("1", "2"), HOSTILE, "cat"} <= set(seen.values())
        # A reload, and another tab with the address, show the same.
        tab.page.click("[data-key='border']")
        tab.wait_for("#title", "Near the threshold")
        here = tab.text("#far"), tab.text("#lists"), tab.text("#place"), tab.text("#name")
        tab.page.reload()
        tab.wait_for("#lists", "Group 3")
        assert here == (tab.text("#far"), tab.text("#lists"), tab.text("#place"), tab.text("#name"))
        other = tab.context.new_page()
        other.goto(server.address)
        other.wait_for_selector("#main:not([hidden])")
        assert other.inner_text("#far") == here[0]
        assert "token" not in other.url
    session.close()
    assert tab.complaints == []
    assert tab.hosts <= {f"127.0.0.1:{port}" for port in range(65536)}


def test_names_are_shown_as_text_and_refused_in_place(tmp_path, browser):
    run = make_run(tmp_path / "run").path
    tab = Tab(browser)
    with serving(ReviewSession(run, audit=0)) as server:
        tab.open(server.address)
        assert tab.text("#name").startswith("street/it's \"")
        assert "<b>.png" in tab.text("#name")
        assert HOSTILE in tab.text("#bars")
        tab.page.wait_for_function("() => document.querySelector('#picture img').naturalWidth > 0")
        tab.name("n", "<img src=x onerror=alert(2)>")
        tab.page.keyboard.press("n")
        tab.page.keyboard.type("UNKNOWN")
        tab.wait_for("#found", "unknown")
        tab.press("Escape", "ArrowLeft")
        tab.wait_for("#decided", "<img src=x onerror=alert(2)>")
        assert (
            tab.page.evaluate("document.querySelectorAll('img[src=x], b, main script').length") == 0
        )
        assert tab.complaints == []
        # Refused by the server: said in the dialog, which stays.
        tab.page.keyboard.press("n")
        tab.page.keyboard.type("x" * 240)
        tab.press("Enter")
        tab.wait_for("#refused", "200 are allowed")
        tab.press("Escape", "?")
        tab.page.wait_for_selector("#keys[open]")
        tab.press("Escape", "j")
        tab.page.keyboard.type("12")
        tab.press("Enter")
        tab.page.wait_for_function("() => location.hash === '#border/12'")


def test_the_token_stays_in_its_tab(tmp_path, browser):
    """An address for once, a reload, another tab, another port, a wrong token."""
    session = ReviewSession(make_run(tmp_path / "it's <i>\x1brun", n=6).path, audit=0)
    tab = Tab(browser)
    asked = []
    tab.page.on("request", lambda request: asked.append((request.url, request.headers)))
    with serving(session) as server, serving(session) as other:
        once = server.address_for_once()
        tab.open(once)
        assert tab.page.title() == tab.page.inner_text("h1").replace("Review", "Review of")
        assert tab.text("#run") == "it's <i>\\u{1b}run"
        tab.page.wait_for_function("() => document.querySelector('#picture img').naturalWidth > 0")
        tab.page.reload()
        tab.page.wait_for_selector("#main:not([hidden])")
        tab.press("k")
        tab.wait_for("#far", "1 of 6")
        # Only the first address has a token in it, and no request says where it came from.
        assert [url for url, _ in asked if "token=" in url] == [once]
        told = {headers.get(name) for _, headers in asked for name in ("referer", "cookie")}
        assert told <= {None, ""}
        assert tab.page.evaluate("history.length") == 2
        assert tab.complaints == []
        # A page on another port of this machine has none of it.
        tab.page.goto(other.address.split("?")[0])
        tab.wait_for("#trouble", "open the address that 'osda review' printed last")
        assert tab.page.evaluate("[document.cookie, sessionStorage.length]") == ["", 0]
        # Used up, and wrong: the tab still has the right one.
        for address in (once, once[:-3], once[:-3] + "%FF"):
            tab.open(address)
            tab.wait_for("#far", "1 of 6")
        assert tab.page.is_hidden("#trouble")
        tab.page.evaluate("sessionStorage.clear()")
        tab.page.goto(once)
        tab.wait_for("#trouble", "open the address that 'osda review' printed last")
        tab.open(server.address)
    session.close()


def test_what_cannot_be_seen_is_shown_as_an_escape(tmp_path, browser):
    names = ("a\x1b[2Jnt", "be\u200be", "c\u202eat", "d\nog", "👨\u200d👩 <i>")
    run = make_run(tmp_path / "run", n=6, images=False, classes=names, unknown="un\u2060known")
    shown = ("a\\u{1b}[2Jnt", "be\\u{200b}e", "c\\u{202e}at", "d\\u{a}og", names[-1])
    tab = Tab(browser)
    with serving(ReviewSession(run.path, audit=0)) as server:
        tab.open(server.address)
        for name in (*shown, "un\\u{2060}known"):
            assert name in tab.text("#bars")
        tab.name("c", "[2J")
        tab.wait_for("#far", "1 of 6")
        # Stored as it is: it is a class of the run.
        assert names[0] in [row["label"] for row in corrections(run.path)]
        # So is what the server complains of, until it is over.
        export, session = server.session._export, server.session
        session._export, session.trouble = (lambda: None), "not to a\x07.csv"
        tab.press("k", "ArrowLeft")
        tab.wait_for("#trouble", "not to a\\u{7}.csv")
        session._export = export
        tab.press("k")
        tab.page.wait_for_selector("#trouble", state="hidden")
    assert tab.complaints == []


def test_a_slow_disk_loses_no_key(tmp_path, browser):
    run = make_run(tmp_path / "run", images=False).path
    tab = Tab(browser)
    session = ReviewSession(run, audit=0)
    decide = session.decide
    # Sluggish, as a disk in another building.
    session.decide = lambda *asked: time.sleep(0.3) or decide(*asked)
    with serving(session) as server:
        tab.open(server.address)
        tab.press("k", "n", "o", "w", "l")
        tab.page.wait_for_selector("#picker[open]")
        assert tab.page.input_value("#typed") == "owl"
        tab.press("Enter", "Enter")
        tab.wait_for("#far", "2 of 60")
        tab.press("k", "u")
        tab.wait_for("#said", "Undone")
    session.close()
    assert [row["label"] == "owl" for row in corrections(run)].count(True) == 1
    assert len(corrections(run)) == 2
    assert tab.complaints == []


def test_mouse_and_touch_do_the_same_on_a_phone(tmp_path, browser):
    run = make_run(tmp_path / "run").path
    tab = Tab(browser, 390, 844, has_touch=True, is_mobile=True, color_scheme="dark")
    with serving(ReviewSession(run, audit=0)) as server:
        tab.open(server.address)
        tab.page.wait_for_selector("#go option[value='3']", state="attached")
        tab.page.tap("#keep")
        tab.wait_for("#far", "1 of 60")
        tab.page.tap("#bars li:nth-child(2) button")
        tab.wait_for("#far", "2 of 60")
        tab.page.tap("#undo")
        tab.wait_for("#far", "1 of 60")
        tab.page.select_option("#go", "1")
        tab.wait_for("#title", "Group 1")
        tab.page.tap("#grid .tile:nth-child(2) .pick")
        tab.wait_for("#hint", "9 of 10 samples selected")
        assert tab.page.evaluate("document.documentElement.scrollWidth") == 390
        tab.page.tap("#create")
        tab.page.fill("#typed", "moth")
        tab.page.tap("#found li")
        tab.wait_for("#far", "9 of 10")
        tab.page.tap("#grid .tile:nth-child(2) .closer")
        tab.page.wait_for_selector("#one:not([hidden])")
        assert tab.page.evaluate("document.documentElement.scrollWidth") == 390
        tab.page.tap("#choose")
        tab.page.tap("#found li:nth-child(3)")
        tab.page.wait_for_function(
            "() => document.querySelector('#go').textContent.includes('Group 1 (10/10)')"
        )
    assert tab.complaints == []
    assert len(corrections(run)) == 11


def test_an_audit_by_keyboard_and_by_touch(tmp_path, browser):
    run = make_run(tmp_path / "run").path
    tab = Tab(browser)
    with serving(ReviewSession(run, audit=6)) as server:
        tab.open(server.address)
        tab.wait_for("#title", "Audit")
        tab.wait_for("#share-run", "50 % estimated by the run")
        # The label of the run would be an answer.
        assert not tab.page.is_visible("#given")
        tab.press("k", "x", "k", "u")
        tab.wait_for("#far", "2 of 6")
        assert "by 1 of 2 and the scores" in tab.text("#share-words")
        tab.press("Enter")
        tab.wait_for("#said", "Say known (K) or unknown (X)")
        tab.press("s", "0", "2")
        tab.wait_for("#far", "4 of 6")
        tab.wait_for("#share-left", "1 skipped: the share is less reliable")
        tab.name("n", "moth")
        tab.wait_for("#far", "5 of 6")
        # Back to what was skipped; after the last mark the labels are next.
        tab.wait_for("#of", "of 6")
        assert tab.page.input_value("#place") == "3"
        tab.page.click("#known")
        tab.wait_for("#title", "Near the threshold")
        tab.wait_for("#said", "by 3 of 6 and the scores")
        tab.press("u")
        tab.wait_for("#title", "Audit")
        tab.page.click("#unknown")
        tab.page.click("[data-key=audit]")
        tab.wait_for("#marked", "Marked")
        assert tab.page.is_visible("#marked")
    marks = [row["audit"] for row in corrections(run)]
    assert sorted(marks) == ["known"] * 2 + ["unknown"] * 4
    assert tab.complaints == []


def test_classes_and_searches_by_keyboard(tmp_path, browser):
    run = make_run(tmp_path / "run", n=160, images=False).path
    tab = Tab(browser)
    with serving(ReviewSession(run)) as server:
        tab.open(server.address)
        tab.wait_for("#lists", "Group 3")
        tab.page.click("[data-key=class-1]")
        tab.wait_for("#title", "bee")
        tab.wait_for("#keep", "Keep bee")
        size = int(tab.text("#far").split()[2])
        tab.press("ArrowRight", " ", "k")
        tab.wait_for("#far", f"{size - 1} of {size}")
        tab.press("1")
        tab.page.wait_for_selector("[data-key=class-1].done")
        tab.press("f")
        tab.wait_for("#about", "160 samples found")
        tab.page.keyboard.type('"15')
        tab.press("Enter")
        tab.wait_for("#about", "11 samples found")
        tab.page.select_option("#find-state", "open")
        tab.page.wait_for_function("() => location.hash.includes('state=open')")
        tab.page.reload()
        tab.page.wait_for_selector("#main:not([hidden])")
        tab.wait_for("#title", "Search")
        assert tab.page.input_value("#find-text") == '"15'
        tab.page.select_option("#find-state", "")
        tab.page.fill("#find-text", "")
        tab.page.click("#find button")
        tab.wait_for("#pages", "1 to 60 of 160")
        tab.page.click("#pages button:last-child")
        tab.wait_for("#pages", "61 to 120 of 160")
        tab.press("o")
        tab.page.wait_for_selector("#one:not([hidden])")
        tab.wait_for("#of", "of 160")
        assert tab.page.input_value("#place") == "61"
        tab.press("Escape")
        tab.wait_for("#pages", "61 to 120 of 160")
    assert tab.complaints == []


def test_no_view_has_a_serious_finding_of_axe_or_is_too_wide(tmp_path, browser):
    run = make_run(tmp_path / "run", n=24).path
    tab = Tab(browser, 1440, 844, reduced_motion="reduce")
    views = {"audit/1": "Audit", "border/1": "Near", "class-0": "ant", "1": "Group 1"}
    # Each view once, in one of the two looks.
    looks = ((1440, "light"), (390, "dark"))
    with serving(ReviewSession(run)) as server:
        tab.open(server.address)
        tab.page.wait_for_selector("#go option[value='1']", state="attached")
        for number, (address, title) in enumerate({**views, "find?order=row": "Search"}.items()):
            tab.page.evaluate("address => { location.hash = address }", address)
            tab.page.wait_for_function(
                "title => document.querySelector('#title').textContent.startsWith(title)",
                arg=title,
            )
            order = looks if number % 2 else looks[::-1]
            for width, _ in order:
                tab.page.set_viewport_size({"width": width, "height": 844})
                assert tab.page.evaluate("document.scrollingElement.scrollWidth") <= width
            tab.page.emulate_media(color_scheme=order[-1][1])
            assert axe_findings(tab.page) == [], (address, order[-1])
        for key, dialog in (("?", "#keys"), ("c", "#picker")):
            tab.press(key)
            tab.page.wait_for_selector(f"{dialog}[open]")
            assert axe_findings(tab.page) == [], dialog
            tab.press("Escape")
