"""PGL as a scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils import check_random_state

from opensetda.base import OpenSetClassifier, Scores, Vector
from opensetda.context import FitContext
from opensetda.errors import InputError
from opensetda.nn.alignment import Alignment
from opensetda.nn.inputs import FixedRows, TrainingInputs, TunedImages
from opensetda.nn.scaling import AUTO, NONE
from opensetda.openness.tracker import OpennessTracker
from opensetda.pgl.induction import SupportGraph
from opensetda.pgl.settings import PRESETS, PGLSettings
from opensetda.pgl.trainer import any_loss
from opensetda.pgl.training import train
from opensetda.rows import FloatArray, IntArray, Rows

# The threshold for later samples is set by this many targets, scored as later samples are.
THRESHOLD_ROWS = 2048


class PGLClassifier(OpenSetClassifier):
    """Progressive Graph Learning (Luo et al., ICML 2020) on feature rows.

    Parameters
    ----------
    openness : float or "auto", default="auto"
        beta, the share of unknowns in the target, in [0, 1); "auto" estimates it before
        the first step, without labels.
    preset : str, default="default"
        Settings to start from: "default", or the paper's for one of its datasets,
        "paper-office-home", "paper-visda", "paper-syn2real".
    settings : mapping, optional
        Changes to the preset by dotted name, as in ``{"steps": 5, "losses.edge": 0.3}``.
    scaling : {"auto", "none", "standard", "ranks"}, default="auto"
        How columns are scaled, see `opensetda.nn.scaling`. "auto" hides the source's classes in
        turn and takes what tells them apart better, columns as given or ranks; the paper's
        presets take the columns as given.
    random_state : int, RandomState or None, default=None
        Seed of weights and draws. The same seed gives the same bits, in any order of the rows.
    unknown_label : default="unknown"
        Label of unknowns. With numeric classes, a number keeps predictions numeric.

    Attributes
    ----------
    settings_ : PGLSettings
        All settings that were used.
    kept_step_ : KeptStep
        The step whose network and labels were kept, and why.
    step_labels_ : array of int of shape (steps, n_targets)
        The label of every target at every step, as an index into `classes_`; C is unknown.
    view_ : TrainingView
        With `FitContext.view`, and targets in `fit`; else None.

    Examples
    --------
    >>> import numpy as np
    >>> from opensetda import PGLClassifier
    >>> rng = np.random.default_rng(0)
    >>> centres = 4 * np.eye(3, 8)
    >>> X = np.concatenate([centres[i] + rng.normal(size=(20, 8)) for i in (0, 1, 0, 1, 2)])
    >>> y = np.repeat(["cat", "dog", "", "", ""], 20)
    >>> domain = np.repeat([1, 1, -1, -1, -1], 20)
    >>> clf = PGLClassifier(random_state=0).fit(X, y, sample_domain=domain)
    >>> clf.predict(centres).tolist()
    ['cat', 'dog', 'unknown']
    """

    is_random = trains_backbone = True
    presets = tuple(PRESETS)

    def __init__(
        self,
        openness: float | str = "auto",
        preset: str = "default",
        settings: Mapping[str, Any] | None = None,
        scaling: str = "auto",
        random_state: Any = None,
        unknown_label: Any = "unknown",
    ) -> None:
        self.openness, self.preset, self.settings = openness, preset, settings
        self.scaling, self.random_state, self.unknown_label = scaling, random_state, unknown_label

    @classmethod
    def settings_of(cls, preset: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return all settings of a preset with changes by dotted name."""
        return PGLSettings.preset(preset).with_changes(changes).to_dict()

    def _own_scaling(self) -> str:
        as_given = self.scaling == AUTO and str(self.preset).startswith("paper-")
        return NONE if as_given else self.scaling

    def _fit_domains(
        self,
        source: Rows,
        y: IntArray,
        target: Rows,
        openness: OpennessTracker,
        context: FitContext,
    ) -> Scores:
        settings = PGLSettings.preset(self.preset).with_changes(self.settings or {})
        self.settings_ = settings
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        inputs: TrainingInputs
        if context.images is None:
            inputs = FixedRows(source, target, settings.alignment)
        else:
            if not any_loss(settings, has_images=True):
                reason = "there is no loss that could train the backbone"
                raise InputError(f"preset {self.preset!r}: {reason}; take the preset 'finetune'")
            again = not settings.optimiser.warm_start
            groups = settings.alignment, settings.finetune
            inputs = TunedImages(
                context.images, source, target, *groups, keep_start=again, team=context.team
            )
        result = train(inputs, y, len(self.classes_), openness, settings, seed, context)
        self.history_, self.kept_step_ = result.history, result.kept
        self._alignment, rng = inputs.alignment, np.random.default_rng(seed)
        self._support = SupportGraph.draw(result.network, result.samples, settings, rng)
        if len(target):
            self.step_labels_ = np.stack(result.step_labels)[:, np.argsort(target.index)]
            if result.view is not None:
                self.view_ = result.view.of_callers_rows(source, target)
            # In canonical order the first rows are a random sample.
            first = inputs.raw_targets(THRESHOLD_ROWS)
            self._sample_as_later = self._score_scaled(first).known
        return result.scores

    def _known_as_later(self, target: Rows, known_score: Vector) -> Vector:
        return self._sample_as_later

    def _score_rows(self, X: FloatArray) -> Scores:
        return self._support.score(self._alignment.later(X))

    def _fitted_state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        values = {"settings": self.settings_.to_dict(), "progress": self._support.progress}
        arrays = self._support.arrays()
        arrays["alignment.source_mean"] = self._alignment.source_mean
        arrays["alignment.target_mean"] = self._alignment.target_mean
        if self._alignment.projection is not None:
            arrays["alignment.projection"] = self._alignment.projection
        return values, arrays

    def _restore_fitted_state(
        self, values: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        self.settings_ = PGLSettings.from_dict(values["settings"])
        self._alignment = Alignment(self.settings_.alignment)
        self._alignment.source_mean = arrays["alignment.source_mean"]
        self._alignment.target_mean = arrays["alignment.target_mean"]
        if self.settings_.alignment.components is not None:
            self._alignment.projection = arrays["alignment.projection"]
        self._support = SupportGraph.from_arrays(
            arrays, len(self.classes_), float(values["progress"]), self.settings_
        )
