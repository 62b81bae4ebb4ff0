"""Figures for a paper: which a run can fill, what is on them, and how they get to the disk."""

from __future__ import annotations

import itertools
import shutil
import warnings

import numpy as np
import pytest
from matplotlib import cbook
from matplotlib.text import Text
from PIL import Image

from cli_helpers import names_in
from opensetda.cli.main import main
from opensetda.errors import InputError
from opensetda.report import figures
from opensetda.report.content import Confusion
from opensetda.report.figures import FIGURES, map_figure, write_figures
from opensetda.report.matrices import draw_confusion
from opensetda.report.plots import IntervalRow, draw_intervals
from opensetda.report.run_parts import RunParts
from opensetda.runs.figure_style import figure_bytes, figure_name, short_number
from opensetda.runs.folder import THUMBNAILS, TRUTH, RunFolder
from opensetda.runs.manifest import reseal
from report_helpers import HOSTILE, make_report

FORMULAS = ("$x_1$", r"$\frac{", "$", r"a\$b$", *HOSTILE)


@pytest.fixture(scope="module")
def drawn(evaluated, tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn") / "deep" / "figures"
    assert write_figures(evaluated, folder) == files_of(folder, *FIGURES)
    return folder


@pytest.fixture
def unprinted(monkeypatch):
    """No printing, for tests that look at files and not at pictures: it takes most of the time."""
    monkeypatch.setattr(figures, "figure_bytes", lambda figure, **how: b"png")


def files_of(folder, *names):
    return [folder / f"{name}.png" for name in names]


def texts(figure):
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]


def overlapping(labels):
    """Pairs of words that are drawn over one another."""
    boxes = [(label, label.get_window_extent().padded(-0.5)) for label in labels]
    return [
        (one.get_text(), other.get_text())
        for (one, a), (other, b) in itertools.combinations(boxes, 2)
        if a.overlaps(b)
    ]


# a run's figures ----------------------------------------------------------------------------


def test_every_figure_is_a_png_of_300_dpi(drawn):
    assert names_in(drawn) == sorted(path.name for path in files_of(drawn, *FIGURES))
    for name in FIGURES:
        with Image.open(drawn / f"{name}.png") as image:
            assert image.info["dpi"][0] == pytest.approx(300, abs=1)
            # From a column to a page; words of 9 points are at least 6.5 when it is brought to it.
            assert 2.5 <= image.width / 300 <= 9.5
            assert image.height / 300 <= 11


def test_the_same_run_gives_the_same_bytes(evaluated, drawn, tmp_path, monkeypatch):
    # A plane and an image; printing all takes ten seconds.
    kept = {"map", "scores"}
    every = figures.draw_figures
    monkeypatch.setattr(
        figures,
        "draw_figures",
        lambda *run: {name: figure for name, figure in every(*run).items() if name in kept},
    )
    for path in write_figures(evaluated, tmp_path):
        assert path.read_bytes() == (drawn / path.name).read_bytes(), path.name


def test_no_thumbnail_is_made_for_them(evaluated, drawn):
    assert not (evaluated.path / THUMBNAILS).exists()


def test_figures_that_a_run_cannot_fill_are_left_out(evaluated, tmp_path):
    untold = tmp_path / "untold"
    shutil.copytree(evaluated.path, untold)
    (untold / TRUTH).unlink()
    reseal(untold)
    wanted = [name for name in FIGURES if name != "confusion"]
    assert list(figures.draw_figures(RunFolder.open(untold))) == wanted


def test_a_method_without_steps_has_no_curves(workplace):
    fit = ["fit", "--no-report", "source.npz", "target.npz", "--out", "run"]
    assert main([*fit, "--method", "source-only", "--openness", "0.3"]) == 0
    drawn = figures.draw_figures(RunFolder.open("run"))
    assert list(drawn) == ["map", "scores", "openness"]
    assert "given" in {text.get_text() for text in texts(drawn["openness"])}


def test_the_estimate_stands_beside_a_share_of_another_origin(evaluated):
    parts = RunParts(evaluated)
    openness = {**parts.estimates["openness"], "share": 0.7, "own_boundary": True, "told": False}
    openness["estimates"] = {
        "estimate": {"share": 0.4, "low": 0.2, "high": 0.6},
        "hidden classes alone": {"share": 0.3, "low": 0.3, "high": 0.3},
    }
    parts.estimates = {**parts.estimates, "openness": openness}
    drawn = figures._openness(parts)
    names = [label.get_text() for label in drawn.axes[0].get_yticklabels()]
    assert names == ["by the method's own boundary", "estimate", "hidden classes alone"]
    # Of the three only the estimate has an interval.
    assert (
        sum(
            len(line.get_xdata()) == 2 and line.get_linewidth() == 1.6
            for line in drawn.axes[0].lines
        )
        == 1
    )
    openness["own_boundary"] = False
    drawn = figures._openness(parts)
    names = [label.get_text() for label in drawn.axes[0].get_yticklabels()]
    assert names == ["estimated", "hidden classes alone"]


def test_what_is_on_them(evaluated):
    drawn = figures.draw_figures(evaluated)
    words = {name: [text.get_text() for text in texts(figure)] for name, figure in drawn.items()}
    assert {"Prediction", "Truth", "target, unknown", "blue", "red"} <= {*words["map"]}
    assert {"As labelled", "In truth"} <= {*words["scores"]}
    assert any(word.startswith("threshold ") for word in words["scores"])
    assert {"true class", "label", "black", "pink", "unknown"} <= {*words["confusion"]}
    assert "true 33.3" in words["openness"]
    assert "How far: pseudo-labels" in words["curves"]


