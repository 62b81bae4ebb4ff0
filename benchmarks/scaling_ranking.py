"""Global ranking (Eq. 6) of a hundred million targets that lie in shards.

    python benchmarks/scaling_ranking.py                    # 10^8 scores, about 2 minutes
    python benchmarks/scaling_ranking.py --scores 1000000

Scores and classes are drawn anew in every pass, each chunk from its own number, so that they
are nowhere held; a third of the scores is rounded, so that many are equal. All targets are
labelled, and at the sizes of --compare every label is compared with the ranking in
memory. Each run has processes of its own; the time of drawing is measured and told apart.
Figures go to benchmarks/results/scaling_ranking.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
import zlib
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from opensetda.pgl.pseudo_labels import UNLABELLED, rank_pseudo_labels
from opensetda.pgl.shared_ranking import rank_shards
from opensetda.system.memory import peak_megabytes, reset_peak

RESULTS = Path(__file__).parent / "results" / "scaling_ranking.json"
CHUNK, N_CLASSES, OPENNESS, PROGRESS = 2**20, 12, 0.6, 0.5
BALANCES = (0.0, 0.5)


def draw_chunk(number: int, n: int) -> tuple[int, np.ndarray, np.ndarray]:
    """Draw the scores and classes of one chunk of n in all."""
    first = number * CHUNK
    size = min(CHUNK, n - first)
    rng = np.random.Generator(np.random.Philox(key=number))
    scores = rng.random(size)
    rounded = scores[: size // 3]
    np.round(rounded, 3, out=rounded)
    return first, scores, rng.integers(0, N_CLASSES, size, dtype=np.uint8).astype(np.intp)


class Shard:
    """Every size-th chunk, drawn anew in every pass; counts the passes."""

    def __init__(self, n: int, rank: int, size: int) -> None:
        self.n, self.numbers = n, range(rank, -(-n // CHUNK), size)
        self.passes = 0

    def __call__(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Begin another pass."""
        self.passes += 1
        return (draw_chunk(number, self.n) for number in self.numbers)


class PipeTeam:
    """Processes that send everything to the first, which sends everything back; counts bytes."""

    def __init__(self, rank: int, size: int, pipes: list[Connection]) -> None:
        self.rank, self.size, self.pipes = rank, size, pipes
        self.sent = 0

    def gather(self, values: np.ndarray) -> list[np.ndarray]:
        """Return everybody's values."""
        self.sent += values.nbytes
        if self.rank:
            self.pipes[0].send(values)
            return list(self.pipes[0].recv())
        everybody = [values, *(pipe.recv() for pipe in self.pipes)]
        for pipe in self.pipes:
            pipe.send(everybody)
        return everybody

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of everybody's values."""
        return np.sum(self.gather(values), axis=0)


def work(n: int, size: int, balance: float, rank: int, pipes: list[Connection]) -> dict[str, Any]:
    """Rank and label one shard; return the figures of this process, those of all by sum."""
    shard, team = Shard(n, rank, size), PipeTeam(rank, size, pipes)
    drawing = time.perf_counter()
    before = sum(len(scores) for _, scores, _ in shard())
    drawing = time.perf_counter() - drawing
    shard.passes = 0
    reset_peak()
    resident = peak_megabytes()
    started = time.perf_counter()
    ranking = rank_shards(shard, team, OPENNESS, PROGRESS, N_CLASSES, balance)
    ranked = time.perf_counter()
    passes, sent = shard.passes, team.sent
    counts = np.zeros(3, dtype=np.int64)
    for first, scores, nearest in shard():
        labels = ranking.labels(first, scores, nearest)
        unknown, unlabelled = (int((labels == i).sum()) for i in (N_CLASSES, UNLABELLED))
        # A sum over chunks: the same, whoever has which of them.
        checksum = zlib.crc32(labels.astype(np.int8).tobytes(), first % 2**32)
        counts += [unknown, len(labels) - unknown - unlabelled, checksum]
    labelled = time.perf_counter()
    counts = team.sum(counts)
    own = max(before, 1) * 1e-9
    return {
        "seconds_to_rank": ranked - started,
        "passes": passes,
        "ns_a_score_and_pass": (ranked - started) / passes / own,
        "of_which_drawing": drawing / own,
        "seconds_to_label": labelled - ranked,
        "peak_mb": peak_megabytes(),
        "peak_above_start_mb": peak_megabytes() - resident,
        "sent_mb": sent / 1e6,
        "unknown": int(counts[0]),
        "known": int(counts[1]),
        "checksum": int(counts[2]),
    }


