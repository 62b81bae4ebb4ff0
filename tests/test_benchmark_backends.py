"""Grids on clusters: the same rows, nothing lost with a worker, and wrong use in one line."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from benchmark_helpers import read_rows, write_domains
from cli_helpers import names_in
from opensetda.benchmark import grid, workers
from opensetda.benchmark.grid import OK, grid_cells, run_grid
from opensetda.benchmark.tasks import find_tasks
from opensetda.benchmark.variants import Variant
from opensetda.benchmark.workers import Backend, LostWorkerError, run_all
from opensetda.cli.main import main

DASK = Backend("dask")
MEANS = Variant("means", "class-means")
SOURCE = Variant("source", "source-only")
TIMES = ("seconds", "cpu_seconds", "memory_mb")
BENCHMARK = [
    *("benchmark", "digits", "--data", "data", "--task", "usps-mnist", "--out", "out"),
    *("--method", "source-only", "--openness", "true"),
]


@pytest.fixture(autouse=True)
def no_cluster_of_the_house(monkeypatch):
    for name in ("DASK_SCHEDULER_ADDRESS", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def tasks(tmp_path):
    return find_tasks("digits", write_domains(tmp_path / "data"), ["usps-mnist", "mnist-usps"])


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_domains(tmp_path / "data")
    return tmp_path


@pytest.fixture(scope="module")
def scheduler():
    """The address of a cluster that was there before: two workers, and dask's own settings."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50
    ) as cluster:
        yield cluster.scheduler_address


def without_times(rows):
    return [{name: row[name] for name in row if name not in TIMES} for row in rows]


def marking():
    """Return a function that says in a file who works on what, and dies where it is asked to.

    It is sent as it is, so that a worker need not import this module and all that it does.
    """

    def mark(piece):
        folder, number, deaths = piece
        begun = len(list(Path(folder).glob(f"{number}-*")))
        (Path(folder) / f"{number}-{begun}-{os.getpid()}").touch()
        if begun < deaths:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)
        return number

    return mark


def pieces(folder, deaths):
    """Eight pieces of work; some kill their worker so many times."""
    return [(str(folder), number, deaths.get(number, 0)) for number in range(8)]


def times_begun(folder):
    names = [path.name for path in folder.iterdir()]
    return [sum(name.startswith(f"{number}-") for name in names) for number in range(8)]


def alive(folder):
    """Return who of the workers is still there after a moment."""
    pids = {int(path.name.rpartition("-")[2]) for path in folder.iterdir()}
    end = time.monotonic() + 5
    while time.monotonic() < end and (left := [pid for pid in pids if _runs(pid)]):
        time.sleep(0.05)
    return left


