"""The report's HTML, read as text: names stay names, nothing is asked for, parts may be missing."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import itertools
import json
import re
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest

from opensetda.report import inline
from opensetda.report import page as page_module
from opensetda.report.content import GIVEN, OWN_BOUNDARY, Confusion
from opensetda.report.page import render_page
from opensetda.report.page_data import map_values, picture_address, script_json
from report_helpers import HOSTILE, empty_report, hostile_report, make_map, make_report

ATTRIBUTES = {
    *("accent-color", "alt", "aria-current", "class", "charset", "colspan", "content", "d"),
    *(
        "data-gap",
        "data-needs-script",
        "decoding",
        "fill",
        "for",
        "height",
        "hidden",
        "href",
        "id",
        "lang",
    ),
    *("max", "min", "name", "points", "preserveaspectratio", "rel", "role", "rx", "scope", "src"),
    *("step", "stroke", "style", "tabindex", "title", "type", "value", "viewbox", "width", "x"),
    *("clip-path", "cx", "cy", "http-equiv", "r", "transform", "y"),
}


class Reader(HTMLParser):
    """All tags with their attributes, and the text between them."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: dict[str, str] = {}
        self._script: str | None = None
        self.feed(html)

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
            self.texts.append(data)

    def ids(self) -> list[str]:
        return [name for _, attributes in self.tags if (name := attributes.get("id"))]


@pytest.fixture(scope="module")
def full() -> str:
    return render_page(make_report())


@pytest.fixture(scope="module")
def hostile() -> Reader:
    return Reader(render_page(hostile_report()))


def test_hostile_names_occur_only_as_text(hostile):
    assert [tag for tag, _ in hostile.tags].count(
        "script"
    ) == 3  # data of map and slider, and the code
    text = "\n".join(hostile.texts)
    for name in HOSTILE:
        assert name in text
    for tag, attributes in hostile.tags:
        assert tag != "img" or attributes["src"].startswith("data:image/")
        # No attribute but those of the templates: none was broken out of.
        for name in attributes:
            known = name in ATTRIBUTES or name.startswith(("aria-", "stroke-"))
            assert known, (tag, name)
            assert not name.startswith("on")
    assert "alert(1)" not in hostile.scripts["code"]


def test_hostile_names_survive_as_data(hostile):
    assert "<" not in hostile.scripts["map-data"]
    values = json.loads(hostile.scripts["map-data"])
    assert tuple(values["classes"]) == HOSTILE
    assert set(HOSTILE) <= set(values["names"])


def test_data_cannot_end_its_element():
    text = script_json(["</script>", "<!--", "\u2028\u2029", "a & b"])
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == ["</script>", "<!--", "\u2028\u2029", "a & b"]


def test_everything_is_escaped_by_default():
    assert page_module._environment().autoescape is True


def test_the_page_refers_to_nothing_outside(full):
    assert "http://" not in full
    assert "https://" not in full
    for tag, attributes in Reader(full).tags:
        for name in ("src", "href", "action", "srcset", "poster", "data", "xlink:href"):
            address = attributes.get(name)
            assert address is None or address.startswith(("data:", "#")), (tag, address)
    styles = "".join(re.findall(r"<style>(.*?)</style>", full, re.DOTALL))
    assert "url(" not in styles
    assert "@import" not in styles


