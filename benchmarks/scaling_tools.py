"""What the parts of `benchmarks/scaling.py` share: children, their memory, data and tables."""

from __future__ import annotations

import functools
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image, ImageFilter

HERE = Path(__file__).parent
RESULTS = HERE / "results"
CHILD = HERE / "scaling_child.py"


@dataclass(frozen=True)
class Options:
    """How a part is to run.

    Attributes
    ----------
    quick : bool
        Tiny sizes, to see that everything works.
    folder : Path
        An empty folder for files; the part has it alone.
    processes : tuple of int
        Numbers of processes that `large` compares.
    times : int
        How often `faults` kills.
    """

    quick: bool
    folder: Path
    processes: tuple[int, ...] = (1, 2)
    times: int = 20

    def choose(self, full: Any, quick: Any) -> Any:
        """Return the first, or the second if it is to be quick."""
        return quick if self.quick else full


def machine() -> dict[str, Any]:
    """Return facts of this machine."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": model,
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "platform": platform.platform(),
        "python": platform.python_version(),
    }


def environment(threads: int = 1) -> dict[str, str]:
    """Return the environment of a child."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
    }


def launcher(processes: int, restarts: int = 0) -> list[str]:
    """Return the command before ``-m opensetda`` or a script: Python, or torchrun.

    --standalone: a free port, so that nobody else on this machine is met.
    """
    if processes == 1:
        return [sys.executable]
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(processes), "--max-restarts", str(restarts)),
    ]


class FailedChildError(RuntimeError):
    """A child that should have succeeded has not."""


@dataclass
class Finished:
    """A child that has ended.

    Attributes
    ----------
    code, stdout, stderr
        Its exit code and what it wrote.
    seconds : float
        From start to end, with everything.
    peaks : dict
        Largest resident set (VmHWM) in MB of each of its processes, by process id; sampled.
    peak_sum : float
        Largest sum of VmHWM in MB over the processes that lived at one time, launcher included.
    """

    code: int
    stdout: str
    stderr: str
    seconds: float
    peaks: dict[int, float] = field(default_factory=dict)
    peak_sum: float = 0.0

    @property
    def peak(self) -> float:
        """The largest process, in MB."""
        return max(self.peaks.values(), default=float("nan"))

    def json(self) -> Any:
        """Return the last line of the output, read as JSON."""
        lines = [line for line in self.stdout.splitlines() if line.strip()]
        try:
            return json.loads(self.stdout)
        except ValueError:
            return json.loads(lines[-1])


class MemoryWatch(threading.Thread):
    """Samples VmHWM of a process and all its descendants from /proc until it is told to end."""

    def __init__(self, pid: int, every: float = 0.05) -> None:
        super().__init__(daemon=True)
        self._process, self._every = psutil.Process(pid), every
        self._done = threading.Event()
        self.peaks: dict[int, float] = {}
        self.peak_sum = 0.0

    def run(self) -> None:
        """Look again and again."""
        while not self._done.wait(self._every):
            try:
                family = [self._process, *self._process.children(recursive=True)]
            except psutil.Error:
                continue
            now = {process.pid: _peak_of(process.pid) for process in family}
            self.peak_sum = max(self.peak_sum, sum(now.values()))
            for pid, peak in now.items():
                self.peaks[pid] = max(peak, self.peaks.get(pid, 0.0))

    def end(self) -> None:
        """Stop looking."""
        self._done.set()
        self.join()


def _peak_of(pid: int) -> float:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    except OSError:
        pass
    return 0.0


def run(
    command: Sequence[str], folder: Path, threads: int = 1, core: int | None = None
) -> Finished:
    """Run a command to its end, watching its memory; `core` is the only one it may use."""
    pin = None if core is None else functools.partial(os.sched_setaffinity, 0, {core})
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        child = subprocess.Popen(
            list(command),
            cwd=folder,
            env=environment(threads),
            stdout=stdout,
            stderr=stderr,
            preexec_fn=pin,
        )
        watch = MemoryWatch(child.pid)
        watch.start()
        try:
            code = child.wait()
        except BaseException:
            child.terminate()
            child.wait()
            raise
        seconds = time.perf_counter() - started
        watch.end()
        stdout.seek(0), stderr.seek(0)
        done = Finished(code, stdout.read(), stderr.read(), seconds, watch.peaks, watch.peak_sum)
    if code:
        # torchrun says much after the process that failed.
        said = done.stderr if len(done.stderr) < 4000 else f"{done.stderr[:4000]}\n..."
        raise FailedChildError(f"{' '.join(command)} ended with {code}\n{said}")
    return done


