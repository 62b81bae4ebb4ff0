"""Every setting of the method, with one sentence each, and the presets."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from opensetda.errors import InputError, choice
from opensetda.nn.settings import (
    CHECKED,
    AlignmentSettings,
    Count,
    FineTuneSettings,
    OptimiserSettings,
    Share,
    Weight,
)


@dataclass(frozen=True, config=CHECKED)
class EpisodeSettings:
    """How the training graphs are drawn."""

    episodes: Count = 8
    """B: number of episodes that are merged into one graph of 2 C B nodes."""
    node_limit: Count | None = 256
    """Largest number of nodes per graph: with many classes, fewer episodes (at least two)."""
    classes: Annotated[int, Field(ge=2)] | None = 100
    """C': largest number of classes per graph, drawn again for each graph; None takes all."""
    mix_up: bool = True
    """Put pseudo-labelled targets into support slots with probability m * alpha (Eq. 13)."""
    mix_up_limit: Share = 0.5
    """Factor on that probability: how far a class mean moves to the target at most."""
    labelled_queries: bool = True
    """Use the pseudo-label of a target that is drawn as a query."""


@dataclass(frozen=True, config=CHECKED)
class GraphSettings:
    """The edge and node networks."""

    enabled: bool = True
    """False classifies the embeddings directly, without edges and messages."""
    layers: Count = 1
    """L: number of graph layers, each an edge update and a node update."""
    form: Literal["anchored", "paper"] = "anchored"
    """'anchored' starts from cosine edges and averaging; 'paper' learns both from scratch."""
    projection: Count | None = None
    """'paper': width of a linear map before the edge network; None leaves it out."""
    edge_width: Count = 512
    """'paper': width h of the edge network, which has 2 h, then h hidden units."""
    node_width: Count = 64
    """Width of the node network's hidden layer ('anchored') or of its output ('paper')."""
    normalisation: Literal["layer", "batch"] = "layer"
    """'paper': normalisation in the edge and node networks; the paper uses 'batch'."""
    neighbours: Count | None = 10
    """Number of strongest edges of a node that carry messages; None takes all."""
    message: Share = 0.5
    """'anchored': share of the neighbours in a node's new embedding."""
    dropout: Share = 0.0
    """Dropout rate in the node network."""
    scatter_ridge: Annotated[float, Field(gt=0)] | None = 0.3
    """'anchored': ridge of the adapter's whitening within classes; None is without."""


@dataclass(frozen=True, config=CHECKED)
class LossSettings:
    """Weights of the losses; 0 switches one off."""

    node: Weight = 0.0
    """Weight of the focal classification loss of labelled nodes, over all layers."""
    edge: Weight = 0.0
    """mu: weight of the binary cross-entropy of edges between labelled nodes."""
    means: Weight = 0.0
    """Images whose backbone is trained: weight of the loss that draws them to class means."""
    adversary: Weight = 0.0
    """gamma: weight of the domain loss with gradient reversal."""
    focusing: Weight = 2.0
    """rho: exponent of the focal loss; 0 is the negative log-likelihood."""
    edge_target: Literal["affinity", "normalised"] = "affinity"
    """Edge loss on affinities with balanced classes, or on the paper's normalised edges."""


@dataclass(frozen=True, config=CHECKED)
class RankingSettings:
    """How targets and later samples are scored, and how targets are ranked."""

    confidence: Literal["similarity", "softmax"] = "similarity"
    """Score that is ranked: the cosine to the nearest class mean, or the largest softmax."""
    graph_targets: Count | None = 1024
    """Largest number of targets per graph; None takes C B, as in training."""
    support_nodes: Count | None = 640
    """Largest number of labelled source nodes per graph, over all classes; None takes C B."""
    labelled: Share = 1.0
    """Share of the targets that have a pseudo-label when the last step ends."""
    passes: Count = 1
    """Times that targets are scored anew within a step, each time with more pseudo-labels."""
    draws: Count = 3
    """K: number of random graphs over which the final scores of a target are averaged."""
    class_balance: Share = 0.5
    """Order of pseudo-labelling: most confident overall (0), or of each class alike (1)."""


@dataclass(frozen=True, config=CHECKED)
class StoppingSettings:
    """Which step is kept, chosen without labels."""

    band: Share = 0.1
    """Keep the latest step with an openness this near the median of all; 1 keeps the last."""
    early: bool = False
    """Stop after two steps in a row outside of the band."""


