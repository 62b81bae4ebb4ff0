"""A method that labels for others: the ranker of PGL, and the choice between views of images."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone

from opensetda.context import FitContext
from opensetda.features.scaling import NONE
from opensetda.methods.base import OpenSetClassifier
from opensetda.methods.inputs import TunedImages
from opensetda.methods.means.estimator import MovingMeans, SmoothedMeans
from opensetda.rows import Domains


def usual_ranker(openness: float | str = "auto") -> OpenSetClassifier:
    """Return the strongest quick method, for rows that are scaled already."""
    return MovingMeans(openness, scaling=NONE)


def choose_views(
    inputs: TunedImages, method: OpenSetClassifier, of_one: Domains, context: FitContext
) -> None:
    """Take one view of each image from now on, if there is more `agreement` on its features."""
    if inputs.images.averaged > 1 and (
        agreement(method, of_one, context) > agreement(method, inputs.domains.reordered(), context)
    ):
        inputs.images.averaged = 1
        inputs.refresh()


def agreement(method: OpenSetClassifier, domains: Domains, context: FitContext) -> float:
    """Fit to these features, and return the share of targets that `SmoothedMeans` labels alike."""
    fitted = clone(method).fit_domains(domains, context)
    other = SmoothedMeans(fitted.openness_, scaling=fitted.scaler_.name)
    return float(np.mean(labels_by(other, domains, fitted) == fitted.transduction_))


def labels_by(
    other: OpenSetClassifier, domains: Domains, fitted: OpenSetClassifier
) -> npt.NDArray[Any]:
    """Return the labels of the targets by another method, with the share of a fitted one."""
    most = 1 - 1 / (len(domains.target) + 1)
    other.set_params(openness=min(fitted.openness_, most), unknown_label=fitted.unknown_label)
    return np.asarray(other.fit_domains(domains.reordered()).transduction_)