def test_the_policy_allows_this_script_and_no_other(full):
    reader = Reader(full)
    (policy,) = [
        attributes["content"]
        for tag, attributes in reader.tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    digest = hashlib.sha256(reader.scripts["code"].encode("utf-8")).digest()
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{base64.b64encode(digest).decode('ascii')}'" in policy
    assert "img-src data:" in policy


def test_headings_are_in_order_and_ids_are_unique(full):
    reader = Reader(full)
    levels = [int(tag[1]) for tag, _ in reader.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert len(reader.ids()) == len(set(reader.ids()))
    assert all("alt" in attributes for tag, attributes in reader.tags if tag == "img")


def test_all_parts_are_there_in_their_order(full):
    sections = [attributes["id"] for tag, attributes in Reader(full).tags if tag == "section"]
    assert all(f'<a href="#{name}">' in full for name in sections)
    assert sections == [
        *("summary", "map", "share", "confidence", "confusion"),
        *("classes", "groups", "border", "steps", "facts"),
    ]


def test_what_a_report_does_not_have_is_left_out():
    html = render_page(empty_report())
    reader = Reader(html)
    sections = [attributes["id"] for tag, attributes in reader.tags if tag == "section"]
    assert sections == ["summary", "map", "share", "confidence"]
    assert "Against the true labels" not in html
    assert "None" not in " ".join(reader.texts)


def test_without_truth_nothing_is_said_of_it():
    html = render_page(make_report(truth=False))
    text = " ".join(Reader(html).texts)
    assert "true class" not in text.lower()
    assert '<option value="truth">' not in html
    assert 'id="confusion"' not in html


def test_the_numbers_of_the_headline(full):
    text = re.sub(r"[ \n]+", " ", " ".join(Reader(full).texts))
    assert "5,235" in text
    assert "36.9\u202f%" in text
    assert "31\u202f% to 43\u202f%" in text
    assert "Labelled by moving-means: nothing is trained. Columns: as ranks." in text
    assert "84.4\u202f%" in text
    assert "osda review run" in text


def test_a_told_share_has_no_interval():
    report = make_report()
    for kind in (GIVEN, OWN_BOUNDARY):
        told = dataclasses.replace(report.openness, kind=kind, true=None)
        html = unescape(render_page(dataclasses.replace(report, openness=told)))
        assert f"Share of unknowns, {kind}" in html
        assert 'class="whisker"' not in html


def test_a_sampled_map_says_so(full):
    sentence = "300 of 6,000 targets and 160 of 3,200 source samples are shown, drawn at random."
    assert sentence in full
    report = make_report()
    whole = dataclasses.replace(report.map, n_source=160, n_target=300)
    assert "drawn at random" not in render_page(dataclasses.replace(report, map=whole))


def test_the_page_of_many_points_is_small():
    report = make_report(pictures=False, n_source=2000, n_target=5000)
    size = len(render_page(report).encode("utf-8"))
    assert size < 1_000_000


def test_many_classes_are_folded():
    names = [f"class {number}" for number in range(40)]
    html = render_page(make_report(known=names, pictures=False))
    assert "Show the other 28 classes" in html
    tags = [attributes.get("class") for tag, attributes in Reader(html).tags if tag == "details"]
    assert tags.count("card gallery") == 41
    unknown = html.index("<h3", html.rindex('class="card gallery"'))
    assert "unknown" in html[unknown : unknown + 120]


def test_without_a_threshold_nothing_is_near_it(full):
    assert "The targets nearest to the threshold" in full
    report = make_report(pictures=False)
    histogram = dataclasses.replace(report.histogram, threshold=None)
    html = render_page(dataclasses.replace(report, histogram=histogram))
    assert "<p>The targets with the lowest confidence. The bar is" in html
    assert "nearest to the threshold" not in html


def test_a_confusion_matrix_of_very_many_classes_is_small():
    n = 400
    names = tuple(f"class {number}" for number in range(n))
    counts = np.zeros((n, n + 1), dtype=np.intp)
    counts[np.arange(n), np.arange(n)] = 5
    counts[3, 7] = 2
    confusion = Confusion(names, (*names, "unknown"), counts, n)
    html = render_page(dataclasses.replace(make_report(pictures=False), confusion=confusion))
    assert len(html) < 1_000_000
    assert "Confusion matrix: 2,000 of 2,002 targets are labelled right" in html


def test_charts_are_svg_in_the_colours_of_the_page(full):
    charts = re.findall(r'<svg [^>]*class="chart".*?</svg>', full, re.DOTALL)
    assert len(charts) == 3  # histogram, confusion matrix, curves
    for chart in charts:
        assert "var(--c0)" in chart
        assert not re.search(r"#[0-9a-fA-F]{6}\b", chart)
        assert "<style" not in chart
        assert "DejaVu" not in chart
    assert '<details class="card values">' in full  # and not open


def test_nothing_is_said_to_learn_where_nothing_is_trained(full):
    text = " ".join(Reader(full).texts).lower()
    assert not re.search(r"learn|network\b(?! connection)|training", text)


def test_pictures_of_other_addresses_are_dropped():
    assert picture_address("https://example.org/a.png") is None
    assert picture_address("data:text/html,x") is None
    assert picture_address(None) is None
    report = make_report(pictures=False)
    sample = dataclasses.replace(report.border[0], picture="//example.org/a.png")
    html = render_page(dataclasses.replace(report, border=(sample,)))
    assert "example.org" not in html


def test_names_that_are_no_text_are_shown_all_the_same():
    html = render_page(make_report(names=("broken\udcff.jpg",)))
    assert "broken\\udcff.jpg" in html
    html.encode("utf-8")


def test_places_and_labels_come_back_from_the_data():
    samples = make_map(("a", "b"), ("c",), n_source=5, n_target=7)
    values = map_values(samples, "unknown")
    packed = np.frombuffer(base64.b64decode(values["places"]), np.uint8).reshape(12, 3)
    low, middle, high = packed.astype(int).T
    places = np.stack([low | (middle & 15) << 8, middle >> 4 | high << 4], axis=-1) / 4095
    np.testing.assert_allclose(places, samples.places, atol=1 / 4095)
    labels = np.frombuffer(base64.b64decode(values["labels"]), np.uint8)
    np.testing.assert_array_equal(labels, samples.labels)
    assert values["nSource"] == 5


def test_more_classes_than_a_byte_holds():
    names = [str(number) for number in range(300)]
    samples = make_map(names, ("new",), n_source=400, n_target=400, pictures=False)
    values = map_values(samples, "unknown")
    assert values["wide"] is True
    assert values["pictures"] is None
    labels = np.frombuffer(base64.b64decode(values["labels"]), "<u2")
    np.testing.assert_array_equal(labels, samples.labels)


def test_a_histogram_without_a_threshold():
    report = make_report()
    html = render_page(
        dataclasses.replace(report, histogram=dataclasses.replace(report.histogram, threshold=None))
    )
    assert "Nothing was rejected" in html


def test_a_new_class_that_is_unknown_is_not_wrong():
    report = make_report(truth=True, pictures=False)
    base = dataclasses.replace(report.border[0], label="unknown")
    cases = {
        "pen": "truth",  # not in the source: unknown is right, and the truth is worth telling
        "bike": "truth wrong",
        "unknown": None,
    }
    for truth, expected in cases.items():
        sample = dataclasses.replace(base, truth=truth)
        html = render_page(dataclasses.replace(report, galleries=(), border=(sample,)))
        classes = [attributes.get("class") for _, attributes in Reader(html).tags]
        shown = [name for name in classes if name in {"truth", "truth wrong"}]
        assert shown == ([] if expected is None else [expected])


def test_charts_have_the_colours_of_the_figures_by_day():
    """The page names its colours, the figures have them: both are of one list."""
    names = re.findall(r"(--\w+): (#\w{6});", str(page_module._asset("light.css")))
    themed = {color.lower(): name[4:-1] for color, name in inline._COLORS.items()}
    numbered = {color: name for color, name in themed.items() if name.startswith("--c")}
    assert numbered == {color: name for name, color in names if color in numbered}
    by_night = re.findall(r"(--\w+):", str(page_module._asset("dark.css")))
    assert by_night == re.findall(r"(--\w+):", str(page_module._asset("light.css")))
    classes = [f"--c{number}" for number in range(page_module._COLORS)]
    assert [name for name in by_night if re.fullmatch(r"--c\d+", name)] == classes


def test_the_estimates_are_said_in_words(full):
    text = " ".join("".join(Reader(full).texts).split())
    assert "Three estimates: 41 %, 34 % and 39 %." in text
    assert "give 36.9 %; with a probability of 90 % it is 31 % to 43 %" in text
    report = make_report()
    for kind, sentence in (("given", "as given"), ("audited", "audited: 9 of 30 are unknown")):
        openness = dataclasses.replace(report.openness, kind=kind, sentence=sentence)
        told = "".join(Reader(render_page(dataclasses.replace(report, openness=openness))).texts)
        assert sentence[1:] in told
        assert "Weighed together" not in told
        assert ("The share that follows is 36.9" in told) == (kind == "audited")


def test_options_in_warnings_are_not_broken():
    report = dataclasses.replace(make_report(), warnings=("<b>: give it (--openness SHARE)",))
    assert "<li>&lt;b&gt;: give it (<code>--openness</code> SHARE).</li>" in render_page(report)
