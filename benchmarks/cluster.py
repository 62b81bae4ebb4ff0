"""What dask brings and costs: speed, memory, the same bytes, and processes that are killed.

    python benchmarks/cluster.py    # some 20 minutes on two quiet cores
    python benchmarks/cluster.py --rows 100000 --images 200 --kills 2 --scheduler-kills 1

All processes are real. Workers have one thread each, are started and have imported everything
before the clock starts; so has the process without dask, which gets one core.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

WIDTH, CLASSES, GROUP = 64, 8, 2**15
OSDA = [sys.executable, "-m", "opensetda"]


def make_rows(folder: Path, n: int) -> Path:
    """Write `n` rows in parts of 32 row groups each; the values of every part are the same."""
    folder.mkdir()
    rng, per_part = np.random.default_rng(1), 32 * GROUP
    X = centres()[rng.integers(0, CLASSES, per_part)] + rng.normal(size=(per_part, WIDTH))
    table = pa.table({f"f{i}": X[:, i].astype(np.float32) for i in range(WIDTH)})
    for part, start in enumerate(range(0, n, per_part)):
        some = table.slice(0, min(per_part, n - start))
        group = min(GROUP, max(1024, n // 32))
        pq.write_table(some, folder / f"rows-{part:04}.parquet", row_group_size=group)
    return folder


def centres() -> Any:
    """Return the centres of all classes."""
    return 2 * np.random.default_rng(0).normal(size=(CLASSES, WIDTH))


def make_run(place: Path, method: str) -> Path:
    """Fit a model of five known classes, on 1,000 and 2,000 rows."""
    from opensetda.usecases import fit

    rng, names = np.random.default_rng(2), [f"f{i}" for i in range(WIDTH)]
    y, z = rng.integers(0, 5, 1000), rng.integers(0, CLASSES, 2000)
    X, Z = (centres()[some] + rng.normal(size=(len(some), WIDTH)) for some in (y, z))
    source = pa.table({**dict(zip(names, X.T, strict=True)), "y": [f"class {one}" for one in y]})
    pq.write_table(source, place / "source.parquet")
    pq.write_table(pa.table(dict(zip(names, Z.T, strict=True))), place / "target.parquet")
    how: dict[str, Any] = {"method": method, "openness": 0.4}
    return fit(place / "source.parquet", place / "target.parquet", place / "run", **how).path


def make_images(folder: Path, n: int) -> Path:
    """Write `n` JPEG files of 500 x 375 pixels."""
    from PIL import Image

    folder.mkdir()
    rng = np.random.default_rng(3)
    for number in range(n):
        small = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        small.resize((500, 375), Image.Resampling.BICUBIC).save(folder / f"{number:06}.jpg")
    return folder


def digest(folder: Path) -> str:
    """Return the SHA-256 of all parts, in order."""
    whole = hashlib.sha256()
    for part in sorted(folder.glob("part-*")):
        whole.update(part.name.encode() + part.read_bytes())
    return whole.hexdigest()[:16]


def finished(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the parts that are there; one that is written again is another file."""
    stats = {part.name: part.stat() for part in folder.glob("part-*")}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in stats.items()}


def timed(work: Callable[[], Any]) -> float:
    """Return the seconds that work takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


# Speed and memory ------------------------------------------------------------------------------


def start_worker() -> None:
    """Import what the pieces need."""
    import opensetda.backbones.model
    import opensetda.usecases.on_cluster  # noqa: F401


def with_workers(count: int, work: Callable[[Any], Any]) -> tuple[float, float, float]:
    """Return the seconds, those of all processors, and the largest memory of a worker in MB."""
    from distributed import Client, LocalCluster

    from opensetda.system.memory import peak_megabytes

    how = {"threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(n_workers=count, **how) as cluster, Client(cluster) as client:
        client.run(start_worker)
        before = sum(client.run(time.process_time).values()) + time.process_time()
        seconds = timed(lambda: work(client))
        after = sum(client.run(time.process_time).values()) + time.process_time()
        return seconds, after - before, max(client.run(peak_megabytes).values())


def _alone(connection: Any, kind: str, *given: Any) -> None:
    os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    start_worker()
    before = time.process_time()
    seconds = timed(lambda: JOBS[kind](*given))
    connection.send((seconds, time.process_time() - before))


def without_dask(kind: str, *given: Any) -> tuple[float, float]:
    """Return the seconds, and those of the processor, in a new process that has one core."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_alone, args=(theirs, kind, *given)
    )
    process.start()
    seconds, of_processor = ours.recv()
    process.join()
    return seconds, of_processor


