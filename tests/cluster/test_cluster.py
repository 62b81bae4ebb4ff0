"""Features, predictions and benchmarks on dask: the same results, nothing done twice."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cluster_helpers import fail_on_odd, kill_first_worker
from distributed import Client, LocalCluster

from benchmark_helpers import write_domains
from cli_helpers import blobs, names_in, run_fit, write_csv
from opensetda.benchmark.grid import COSTS, grid_cells, run_grid
from opensetda.benchmark.tasks import find_tasks
from opensetda.benchmark.variants import make_variants
from opensetda.cli.main import main
from opensetda.cluster import connection, pieces
from opensetda.errors import InputError
from opensetda.progress import RunListener
from opensetda.usecases import ImageOptions, TableOptions, extract_features, on_cluster, predict


class Heard(RunListener):
    """Keeps what it is told."""

    def __init__(self):
        self.notes, self.warnings = [], []
        self.note, self.warn = self.notes.append, self.warnings.append


@pytest.fixture(scope="module")
def client():
    """Two workers, as threads of this process."""
    how = {"processes": False, "dashboard_address": None, "threads_per_worker": 1}
    with LocalCluster(n_workers=2, **how) as cluster, Client(cluster) as client:
        yield client


@pytest.fixture
def run(workplace):
    run_fit()
    return workplace / "run"


def write_later(folder, n=300, row_group=50, **columns):
    """Write a table of two parts, each with several row groups; return its features."""
    X = blobs(7, n // 3)[0]
    folder.mkdir()
    whole = pa.table({f"f{place}": X[:, place] for place in range(4)} | columns)
    for part, start in enumerate((0, n // 2)):
        some = whole.slice(start, n // 2)
        pq.write_table(some, folder / f"p{part}.parquet", row_group_size=row_group)
    return X


def write_numbers(client, out, write, n=6, identity="numbers", heard=None, overwrite=False):
    """Run `write_parts` on numbers."""
    given = [(str(out.parent / "log"), number) for number in range(n)]
    place = out, client, overwrite, heard or Heard()
    return pieces.write_parts(write, given, n, identity, [], place)


def log_of(place):
    return sorted(map(int, (place / "log").read_text().split()))


# predict ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("id_column", [None, "name"])
def test_rows_in_parts_are_labelled_as_without_dask(run, client, id_column):
    more = {} if id_column is None else {"name": [f"row {n}" for n in range(300)]}
    write_later(Path("later"), **more)
    tables = TableOptions(id=id_column)
    alone = predict(run, "later", "alone.parquet", tables=tables)
    made = predict(run, "later", "labels", tables=tables, scheduler=client)
    assert names_in(Path("labels")) == ["_pieces", *(f"part-{n:08}.parquet" for n in range(6))]
    assert pq.read_table("labels").equals(pq.read_table("alone.parquet"))
    assert made.counts == alone.counts
    assert made.counts.total() == 300
    assert not Path("labels.unfinished").exists()


def test_rows_of_other_files_are_sent_to_the_workers(run, client, monkeypatch):
    monkeypatch.setattr(on_cluster, "SENT_CELLS", 64)
    for name in ("target.npz", "target.csv"):
        tables = TableOptions(id="file_name", drop=())
        alone = predict(run, name, tables=tables)
        predict(run, name, "labels", tables=tables, scheduler=client, overwrite=True)
        table = pq.read_table("labels")
        assert len(names_in(Path("labels"))) == 5
        assert table["id"].to_pylist() == alone.ids.tolist()
        assert table["label"].to_pylist() == alone.labels.tolist()


def test_images_in_parts_are_labelled_as_without_dask(pictures, client, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(on_cluster, "IMAGES", (7, 7))
    (tmp_path / "more").mkdir()
    for number in range(7):
        (tmp_path / "more" / f"broken{number}.png").write_text("no image")
    samples = ["more", pictures / "street"]
    heard = Heard()
    alone = predict(pictures / "run", samples, "alone.parquet", listener=Heard())
    made = predict(pictures / "run", samples, "labels", scheduler=client, listener=heard)
    # The first piece has no image that can be read.
    assert pq.read_table("labels").equals(pq.read_table("alone.parquet"))
    assert (made.counts, made.n_broken) == (alone.counts, 7)
    assert made.broken_list.read_text() == alone.broken_list.read_text()
    assert heard.warnings == ["7 images cannot be read: labels.broken.csv"]


def test_an_error_names_the_row_in_its_file(run, client):
    X = write_later(Path("later"))
    X[170, 2] = np.nan
    part = pa.table({f"f{place}": X[150:, place] for place in range(4)})
    pq.write_table(part, "later/p1.parquet", row_group_size=10)
    heard = Heard()
    with pytest.raises(ChildProcessError, match="1 of 18 pieces failed"):
        predict(run, "later", "labels", scheduler=client, listener=heard)
    (line,) = heard.warnings
    assert line.startswith("part-00000005.parquet (")
    assert "p1.parquet, rows 21 to 30) is given up" in line
    assert "row 21, column 'f2': NaN" in line
    assert len(names_in(Path("labels.unfinished"))) == 18


# features, fit ---------------------------------------------------------------------------------


def test_features_in_parts_are_a_table_to_fit(pictures, client, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(on_cluster, "IMAGES", (7, 7))
    options = ImageOptions(size=32)
    for name in ("shop", "street"):
        alone = extract_features(pictures / name, f"{name}.npz", options, listener=Heard())
        made = extract_features(pictures / name, name, options, scheduler=client, listener=Heard())
        assert made.shape == alone.X.shape
        table, arrays = pq.read_table(name), np.load(f"{name}.npz")
        assert table["path"].to_pylist() == arrays["paths"].tolist()
        X = np.stack([table[f"f{place}"] for place in range(made.shape[1])], axis=1)
        assert np.array_equal(X, arrays["X"])
    assert "y" not in table.schema.names
    classes = pq.read_table("shop")["y"].to_pylist()
    assert classes == [path.split("/")[0] for path in pq.read_table("shop")["path"].to_pylist()]
    fit = ["fit", "shop", "street", "--out", "run", "--no-report", "--id-column", "path"]
    assert main([*fit, "--method", "class-means"]) == 0
    assert (tmp_path / "run" / "predictions.csv").read_text().count("\n") == 31


def test_of_many_parts_a_sample_is_fitted_and_all_rows_are_labelled(workplace):
    X = write_later(Path("later"), 3000, 500)
    fit = ["fit", "source.csv", "later", "--no-report", "--method", "class-means"]
    assert main([*fit, "--sample", "1024", "--out", "run"]) == 0
    labels = predict("run", "later").labels
    written = Path("run/predictions.csv").read_text().splitlines()[1:]
    assert [line.split(",")[1] for line in written] == [f'"{label}"' for label in labels]
    # The same rows in one file, in another order, are the same sample.
    order = np.random.default_rng(0).permutation(len(X))
    pq.write_table(pa.table({f"f{n}": X[order, n] for n in range(4)}), "one.parquet")
    assert main([*fit[:2], "one.parquet", *fit[3:], "--sample", "1024", "--out", "again"]) == 0
    assert np.array_equal(predict("again", "later").labels, labels)


def test_a_broken_image_is_a_failed_piece_if_strict(client, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_text("no image")
    heard, strict = Heard(), ImageOptions(size=32, strict=True)
    with pytest.raises(ChildProcessError, match="1 of 1 pieces failed"):
        extract_features("photos", "out", strict, scheduler=client, listener=heard)
    assert "photos/a.png: not an image; repair or remove it" in heard.warnings[0]
    with pytest.raises(InputError, match="none of its 1 images can be read"):
        extract_features("photos", "out", ImageOptions(size=32), scheduler=client)
    # A disk that only the client sees.
    (tmp_path / "list.txt").write_text("photos/gone.png\n")
    with pytest.raises(ChildProcessError, match="1 of 1 pieces failed"):
        extract_features(
            "list.txt", "lost", ImageOptions(size=32), scheduler=client, listener=heard
        )
    assert "photos/gone.png: no such file, nor any other of the piece" in heard.warnings[-1]


# benchmark -------------------------------------------------------------------------------------


def test_a_grid_on_dask_has_the_same_rows(tmp_path, client, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tasks = find_tasks("digits", write_domains(Path("data")))
    cells = grid_cells(make_variants(["class-means", "source-only"]), tasks.tasks[:2], seeds=(0,))
    told = []
    rows = run_grid(tasks, cells, "on-dask", 1, lambda *seen: told.append(seen), client)
    alone = run_grid(tasks, cells, "alone")
    for row in (*rows, *alone):
        for cost in COSTS:
            del row[cost]
    assert rows == alone
    assert len(told) == len(cells) + 1
    told.clear()
    run_grid(tasks, cells, "on-dask", 1, lambda *seen: told.append(seen), client)
    assert told == [(0, 0, None)]


# interruptions ---------------------------------------------------------------------------------


def test_what_is_finished_is_not_done_again(tmp_path, client, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place, heard = tmp_path / "out", Heard()
    Path("refuse").touch()
    with pytest.raises(ChildProcessError, match="3 of 6 pieces failed; the others are kept in"):
        write_numbers(client, place, fail_on_odd, heard=heard)
    assert log_of(tmp_path) == [0, 1, 1, 1, 2, 3, 3, 3, 4, 5, 5, 5]
    assert [line.partition(" (")[0] for line in sorted(heard.warnings)] == [
        f"part-0000000{number}.parquet" for number in (1, 3, 5)
    ]
    assert heard.warnings[0].endswith("is given up: odd number")
    assert not place.exists()
    Path("refuse").unlink()
    Path("log").unlink()
    parts = write_numbers(client, place, fail_on_odd)
    assert log_of(tmp_path) == [1, 3, 5]
    assert [part.read_text() for part in parts] == list("012345")
    assert names_in(tmp_path) == ["log", "out"]


def test_other_data_is_not_mixed_in(tmp_path, client, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "out"
    Path("refuse").touch()
    for identity in ("numbers", "numbers"):
        with pytest.raises(ChildProcessError):
            write_numbers(client, place, fail_on_odd, identity=identity)
    Path("refuse").unlink()
    with pytest.raises(InputError, match="parts of other data, model or options; choose another"):
        write_numbers(client, place, fail_on_odd, identity="others")
    write_numbers(client, place, fail_on_odd, 2, "others", overwrite=True)
    assert names_in(place) == ["_pieces", "part-00000000.parquet", "part-00000001.parquet"]
    with pytest.raises(InputError, match="exists already"):
        write_numbers(client, place, fail_on_odd)
    (place / "letter.txt").touch()
    with pytest.raises(InputError, match=r"holds 'letter.txt', so it is not overwritten"):
        write_numbers(client, place, fail_on_odd, overwrite=True)
    (tmp_path / "run.unfinished").mkdir()
    (tmp_path / "run.unfinished" / "request.json").touch()
    with pytest.raises(InputError, match="parts of other data"):
        write_numbers(client, tmp_path / "run", fail_on_odd, overwrite=True)
    assert names_in(tmp_path / "run.unfinished") == ["request.json"]


def test_a_killed_worker_is_replaced_and_its_pieces_are_repeated(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    heard = Heard()
    parts = write_numbers("local:2", tmp_path / "out", kill_first_worker, heard=heard)
    assert [part.read_text() for part in parts] == list("012345")
    assert {*log_of(tmp_path)} == {*range(6)}
    assert log_of(tmp_path).count(1) == 2
    assert heard.warnings == []
    assert heard.notes[0].startswith("dashboard of dask: http://127.0.0.1:")
    assert [name for name in names_in(tmp_path / "out") if "partial" in name] == []


def test_a_lost_scheduler_is_one_line(client):
    class Lost:
        """A client whose scheduler is gone."""

        loop = client.loop

        def nthreads(self):
            raise OSError("comm closed")

    with pytest.raises(ConnectionError, match=r"was lost; .* give the same command again"):
        [*pieces.run_pieces(Lost(), print, [1])]


# errors ----------------------------------------------------------------------------------------


def said(text):
    """What was printed, without lines that say how long something has taken so far."""
    return re.sub(r"^[\w ]+: \d+ s\n", "", text, flags=re.MULTILINE)


def test_a_wrong_scheduler_is_one_line(run, capfd, monkeypatch):
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 1)
    write_later(Path("later"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for where, line in {
            f"tcp://127.0.0.1:{port}": "no scheduler of dask answers; start it, or correct",
            "127.0.0.1:9": "no scheduler of dask answers; start it, or correct the address",
            "no.json": "no such file; 'dask scheduler --scheduler-file' writes it",
            "local:none": "write local:N, with the number of worker processes",
        }.items():
            command = ["predict", "run", "later", "--out", "labels", "--scheduler", where]
            assert main(command) == 2
            assert said(capfd.readouterr().err) == f"error: --scheduler {where}: {line}" + (
                " the address\n" if line.endswith("correct") else "\n"
            )
    for out, line in {
        "labels.csv": "a folder of parts, with --scheduler; leave the ending out",
        "no/labels": "there is no folder no; make it first",
    }.items():
        assert main(["predict", "run", "later", "--out", out, "--scheduler", "local:1"]) == 2
        assert said(capfd.readouterr().err) == f"error: --out {out}: {line}\n"
    with pytest.raises(InputError, match="give out, too, a folder to make"):
        predict(run, np.ones((3, 4)), scheduler="local:1")
    monkeypatch.setattr(connection, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="dask is not installed; pip install 'opensetda"):
        predict(run, "later", "labels", scheduler="local:1")
    assert [name for name in names_in(run.parent) if name.startswith("labels")] == []


def test_dask_adds_no_traceback_and_no_advice(run):
    # In a process of its own: dask speaks when it ends.
    write_csv(Path("later.csv"), np.tile(blobs(7)[0], (60, 1)))
    code = (
        "import sys, dask\n"
        "from opensetda.cli.main import main\n"
        "from opensetda.cluster import connection\n"
        "connection.CONNECT_SECONDS = 1\n"
        "dask.config.set({'distributed.admin.large-graph-warning-threshold': '1 kB'})\n"
        "if __name__ == '__main__':\n"
        "    sys.exit(main(sys.argv[1:]))\n"
    )
    Path("command.py").write_text(code)
    predict = [sys.executable, "command.py", "predict", "run", "later.csv", "--out", "labels"]
    wrong = subprocess.run([*predict, "--scheduler", "nonsense"], capture_output=True, text=True)
    assert wrong.returncode == 2
    (line,) = said(wrong.stderr).splitlines()
    assert line.startswith("error: --scheduler nonsense: no scheduler of dask answers")
    done = subprocess.run([*predict, "--scheduler", "local:1"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "dashboard of dask: " in done.stderr
    assert not re.search("Traceback|[Ww]arning|distributed|graph", done.stderr)


def test_what_a_worker_lacks_is_one_line(tmp_path, client, monkeypatch):
    ours, place = connection.versions(), str(tmp_path)
    assert connection._problem(ours, [place], place) is None
    other = connection._problem({**ours, "opensetda": "9.9"}, [], None)
    assert other == f"opensetda {ours['opensetda']}, but 9.9 here; install the same version"
    missing = connection._problem(ours, [f"{place}/photos"], place)
    assert missing.startswith(f"{place}/photos: no such file; all machines need the same files")
    assert "cannot be written (No such" in connection._problem(ours, [], f"{place}/no")
    monkeypatch.setattr(connection, "versions", lambda: {**ours, "dask": "0.1"})
    monkeypatch.setattr(pieces, "versions", lambda: ours)
    # The worker is in this process: it gets what is asked for, not what it has.
    with (
        pytest.raises(InputError, match=r"worker .*: .*/photos: no such file"),
        connection.connected(client, Heard(), [f"{place}/photos"]),
    ):
        pass


def test_without_a_scheduler_dask_is_not_imported(run):
    code = (
        "import sys; from opensetda.cli.main import main; import opensetda.benchmark.grid; "
        "assert main(['predict', 'run', 'target.npz', '--out', 'labels.csv']) == 0; "
        "assert not {'dask', 'distributed'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "OSDA_CACHE": "."})
