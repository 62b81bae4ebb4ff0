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

from opensetda.report import charts
from opensetda.report import page as page_module
from opensetda.report.charts import (
    histogram_chart,
    interval_of,
    nice_ticks,
    panel_chart,
    themed,
)
from opensetda.report.content import GIVEN, OWN_BOUNDARY, Confusion, EdgeMap, ScoreHistogram
from opensetda.report.page import render_page
from opensetda.report.page_data import edge_images, map_values, picture_address, script_json
from opensetda.runs.curves import Line, Panel
from opensetda.runs.figure_style import shorten
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
    *("x1", "x2", "y", "y1", "y2", "cx", "cy", "r", "text-anchor", "font-weight", "http-equiv"),
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
    parts = [name for name in Reader(full).ids() if f'href="#{name}"' in full and name != "main"]
    assert parts == [
        *("summary", "map", "share", "confidence", "curves", "confusion"),
        *("edges", "classes", "groups", "border", "facts"),
    ]


def test_what_a_report_does_not_have_is_left_out():
    html = render_page(empty_report())
    reader = Reader(html)
    sections = [attributes["id"] for tag, attributes in reader.tags if tag == "section"]
    assert sections == ["summary"]
    assert "Against the true labels" not in html
    assert "Step that was kept" not in html
    assert "map-data" not in reader.scripts
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
    assert "7 of 10" in text
    assert "Columns: as ranks within each domain, as asked." in text
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


def test_a_map_that_does_not_move_says_so():
    html = render_page(make_report(moves=False))
    assert "only the labels change" in html
    assert json.loads(Reader(html).scripts["map-data"])["moves"] is False


def test_the_page_of_many_points_is_small():
    report = make_report(pictures=False, n_source=2000, n_target=5000)
    size = len(render_page(report).encode("utf-8"))
    assert size < 1_000_000


def test_many_classes_are_folded():
    names = [f"class {number}" for number in range(40)]
    html = render_page(make_report(known=names, pictures=False))
    assert "Show the other 28 classes" in html
    assert 'class="confusion dense"' in html
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
    assert len(html) < 1_500_000
    table = html[html.index('<table class="confusion') :]
    rows = [re.findall(r"<td[^>]*>", row) for row in table.split("<tr>")[2:]]
    for cells in rows[:n]:
        spans = [int((re.findall(r'colspan="(\d+)"', cell) or [1])[0]) for cell in cells]
        assert sum(spans) == n + 1
    assert 'title="class 3 labelled class 7: 2, 29\u202f%"' in rows[3][3]


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
    samples = make_map(("a", "b"), ("c",), n_source=5, n_target=7, n_steps=3)
    values = map_values(samples, "unknown")
    packed = np.frombuffer(base64.b64decode(values["places"]), np.uint8).reshape(3, 12, 3)
    low, middle, high = packed.astype(int).transpose(2, 0, 1)
    places = np.stack([low | (middle & 15) << 8, middle >> 4 | high << 4], axis=-1) / 4095
    np.testing.assert_allclose(places, samples.places, atol=1 / 4095)
    labels = np.frombuffer(base64.b64decode(values["labels"]), np.uint8)
    np.testing.assert_array_equal(labels.reshape(3, 12), samples.labels)
    assert values["nSource"] == 5


def test_more_classes_than_a_byte_holds():
    names = [str(number) for number in range(300)]
    samples = make_map(names, ("new",), n_source=400, n_target=400, pictures=False, n_steps=2)
    values = map_values(samples, "unknown")
    assert values["wide"] is True
    assert values["pictures"] is None
    labels = np.frombuffer(base64.b64decode(values["labels"]), "<u2")
    np.testing.assert_array_equal(labels.reshape(2, 800), samples.labels)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.31, 0.36), (3, 3), (0, 0), (-2.5, 7), (1e-7, 2e-7), (12, 48_000)]
)
def test_ticks_are_few_and_enclose(low, high):
    ticks = nice_ticks(low, high)
    assert 3 <= len(ticks) <= 7
    assert ticks[0] <= low
    assert ticks[-1] >= high
    assert np.all(np.diff(ticks) > 0)


def test_a_panel_of_one_step_and_one_value():
    panel = Panel("Title", "%", (Line("a", {1: 50.0}, "#0072B2", "o"),), percent=True, level=50.0)
    chart = panel_chart(panel, 1, 1)
    assert [tick.text for tick in chart.x_ticks] == ["1"]
    assert chart.kept_x is not None
    assert chart.curves[0].dashed
    assert len({curve.end for curve in chart.curves}) == 2  # words never on each other
    assert "a 50" in chart.summary