@dataclass(frozen=True, config=CHECKED)
class PGLSettings:
    """All settings; see `preset`."""

    steps: Count = 10
    """M = 1 / alpha: number of steps in which all targets get their pseudo-labels."""
    alignment: AlignmentSettings = field(default_factory=AlignmentSettings)
    episodes: EpisodeSettings = field(default_factory=EpisodeSettings)
    graph: GraphSettings = field(default_factory=GraphSettings)
    losses: LossSettings = field(default_factory=LossSettings)
    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)
    ranking: RankingSettings = field(default_factory=RankingSettings)
    stopping: StoppingSettings = field(default_factory=StoppingSettings)
    finetune: FineTuneSettings = field(default_factory=FineTuneSettings)

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        if self.ranking.confidence == "similarity" and self.graph.form == "paper":
            reason = "the paper's graph is ranked by ranking.confidence=softmax"
            raise ValueError(f"ranking.confidence=similarity needs graph.form=anchored; {reason}")
        if self.finetune.chunk is not None and self.finetune.batch_norm == "train":
            reason = "statistics of a part are not those of the whole graph"
            raise ValueError(f"finetune.chunk needs finetune.batch_norm=frozen; {reason}")

    @classmethod
    def preset(cls, name: str) -> Self:
        """Return the settings of that name; `PRESETS` lists them."""
        if name not in PRESETS:
            raise InputError(f"preset {name!r} does not exist; {choice(name, PRESETS)}")
        return cls().with_changes(PRESETS[name])

    def with_changes(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy with changes by dotted name; values may be strings of a command line."""
        tree = self.to_dict()
        for name, value in changes.items():
            *groups, leaf = name.split(".")
            branch = tree
            for group in groups:
                within = branch.get(group)
                branch = within if isinstance(within, dict) else {}
            if leaf not in branch or isinstance(branch[leaf], dict):
                raise InputError(f"setting {name!r} does not exist; {_suggestion(name, self)}")
            branch[leaf] = None if value in ("none", "None") and leaf != "centring" else value
        return self.from_dict(tree)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Check the values and return them as settings."""
        try:
            return TypeAdapter(cls).validate_python(dict(values))
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            reason = first["msg"].removeprefix("Value error, ")
            subject = f"setting {name}={first['input']!r}" if name else "settings"
            raise InputError(f"{subject}: {reason}") from None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        return dataclasses.asdict(self)

    @staticmethod
    def ablations() -> dict[str, dict[str, Any]]:
        """Return the paper's ablations: what each leaves out, as changes of settings."""
        return {name: dict(changes) for name, changes in ABLATIONS.items()}


def _suggestion(name: str, settings: PGLSettings) -> str:
    known = [
        f"{group}.{leaf}" if isinstance(values, dict) else group
        for group, values in settings.to_dict().items()
        for leaf in (values if isinstance(values, dict) else [group])
    ]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"the settings are {', '.join(known)}"


# The paper's equations with the values of its section 5. Features are not transformed; a
# linear map replaces the backbone that the paper trains.
_PAPER: dict[str, Any] = {
    "steps": 20,
    "alignment.normalise": False,
    "alignment.centring": "none",
    "alignment.components": None,
    "alignment.whitening": 0,
    "episodes.node_limit": None,
    "episodes.classes": None,
    "episodes.mix_up_limit": 1.0,
    "episodes.labelled_queries": False,
    "graph.form": "paper",
    "graph.scatter_ridge": None,
    "graph.normalisation": "batch",
    "graph.neighbours": None,
    "graph.dropout": 0.2,
    "losses.node": 1.0,
    "losses.edge": 0.3,
    "losses.adversary": 0.4,
    "losses.edge_target": "normalised",
    "optimiser.graph_rate": 1e-4,
    "optimiser.backbone_rate": 1e-5,
    "optimiser.weight_decay": 5e-5,
    "optimiser.first_step_epochs": 4,
    "optimiser.epochs_per_step": 4,
    "optimiser.iterations_per_epoch": None,
    "optimiser.decay": 0.5,
    "optimiser.decay_every": 4,
    "ranking.confidence": "softmax",
    "ranking.graph_targets": None,
    "ranking.support_nodes": None,
    "ranking.class_balance": 0,
    "stopping.band": 1,
    "finetune.averaged": 1,
    "finetune.batch_norm": "train",
}

# Ours, for training a backbone. The graph on frozen features is its first teacher: nothing is
# trained at the first step. Then a few steps, each with more pseudo-labels, train the backbone
# and label all targets anew, in passes that are the steps of the default.
_FINETUNE: dict[str, Any] = {
    "steps": 4,
    "episodes.episodes": 12,
    "episodes.node_limit": 96,
    "losses.means": 1.0,
    "optimiser.backbone_rate": 3e-4,
    "optimiser.iterations_per_epoch": 75,
    "ranking.labelled": 0.6,
    "ranking.passes": 10,
    "stopping.band": 1,
}


def _paper(episodes: int, width: int) -> dict[str, Any]:
    widths = {"graph.edge_width": width, "graph.node_width": width}
    return {**_PAPER, "episodes.episodes": episodes, **widths}


PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "finetune": _FINETUNE,
    "paper-office-home": _paper(episodes=2, width=512),
    "paper-visda": _paper(episodes=8, width=1024),
    "paper-syn2real": _paper(episodes=6, width=1024),
}

ABLATIONS: dict[str, dict[str, Any]] = {
    "no-progressive-steps": {"steps": 1, "optimiser.first_step_epochs": 10},
    "nll-instead-of-focal": {"losses.focusing": 0},
    "no-graph": {"graph.enabled": False},
    "no-mix-up": {"episodes.mix_up": False},
    "no-adversary": {"losses.adversary": 0},
    "no-edge-loss": {"losses.edge": 0},
}
