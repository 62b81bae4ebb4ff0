"""PGL as a scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from opensetda.context import FitContext
from opensetda.features.transformer import DomainTransformer
from opensetda.methods.base import OpenSetClassifier
from opensetda.methods.inputs import training_inputs
from opensetda.pgl.network import PGLNetwork
from opensetda.pgl.scoring import SupportGraph
from opensetda.pgl.settings import PRESETS, PGLSettings
from opensetda.pgl.training import ProgressiveTraining
from opensetda.rows import Domains
from opensetda.share.decision import Scores


@dataclass(eq=False, repr=False, kw_only=True)
class PGLClassifier(DomainTransformer, OpenSetClassifier):
    """Progressive Graph Learning (Luo et al., ICML 2020).

    On feature rows a linear map, which starts as the identity, stands for the backbone.

    Parameters
    ----------
    openness : float, "auto" or "preset", default="auto"
        beta, the share of unknowns in the target, in [0, 1); "auto" estimates it without labels,
        "preset" takes the paper's value.
    preset : {"default", "end-to-end", "office-home", "visda-17", "syn2real-o"}, default="default"
        The paper's settings for one of its datasets. The default has those of Office-Home but
        five steps; "end-to-end" are ours for a backbone that is trained (`runs.fit` takes them).
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
    scorer_ : SupportGraph
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

    def _learn(self, domains: Domains, share: float, context: FitContext) -> Scores | None:
        self.settings_ = self._all_settings()
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        inputs = training_inputs(domains, None, context.images)
        training = ProgressiveTraining(
            inputs=inputs,
            source_labels=domains.y,
            n_classes=domains.n_classes,
            share=share,
            settings=self.settings_,
            seed=seed,
            context=context,
        )
        training.run()
        self.history_, self.scorer_ = training.history, training.scorer
        if training.step_labels:
            self.step_labels_ = np.stack(training.step_labels)
        if inputs.learned is None or not domains.has_target:
            return None
        # The rows of the targets are the features of the trained backbone now.
        self.scorer_ = self.scorer_.cpu().double().eval()
        return self._score_scaled(torch.from_numpy(inputs.raw_targets(len(domains.target))))

    def _make_scorer(self, arrays: Mapping[str, Tensor]) -> SupportGraph:
        self.settings_ = self._all_settings()
        adapts = "network.backbone.change.weight" in arrays
        width = arrays["network.discriminator.layers.0.weight"].shape[1]
        network = PGLNetwork(width, len(self.classes_), self.settings_, adapts)
        stored = arrays.get("nodes_0")
        shape = (self.settings_.draws, 1) if stored is None else stored.shape[:2]
        return SupportGraph(network, *shape)
