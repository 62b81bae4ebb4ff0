"""What the tests of the analyses share: a small task, and a method fitted to it."""

from __future__ import annotations

from feature_shifts import feature_task
from opensetda.analyses.request import FittedTask, fit_methods
from opensetda.benchmark.tasks import read_all
from opensetda.benchmark.variants import make_variants


def read(task, warnings=None):
    """Clusters with three known and two unknown classes; the name of a task is its seed."""
    return feature_task(3, 2, 32, "translation", 0.4, int(task), per_class=12)


def fits(*methods, **changes) -> list[FittedTask]:
    return fit_methods(read_all("small", ["0"], read), make_variants(methods, None, changes))
