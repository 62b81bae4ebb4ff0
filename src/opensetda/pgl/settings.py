"""Every setting of PGL with a sentence, the paper's presets, and its ablations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from opensetda.errors import InputError, checked_settings, choice

Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]

# Labelled nodes of a graph: with fewer its batch statistics are too noisy.
FEWEST_LABELLED = 20


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class PGLSettings:
    """The paper's values for Office-Home; what the paper does not state is marked "ours"."""

    steps: Count = 20
    """M = 1 / alpha: steps after which all targets would have a pseudo-label."""
    stop_step: Count | None = 7
    """The last step that is run; None runs all of them."""
    openness: Annotated[float, Field(ge=0, lt=1)] = 0.6
    """beta: the share of unknowns, for ``PGLClassifier(openness="preset")``."""
    episodes: Count | None = None
    """B: episodes per graph, which has 2 C B nodes; None: 2, as for the paper's 25 classes, or with
    few classes as many as make 20 labelled nodes (ours)."""
    mix_up: bool = True
    """Replace source samples by pseudo-labelled targets with probability m * alpha (Eq. 13)."""
    layers: Annotated[int, Field(ge=0)] = 1
    """L: graph layers, each an edge and a node update; 0 classifies the backbone's features."""
    edge_width: Count = 512
    """Width h of the edge network, which has 2 h, then h hidden units."""
    node_width: Count = 512
    """Width h of a node embedding; the node network has 2 h hidden units."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Dropout rate in the node network."""
    focusing: Weight = 2.0
    """rho: exponent of the focal loss; 0 is the negative log-likelihood."""
    edge_weight: Weight = 0.3
    """mu: weight of the edge loss."""
    adversary_weight: Weight = 0.4
    """gamma: weight of the domain loss, constant."""
    graph_rate: Weight = 1e-4
    """Learning rate of the graph, the classifier and the discriminator."""
    backbone_rate: Weight = 1e-5
    """Learning rate of the backbone, or of the linear map in its place for feature rows."""
    weight_decay: Weight = 5e-5
    """Weight of the L2 penalty in Adam."""
    epochs: Count = 4
    """Epochs per step (ours); one shows the smaller domain once, in 25 to 150 graphs."""
    decay: Share = 0.5
    """Factor on both learning rates every `decay_every` epochs of a step."""
    decay_every: Count = 4
    """Epochs of a step between two decays; the next step starts with the first rates."""
    fresh_start: bool = True
    """Start every step with new weights, as the authors' code does; else the last ones go on."""
    taught: bool = False
    """`MovingMeans` gives all pseudo-labels, by the features so far; it does the first step, the
    last labels are PGL's (ours)."""
    query_labels: bool = False
    """Queries have their pseudo-labels in the losses, too, as in the authors' code."""
    unknown_weight: Weight = 0.0
    """Weight of the loss that makes pseudo-unknown queries equally likely in all classes (ours)."""
    draws: Count = 3
    """K: support graphs that score a sample; its probabilities are their mean (ours)."""

    @property
    def last_step(self) -> int:
        """The last step that is run."""
        return min(self.steps, self.stop_step or self.steps)

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


# Table "The detailed settings for the three datasets", and the stop steps of section 5.3. For
# VisDA-17 the paper states none. The default is that of Office-Home, in five steps to the end: on
# Office-31 as good as seven of twenty, and faster. What a trained backbone needs is ours.
_WIDE = {"edge_width": 1024, "node_width": 1024}
_FIVE_STEPS = {"steps": 5, "stop_step": None}
PRESETS: dict[str, dict[str, Any]] = {
    "default": _FIVE_STEPS,
    "end-to-end": {
        **_FIVE_STEPS,
        "taught": True,
        "query_labels": True,
        "unknown_weight": 1.0,
        "adversary_weight": 0.0,
        "backbone_rate": 3e-4,
        "fresh_start": False,
    },
    "office-home": {},
    "visda-17": {**_WIDE, "episodes": 8, "openness": 0.85, "stop_step": None},
    "syn2real-o": {**_WIDE, "episodes": 6, "openness": 0.9, "stop_step": 5},
}

# What each ablation of the paper leaves out; the last two are points of its figure 4 (b).
ABLATIONS: dict[str, dict[str, Any]] = {
    "no-progressive-steps": {"steps": 1, "openness": 0.6},
    "nll-instead-of-focal": {"focusing": 0.0},
    "no-graph": {"layers": 0},
    "no-mix-up": {"mix_up": False},
    "no-adversary": {"adversary_weight": 0.0},
    "no-edge-loss": {"edge_weight": 0.0},
}