def _process(answers: Connection, *arguments: Any) -> None:
    answers.send(work(*arguments))


def run(n: int, size: int, balance: float) -> dict[str, Any]:
    """Run `size` processes; return the figures of the first, the memory of the largest."""
    context = multiprocessing.get_context("spawn")
    links = [context.Pipe() for _ in range(size - 1)]
    ends = [[link[0] for link in links], *([link[1]] for link in links)]
    answers, processes = [], []
    for rank, pipes in enumerate(ends):
        receive, send = context.Pipe(duplex=False)
        process = context.Process(target=_process, args=(send, n, size, balance, rank, pipes))
        process.start()
        answers.append(receive)
        processes.append(process)
    figures = [answer.recv() for answer in answers]
    for process in processes:
        process.join()
    peaks = {name: max(each[name] for each in figures) for name in figures[0] if "peak" in name}
    return {"scores": n, "processes": size, "class_balance": balance, **figures[0], **peaks}


def compare(n: int, balance: float) -> dict[str, Any]:
    """Compare every label with those of the ranking in memory."""
    shard, team = Shard(n, 0, 1), PipeTeam(0, 1, [])
    _, scores, nearest = zip(*shard(), strict=True)
    all_scores, all_nearest = np.concatenate(scores), np.concatenate(nearest)
    started = time.perf_counter()
    expected = rank_pseudo_labels(
        all_scores, all_nearest, OPENNESS, PROGRESS, N_CLASSES, class_balance=balance
    )
    seconds = time.perf_counter() - started
    ranking = rank_shards(shard, team, OPENNESS, PROGRESS, N_CLASSES, balance)
    labels = np.concatenate([ranking.labels(*chunk) for chunk in shard()])
    different = int((labels != expected).sum())
    return {"scores": n, "class_balance": balance, "seconds": seconds, "different": different}


def measure(
    n: int = 10**8,
    processes: tuple[int, ...] = (1, 2),
    compared: tuple[int, ...] = (10**6, 10**7),
) -> dict[str, Any]:
    """Run all numbers of processes, with and without class balance, and compare small sizes."""
    runs = [run(n, size, balance) for balance in BALANCES for size in processes]
    n_unknown = round(OPENNESS * PROGRESS * n)
    for row in runs:
        same = [each["checksum"] for each in runs if each["class_balance"] == row["class_balance"]]
        assert len(set(same)) == 1, "the labels depend on the number of processes"
        assert (row["unknown"], row["known"]) == (n_unknown, round(PROGRESS * n) - n_unknown)
    return {
        "runs": runs,
        "in_memory": [compare(size, balance) for balance in BALANCES for size in compared],
    }


def main() -> None:
    """Measure, print the tables and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scores", type=int, default=10**8)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--compare", type=int, nargs="*", default=[10**6, 10**7])
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    result = measure(arguments.scores, tuple(arguments.processes), tuple(arguments.compare))
    print(
        "| scores | class balance | processes | rank, s | passes | ns a score and pass | "
        "drawing, ns | label, s | peak resident, MB | above start, MB | sent by each, MB |"
    )
    print("|" + " --- |" * 11)
    for row in result["runs"]:
        print(
            f"| {row['scores']:,} | {row['class_balance']} | {row['processes']} | "
            f"{row['seconds_to_rank']:.1f} | {row['passes']} | {row['ns_a_score_and_pass']:.1f} | "
            f"{row['of_which_drawing']:.1f} | {row['seconds_to_label']:.1f} | "
            f"{row['peak_mb']:.0f} | {row['peak_above_start_mb']:.0f} | {row['sent_mb']:.1f} |"
        )
    print(
        "\n| scores in memory | class balance | rank, s | different labels |\n" + "| --- " * 4 + "|"
    )
    for row in result["in_memory"]:
        print(
            f"| {row['scores']:,} | {row['class_balance']} | {row['seconds']:.1f} | "
            f"{row['different']} |"
        )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