def osda(folder: Path, *arguments: str, processes: int = 1) -> Finished:
    """Run `osda` with so many processes, one thread each."""
    return run([*launcher(processes), "-m", "opensetda", *arguments], folder)


def child(
    folder: Path, task: str, options: Mapping[str, Any], processes: int = 1, core: int | None = None
) -> Any:
    """Run a task of `scaling_child.py` with so many processes; return its answer."""
    command = [*launcher(processes), str(CHILD), task, json.dumps(dict(options))]
    return run(command, folder, core=core).json()


def classes_around(
    n_classes: int, n_unknown: int, width: int, seed: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Draw class centres, known ones first, and the shift of the target."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(n_classes + n_unknown, width)).astype(np.float32)
    return centres, (0.4 * rng.normal(size=width)).astype(np.float32)


def draw_domains(
    n_source: int,
    n_target: int,
    n_classes: int,
    width: int,
    n_unknown: int,
    unknown_share: float = 0.5,
    noise: float = 1.0,
    seed: int = 1,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draw rows of Gaussian classes: source, its labels, target, its true labels.

    Every known class has alike many rows; labels from `n_classes` on are unknown.
    """
    centres, shift = classes_around(n_classes, n_unknown, width, seed)
    rng = np.random.default_rng(seed + 1000)
    y_s = np.arange(n_source) % n_classes
    foreign = round(unknown_share * n_target)
    y_t = np.concatenate(
        [np.arange(n_target - foreign) % n_classes, n_classes + np.arange(foreign) % n_unknown]
    )
    rng.shuffle(y_t)

    def rows(y: np.ndarray) -> np.ndarray:
        return centres[y] + noise * rng.standard_normal((len(y), width), dtype=np.float32)

    return rows(y_s), y_s, rows(y_t) + shift, y_t


def class_name(label: int) -> str:
    """Return what a class is called."""
    return f"class {label:04d}"


def write_tables(folder: Path, *drawn: np.ndarray) -> None:
    """Write source.npz, with labels, and target.npz, without."""
    X_s, y_s, X_t, _ = drawn
    names = np.array([class_name(label) for label in range(int(y_s.max()) + 1)])
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "source.npz", X=X_s, y=names[y_s])
    np.savez(folder / "target.npz", X=X_t)


def write_images(folder: Path, classes: Mapping[str, int], side: int, seed: int) -> None:
    """Write noise of the roughness of photographs, coarse patterns by class: JPEG files."""
    rng = np.random.default_rng(seed)
    for name, count in classes.items():
        pattern = np.random.default_rng(sum(name.encode())).integers(0, 256, (6, 6, 3))
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            coarse = np.clip(pattern + rng.normal(0, 40, pattern.shape), 0, 255).astype(np.uint8)
            image = Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)
            pixels = np.asarray(image) + rng.normal(0, 12, (side, side, 1))
            image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
            image.filter(ImageFilter.SMOOTH).save(folder / name / f"{number:05d}.jpg", quality=85)


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """Return the slope of a line through the logarithms; None where a value is zero."""
    if len(sizes) < 2 or min(values) <= 0:
        return None
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def print_table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table as Markdown has it."""
    print("| " + " | ".join(names) + " |")
    print("|" + " --- |" * len(names))
    for row in rows:
        print("| " + " | ".join(_text(value) for value in row) + " |", flush=True)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def print_bar(bar: str, met: bool) -> None:
    """Print what is wanted, and whether it is so."""
    print(f"bar: {bar}: {'met' if met else 'NOT MET'}\n", flush=True)
