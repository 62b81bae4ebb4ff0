"""Outcomes of robustness checks: how one case is watched and classed, and the table of all.

A worker is a forked process that does thousands of cases. It measures time and memory of each, and
refuses to write outside its folder. A worker that dies or hangs costs one case.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

# Good, then bad.
CLEAN, OK = "clean", "ok"
FOREIGN, HANG, MEMORY, SIGNAL, WRITE, UNNAMED = (
    *("foreign", "hang", "memory", "signal", "write outside"),
    "unnamed",
)
CLASSES = (CLEAN, OK, FOREIGN, HANG, MEMORY, SIGNAL, WRITE, UNNAMED)
GOOD = (CLEAN, OK)

HANG_SECONDS, MOST_MEGABYTES = 20.0, 2000.0
# Above what the process has, so that a bomb cannot take the machine down.
_MOST_ADDRESSES = 5 * 2**30

_fork = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Outcome:
    """What became of one case; `case` rebuilds it, `where` tells equal findings from others."""

    kind: str
    case: str
    result: str
    done: str = ""
    where: str = ""
    text: str = ""

    @property
    def is_good(self) -> bool:
        """Whether the program behaved."""
        return self.result in GOOD


class HangError(BaseException):
    """The time is up; not an `Exception`, which a reader might take for damage."""


class OutsideError(PermissionError):
    """Something was to be written outside."""


def classify(work: Callable[[], None], names: Sequence[str], seconds: float) -> Outcome:
    """Run `work`, and class how it ends; an error that is the contract has one of `names`."""
    from opensetda.data.images.decoding import BrokenImageError
    from opensetda.errors import InputError
    from opensetda.system.memory import peak_megabytes, reset_peak

    outside.clear()
    reset_peak()
    before, text, where = peak_megabytes(), "", ""
    try:
        with time_limit(seconds):
            work()
        result = OK
    except (InputError, BrokenImageError) as error:
        text = str(error)
        is_named = isinstance(error, BrokenImageError) or any(name in text for name in names)
        result, where = (CLEAN if is_named else UNNAMED), "" if is_named else _frame(error)
    except HangError as error:
        result, where = HANG, _frame(error)
    except MemoryError as error:
        result, where, text = MEMORY, _frame(error), str(error)
    except BaseException as error:
        result, where, text = FOREIGN, _frame(error), str(error)
    grown = peak_megabytes() - before
    if grown > MOST_MEGABYTES:
        result, text = MEMORY, f"{grown:,.0f} MB; {text}"
    if outside:
        result, text, where = WRITE, outside[0], where or "write"
    return Outcome("", "", result, "", where, " ".join(text.split())[:300])


@contextmanager
def time_limit(seconds: float) -> Any:
    """Raise a `HangError` after some seconds."""

    def late(*_: object) -> None:
        raise HangError

    signal.signal(signal.SIGALRM, late)
    # Again and again: the first may be raised where exceptions are ignored, as in __del__.
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _frame(error: BaseException) -> str:
    """Return the type of an error and the innermost line of this package."""
    found = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if "/opensetda/" in frame.filename:
            place = frame.filename.rpartition("/opensetda/")[2]
            found = f"{place}:{frame.lineno} {frame.name}"
    return f"{type(error).__name__} at {found}"


# Writes outside --------------------------------------------------------------------------------

outside: list[str] = []
_allowed: list[str] = []
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGES = {"os.mkdir": (0,), "os.rename": (0, 1), "os.remove": (0,), "os.rmdir": (0,),
            "os.link": (1,), "os.symlink": (1,), "os.truncate": (0,), "shutil.rmtree": (0,),
            "os.chmod": (0,), "os.chown": (0,)}  # fmt: skip


def forbid_outside(*folders: Path) -> None:
    """Refuse, from now on and for ever, to change anything that is not below `folders`."""
    if not _allowed:
        sys.addaudithook(_watch)
    _allowed[:] = [
        *(str(folder.resolve()) for folder in folders),
        "/dev/null",
        f"/proc/{os.getpid()}/clear_refs",
    ]


def _watch(event: str, given: tuple[Any, ...]) -> None:
    if event == "socket.connect":
        outside.append(f"connects to {given[1]}")
        raise OutsideError(outside[-1])
    if event == "open":
        path, mode, flags = given
        if not (isinstance(mode, str) and set(mode) & set("wax+")) and not (
            mode is None and flags & _WRITING
        ):
            return
        paths = [path]
    elif event in _CHANGES:
        paths = [given[place] for place in _CHANGES[event]]
    else:
        return
    for path in paths:
        if isinstance(path, int):
            continue
        try:
            whole = _place(os.fsdecode(path), event == "open")
        except (OSError, ValueError):  # a loop of links, a NUL
            continue
        if not any(whole == place or whole.startswith(f"{place}/") for place in _allowed):
            outside.append(f"{event} {whole}")
            raise OutsideError(outside[-1])


def _place(path: str, followed: bool) -> str:
    """Return what is meant: a link itself, or what it leads to if it is opened."""
    if followed:
        return os.path.realpath(path)
    own = Path(path).absolute()
    return f"{os.path.realpath(own.parent)}/{own.name}"


# Workers ---------------------------------------------------------------------------------------

Work = Callable[[Any], Outcome]


def run_cases(
    cases: Sequence[Any],
    prepare: Callable[[int], Work],
    blank: Callable[[Any], Outcome],
    workers: int = 2,
    seconds: float = HANG_SECONDS,
) -> list[Outcome]:
    """Do all cases in `workers` processes; `prepare`, called in each, returns how.

    `blank` makes the outcome of a case whose worker died or was killed.
    """
    outcomes: list[Outcome] = []
    places = [list(range(number, len(cases), workers)) for number in range(workers)]
    running: dict[Connection, tuple[Any, int]] = {}

    def start(number: int) -> None:
        if places[number]:
            here, there = _fork.Pipe(duplex=False)
            work = [cases[place] for place in places[number]]
            process = _fork.Process(target=_serve, args=(there, work, prepare, number), daemon=True)
            process.start()
            there.close()
            running[here] = (process, number)

    for number in range(workers):
        start(number)
    began = dict.fromkeys(range(workers), _now())
    while running:
        ready = wait(list(running), timeout=1.0)
        for connection in list(running):
            process, number = running[connection]
            late = _now() - began[number] > 1.5 * seconds + 5
            if connection not in ready and not late:
                continue
            try:
                if late and connection not in ready:
                    process.kill()
                    raise EOFError
                outcomes.append(connection.recv())
                places[number].pop(0)
                began[number] = _now()
            except (EOFError, OSError):
                process.join()
                del running[connection]
                if places[number]:
                    lost = blank(cases[places[number].pop(0)])
                    result, text = (HANG, "") if late else (SIGNAL, f"exit code {process.exitcode}")
                    outcomes.append(replace(lost, result=result, text=text, where=result))
                    began[number] = _now()
                    start(number)
    return outcomes


def _now() -> float:
    import time

    return time.monotonic()


def _serve(
    connection: Connection, cases: Sequence[Any], prepare: Callable[[int], Work], number: int
) -> None:
    work = prepare(number)
    limit_addresses()
    for case in cases:
        try:
            connection.send(work(case))
        except BaseException:  # of the harness itself
            traceback.print_exc()
            os._exit(99)
    connection.close()
    # Threads of a library must not hold up the end.
    os._exit(0)


def limit_addresses(more: int = _MOST_ADDRESSES) -> None:
    """Let this process take so many bytes more than it has."""
    with suppress(OSError, IndexError, ValueError):
        status = Path("/proc/self/status").read_text()
        own = int(status.partition("VmSize:")[2].split()[0]) * 1024
        resource.setrlimit(resource.RLIMIT_AS, (own + more, own + more))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


# The table -------------------------------------------------------------------------------------


def findings(outcomes: Iterable[Outcome]) -> list[tuple[Outcome, int]]:
    """Return one of each kind of finding, and how often it was found."""
    first: dict[tuple[str, str], Outcome] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for outcome in outcomes:
        if not outcome.is_good:
            key = (outcome.result, outcome.where or outcome.text)
            first.setdefault(key, outcome)
            counts[key] += 1
    return [(first[key], n) for key, n in counts.most_common()]


def print_outcomes(outcomes: Sequence[Outcome], rebuild: str, most: int = 40) -> bool:
    """Print one row per kind, and the findings; return whether there are none."""
    shown = [name for name in CLASSES if name in GOOD or any(o.result == name for o in outcomes)]
    width = max([len(o.kind) for o in outcomes] + [12]) + 2
    print(f"{'':<{width}}{'cases':>9}" + "".join(f"{name:>15}" for name in shown))
    by_kind: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        by_kind.setdefault(outcome.kind, Counter())[outcome.result] += 1
    total: Counter[str] = Counter()
    for counts in by_kind.values():
        total.update(counts)
    for kind, counts in [*by_kind.items(), ("all", total)]:
        numbers = "".join(f"{counts[name]:>15,}" for name in shown)
        print(f"{kind:<{width}}{counts.total():>9,}{numbers}")
    found = findings(outcomes)
    for outcome, n in found[:most]:
        print(f"\n{n:,} x {outcome.result}: {outcome.where}\n  {outcome.done}; {outcome.text}")
        print(f"  {rebuild.format(outcome.case)}")
    if len(found) > most:
        print(f"\n... and {len(found) - most} more")
    return not found


def as_records(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """Return the findings for a file of results."""
    return [{**asdict(outcome), "times": n} for outcome, n in findings(outcomes)]
