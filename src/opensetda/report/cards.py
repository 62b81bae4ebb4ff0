"""Cards of single targets, and the small pictures of the map."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy.typing as npt

from opensetda.report.content import Sample
from opensetda.runs.pictures import SOURCE, TARGET, Pictures, smaller
from opensetda.runs.predictions import PredictionTable

# Few pictures may be larger; 7,000 of the small ones take about 6 MB.
_FEW, _LARGE, _SMALL = 1500, 96, 48
_WORKERS = 4


class Cards:
    """What is known of single targets.

    Parameters
    ----------
    table : PredictionTable
        The run's predictions.
    truth : array of str or None
        The true labels, if they were given.
    pictures : Pictures
        The run's pictures.
    """

    def __init__(
        self, table: PredictionTable, truth: npt.NDArray[Any] | None, pictures: Pictures
    ) -> None:
        self.table, self.truth, self.pictures = table, truth, pictures
        self._confidence = table.confidence

    def of_rows(self, rows: Iterable[int]) -> tuple[Sample, ...]:
        """Return the cards of some targets, in this order."""
        return tuple(self._card(int(row)) for row in rows)

    def _card(self, row: int) -> Sample:
        table = self.table
        image = self.pictures.thumbnail(row)
        return Sample(
            row=row,
            name=str(table.ids[row]),
            label=str(table.labels[row]),
            nearest=str(table.nearest[row]),
            confidence=float(self._confidence[row]),
            p_unknown=float(table.proba[row, -1]),
            truth=None if self.truth is None else str(self.truth[row]),
            picture=None if image is None else _address(image),
        )

    def small_pictures(
        self, source: Sequence[int], target: Sequence[int]
    ) -> tuple[str | None, ...]:
        """Return pictures of samples for the map, sources first; small ones if there are many."""
        if not self.pictures.any:
            return (None,) * (len(source) + len(target))
        shown = [(row, SOURCE) for row in source] + [(row, TARGET) for row in target]
        side = _LARGE if len(shown) <= _FEW else _SMALL

        def small(sample: tuple[int, str]) -> str | None:
            image = self.pictures.thumbnail(*sample)
            return None if image is None else _address(smaller(image, side))

        with ThreadPoolExecutor(_WORKERS) as pool:
            return tuple(pool.map(small, shown))


def _address(webp: bytes) -> str:
    return "data:image/webp;base64," + base64.b64encode(webp).decode("ascii")
