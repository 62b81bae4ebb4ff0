"""Every setting of PGL with a sentence; `presets` has those of the paper.

A sentence ends in "(paper)" where the paper states the default, in "(authors)" where it is silent
and the default is that of the authors' code, and in "(ours)" where neither has such a setting.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from opensetda.errors import InputError, checked_settings, choice
from opensetda.pgl.presets import PRESETS

Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]

# Labelled nodes of a graph: with fewer its batch statistics are too noisy.
FEWEST_LABELLED = 20


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class PGLSettings:
    """The defaults are those of the paper for Office-Home, but for `reject`."""

    steps: Count = 20
    """M = 1 / alpha: steps after which all targets would have a pseudo-label (paper)."""
    stop_step: Count | None = 7
    """The last step that is run; None runs all of them (paper)."""
    openness: Annotated[float, Field(ge=0, lt=1)] = 0.6
    """beta: the share of unknowns, for ``PGLClassifier(openness="preset")`` (paper)."""
    reject: Literal["stop-step", "all"] = "all"
    """How many targets are labelled unknown after step m: with "stop-step" beta m/M of them, all
    others known (paper); with "all" the share beta, whatever the step (ours)."""
    episodes: Count | None = None
    """B: episodes per graph, which has 2 C B nodes (paper); None: 2, or with few classes as many as
    make 20 labelled nodes (ours)."""
    mix_up: bool = True
    """Replace source samples by pseudo-labelled targets with probability m * alpha (paper)."""
    layers: Annotated[int, Field(ge=0)] = 1
    """L: graph layers, each an edge and a node update; 0 classifies the features (paper)."""
    edge_width: Count = 512
    """Width h of the edge network, which has 2 h, then h hidden units (paper)."""
    node_width: Count = 512
    """Width h of a node embedding; the node network has 2 h hidden units (paper)."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Dropout rate in the node network (paper)."""
    focusing: Weight = 2.0
    """rho: exponent of the focal loss; 0 is the negative log-likelihood (paper)."""
    node_weight: Weight = 1.0
    """Weight of the node loss of a source-free training (ours)."""
    edge_weight: Weight = 0.3
    """mu: weight of the edge loss (paper)."""
    adversary_weight: Weight = 0.4
    """gamma: weight of the domain loss, constant (paper)."""
    graph_rate: Weight = 1e-4
    """Learning rate of the graph, the classifier and the discriminator (paper)."""
    backbone_rate: Weight = 1e-5
    """Learning rate of the backbone, or of the linear map in its place for feature rows (paper)."""
    weight_decay: Weight = 5e-5
    """Weight of the L2 penalty in Adam (paper)."""
    decay: Share = 0.5
    """Factor on both learning rates at every decay; each step starts with the first rates (paper).
    """
    decay_every: Count = 4
    """Epochs between two decays in the first step (paper)."""
    slower_decay: bool = True
    """Let every second step wait one epoch more for a decay, 4 + (step - 1) // 2 (authors)."""
    epochs: Count = 4
    """Epochs of the first step; one shows the smaller domain once, in 25 to 150 graphs (authors).
    """
    epochs_per_step: Annotated[int, Field(ge=0)] = 2
    """Epochs that each step has more than the one before (authors)."""
    fresh_start: bool = True
    """Start every step with new weights; else the last ones go on (authors)."""
    batch_statistics: Literal["trained", "frozen"] = "trained"
    """Whether a backbone in training normalises by the statistics of its batch, source and target
    together, and learns them (authors), or by those that it came with (ours)."""
    one_view: bool = True
    """Score an image as itself, one view as in training (authors); else as the mean of the fixed
    views (ours)."""
    components: Count | None = None
    """Principal components of both domains, each centred, that rows are turned onto; None takes
    rows as they are (ours)."""
    whitening: Share = 0.5
    """Divide each component by its standard deviation to this power (ours)."""
    scale: Annotated[float, Field(gt=0)] = 1.0
    """Factor on aligned rows, which have length 1: at 1 the edges hardly see distances (ours)."""
    ranking: Literal["softmax", "features", "embedding"] = "softmax"
    """What ranks the targets: the softmax (paper); `MovingMeans` on the features so far, and the
    softmax for the last labels; or `MovingMeans` on node embeddings beside the features (ours)."""
    embedding_weight: Weight = 0.5
    """Length of node embeddings beside features of length 1, with ranking="embedding" (ours)."""
    query_labels: bool = False
    """Queries have their pseudo-labels in the losses, too, as in the authors' code; in the paper
    they are unlabelled (paper)."""
    unknown_weight: Weight = 0.0
    """Weight of the loss that makes pseudo-unknown queries equally likely in all classes (ours)."""
    source_free: bool = False
    """SF-PGL: start from the weights of a run and learn from a new target alone (ours)."""
    entropy_weight: Weight = 0.0
    """eta: weight of the entropy of unlabelled nodes in a source-free training (ours)."""
    draws: Count = 3
    """K: support graphs that score a sample; its probabilities are their mean (ours)."""

    @property
    def last_step(self) -> int:
        """The last step that is run."""
        return min(self.steps, self.stop_step or self.steps)

    @property
    def rejected(self) -> float:
        """The part of beta that is rejected in the end: all of it, or m/M as in the paper."""
        return self.progress(self.last_step) if self.reject == "stop-step" else 1.0

    def progress(self, step: int) -> float:
        """Return m alpha, the share of the targets that has a pseudo-label after a step."""
        return min(1.0, step / self.steps)

    def epochs_of(self, step: int) -> int:
        """Return the number of epochs of a step; the first is 1."""
        return self.epochs + self.epochs_per_step * (step - 1)

    def decay_every_of(self, step: int) -> int:
        """Return the number of epochs of a step between two decays."""
        return self.decay_every + (step - 1) // 2 if self.slower_decay else self.decay_every

    def episodes_of(self, n_classes: int) -> int:
        """Return the number of episodes per graph."""
        return self.episodes or max(2, -(-FEWEST_LABELLED // n_classes))

    @classmethod
    def preset(cls, name: str) -> Self:
        """Return the settings of that name; `PRESETS` lists them."""
        if name not in PRESETS:
            raise InputError(f"preset {name!r} does not exist; {choice(name, PRESETS)}")
        return cls(**PRESETS[name])

    def with_changes(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy with changes by name; values may be strings of a command line."""
        given = {
            name: None if value in ("none", "None") else value for name, value in changes.items()
        }
        return checked_settings(type(self), self.to_dict() | given)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        return dataclasses.asdict(self)