def _runs(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


# dask -----------------------------------------------------------------------------------------


def test_two_workers_of_a_cluster_give_the_same_rows_as_one_process(tasks, tmp_path, scheduler):
    cells = grid_cells([SOURCE], ["usps-mnist", "mnist-usps"], ["true"], [0])
    alone = run_grid(tasks, cells, tmp_path / "alone", jobs=1)
    there = run_grid(tasks, cells, tmp_path / "there", None, None, Backend("dask", scheduler))
    assert {row["status"] for row in there.rows} == {OK}
    assert without_times(there.rows) == without_times(alone.rows)
    assert names_in(tmp_path / "there" / "cells") == names_in(tmp_path / "alone" / "cells")


def test_the_command_uses_a_given_cluster(place, scheduler, monkeypatch, capsys):
    assert main([*BENCHMARK, "--backend", "dask", "--scheduler", scheduler]) == 0
    (row,) = read_rows(place / "out" / "results.parquet")
    assert row["status"] == OK
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", scheduler)
    monkeypatch.setattr(workers, "__version__", "0.0.0")
    capsys.readouterr()
    assert main([*BENCHMARK, "--backend", "dask"]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert f"--scheduler {scheduler}: its workers need opensetda 0.0.0, as here; found" in error


def test_workers_that_see_other_files_are_no_use(tasks, tmp_path, scheduler, monkeypatch):
    monkeypatch.setattr(grid, "__version__", "0.0.0")
    cells = grid_cells([SOURCE], ["usps-mnist"], ["true"], [0])
    (row,) = run_grid(tasks, cells, tmp_path / "out", None, None, Backend("dask", scheduler)).rows
    assert row["error"] == "its worker sees other files, or has another release of this package"


def test_even_one_at_a_time_works_on_the_cluster(tmp_path, scheduler):
    done = list(run_all(marking(), pieces(tmp_path, {}), 1, Backend("dask", scheduler)))
    assert done == [(number, number) for number in range(8)]
    assert times_begun(tmp_path) == 8 * [1]
    assert not list(tmp_path.glob(f"*-{os.getpid()}"))


def test_a_given_cluster_tries_other_workers_first(tmp_path, scheduler):
    backend = Backend("dask", scheduler)
    done = list(run_all(marking(), pieces(tmp_path, {2: 1}), None, backend))
    assert sorted(done) == [(number, number) for number in range(8)]
    assert times_begun(tmp_path)[2] == 2


def test_a_killed_worker_s_work_is_done_again_and_only_what_kills_it_again_is_lost(tmp_path):
    pytest.importorskip("distributed")
    done = list(run_all(marking(), pieces(tmp_path, {2: 1, 5: 99}), 2, DASK))
    assert [place for place, result in done if isinstance(result, LostWorkerError)] == [5]
    assert sorted(place for place, _ in done) == list(range(8))
    assert all(place == result for place, result in done if place != 5)
    begun = times_begun(tmp_path)
    assert begun[2] == begun[5] == 2
    assert alive(tmp_path) == []


def test_who_stops_early_keeps_what_is_there(tasks, tmp_path, scheduler, monkeypatch):
    def stop(done, total, row):
        if row is not None:
            raise KeyboardInterrupt

    # Rows that fail at once are enough.
    monkeypatch.setattr(grid, "__version__", "0.0.0")
    cells = grid_cells([SOURCE, MEANS], ["usps-mnist", "mnist-usps"], ["true"], [0])
    with pytest.raises(KeyboardInterrupt):
        run_grid(tasks, cells, tmp_path / "out", 2, stop, Backend("dask", scheduler))
    assert len(names_in(tmp_path / "out" / "cells")) == 1


# the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_a_missing_package_is_named_before_anything_is_done(
    place, monkeypatch, capsys, name, package
):
    monkeypatch.setitem(sys.modules, package, None)
    assert main([*BENCHMARK, "--backend", name]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    needs = f"needs the package '{package}'; pip install 'opensetda[{name}]'"
    assert error == f"error: --backend {name}: {needs}"
    assert names_in(place) == ["data"]


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "127.0.0.1:1", "nonsense://here"])
def test_a_scheduler_that_cannot_be_reached_is_named(place, monkeypatch, capsys, address):
    pytest.importorskip("distributed")
    monkeypatch.setattr(workers, "_CONNECT_SECONDS", 0.3)
    assert main([*BENCHMARK, "--backend", "dask", "--scheduler", address]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error: --scheduler {address}: cannot be reached: ")
    assert names_in(place) == ["data"]


def test_a_scheduler_without_workers_is_named(place, monkeypatch, capsys):
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(workers, "_FIRST_WORKER_SECONDS", 0.3)
    with distributed.LocalCluster(n_workers=0, dashboard_address=":0", silence_logs=50) as empty:
        address = empty.scheduler_address
        assert main([*BENCHMARK, "--backend", "dask", "--scheduler", address]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error == f"error: --scheduler {address}: no worker in 0.3 s; start some first"


def test_a_scheduler_is_for_clusters(place, capsys):
    assert main([*BENCHMARK, "--scheduler", "tcp://head:8786"]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("error: --scheduler tcp://head:8786: only for a cluster; add --backend")
    assert names_in(place) == ["data"]


# ray ------------------------------------------------------------------------------------------


def test_ray_does_the_same(tasks, tmp_path):
    pytest.importorskip("ray", reason="ray is not installed: pip install 'opensetda[ray]'")
    cells = grid_cells([SOURCE, MEANS], ["usps-mnist", "mnist-usps"], ["true"], [0])
    alone = run_grid(tasks, cells, tmp_path / "alone", jobs=1)
    there = run_grid(tasks, cells, tmp_path / "there", jobs=2, backend=Backend("ray"))
    assert without_times(there.rows) == without_times(alone.rows)
    marks = tmp_path / "marks"
    marks.mkdir()
    done = list(run_all(marking(), pieces(marks, {2: 1, 5: 99}), 2, Backend("ray")))
    assert [place for place, result in done if isinstance(result, LostWorkerError)] == [5]
    assert sorted(place for place, _ in done) == list(range(8))
    assert times_begun(marks)[2] == times_begun(marks)[5] == 2
    assert alive(marks) == []


def test_a_ray_that_cannot_be_reached_is_named(place, capsys):
    pytest.importorskip("ray", reason="ray is not installed: pip install 'opensetda[ray]'")
    assert main([*BENCHMARK, "--backend", "ray", "--scheduler", "127.0.0.1:1"]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("error: --scheduler 127.0.0.1:1: cannot be reached: ")
