"""PGL as a scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from opensetda.context import FitContext
from opensetda.features.transformer import DomainTransformer
from opensetda.methods.base import OpenSetClassifier
from opensetda.methods.inputs import TunedImages
from opensetda.methods.rankers import choose_views, usual_ranker
from opensetda.pgl.presets import PRESETS
from opensetda.pgl.settings import PGLSettings
from opensetda.pgl.source_free import SourceFreeTraining, earlier_graph, source_free_inputs
from opensetda.pgl.taught import TaughtGraph, Teacher, taught_inputs
from opensetda.pgl.training import ProgressiveTraining
from opensetda.rows import Domains
from opensetda.share.decision import Scores, rejection_cut


@dataclass(eq=False, repr=False, kw_only=True)
class PGLClassifier(DomainTransformer, OpenSetClassifier):
    """Progressive Graph Learning (Luo et al., ICML 2020).

    On feature rows a linear map, which starts as the identity, stands for the backbone.

    Parameters
    ----------
    openness : float, "auto" or "preset", default="auto"
        beta, the share of unknowns in the target, in [0, 1); "auto" estimates it without labels,
        "preset" takes the paper's value.
    preset : {"default", "end-to-end", "office-home", "visda-17", "syn2real-o", "sf-pgl"}, \
            default="default"
        The paper's settings for one of its datasets, and where it is silent those of its authors'
        code; "default" and "end-to-end" are ours, for feature rows and for a backbone that is
        trained; "sf-pgl" goes on from a run, see `opensetda.usecases.adapt`.
    settings : mapping, optional
        Changes to the preset by name, as in ``{"steps": 10, "edge_weight": 0}``; see `PGLSettings`.
    scaling : {"none", "standard", "ranks"}, default="none"
        How columns are scaled, see `opensetda.features.scaling`.
    random_state : int, RandomState or None, default=None
        Seed of weights and draws. The same seed gives the same bits, in any order of the rows.
    unknown_label : default="unknown"
        Label of unknowns. With numeric classes, a number keeps predictions numeric.

    Attributes
    ----------
    settings_ : PGLSettings
        All settings that were used.
    scorer_ : TaughtGraph
        Attaches samples to stored graphs; `scorer_.network` is the trained network.

    Examples
    --------
    >>> import numpy as np
    >>> from opensetda import PGLClassifier
    >>> rng = np.random.default_rng(0)
    >>> centres = 4 * np.eye(3, 8)
    >>> X = np.concatenate([centres[i] + rng.normal(size=(20, 8)) for i in (0, 1, 0, 1, 2)])
    >>> y = np.repeat(["cat", "dog", "", "", ""], 20)
    >>> domain = np.repeat([1, 1, -1, -1, -1], 20)
    >>> small = {"steps": 3, "edge_width": 32, "node_width": 32, "graph_rate": 1e-3}
    >>> clf = PGLClassifier(1 / 3, settings=small, random_state=0).fit(X, y, sample_domain=domain)
    >>> clf.predict(centres).tolist()
    ['cat', 'dog', 'unknown']
    """

    is_random = trains_backbone = True
    presets = tuple(PRESETS)

    preset: str = "default"
    settings: Mapping[str, Any] | None = None
    random_state: Any = field(default=None, metadata={"allowed": ["random_state"]})

    @classmethod
    def settings_of(cls, preset: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return all settings of a preset with changes by name."""
        return PGLSettings.preset(preset).with_changes(changes).to_dict()

    def _all_settings(self) -> PGLSettings:
        return PGLSettings.preset(self.preset).with_changes(self.settings or {})

    def _given_openness(self) -> float | str:
        of_preset = isinstance(self.openness, str) and self.openness == "preset"
        return self._all_settings().openness if of_preset else self.openness

    def rejected_share(self, share: float) -> float:
        """Return the share of the targets to label unknown: by the paper's rule a part of it."""
        return share * self.settings_.rejected

    def labels_by_paper(self) -> npt.NDArray[Any]:
        """Return labels of the targets of `fit` by the paper's rule, whatever `reject` is.

        After step m of M, the share beta m/M is unknown, all others are known.
        """
        settings = self.settings_
        share = self.openness_ * settings.progress(settings.last_step)
        nearest = np.searchsorted(self.classes_, self.transduction_nearest_)
        is_unknown = self.transduction_scores_ < rejection_cut(self.transduction_scores_, share)
        return self.decode_labels(np.where(is_unknown, len(self.classes_), nearest))

    def _learn(self, domains: Domains, share: float, context: FitContext) -> Scores | None:
        self.settings_ = settings = self._all_settings()
        if settings.source_free:
            self._learn_source_free(domains, share, context)
            return None
        inputs = taught_inputs(domains, settings, context.images)
        teacher = None
        if settings.ranking != "softmax" and domains.has_target:
            ranker = usual_ranker(share)
            teacher = Teacher(ranker, share=share, y=domains.y, n_classes=domains.n_classes)
            if isinstance(inputs, TunedImages):
                choose_views(inputs, ranker, inputs.given, FitContext())
        training = ProgressiveTraining(
            inputs=inputs,
            source_labels=domains.y,
            n_classes=domains.n_classes,
            share=share,
            settings=settings,
            seed=self._seed(),
            context=context,
            teacher=teacher,
        )
        self._run(training)
        if inputs.learned is None or not domains.has_target:
            return None
        # The rows of the targets are the features of the trained backbone now.
        self.scorer_ = self.scorer_.cpu().double().eval()
        return self._score_scaled(torch.from_numpy(inputs.raw_targets(len(domains.target))))

    def _learn_source_free(self, domains: Domains, share: float, context: FitContext) -> None:
        """Learn from the targets alone, see `opensetda.pgl.source_free`."""
        graph = earlier_graph(context.earlier, domains, self.settings_)
        training = SourceFreeTraining(
            inputs=source_free_inputs(domains, graph),
            source_labels=domains.y[:0],
            n_classes=domains.n_classes,
            share=share,
            settings=self.settings_,
            seed=self._seed(),
            context=context,
            earlier=graph,
        )
        self._run(training)

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _run(self, training: ProgressiveTraining) -> None:
        """Run a training, and keep what it found."""
        training.run()
        self.history_ = training.history
        self.scorer_ = training.graph
        if training.step_labels:
            self.step_labels_ = np.stack(training.step_labels)

    def _make_scorer(self, arrays: Mapping[str, Tensor]) -> TaughtGraph:
        self.settings_ = self._all_settings()
        of_ranker = usual_ranker()._make_scorer
        return TaughtGraph.of_state(arrays, len(self.classes_), self.settings_, of_ranker)
