"""Processes that work together: what they exchange, and what happens when one is gone."""

from __future__ import annotations

import json
import os
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opensetda.errors import InputError, LostProcessError, OtherProcessError
from opensetda.system import launch
from opensetda.system.team import ALONE, Team, this_team
from team_helpers import Served

LENGTHS = [(0, 0), (0, 7), (5, 0), (3, 100_000)]


def _say(data):
    return bytes(range(256)) * (data // 256 + 1)


def _failing(kind):
    def fail():
        raise kind("a file: not there")

    return fail


def _caught(kind, does):
    try:
        this_team().first_does(does)
    except Exception as error:
        return type(error).__name__, getattr(error, "code", None)
    return "nothing", None


def exchange_everything():
    """Runs in both processes; the answers are looked at by the tests."""
    team = this_team()
    rank = team.rank
    told = {"rank": rank, "size": team.size, "first": team.is_first, "rows": team.rows(7)}
    told["int sum"] = team.sum(np.array([[1, 2], [3, 4]]) * 10**rank)
    own = np.arange(3.0) + rank
    told["float sum"] = team.sum(own)
    told["own"] = own
    told["sum of a view"] = team.sum(np.arange(8)[::2] + rank)
    told["gathered"] = team.gather(np.full((2, 2), rank, dtype=np.float32))
    told["keys"] = team.gather(np.array([-(2**63), 2**63 - 1 - rank]))
    told["bytes"] = [team.gather_bytes(_say(pair[rank])[: pair[rank]]) for pair in LENGTHS]
    told["from first"] = [team.from_first(_say(99)[:99] if rank == 0 else b"?" * 7)]
    told["from first"] += [team.from_first(b"" if rank == 0 else b"other"), team.from_first(b"x")]
    told["does"] = team.first_does(lambda: {"who": rank, "list": [1, None, "two"]})
    told["input"] = _caught(InputError, _failing(InputError))
    told["system"] = _caught(OSError, _failing(OSError))
    told["still"] = team.first_does(lambda: "together")
    team.wait()
    told["speaks"] = [team.may_speak(), team.may_speak()]
    told["one team"] = this_team() is team
    return told


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    return Served(tmp_path_factory.mktemp("team"), exchange_everything).answers()


def test_everybody_knows_who_it_is(both):
    assert [told["rank"] for told in both] == [0, 1]
    assert [told["first"] for told in both] == [True, False]
    assert [told["size"] for told in both] == [2, 2]
    assert [told["rows"] for told in both] == [range(0, 3), range(3, 7)]
    assert all(told["one team"] for told in both)


def test_sums_are_the_same_everywhere_and_leave_the_values_alone(both):
    for rank, told in enumerate(both):
        np.testing.assert_array_equal(told["int sum"], [[11, 22], [33, 44]])
        np.testing.assert_array_equal(told["float sum"], [1.0, 3.0, 5.0])
        np.testing.assert_array_equal(told["sum of a view"], [1, 5, 9, 13])
        np.testing.assert_array_equal(told["own"], np.arange(3.0) + rank)


def test_arrays_come_by_rank_with_every_bit(both):
    for told in both:
        assert [part.dtype for part in told["gathered"]] == [np.float32] * 2
        np.testing.assert_array_equal(told["gathered"], [np.zeros((2, 2)), np.ones((2, 2))])
        np.testing.assert_array_equal(told["keys"], [[-(2**63), 2**63 - 1], [-(2**63), 2**63 - 2]])


def test_bytes_of_any_length_come_by_rank(both):
    for told in both:
        for pair, parts in zip(LENGTHS, told["bytes"], strict=True):
            assert parts == [_say(length)[:length] for length in pair]


def test_what_the_first_says_counts(both):
    for told in both:
        assert told["from first"] == [_say(99)[:99], b"", b"x"]
        assert told["does"] == {"who": 0, "list": [1, None, "two"]}


def test_an_error_of_the_first_is_known_to_the_other(both):
    assert [told["input"] for told in both] == [("InputError", None), ("OtherProcessError", 2)]
    assert [told["system"] for told in both] == [("OSError", None), ("OtherProcessError", 1)]
    assert [told["still"] for told in both] == ["together"] * 2


def test_exactly_one_may_speak(both):
    assert sorted(told["speaks"] for told in both) == [[False, False], [True, True]]


# one is gone ---------------------------------------------------------------------------------

EXCHANGES = {
    "sum": lambda team: team.sum(np.ones(3)),
    "gather": lambda team: team.gather(np.ones(3)),
    "bytes": lambda team: team.gather_bytes(b"hello"),
    "first": lambda team: team.from_first(b"hello"),
    "wait": lambda team: team.wait(),
    "does": lambda team: team.first_does(lambda: 1),
}


def leave_or_notice(who, exchange):
    team = this_team()
    team.wait()
    if team.rank == who:
        os._exit(0)
    started = time.monotonic()
    try:
        # Who only sends may notice one message late.
        for _ in range(3):
            EXCHANGES[exchange](team)
    except LostProcessError as error:
        found = time.monotonic() - started, str(error), team.may_speak()
    else:
        found = None
    # At a usual end gloo may wait for who is gone.
    print(json.dumps(found), flush=True)  # noqa: T201
    os._exit(0)


@pytest.mark.parametrize(("who", "exchange"), [(1, "sum"), (0, "first"), (1, "bytes"), (0, "does")])
def test_who_is_gone_is_noticed_at_the_next_exchange(tmp_path, who, exchange):
    served = Served(tmp_path, leave_or_notice, who, exchange)
    served.codes(60)
    line = served.output().splitlines()[-1]
    seconds, reason, may_speak = json.loads(line)
    assert seconds < 10
    assert len(reason) <= 200
    assert reason
    assert may_speak


# without processes ---------------------------------------------------------------------------


def member(rank, size):
    team = Team()
    team.rank, team.size = rank, size
    return team


@given(n=st.integers(0, 10**12), size=st.integers(1, 64))
def test_rows_are_dealt_out_once_and_evenly(n, size):
    parts = [member(rank, size).rows(n) for rank in range(size)]
    assert parts[0].start == 0
    assert parts[-1].stop == n
    assert all(one.stop == other.start for one, other in pairwise(parts))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_one_alone_asks_nobody():
    values = np.arange(3)
    assert ALONE.sum(values) is values
    assert ALONE.gather(values)[0] is values
    assert ALONE.gather_bytes(b"") == [b""]
    assert ALONE.from_first(b"me") == b"me"
    assert ALONE.first_does(lambda: "done") == "done"
    assert ALONE.may_speak()
    assert ALONE.is_first
    with pytest.raises(InputError):
        ALONE.first_does(_failing(InputError))


def test_the_error_of_another_carries_its_exit_code():
    assert OtherProcessError(2).code == 2


LAUNCHES = {
    "nobody": ({}, (False, True, False, 1)),
    "one": ({"RANK": "0", "WORLD_SIZE": "1"}, (False, True, False, 1)),
    "no rank": ({"WORLD_SIZE": "4"}, (False, True, False, 1)),
    "nonsense": ({"RANK": "0", "WORLD_SIZE": "many"}, (False, True, False, 1)),
    "first": (
        {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"},
        (True, True, False, 2),
    ),
    "last": ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}, (True, False, False, 4)),
    "again": (
        {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "3"},
        (True, False, True, 1),
    ),
    "restarted alone": ({"TORCHELASTIC_RESTART_COUNT": "3"}, (False, True, False, 1)),
}


@pytest.fixture
def no_launcher(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name in ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize("name", LAUNCHES)
def test_the_environment_tells_who_started_this(no_launcher, name):
    environment, expected = LAUNCHES[name]
    for key, value in environment.items():
        no_launcher.setenv(key, value)
    found = launch.is_shared(), launch.is_first(), launch.was_restarted(), launch.neighbours()
    assert found == expected
    assert launch.restart_count() == environment.get("TORCHELASTIC_RESTART_COUNT", "0")


def test_a_launch_is_known_by_its_id_and_place(no_launcher):
    assert launch.launch_identity("run") is None
    no_launcher.setenv("TORCHELASTIC_RUN_ID", "abc")
    assert launch.launch_identity("run") is None
    no_launcher.setenv("RANK", "1")
    no_launcher.setenv("WORLD_SIZE", "2")
    one = launch.launch_identity("run")
    assert one == launch.launch_identity("run")
    assert len(one) == 32
    no_launcher.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    no_launcher.setenv("RANK", "0")
    assert launch.launch_identity("run") == one
    assert launch.launch_identity("other") != one
    no_launcher.setenv("TORCHELASTIC_RUN_ID", "none")
    assert launch.launch_identity("run") is None