def test_bins_do_not_lie_on_both_sides_of_the_threshold(evaluated):
    parts = RunParts(evaluated)
    histogram = parts.histogram()
    assert histogram.known.sum() + histogram.unknown.sum() == len(parts.predictions)
    assert not (histogram.known * histogram.unknown).any()
    assert histogram.threshold in histogram.edges
    in_truth = parts.histogram(~np.isin(parts.truth, parts.predictions.classes))
    np.testing.assert_array_equal(in_truth.edges, histogram.edges)
    assert in_truth.unknown.sum() == 10


# files --------------------------------------------------------------------------------------


def test_earlier_figures_are_kept_unless_they_may_be_replaced(evaluated, tmp_path, unprinted):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "scores.png").write_text("earlier")
    with pytest.raises(InputError, match=r"scores\.png exists already; .* --overwrite$"):
        write_figures(evaluated, tmp_path)
    assert names_in(tmp_path) == ["notes.txt", "scores.png"]
    write_figures(evaluated, tmp_path, overwrite=True)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "scores.png").read_bytes() == b"png"


def test_no_figure_of_another_run_stays(evaluated, tmp_path, monkeypatch, unprinted):
    for path in files_of(tmp_path, "confusion"):
        path.write_text("of another run")
    monkeypatch.setattr(RunFolder, "truth", lambda self: None)
    write_figures(evaluated, tmp_path, overwrite=True)
    assert "confusion.png" not in names_in(tmp_path)


def test_nothing_stays_if_one_of_them_fails(evaluated, tmp_path, monkeypatch, unprinted):
    def fail(*arguments):
        raise OSError("no space left")

    monkeypatch.setattr(figures, "draw_histograms", fail)
    with pytest.raises(OSError, match="no space left"):
        write_figures(evaluated, tmp_path / "some" / "where")
    assert names_in(tmp_path) == []


def test_places_where_no_figure_can_be(evaluated, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder" / "map.png").mkdir(parents=True)
    for place, words in [
        ("file", "a file, not a folder"),
        ("file/below", "is a file, not a folder"),
        ("folder", r"a folder map\.png is in the way"),
    ]:
        with pytest.raises(InputError, match=words):
            write_figures(evaluated, tmp_path / place, overwrite=True)


# names and sizes ----------------------------------------------------------------------------


def test_names_are_never_formulas_and_never_long():
    report = make_report(known=FORMULAS, new=("$$", "long " * 40), pictures=False)
    drawn = {
        "map": map_figure(report.map),
        "confusion": draw_confusion(report.confusion),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, figure in drawn.items():
            assert figure_bytes(figure, "png", 50)
            for text in texts(figure):
                assert not cbook.is_math_text(text.get_text()), (name, text.get_text())
                assert len(text.get_text()) < 60
    assert r"\$x 1\$" in {text.get_text() for text in texts(drawn["confusion"])}


def test_a_name_is_one_line_of_what_can_be_drawn():
    assert figure_name("back_pack", 9) == "back pack"
    assert figure_name("two\nlines\tof \u202e it \udce9", 99) == "two lines of it"
    assert figure_name("$" * 30, 5) == r"\$" * 4 + "…"


def test_numbers_of_targets_have_no_decimals():
    assert [short_number(value) for value in (1127.0, 670.0, 79.04, 3.0, 0.2449, 12345.6)] == [
        *("1,127", "670", "79.0", "3", "0.245", "12,346")
    ]


def confusion_of(n_known, n_unknown):
    rng = np.random.default_rng(0)
    known = tuple(f"Alarm Clock {number:02d}" for number in range(n_known))
    new = tuple(f"Unknown {number:02d}" for number in range(n_unknown))
    counts = rng.poisson(3, (n_known + n_unknown, n_known + 1))
    return Confusion((*known, *new), (*known, "unknown"), counts, n_known)


@pytest.mark.parametrize(("n_known", "n_unknown"), [(5, 5), (10, 11), (25, 40), (65, 1)])
def test_all_classes_of_a_confusion_matrix_can_be_read(n_known, n_unknown):
    confusion = confusion_of(n_known, n_unknown)
    figure = draw_confusion(confusion)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == [*confusion.true_names]
    assert [text.get_text() for text in axes.get_xticklabels()] == [*confusion.given_names]
    for labels in (axes.get_xticklabels(), axes.get_yticklabels(), axes.texts):
        assert overlapping(labels) == []
    assert figure.get_figwidth() <= 12


def test_a_confusion_matrix_of_very_many_classes():
    axes = draw_confusion(confusion_of(12, 90)).axes[0]
    assert axes.get_yticklabels()[-1].get_text() == "90 unknown classes"
    assert len(axes.get_yticklabels()) == 13
    figure = draw_confusion(confusion_of(300, 3))
    assert list(figure.axes[0].get_yticklabels()) == []
    assert figure.get_figheight() < 12


def test_a_map_tells_that_it_is_a_sample():
    samples = make_report(pictures=False).map
    assert "460 of 9,200 samples" in {text.get_text() for text in texts(map_figure(samples))}


def test_intervals_have_their_words():
    rows = [IntervalRow("used", 0.373, 0.14, 0.41, strong=True), IntervalRow("told", 0.5)]
    words = {text.get_text() for text in texts(draw_intervals(rows, "share", 0.499))}
    assert {"used", "told", "37.3", "50.0", "true 49.9", "share"} <= words
