"""Settings that PGL and its rivals share: alignment, optimiser, and how images are trained on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

CHECKED = ConfigDict(extra="forbid", allow_inf_nan=False)

Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, config=CHECKED)
class AlignmentSettings:
    """What happens to feature rows before anything is learned."""

    normalise: bool = True
    """Scale rows to length one, before and after centring."""
    centring: Literal["none", "source", "own"] = "own"
    """The mean that is taken off: none, the source's from both domains, or each domain's own."""
    components: Count | None = 64
    """Keep this many principal components of the two domains together; None keeps all features."""
    whitening: Share = 0.5
    """Divide component i by its standard deviation to this power: 0 rotates only, 1 whitens."""


@dataclass(frozen=True, config=CHECKED)
class OptimiserSettings:
    """Adam, its two groups of parameters and their decay."""

    graph_rate: Weight = 1e-4
    """Learning rate of graph, classifier and discriminator."""
    backbone_rate: Weight = 1e-5
    """Learning rate of the backbone, or of the adapter in its place."""
    weight_decay: Weight = 5e-5
    """L2 penalty."""
    first_step_epochs: Annotated[int, Field(ge=0)] = 0
    """Epochs at the first step, when only the source has labels."""
    epochs_per_step: Annotated[int, Field(ge=0)] = 1
    """Epochs of training at every later step."""
    iterations_per_epoch: Count | None = 30
    """Graphs an epoch; None takes as many as show every target once."""
    graphs: Count | None = None
    """Graphs an update, dealt out to the processes, gradients averaged; None: one a process."""
    decay: Share = 1.0
    """Factor on the learning rates ..."""
    decay_every: Count = 4
    """... every so many epochs."""
    warm_start: bool = True
    """Go on from the last step's weights; False starts every step anew."""


@dataclass(frozen=True, config=CHECKED)
class FineTuneSettings:
    """How images are trained on, where the backbone learns, too; unused for feature rows."""

    share_of_frozen: bool = True
    """Estimate the share of unknowns on frozen features, where it is not told."""
    crop: Annotated[float, Field(gt=0, le=1)] = 0.7
    """Train on random crops of at least this share of the image; 1 takes it whole."""
    flip: bool = True
    """Mirror half of the images; not for digits, letters or signs."""
    batch_norm: Literal["frozen", "train"] = "frozen"
    """Keep the statistics of batch normalisation, or measure and update them in training."""
    accumulate: Count = 1
    """Graphs whose gradients are added up before the weights move."""
    chunk: Count | None = None
    """Images that pass the backbone together, computed twice to save memory; None takes all."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Mixed precision: none (float32), bfloat16 or float16 (a GPU's)."""