def label(run: Path, rows: Path, out: Path, scheduler: Any = None) -> None:
    """Label rows."""
    from opensetda.usecases import predict

    predict(run, rows, out, scheduler=scheduler, overwrite=True)


def features(images: Path, out: Path, scheduler: Any = None) -> None:
    """Compute features, without a cache."""
    from opensetda.usecases import extract_features

    extract_features(images, out, scheduler=scheduler, overwrite=True)


JOBS: dict[str, Callable[..., None]] = {"label": label, "features": features}


def speed(kind: str, amount: int, place: Path, file: str, *given: Any) -> None:
    """Print the speed of one and two workers, and without dask."""
    alone, alone_cpu = without_dask(kind, *given, place / file)
    seconds, cpu, peaks, digests = {}, {}, {}, {}
    for count in (1, 2):
        out = place / f"{kind}-{count}"
        found = with_workers(count, partial(JOBS[kind], *given, out))
        seconds[count], cpu[count], peaks[count] = found
        digests[count] = digest(out)
    print(
        f"{kind}, {amount:,}: alone {alone:.1f} s (processor {alone_cpu:.1f}), 1 worker "
        f"{seconds[1]:.1f} s (processors {cpu[1]:.1f}), 2 workers {seconds[2]:.1f} s (processors "
        f"{cpu[2]:.1f}): overhead {100 * (seconds[1] / alone - 1):+.1f} % (processor "
        f"{100 * (cpu[1] / alone_cpu - 1):+.1f} %), speed {seconds[1] / seconds[2]:.2f} times; "
        f"{amount / seconds[2]:,.0f} per second; peak of a worker {max(peaks.values()):,.0f} MB; "
        f"same bytes: {digests[1] == digests[2]}; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


# Killed processes ------------------------------------------------------------------------------


def kill_workers(run: Path, rows: Path, place: Path, count: int) -> None:
    """Kill one of two workers at a random moment, `count` times."""
    from distributed import Client, LocalCluster

    wanted, same, kept, again = "", 0, 0, 0
    how = {"threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    with LocalCluster(n_workers=2, **how) as cluster, Client(cluster) as client:
        client.run(start_worker)
        usual = timed(lambda: label(run, rows, place / "killed", client))
        wanted = digest(place / "killed")
        for _ in range(count):
            shutil.rmtree(place / "killed")
            client.wait_for_workers(2)
            client.run(start_worker)
            pids = list(client.run(os.getpid).values())
            there: dict[str, tuple[int, int]] = {}

            def kill(
                pid: int = random.choice(pids), there: dict[str, tuple[int, int]] = there
            ) -> None:
                os.kill(pid, signal.SIGKILL)
                there |= finished(place / "killed.unfinished")

            timer = threading.Timer(random.uniform(0.05, 0.95) * usual, kill)
            timer.start()
            label(run, rows, place / "killed", client)
            timer.cancel()
            at_end = finished(place / "killed")
            kept += len(there)
            again += sum(at_end[name] != of for name, of in there.items())
            same += digest(place / "killed") == wanted
    print(
        f"kill -9 of a worker: {count} times, same bytes {same}; {kept} parts were finished at "
        f"that moment, {again} of them written again",
        flush=True,
    )


class Dask:
    """A scheduler and two workers, as commands."""

    def __init__(
        self, place: Path, preload: str | None = None, prefix: tuple[str, ...] = ()
    ) -> None:
        self.file = place / "scheduler.json"
        self.file.unlink(missing_ok=True)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        command = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
        more = ["--port", "0", "--no-dashboard", "--scheduler-file", str(self.file)]
        self.processes = [subprocess.Popen([*command, *more], **quiet)]
        while not self.file.exists():
            time.sleep(0.1)
        command = [*prefix, sys.executable, "-m", "distributed.cli.dask_worker", "--nthreads", "1"]
        command += ["--scheduler-file", str(self.file), "--no-dashboard"]
        command += ["--preload", preload] if preload else []
        self.processes += [subprocess.Popen(command, **quiet) for _ in range(1 if preload else 2)]

    def __enter__(self) -> Dask:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes[::-1]:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def kill_schedulers(run: Path, rows: Path, place: Path, count: int) -> None:
    """Kill the scheduler at a random moment, then give the same command again."""
    out, unfinished = place / "lost", place / "lost.unfinished"
    file = place / "scheduler.json"
    command = [*OSDA, "predict", str(run), str(rows), "--out", str(out), "--scheduler", str(file)]
    how: dict[str, Any] = {"capture_output": True, "text": True}
    with Dask(place):
        subprocess.run([*command, "--quiet"], check=True, **how)
    wanted, n_parts = digest(out), len(finished(out))
    same = kept = again = 0
    lines: set[str] = set()
    for _ in range(count):
        shutil.rmtree(out)
        with Dask(place) as cluster:
            process = subprocess.Popen([*command, "--quiet"], stderr=subprocess.PIPE, text=True)
            moment = random.randrange(n_parts * 9 // 10)
            while len(finished(unfinished)) < moment and process.poll() is None:
                time.sleep(0.01)
            cluster.processes[0].kill()
            line = process.communicate()[1].strip()
            lines.add(f"exit {process.returncode}, {line}")
        there = finished(unfinished)
        with Dask(place):
            subprocess.run([*command, "--quiet"], check=True, **how)
        at_end = finished(out)
        kept += len(there)
        again += sum(at_end[name] != of for name, of in there.items())
        same += digest(out) == wanted
    print(
        f"kill -9 of the scheduler, then the same command: {count} times, same bytes {same}; "
        f"{kept} parts were finished, {again} of them written again; first: {sorted(lines)}",
        flush=True,
    )


def errors(run: Path, rows: Path, place: Path) -> None:
    """Print what wrong use ends in, and what it leaves behind."""
    shim = place / "shim.py"
    shim.write_text("import opensetda.cluster.connection as c\nc.__version__ = '0.0.1'\n")
    hidden = f'mount -t tmpfs none {rows} && exec "$@"'
    file = str(place / "scheduler.json")
    out = str(place / "wrong")
    cases: dict[str, tuple[str, str, dict[str, Any] | None]] = {
        "wrong address": ("127.0.0.1:9", out, None),
        "unwritable output": ("local:1", "/proc/wrong", None),
        "other version": (file, out, {"preload": str(shim)}),
        "missing file": (file, out, {"prefix": ("unshare", "-m", "sh", "-c", hidden, "sh")}),
    }
    for name, (scheduler, where, cluster) in cases.items():
        command = [*OSDA, "predict", str(run), str(rows / "rows-0000.parquet"), "--out", where]
        command += ["--scheduler", scheduler, "--quiet"]
        how: dict[str, Any] = {"capture_output": True, "text": True}
        started = time.perf_counter()
        if cluster is None:
            done = subprocess.run(command, **how)
        else:
            with Dask(place, **cluster):
                done = subprocess.run(command, **how)
        left = sorted(path.name for path in place.glob("*wrong*"))
        text = done.stderr.strip().replace(str(place), "...")
        took = time.perf_counter() - started
        print(f"{name}: exit {done.returncode}, {took:.0f} s, left {left}, {text}", flush=True)


def main() -> None:
    """Measure all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--scheduler-kills", type=int, default=3)
    parser.add_argument("--method", default="class-means", help="of the model")
    parser.add_argument("--only", nargs="*", default=["speed", "errors", "kills"])
    parser.add_argument("--folder", type=Path, help="for 3 GB of files that are removed again")
    asked = parser.parse_args()
    start_worker()
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        place = Path(name)
        run = make_run(place, asked.method)
        few = make_rows(place / "few", asked.rows // 10)
        if "speed" in asked.only:
            images = make_images(place / "images", asked.images)
            speed("features", asked.images, place, "alone.npz", images)
            speed("label", asked.rows // 10, place, "alone.parquet", run, few)
            rows = make_rows(place / "rows", asked.rows)
            speed("label", asked.rows, place, "alone.parquet", run, rows)
        if "errors" in asked.only:
            errors(run, few, place)
        if "kills" in asked.only:
            kill_workers(run, few, place, asked.kills)
            kill_schedulers(run, few, place, asked.scheduler_kills)


if __name__ == "__main__":
    main()
