"""The time left: nothing until it is known, and then about right."""

from __future__ import annotations

import pytest

from opensetda.cli import console
from opensetda.cli.counting import counting_progress, training_progress
from opensetda.cli.pace import GridPace, Pace, TrainingPace
from opensetda.progress import ProgressEvent


@pytest.fixture
def told():
    """What a command expects, for programs."""
    with console.command_line():
        console.be_quiet(True)
        yield console.expected


def promises(durations):
    """Yield the share that is done, the true seconds left and the promise, after each item."""
    pace, total = Pace(), len(durations)
    for done, seconds in enumerate(durations, start=1):
        pace.add(1, seconds)
        yield done / total, sum(durations[done:]), pace.left(total - done)


# items ---------------------------------------------------------------------------------------


def test_the_first_item_says_nothing_about_the_rate():
    pace = Pace()
    pace.add(1, 13.3)
    assert pace.rate is None
    assert pace.left(99) is None
    for _ in range(4):
        pace.add(10, 5.0)
    assert pace.rate == 2
    assert pace.left(80) == 40


@pytest.mark.parametrize("seconds", [0.01, 1.0, 30.0])
def test_steady_work_is_known_early_and_exactly(seconds):
    known = [(share, true, left) for share, true, left in promises([seconds] * 1000) if left]
    assert known[0][0] <= 0.05 or seconds < 0.1
    assert all(left == pytest.approx(true) for _, true, left in known)


def test_nothing_is_promised_in_the_first_seconds():
    assert all(left is None for _, _, left in list(promises([0.1] * 1000))[:29])


@pytest.mark.parametrize("first", [[60.0], [20.0, 10.0, 5.0, 2.5]])
def test_slow_first_items_are_forgotten(first):
    # One minute until the network is loaded, then 8 minutes.
    durations = [*first, *[0.5] * 1000]
    known = [(share, true, left) for share, true, left in promises(durations) if left]
    assert known[0][0] <= 0.05
    assert all(left == pytest.approx(true, rel=0.3) for _, true, left in known)


def test_after_a_jump_the_time_left_settles_again():
    # A third is in the cache, or of another size.
    durations = [0.05] * 400 + [0.5] * 800
    late = [(true, left) for share, true, left in promises(durations) if share > 0.67]
    assert all(left == pytest.approx(true, rel=0.3) for true, left in late)


def test_uneven_work_is_promised_at_a_tenth():
    durations = [1.0 if n % 40 < 20 else 3.0 for n in range(1000)]
    shares = [share for share, _, left in promises(durations) if left is not None]
    assert shares[0] <= 0.101


def test_many_reports_are_thinned_and_stay_right():
    *_, (_, true, left) = list(promises([0.1] * 9000))[:5000]
    assert left == pytest.approx(true)


# trainings -----------------------------------------------------------------------------------


def training(clock, *, steps=10, iterations=30, seconds=1.0, end=20.0, ending=None, first=0.0):
    """Yield the event, the true seconds left and the promise, after every event."""
    pace, total = TrainingPace(), steps * (iterations * seconds + end)
    clock[0] += first
    begun = clock[0]
    for step in range(1, steps + 1):
        for iteration in range(1, iterations + 1):
            clock[0] += seconds
            event = ProgressEvent(step, steps, iteration, iterations + 1, ending=ending)
            yield event, begun + total - clock[0], pace.at(event)
        clock[0] += end
        event = ProgressEvent(step, steps, iterations + 1, iterations + 1, entry={})
        yield event, begun + total - clock[0], pace.at(event)


def test_the_ends_of_steps_count_before_the_first_one(clock):
    known = [(event, true, left) for event, true, left in training(clock, ending=20.0) if left]
    event, *_ = known[0]
    assert (event.step, event.iteration) == (1, 5)
    assert all(left == pytest.approx(true, rel=0.01) for _, true, left in known)


def test_the_ends_of_steps_are_measured(clock):
    later = [(true, left) for event, true, left in training(clock, ending=5.0) if event.step > 1]
    assert all(left == pytest.approx(true, rel=0.01) for true, left in later if left is not None)


def test_what_comes_before_the_first_iteration_is_not_its_speed(clock):
    # "8 h 59 min" was printed for 40 s.
    found = training(clock, seconds=0.1, end=1.0, ending=1.0, first=100.0)
    assert all(left is None or left < 45 for _, _, left in found)


def test_the_end_of_a_step_is_an_iteration_if_nobody_knows_better(clock):
    events = training(clock, end=1.0)
    assert next(left for _, _, left in events if left) == pytest.approx(305)


def test_nothing_is_promised_for_the_final_labels(clock):
    assert list(training(clock))[-1][2] is None
    assert TrainingPace().rate is None


# grids ---------------------------------------------------------------------------------------


def test_runs_of_a_method_take_what_its_first_took(clock):
    pace = GridPace(["quick", "slow"] * 10, at_once=1)
    clock[0] += 1.0
    assert pace.at("quick", 1.0) is None
    clock[0] += 9.0
    assert pace.at("slow", 9.0) == pytest.approx(90)


def test_a_grid_is_known_by_its_share_if_a_method_fails(clock):
    pace = GridPace(["works", "fails"] * 5, at_once=1)
    clock[0] += 4
    assert pace.at("works", 4.0) is None
    assert pace.at("fails", None) == pytest.approx(4 * 4.0 * 2)


def test_runs_at_once_share_the_time(clock):
    pace = GridPace(["pgl"] * 40, at_once=2)
    for _ in range(5):
        clock[0] += 10.0
        pace.at("pgl", 10.0)
        left = pace.at("pgl", 10.0)
    assert left == pytest.approx(150, rel=0.1)


# what is told --------------------------------------------------------------------------------


def test_programs_get_the_sum_of_the_times_and_the_largest_memory(clock, told, monkeypatch):
    assert told() is None
    for title, megabytes in (("features", 900.0), ("label", 700.0)):
        monkeypatch.setattr("opensetda.cli.counting.peak_megabytes", lambda mb=megabytes: mb)
        with counting_progress(title) as tell:
            for done in range(101):
                tell(done, 100)
                clock[0] += 1.0
    assert told() == {"seconds": 200.0, "memory_mb": 900.0}


def test_a_training_is_expected_once(clock, told):
    with training_progress("pgl") as listen:
        clock[0] += 5.0
        for iteration in range(1, 101):
            clock[0] += 1.0
            listen(ProgressEvent(1, 1, iteration, 100))
    assert told()["seconds"] == pytest.approx(105, abs=1)


def test_what_is_mostly_done_is_not_expected_any_more(clock, told):
    with counting_progress("features") as tell:
        for done in range(5):
            clock[0] += 0.8
            tell(done, 5)
    assert told() is None
