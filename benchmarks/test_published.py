"""The published figures: copied right, derived right, misprints found, and the page is theirs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

import published
from opensetda import evaluate
from published_figures import (
    PAPER,
    Figure,
    disagreements,
    harmonic_mean,
    impossible,
    of,
    read_figures,
    read_rows,
    unknown_accuracy,
    unknown_rounding,
)

TEX = Path(__file__).parents[2] / "shared" / "paper" / "progressive-graph-learning.tex"
FIGURES = read_figures()

percent = st.floats(0, 100)
# How many samples a class has, and how many of them are right.
counts = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))


def figure_of(method: str, task: str, table: str = "office-home", source: str = PAPER) -> Figure:
    (found,) = (f for f in of(FIGURES, table, source) if (f.method, f.task) == (method, task))
    return found


class TestArithmetic:
    @given(st.lists(counts, min_size=2, max_size=7), counts)
    def test_unk_and_hos_are_those_of_the_metrics(self, known, unknown):
        truth, predicted = [], []
        for label, (n, correct) in enumerate(known):
            truth += [label] * n
            predicted += [label] * correct + ["unknown"] * (n - correct)
        truth += [99] * unknown[0]
        predicted += ["unknown"] * unknown[1] + [0] * (unknown[0] - unknown[1])
        metrics = evaluate(truth, predicted, list(range(len(known))))
        unk = unknown_accuracy(100 * metrics.os, 100 * metrics.os_star, len(known))
        assert unk == pytest.approx(100 * metrics.unk, abs=1e-9)
        assert harmonic_mean(100 * metrics.os_star, 100 * metrics.unk) == pytest.approx(
            100 * metrics.hos, abs=1e-9
        )

    @given(percent, percent, st.integers(2, 60))
    def test_printed_with_one_decimal_unk_is_known_to_the_rounding(self, os_star, unk, n_known):
        os = (n_known * os_star + unk) / (n_known + 1)
        derived = unknown_accuracy(round(os, 1), round(os_star, 1), n_known)
        assert abs(derived - unk) <= unknown_rounding(n_known) + 1e-9

    def test_rounding_of_the_three_benchmarks(self):
        assert [round(unknown_rounding(n), 2) for n in (25, 12, 6)] == [2.55, 1.25, 0.65]

    @given(percent, percent)
    def test_hos_lies_between_its_parts(self, os_star, unk):
        hos = harmonic_mean(os_star, unk)
        assert min(os_star, unk) - 1e-9 <= hos <= max(os_star, unk) + 1e-9

    def test_what_was_derived_by_hand(self):
        tasks = [f for f in of(FIGURES, "office-home", PAPER) if f.method == "PGL"][:-1]
        assert len(tasks) == 12
        assert round(fmean(f.possible_unk for f in tasks), 1) == 25.0
        assert round(fmean(f.derived_hos for f in tasks), 1) == 35.2
        assert round(figure_of("PGL", "all", "visda17").derived_hos, 1) == 75.0


class TestMisprints:
    def test_the_program_finds_them(self):
        assert [(f.method, f.task) for f in impossible(FIGURES)] == [
            ("ResNet + OSVM", "Ar-Rw"),
            ("PGL", "Rw-Cl"),
        ]
        for figure in impossible(FIGURES):
            assert figure.derived_unk < -unknown_rounding(figure.known)
        assert figure_of("PGL", "Rw-Cl").derived_unk == pytest.approx(-30)
        assert figure_of("PGL", "Rw-Cl").derived_hos == 0

    @pytest.mark.parametrize(("os", "os_star", "found"), [(80, 79, True), (79.8, 79, False)])
    def test_more_than_all_is_impossible_too(self, os, os_star, found):
        figure = replace(figure_of("OSBP", "Ar-Cl"), os=os, os_star=os_star)
        assert impossible([figure]) == [figure] * found

    def test_all_that_rounding_does_not_explain(self):
        places = [place for _, place, _, _ in disagreements(FIGURES)]
        assert places == [
            "Office-Home, ResNet + OSVM, Ar-Rw",
            "Office-Home, PGL, Rw-Cl",
            "Syn2Real-O, PGL",
            "Office-31, ERM, mean",
            "Office-Home, ERM, mean",
            "Office-Home, DANN, mean",
        ]

    @pytest.mark.parametrize(
        ("method", "task", "table", "change"),
        [
            ("OSBP", "mean", "office-home", {"os": 68.9}),
            ("OSBP", "mean", "office-home", {"os_star": 69.8}),
            ("STA", "all", "visda17", {"unk": 82.9}),
            ("STA", "all", "visda17", {"os_star": 64.2, "unk": None}),
        ],
    )
    def test_another_one_would_be_found(self, method, task, table, change):
        right = figure_of(method, task, table)
        wrong = [replace(f, **change) if f is right else f for f in FIGURES]
        assert len(disagreements(wrong)) == len(disagreements(FIGURES)) + 1


class TestData:
    def test_every_figure_is_a_percentage_of_a_named_source(self):
        names = {row["source"] for row in read_rows(published.DATA / "sources.csv", ("source",))}
        # The figures of uniood, on features of other backbones, have a file of their own.
        assert {f.source for f in FIGURES} | {"uniood"} == names
        for f in FIGURES:
            values = [v for v in (f.all, f.os, f.os_star, f.unk, f.hos) if v is not None]
            assert values, f
            assert all(0 <= value <= 100 for value in values), f

    def test_figures_on_other_backbones_have_a_table_of_their_own(self):
        apart = published.frozen(FIGURES)
        assert "CLIP ViT-L/14@336" in apart
        for build in (published.others, published.office_31):
            assert "UniOT" not in build(FIGURES)

    def test_no_figure_is_there_twice(self):
        keys = [(f.table, f.source, f.method, f.task) for f in FIGURES]
        assert len(keys) == len(set(keys))

    @pytest.mark.skipif(not TEX.is_file(), reason="the paper's text is not beside the project")
    def test_the_papers_tables_are_copied_right(self):
        # Every number of every line, in the paper's order: classes, UNK, ALL, OS, OS*.
        copied: dict[tuple[str, str], list[float]] = {}
        columns = ("table", "method", "class", "accuracy")
        for row in read_rows(published.DATA / "classes.csv", columns):
            copied.setdefault((row["table"], row["method"]), []).append(float(row["accuracy"]))
        lines: dict[tuple[str, str], list[float]] = {}
        for f in (f for f in FIGURES if f.source == PAPER):
            key = ("enlarging" if f.table.startswith("enlarging") else f.table, f.method)
            values = [v for v in (f.unk, f.all, f.os, f.os_star) if v is not None]
            lines.setdefault(key, copied.get(key, [])).extend(values)
        assert list(lines.values()) == [line for label in LABELS for line in numbers_of(label)]


LABELS = ("tab:home", "tab:visda17", "tab:Syn2Real-O", "tab:abl", "tab:EF")


def numbers_of(label: str) -> list[list[float]]:
    """The numbers of each line of a LaTeX table, without its first column."""
    text = TEX.read_text(encoding="utf-8")
    start = text.index(r"\midrule", text.index(f"\\label{{{label}}}"))
    lines = text[start : text.index(r"\bottomrule", start)].split(r"\\")
    cells = [line.split("&")[1:] for line in lines if "&" in line]
    return [[float(n) for n in re.findall(r"\d+\.\d+", " ".join(line))] for line in cells]


class TestPage:
    def test_it_has_the_tables(self):
        assert published.main(["--check"]) == 0

    def test_a_changed_digit_is_found_and_put_right(self, tmp_path, capsys):
        page = tmp_path / "page.md"
        text = published.PAGE.read_text(encoding="utf-8")
        page.write_text(text.replace("| 35.2 |", "| 53.2 |"), encoding="utf-8")
        options = ["--page", str(page)]
        assert published.main([*options, "--check"]) == 1
        assert "run python benchmarks/published.py" in capsys.readouterr().out
        assert published.main(options) == 0
        assert "-30.0" in capsys.readouterr().out
        assert page.read_text(encoding="utf-8") == text

    def test_a_table_without_its_markers_is_an_error(self):
        with pytest.raises(SystemExit, match="no place for the table 'a'"):
            published.fill("", {"a": "x"})

    def test_what_is_not_measured_stays_as_it_is(self):
        page = "<!-- table: a -->\nold\n<!-- end -->\nbetween\n<!-- table: b -->\nold\n<!-- end -->"
        filled = published.fill(page, {"a": None, "b": "new\n"})
        assert filled == page.replace("b -->\nold\n", "b -->\n\nnew\n\n")