def test_a_panel_with_gaps_reads_a_dash():
    lines = (
        Line("a", {1: 1.0, 2: 2.0}, "#123456", "o"),
        Line("b" * 40, {2: 1500.0}, "#000000", "o"),
    )
    chart = panel_chart(Panel("Title", "", lines), 40, None)
    assert chart.readings[0].rows[1][2] == "\N{EN DASH}"
    assert chart.readings[1].rows[1][2] == "1,500"
    assert chart.kept_x is None
    assert 3 <= len(chart.x_ticks) <= 8
    assert themed("#123456") == "#123456"
    assert shorten("a\nb", 9) == "a b"


def test_a_histogram_without_a_threshold():
    bins = np.array([3, 4])
    chart = histogram_chart(ScoreHistogram(np.array([0.0, 0.5, 1.0]), bins, 0 * bins, None))
    assert chart.threshold is None
    assert chart.n_known == 7
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


def test_an_interval_stays_on_its_scale():
    openness = dataclasses.replace(make_report().openness, low=-0.2, high=1.3)
    interval = interval_of(openness)
    assert (interval.low, interval.high) == (0, 100)
    assert "true share 33.1%" in interval.words


def test_edges_of_unknowns_are_left_open():
    affinity = np.array([[1.0, 0.8, 0.1], [0.8, 1.0, 0.2], [0.1, 0.2, 1.0]])
    edges = EdgeMap(affinity, np.array([0, 0, 1]), np.array([False, True, True]), ("a", "unknown"))
    images = edge_images(edges)
    assert images.same == pytest.approx(0.8)
    assert images.different == pytest.approx(0.15)
    assert [(block.name, block.start, block.size) for block in images.blocks] == [
        ("a", 0, 2),
        ("unknown", 2, 1),
    ]
    assert images.learned.startswith("data:image/png;base64,")
    alone = EdgeMap(np.ones((1, 1)), np.array([1]), np.array([True]), ("a", "unknown"))
    assert edge_images(alone).same is None


def test_curves_have_the_colours_of_the_figures_by_day():
    """The page names its colours, the figures have them: both are of one list."""
    names = re.findall(r"(--\w+): (#\w{6});", str(page_module._asset("light.css")))
    themed = {color.lower(): name[4:-1] for color, name in charts._THEMED.items()}
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


def test_a_second_threshold_comes_with_a_word():
    report = make_report()
    assert "their threshold is" not in render_page(report)
    histogram = dataclasses.replace(report.histogram, later=0.61)
    html = render_page(dataclasses.replace(report, histogram=histogram))
    assert "are scored one by one" in html
    assert "their threshold is 0.61." in html


def test_curves_say_the_value_of_the_kept_step():
    line = Line("threshold", {1: 0.1, 2: 0.222, 3: 0.9}, "#0072B2", "o")
    panel = Panel("Title", "", (line, Line("mean", {1: 1.0, 2: 2.0, 3: 3.0}, "#D55E00", "s")))
    chart = panel_chart(panel, 3, 2)
    assert [curve.end_text for curve in chart.curves] == ["threshold 0.222", "mean 2"]
    assert chart.kept_words == "at step 2"
    assert "At step 2: threshold 0.222" in chart.summary
    for curve in chart.curves:
        assert curve.kept == curve.points[1]
        assert curve.path.count("L") == curve.later.count("L") == 1
    last = panel_chart(panel, 3, 3)
    assert last.kept_words == ""
    assert [curve.later for curve in last.curves] == ["", ""]


def test_what_all_file_names_begin_with_is_left_out():
    report = make_report(truth=False)
    names = [f"scans/second_floor_archive_{number:03d}_final.jpg" for number in range(40, 52)]
    border = tuple(
        dataclasses.replace(card, name=name)
        for card, name in zip(report.border, names, strict=True)
    )
    only = dataclasses.replace(report, galleries=(), groups=(), border=border)
    html = render_page(only)
    assert ">\N{HORIZONTAL ELLIPSIS}040_final.jpg</bdi>" in html
    assert f'title="{names[0]}"' in html
    # Without a separator, or alone, a name is shown in full.
    one = dataclasses.replace(only, border=border[:1])
    assert ">second_floor_archive_040_final.jpg</bdi>" in render_page(one)


def test_options_in_warnings_are_not_broken():
    report = dataclasses.replace(make_report(), warnings=("<b>: give it (--openness SHARE)",))
    assert "<li>&lt;b&gt;: give it (<code>--openness</code> SHARE).</li>" in render_page(report)
