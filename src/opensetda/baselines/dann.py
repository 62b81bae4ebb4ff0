"""DANN: features by which an adversary cannot tell the domains apart."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from opensetda.baselines._adapters import AdapterBaseline, AdapterNetwork
from opensetda.baselines._network import Batch
from opensetda.nn.parts import Discriminator, reversal_strength


class DANNNetwork(AdapterNetwork):
    """The classifier, and PGL's discriminator behind a reversed gradient."""

    def __init__(self, width: int, n_classes: int, adapts: bool, weight: float) -> None:
        super().__init__(width, n_classes, adapts, weight)
        self.discriminator = Discriminator(self.width_out)

    def target_losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the domain loss, weighted; both domains count one half."""
        strength = reversal_strength(batch.progress)
        losses = []
        for rows, is_target in ((batch.source, 0.0), (batch.target, 1.0)):
            logits = self.discriminator(self.features(rows), strength)
            truth = torch.full_like(logits, is_target)
            losses.append(F.binary_cross_entropy_with_logits(logits, truth))
        return {"domain": self.weight * (losses[0] + losses[1]) / 2}


class DANN(AdapterBaseline):
    r"""Domain-adversarial training, and a rejector.

    Ganin et al., "Domain-adversarial training of neural networks" (JMLR 2016). A discriminator
    learns to tell the domains apart by the features, which learn to prevent it:

    .. math::
        \min_{g, W} \max_D\; L_y(W, g) + \frac{\lambda_p w}{2} \Big(
            \mathbb{E}_s \log (1 - D(g(x^s))) + \mathbb{E}_t \log D(g(x^t)) \Big),
        \qquad \lambda_p = \frac{2}{1 + e^{-10 p}} - 1

    with p the share of the training that is done. The maximum is the discriminator's: one
    backward pass serves both, by the reversed gradient of `opensetda.nn.parts`. All
    targets take part, unknowns, too: it is a method for closed sets, here as in the tables
    of the open-set papers. Weight and iterations were chosen with a look at target labels
    (Office-31), in the rival's favour.

    Parameters
    ----------
    openness : float or "auto", default="auto"
        Share of the target that is unknown, in [0, 1); "auto" leaves it to the boundary of the
        rejector, or has it estimated where that has none. Without labels, both.
    rejector : str, default="osvm"
        Who says what is unknown: "quantile", "mixture", "osnn" or "osvm".
    weight : float, default=0.3
        w, the weight of the domain loss.
    iterations : int, default=200
        Batches of both domains to train on.
    batch_size : int, default=64
        Samples of each domain in a batch.
    rate : float, default=0.001
        Learning rate of bottleneck and heads; a tenth of it is the adapter's or backbone's.
    random_state : int, RandomState or None, default=None
        Seed of weights and batches.
    unknown_label : default="unknown"
        What unknowns are called.
    """

    def __init__(
        self,
        openness: float | str = "auto",
        rejector: str = "osvm",
        weight: float = 0.3,
        iterations: int = 200,
        batch_size: int = 64,
        rate: float = 1e-3,
        random_state: Any = None,
        unknown_label: Any = "unknown",
    ) -> None:
        super().__init__(
            openness,
            rejector,
            weight,
            iterations,
            batch_size,
            rate,
            random_state,
            unknown_label,
        )

    def _make_network(self, width: int, n_classes: int, adapts: bool) -> DANNNetwork:
        return DANNNetwork(width, n_classes, adapts, self.weight)
