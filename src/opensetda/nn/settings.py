"""Settings that PGL and its rivals share: alignment, optimiser, training of a backbone."""

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
    """How feature rows are transformed before training."""

    normalise: bool = True
    """Scale rows to unit length, before and after centring."""
    centring: Literal["none", "source", "own"] = "own"
    """Mean to subtract: none, the source's from both domains, or each domain's own."""
    components: Count | None = 64
    """Number of principal components of both domains together to keep; None keeps all features."""
    whitening: Share = 0.5
    """Divide each component by its standard deviation to this power: 0 rotates, 1 whitens."""


@dataclass(frozen=True, config=CHECKED)
class OptimiserSettings:
    """Adam with two groups of parameters, and the schedule."""

    graph_rate: Weight = 1e-4
    """Learning rate of the graph, the classifier and the discriminator."""
    backbone_rate: Weight = 1e-5
    """Learning rate of the backbone, or of the adapter that replaces it for feature rows."""
    weight_decay: Weight = 5e-5
    """Weight of the L2 penalty."""
    first_step_epochs: Annotated[int, Field(ge=0)] = 0
    """Epochs of training at the first step, when only the source has labels."""
    epochs_per_step: Annotated[int, Field(ge=0)] = 1
    """Epochs of training at every later step."""
    iterations_per_epoch: Count | None = 30
    """Graphs per epoch; None takes as many as show every target once."""
    decay: Share = 1.0
    """Factor on both learning rates, applied every `decay_every` epochs."""
    decay_every: Count = 4
    """Epochs between two decays of the learning rates."""
    warm_start: bool = True
    """Start a step from the weights of the last one; False starts every step from scratch."""


@dataclass(frozen=True, config=CHECKED)
class FineTuneSettings:
    """How an image backbone is trained; not used for feature rows."""

    crop: Annotated[float, Field(gt=0, le=1)] = 0.7
    """Smallest share of the image area in a random crop; 1 uses the whole image."""
    flip: bool = True
    """Mirror half of the images; switch off for digits, letters or signs."""
    averaged: Annotated[int, Field(ge=1, le=4)] = 4
    """Views whose features are averaged: the image, mirrored, grey, grey and mirrored."""
    views: Count = 6
    """Stored views per image with `--finetune last`: those that are averaged, then random ones."""
    colour: Share = 0.4
    """Largest change of brightness, contrast and saturation in stored views; 0: no grey either."""
    batch_norm: Literal["frozen", "train"] = "frozen"
    """Keep the statistics of batch normalisation, or update them in training."""
    accumulate: Count = 1
    """Number of graphs whose gradients are accumulated before each update."""
    chunk: Count | None = None
    """Images per pass through the backbone, computed twice to save memory; None takes all."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Mixed precision: none (float32), bfloat16, or float16 (GPU only)."""
