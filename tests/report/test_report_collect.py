"""What a report says of a run, gathered from its folder."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from cli_helpers import FIT, OPENNESS
from opensetda.cli.main import main
from opensetda.report.collect import Progress, collect, facts_of
from opensetda.report.plane import lay_out
from opensetda.report.run_parts import cut_of, nearest_to_cut
from opensetda.runs.folder import MAP, THUMBNAILS, RunFolder
from opensetda.runs.predictions import PredictionTable


@pytest.fixture(scope="module")
def report(evaluated):
    return collect(evaluated)


def test_numbers_agree_with_the_run(evaluated, report):
    table = evaluated.predictions()
    unknown = int((table.labels == "unknown").sum())
    assert report.n_target == len(table) == 30
    assert report.map.n_source == 24
    assert sum(row.count for row in report.counts) == 30
    assert (report.counts[-1].name, report.counts[-1].count) == ("unknown", unknown)
    assert f"{unknown:,} ({100 * unknown / 30:.0f}\u202f%)" in report.headline
    assert report.noun == "image"
    assert report.how[0].startswith("Labelled by moving-means. Class means")
    assert report.how[1] == "Columns: as ranks within each domain."
    estimates = evaluated.estimates()["openness"]
    assert (report.openness.share, report.openness.low) == (estimates["share"], estimates["low"])
    assert report.openness.kind == "given"
    assert report.openness.sentence.startswith("as given")
    assert report.panels == ()  # nothing is learned
    assert sum(group.size for group in report.groups) == unknown
    assert sum(count for group in report.groups for _, count in group.truth) == unknown


def test_truth_is_what_evaluate_was_told(evaluated, report):
    metrics = json.loads((evaluated.path / "metrics.json").read_text())
    assert report.metrics["HOS"] == pytest.approx(metrics["final"]["hos"])
    assert report.openness.true == pytest.approx(1 / 3)
    confusion = report.confusion
    assert confusion.given_names == (*confusion.true_names[:4], "unknown")
    assert confusion.counts.sum(axis=1).tolist() == [5] * 6
    right = np.trace(confusion.counts[:4, :4]) + confusion.counts[4:, 4].sum()
    assert right / 30 == pytest.approx(metrics["final"]["all"])


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


def test_cards_are_the_surest_the_least_sure_and_the_most_doubtful(evaluated, report):
    table = evaluated.predictions()
    for gallery in report.galleries:
        cards = (*gallery.surest, *gallery.least_sure[::-1])
        confidence = [table.confidence[card.row] for card in cards]
        assert confidence == sorted(confidence, reverse=True)
        assert {card.label for card in cards} == {gallery.name}
        assert len(cards) == len({card.row for card in cards}) <= gallery.count
    doubtful = [table.confidence[card.row] for card in report.border]
    assert doubtful == sorted(table.confidence)[:12]
    assert all(card.picture and card.truth for card in report.border)


def test_bins_do_not_lie_on_both_sides_of_the_threshold(evaluated, report):
    histogram, table = report.histogram, evaluated.predictions()
    assert histogram.known.sum() + histogram.unknown.sum() == 30
    assert not (histogram.known * histogram.unknown).any()
    assert histogram.threshold in histogram.edges
    unknown = table.labels == "unknown"
    assert table.known_scores[unknown].max() < histogram.threshold
    assert table.known_scores[~unknown].min() > histogram.threshold


def test_map_and_thumbnails_are_kept(evaluated, report, monkeypatch):
    assert (evaluated.path / THUMBNAILS).exists()
    monkeypatch.setattr("opensetda.report.plane.lay_out", None)
    monkeypatch.setattr("opensetda.runs.pictures._thumbnail_of", None)
    again = collect(evaluated)
    np.testing.assert_array_equal(again.map.places, report.map.places)
    assert again.map.pictures == report.map.pictures


def test_without_truth_nothing_is_said_of_it_and_progress_is_told(pictures, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(pictures / "run", path)
    counts = [], []
    told = Progress(*(lambda *count, of=of: of.append(count) for of in counts))
    report = collect(RunFolder.open(path), progress=told)
    assert counts[0][-1] == (500, 500)
    assert counts[1][-1] == (54, 54)
    assert report.metrics is report.confusion is report.openness.true is None
    assert report.map.truth is None
    assert all(card.truth is None for card in report.border)
    # A damaged map is made anew.
    (path / MAP).write_bytes(b"no parquet")
    again = collect(RunFolder.open(path))
    np.testing.assert_array_equal(again.map.places, report.map.places)


def test_a_run_of_a_committee_has_what_the_share_was_estimated_from(workplace):
    assert main([*FIT[:-1], "committee"]) == 0
    run = RunFolder.open("run")
    report = collect(run)
    seen = run.estimates()["openness"]["evidence"]
    expected = [seen["hidden"], seen["hidden_moved"], np.exp(seen["margin"]), seen["below"]]
    shown = [share for share, _ in report.openness.looked_at]
    assert shown == pytest.approx(np.minimum(expected, 1).tolist())
    assert report.openness.is_estimated
    assert "threshold of the known score" not in report.facts["Estimates"]
    assert not report.panels


def test_a_run_on_rows_and_a_method_that_learns_in_steps(workplace, stepper):
    assert main([*FIT[:-1], stepper, *OPENNESS]) == 0
    report = collect(RunFolder.open("run"))
    assert report.noun == "row"
    assert report.how[0] == (
        "Labelled by stepper. Class means that move a little at random in every step."
    )
    assert [panel.title for panel in report.panels] == ["What it learns: training losses"]
    assert set(report.map.pictures) == {None}


def test_the_cut_lies_between_known_and_unknown():
    def table(scores, labels, corrected=None):
        n, told = len(scores), None if corrected is None else np.array(corrected)
        values = np.array(labels), np.array(scores, dtype=float), np.full(n, "cat")
        ids = np.arange(n).astype(str)
        return PredictionTable(ids, *values, np.ones((n, 2)), ("cat",), corrected=told)

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
    assert (facts["Settings"]["method"], facts["Settings"]["steps"]) == ("moving-means", "2")
    assert float(facts["Time and memory"]["peak memory in MB"]) > 0
    assert facts["Versions"]["torch"]
    assert "classes" not in " ".join(facts["Data"])
    seconds = {"fit_seconds": 125.0, "data_seconds": 3.21}
    found = facts_of(evaluated.settings, seconds, evaluated.estimates())
    assert [*found["Time and memory"].values()] == ["3.2 s", "2 min 5 s"]
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


def test_other_shares_are_of_this_run(evaluated, report):
    what = report.what_if
    assert what.below[what.used] == report.counts[-1].count
    assert sorted(what.order.tolist()) == list(range(30))
    # Of a given share nothing is estimated.
    assert evaluated.estimates()["openness"]["evidence"] is None
    assert report.openness.looked_at == ()
    assert report.refit.head.startswith("osda fit ")


def test_neighbours_stay_neighbours_in_a_square_and_the_same_rows_give_the_same_bits():
    which = np.arange(90) % 3
    rows = 6 * np.eye(3, 8)[which] + np.random.default_rng(0).normal(0, 0.3, (90, 8))
    plane = lay_out(rows)
    distances = np.linalg.norm(plane[:, None] - plane[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    assert (which[distances.argmin(axis=1)] == which).all()
    assert plane.min() >= 0
    assert plane.max() <= 1
    assert np.ptp(plane, axis=0).max() == pytest.approx(1, abs=1e-5)
    np.testing.assert_array_equal(lay_out(rows), plane)


@pytest.mark.parametrize("shape", [(1, 3), (4, 3), (8, 1)])
def test_a_few_samples_and_one_column_have_places_too(shape):
    rows = np.random.default_rng(0).normal(size=shape)
    for plane in (lay_out(rows), lay_out(np.ones_like(rows))):
        assert plane.shape == (len(rows), 2)
        assert np.isfinite(plane).all()
