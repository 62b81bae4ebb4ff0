"""What the tests of the metrics share: samples of every kind, and how they are scored."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import hypothesis
from hypothesis import strategies as st

from opensetda.metrics.open_set import OpenSetMetrics, evaluate

KNOWN = ["a", "b", "c"]
ALIENS = ["x", "y"]
SCALARS = [field.name for field in fields(OpenSetMetrics) if field.name != "per_class"]
CALIBRATION = ["ece", "unknown_ece"]
GAINS = [name for name in SCALARS if name not in CALIBRATION]


def given(*strategies: Any) -> Any:
    """Hypothesis's `given` with few examples: the samples are small, and the laws are many."""
    return lambda test: hypothesis.settings(max_examples=20)(hypothesis.given(*strategies)(test))


def column(samples: list[tuple[Any, ...]], index: int) -> list[Any]:
    return [sample[index] for sample in samples]


def evaluate_samples(samples: list[tuple[Any, ...]]) -> OpenSetMetrics:
    truth, predicted, score, nearest, probabilities = (column(samples, i) for i in range(5))
    return evaluate(
        truth,
        predicted,
        KNOWN,
        known_score=score,
        nearest_class=nearest,
        probabilities=probabilities,
    )


# Few distinct scores make ties common; the wide floats look for overflow and underflow.
scores = st.sampled_from([0.0, -0.0, 0.25, 0.5, 1.0]) | st.floats(
    allow_nan=False, allow_infinity=False
)
# A few rows, of which some are tied, some certain and some rounded.
probability_rows = st.sampled_from(
    [
        (0.7, 0.1, 0.1, 0.1),
        (0.1, 0.7, 0.1, 0.1),
        (0.0, 0.0, 0.0, 1.0),
        (1.0005, 0.0, 0.0, 0.0),
        (0.1, 0.2, 0.3, 0.4),
        (0.333, 0.333, 0.0, 0.333),
    ]
)
samples_of_any_kind = st.lists(
    st.tuples(
        st.sampled_from(KNOWN + ALIENS),
        st.sampled_from([*KNOWN, "unknown"]),
        scores,
        st.sampled_from(KNOWN),
        probability_rows,
    ),
    min_size=1,
    max_size=30,
)


def with_every_class(samples: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [*samples, *((label, "a", 0.5, "b", (0.4, 0.3, 0.2, 0.1)) for label in KNOWN + ALIENS)]


samples_of_every_class = samples_of_any_kind.map(with_every_class)
