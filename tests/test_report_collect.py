"""What a report says of a run, gathered from its folder."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import stepping_method
from cli_helpers import FIT, OPENNESS
from opensetda.cli.main import main
from opensetda.report.collect import Progress, collect, facts_of
from opensetda.report.plane import plane_of
from opensetda.report.run_parts import RunParts, cut_of, nearest_to_cut
from opensetda.report.wording import _NOT_TRAINED, _TRAINED, how_it_labels, is_trained
from opensetda.runs.folder import MAP, THUMBNAILS, RunFolder
from opensetda.runs.methods import METHODS
from opensetda.runs.predictions import PredictionTable


@pytest.fixture(scope="module")
def report(evaluated):
    return collect(evaluated)


def test_numbers_agree_with_the_run(evaluated, report):
    table = evaluated.predictions()
    unknown = int((table.labels == "unknown").sum())
    assert report.n_target == len(table) == 30
    assert report.n_source == 24
    assert sum(row.count for row in report.counts) == 30
    assert report.counts[-1].is_unknown
    assert report.counts[-1].count == unknown
    assert f"{unknown:,} ({100 * unknown / 30:.0f}\u202f%)" in report.headline
    assert report.noun == "image"
    assert report.how[0].startswith("Labelled by moving-means: class means of the source move")
    assert report.how[1] == "Columns: as ranks within each domain."
    estimates = evaluated.estimates()["openness"]
    assert (report.openness.share, report.openness.low) == (estimates["share"], estimates["low"])
    assert report.openness.kind == "given"
    assert report.openness.sentence.startswith("as given")


def test_an_audited_share_is_said_to_be_checked_by_hand(evaluated):
    parts = RunParts(evaluated)
    found = {**parts.estimates["openness"], "told": False, "audit": "9 of 30 are unknown"}
    parts.estimates = {**parts.estimates, "openness": found}
    openness = parts.openness()
    assert (openness.kind, openness.is_estimated) == ("audited", True)
    # Without the jargon of how the share looked before.
    assert openness.sentence == "checked by hand: 9 of 30 are unknown"


def test_truth_is_what_evaluate_was_told(evaluated, report):
    metrics = json.loads((evaluated.path / "metrics.json").read_text())
    assert report.metrics["HOS"] == pytest.approx(metrics["final"]["hos"])
    assert report.openness.true == pytest.approx(1 / 3)
    assert report.confusion.true_names[:4] == report.confusion.given_names[:4]
    assert report.confusion.given_names[4] == "unknown"
    assert report.confusion.n_known == 4
    assert report.confusion.counts.sum(axis=1).tolist() == [5] * 6
    known = np.trace(report.confusion.counts[:4, :4])
    unknown = report.confusion.counts[4:, 4].sum()
    assert (known + unknown) / 30 == pytest.approx(metrics["final"]["all"])


def test_a_damaged_map_is_made_anew(evaluated, report):
    places = plane_of(evaluated)
    for content in (b"", b"no parquet", (evaluated.path / THUMBNAILS).read_bytes()):
        (evaluated.path / MAP).write_bytes(content)
        np.testing.assert_array_equal(plane_of(evaluated), places)


def test_map_has_every_sample_once(evaluated, report):
    shown = report.map
    assert shown.places.shape == (54, 2)
    assert (~shown.is_target).sum() == 24
    assert not shown.is_sampled
    assert len(set(shown.names)) == 54
    table = evaluated.predictions()
    row_of = {name: row for row, name in enumerate(table.ids.tolist())}
    for place in np.flatnonzero(shown.is_target):
        row = row_of[shown.names[place]]
        given = [*table.classes, "unknown"][shown.labels[place]]
        assert given == table.labels[row]
        assert shown.confidence[place] == table.confidence[row]
        assert shown.true_classes[shown.truth[place]] == evaluated.truth()[row]
        assert shown.pictures[place].startswith("data:image/webp;base64,")
    for place in np.flatnonzero(~shown.is_target):
        # The class folders of the source.
        assert shown.names[place].split("/")[0] == shown.classes[shown.labels[place]]
        assert shown.classes[shown.truth[place]] == shown.classes[shown.labels[place]]


def test_cards_are_the_surest_the_least_sure_and_those_at_the_border(evaluated, report):
    table = evaluated.predictions()
    for gallery in report.galleries:
        surest, least = (
            [table.confidence[card.row] for card in cards]
            for cards in (gallery.surest, gallery.least_sure)
        )
        assert surest == sorted(surest, reverse=True)
        assert least == sorted(least)
        assert not least or min(surest) >= max(least)
        assert {card.label for card in (*gallery.surest, *gallery.least_sure)} == {gallery.name}
        rows = [card.row for card in (*gallery.surest, *gallery.least_sure)]
        assert len(rows) == len(set(rows)) <= gallery.count
    cut = report.histogram.threshold
    away = [abs(table.known_scores[card.row] - cut) for card in report.border]
    assert away == sorted(away)
    assert len(away) == 24
    assert all(card.picture and card.truth for card in report.border)


def test_histogram_counts_all_and_is_cut_where_labels_change(evaluated, report):
    histogram, table = report.histogram, evaluated.predictions()
    assert histogram.known.sum() + histogram.unknown.sum() == 30
    unknown = table.labels == "unknown"
    assert table.known_scores[unknown].max() < histogram.threshold
    assert table.known_scores[~unknown].min() > histogram.threshold


def test_groups_hold_all_unknowns(evaluated, report):
    unknown = int((evaluated.predictions().labels == "unknown").sum())
    assert sum(group.size for group in report.groups) == unknown
    assert [group.number for group in report.groups] == list(range(1, len(report.groups) + 1))
    assert sum(count for group in report.groups for _, count in group.truth) == unknown


def test_map_and_thumbnails_are_kept(evaluated, report, monkeypatch):
    assert (evaluated.path / THUMBNAILS).exists()
    monkeypatch.setattr("opensetda.report.plane.lay_out", None)
    monkeypatch.setattr("opensetda.runs.pictures._thumbnail_of", None)
    again = collect(evaluated)
    np.testing.assert_array_equal(again.map.places, report.map.places)
    assert again.map.pictures == report.map.pictures


def test_a_map_of_other_samples_is_made_anew(evaluated, report, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(evaluated.path, path)
    run = RunFolder.open(path)
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path / MAP)
    pyarrow.parquet.write_table(table.slice(0, 5), path / MAP)
    assert len(plane_of(run)) == 54


def test_progress_is_told(evaluated, report, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(evaluated.path, path)
    (path / MAP).unlink()
    (path / THUMBNAILS).unlink()
    of_map, of_pictures = [], []
    collect(
        RunFolder.open(path),
        progress=Progress(
            lambda *count: of_map.append(count), lambda *count: of_pictures.append(count)
        ),
    )
    assert of_map[-1][0] == of_map[-1][1]
    assert of_pictures[-1] == (54, 54)


def test_without_truth_nothing_is_said_of_it(pictures, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(pictures / "run", path)
    report = collect(RunFolder.open(path))
    assert report.metrics is report.confusion is report.openness.true is None
    assert report.map.truth is None
    assert all(card.truth is None for card in report.border)


def test_a_run_on_rows_and_a_method_of_one_step(workplace):
    assert main([*FIT[:-1], "source-only", *OPENNESS]) == 0
    report = collect(RunFolder.open("run"))
    assert report.noun == "row"
    assert report.panels == ()
    assert set(report.map.pictures) == {None}


def test_the_steps_of_a_method_that_trains_nothing_are_few_words(report):
    assert [panel.title.split(":")[0] for panel in report.panels] == ["How far", "How settled"]


def test_every_method_is_said_by_its_name():
    assert {*_TRAINED, *_NOT_TRAINED} == set(METHODS) - {stepping_method.NAME}
    assert "Luo et al., ICML 2020" in how_it_labels("pgl")
    assert how_it_labels("dann+osvm") == how_it_labels("dann")
    assert how_it_labels("my-method") is None
    assert is_trained("pgl")
    assert not is_trained("moving-means")
    assert not any("learn" in words or "network" in words for words in _NOT_TRAINED.values())


def table(scores, labels, corrected=None):
    n = len(scores)
    return PredictionTable(
        ids=np.arange(n).astype(str),
        labels=np.array(labels),
        known_scores=np.array(scores, dtype=float),
        nearest=np.full(n, "cat"),
        proba=np.tile([0.9, 0.1], (n, 1)),
        classes=("cat",),
        corrected=None if corrected is None else np.array(corrected),
    )


def test_the_cut_lies_between_known_and_unknown():
    assert cut_of(table([1, 2, 4, 5], ["unknown", "unknown", "cat", "cat"]), "unknown") == 3
    assert cut_of(table([1, 2], ["cat", "cat"]), "unknown") is None
    assert cut_of(table([1, 2], ["unknown", "unknown"]), "unknown") == pytest.approx(2)
    # What a person said about the first says nothing about scores.
    told = table([9, 2, 4], ["unknown", "unknown", "cat"], [True, False, False])
    assert cut_of(told, "unknown") == 3
    assert nearest_to_cut(told, "unknown").tolist() == [1, 2]


def test_facts_are_written_for_people(evaluated, report):
    facts = report.facts
    assert facts["Command"]["command"].startswith("osda")
    assert facts["Settings"]["steps"] == "2"
    assert facts["Settings"]["method"] == "moving-means"
    assert float(facts["Time and memory"]["peak memory in MB"]) > 0
    assert facts["Versions"]["torch"]
    assert "classes" not in " ".join(facts["Data"])


def test_facts_of_long_runs_have_minutes(evaluated):
    found = facts_of(
        evaluated.settings, {"fit_seconds": 125.0, "data_seconds": 3.21}, evaluated.estimates()
    )
    assert found["Time and memory"] == {
        "reading and features": "3.2 s",
        "fitting and labelling": "2 min 5 s",
    }
    assert "Machine" not in found


def test_a_person_s_word_does_not_tell_how_sure_the_method_is(workplace):
    (workplace / "corrections.csv").write_text("id,label\n1,cat\n2,unknown\n3,zebra\n")
    assert main([*FIT, *OPENNESS, "--corrections", "corrections.csv"]) == 0
    report = collect(RunFolder.open("run"))
    assert report.headline.endswith("3 labels were set manually.")
    counts = {count.name: count.count for count in report.counts}
    for gallery in report.galleries:
        rows = {card.row for card in (*gallery.surest, *gallery.least_sure)}
        assert gallery.count == counts[gallery.name]
        # Of a class that has nobody else, what was told is shown.
        assert gallery.count == 1 or not rows & {0, 1, 2}


def test_other_shares_begin_with_the_labels_of_the_run(evaluated, report):
    what = report.what_if
    rows = {count.name: count.count for count in report.counts}
    names = (*report.map.classes, "unknown")
    assert dict(zip(names, what.counts[what.used].tolist(), strict=True)) == rows
    assert what.below[what.used] == rows["unknown"]
    assert sorted(what.order.tolist()) == list(range(30))
    assert [share for share, _ in report.openness.looked_at] == [
        evaluated.estimates()["openness"]["evidence"][name]
        for name in ("hidden", "hidden_moved", "below")
    ]
    command = f"{report.refit.head}0.40{report.refit.middle}40{report.refit.tail}"
    assert command.startswith("osda fit ")
    assert command.count("--openness") == command.count("--out") == 1
