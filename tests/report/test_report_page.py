"""The report's HTML, read as text: names stay names, nothing is asked for, parts may be missing."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import pytest
from report_helpers import HOSTILE, empty_report, hostile_report, make_report

from opensetda.report.page import render_page
from opensetda.share.report import ShareSource

# Those of the templates, and of matplotlib.
ATTRIBUTES = {
    *("alt", "charset", "class", "clip-path", "content", "cx", "cy", "d", "data-gap"),
    *("data-needs-script", "decoding", "fill", "for", "height", "hidden", "href", "http-equiv"),
    *("id", "lang", "max", "min", "name", "r", "rel", "role", "scope", "src", "step", "stroke"),
    *("style", "tabindex", "title", "transform", "type", "value", "viewbox", "width", "x", "y"),
}


class Reader(HTMLParser):
    """All tags with their attributes, the text between them, and scripts."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self._texts: list[str] = []
        self._script: str | None = None
        self.feed(html)
        self.text = " ".join("".join(self._texts).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self._script = dict(attrs).get("id") or "code"

    def handle_endtag(self, tag):
        if tag == "script":
            self._script = None

    def handle_data(self, data):
        if self._script is not None:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data
        else:
            self._texts.append(data)

    def of(self, tag, attribute):
        return [found.get(attribute) or "" for name, found in self.tags if name == tag]


@pytest.fixture(scope="module")
def full() -> str:
    return render_page(make_report())


def test_hostile_names_occur_only_as_text_and_data():
    hostile = Reader(render_page(hostile_report()))
    # Data of map and slider, and the code.
    assert [tag for tag, _ in hostile.tags].count("script") == 3
    for name in HOSTILE:
        assert " ".join(name.split()) in hostile.text
    assert all(source.startswith("data:image/") for source in hostile.of("img", "src"))
    # No attribute but those of the templates: none was broken out of.
    names = {name for _, attributes in hostile.tags for name in attributes}
    assert {name for name in names if not name.startswith(("aria-", "stroke-"))} <= ATTRIBUTES
    assert "alert(1)" not in hostile.scripts["code"]
    assert not set("<>&") & set(hostile.scripts["map-data"])
    values = json.loads(hostile.scripts["map-data"])
    assert tuple(values["classes"]) == HOSTILE
    assert set(HOSTILE) <= set(values["names"])


def test_the_page_refers_to_nothing_outside_and_runs_no_other_script(full):
    assert "http://" not in full
    assert "https://" not in full
    reader = Reader(full)
    for name in ("src", "href", "action", "srcset", "poster", "data", "xlink:href"):
        for _, attributes in reader.tags:
            assert attributes.get(name, "#").startswith(("data:", "#"))
    styles = "".join(re.findall(r"<style>(.*?)</style>", full, re.DOTALL))
    assert not re.search(r"url\(|@import", styles)
    (policy,) = [found for found in reader.of("meta", "content") if "script-src" in found]
    digest = hashlib.sha256(reader.scripts["code"].encode("utf-8")).digest()
    assert "default-src 'none'; img-src data:;" in policy
    assert f"script-src 'sha256-{base64.b64encode(digest).decode('ascii')}'" in policy


def test_headings_are_in_order_and_ids_are_unique(full):
    reader = Reader(full)
    levels = [int(tag[1]) for tag, _ in reader.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert all("alt" in attributes for tag, attributes in reader.tags if tag == "img")


def test_all_parts_are_there_in_their_order_and_missing_ones_are_left_out(full):
    sections = Reader(full).of("section", "id")
    assert all(f'<a href="#{name}">' in full for name in sections)
    assert sections == [
        *("summary", "map", "share", "confidence", "confusion"),
        *("classes", "groups", "border", "steps", "facts"),
    ]
    assert '<details class="card values">' in full  # and not open
    html = render_page(empty_report())
    reader = Reader(html)
    assert reader.of("section", "id") == ["summary", "map", "share", "confidence"]
    assert not re.search("None|true class|Against the true labels", reader.text)
    assert '<option value="truth">' not in html


def test_the_numbers_in_words(full):
    text = Reader(full).text
    for words in (
        "5,235",
        "84.4 %",
        "osda review run",
        "300 of 6,000 targets and 160 of 3,200 source samples are shown, drawn at random.",
        "give 36.9 %; with a probability of 90 % it is 31 % to 43 %",
    ):
        assert words in text


def test_a_share_that_is_not_that_of_the_labels_is_explained():
    report = make_report(pictures=False)
    for share, is_said in ((0.369, False), (0.5, True)):
        openness = replace(report.openness, share=share)
        html = render_page(replace(report, openness=openness))
        assert ("Labelled unknown are 36.7" in html) == is_said


def test_where_a_share_comes_from_that_is_not_estimated():
    report = make_report(pictures=False)
    kinds = {
        ShareSource.GIVEN: "given",
        ShareSource.OWN_BOUNDARY: "by the method's own boundary",
        ShareSource.AUDITED: "audited",
    }
    for source, kind in kinds.items():
        openness = replace(report.openness, source=source, sentence="as 9 of 30 say", true=None)
        html = unescape(render_page(replace(report, openness=openness)))
        assert f"Share of unknowns, {kind}" in html
        assert "s 9 of 30 say" in html
        assert "Weighed together" not in html
        assert ('class="whisker"' in html) == (kind == "audited")
        assert ("The share that follows is" in html) == (kind == "audited")


def test_a_map_of_all_samples_and_no_threshold():
    report = make_report(pictures=False)
    whole = replace(report.map, n_source=160, n_target=300)
    histogram = replace(report.histogram, threshold=None)
    text = Reader(render_page(replace(report, map=whole, histogram=histogram))).text
    assert "drawn at random" not in text
    assert "The targets with the lowest confidence: other methods" in text
    assert "Nothing was rejected" in text


def test_many_classes_are_folded_and_names_that_are_no_text_are_shown():
    names = [f"class {number}" for number in range(40)]
    html = render_page(make_report(known=names, pictures=False, names=("broken\udcff.jpg",)))
    assert b"broken\\udcff.jpg" in html.encode("utf-8")
    assert "Show the other 28 classes" in html
    assert Reader(html).of("details", "class").count("card gallery") == 41
    unknown = html.index("<h3", html.rindex('class="card gallery"'))
    assert "unknown" in html[unknown : unknown + 120]


def test_a_new_class_that_is_unknown_is_not_wrong():
    report = make_report(pictures=False)
    # Not in the source: unknown is right, and the truth is worth telling.
    for truth, shown in {"pen": ["truth"], "bike": ["truth wrong"], "unknown": []}.items():
        sample = replace(report.border[0], label="unknown", truth=truth)
        html = render_page(replace(report, galleries=(), border=(sample,)))
        assert [name for name in Reader(html).of("span", "class") if "truth" in name] == shown
