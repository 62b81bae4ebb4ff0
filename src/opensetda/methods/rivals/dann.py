"""DANN: features by which an adversary cannot tell the domains apart."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from opensetda.methods.network import Batch
from opensetda.methods.network_parts import Discriminator, reversal_strength
from opensetda.methods.rival_bases import ClosedSetNetwork, ClosedSetRival


class DANNNetwork(ClosedSetNetwork):
    """The classifier, and the discriminator of PGL behind a reversed gradient."""

    def __init__(self, width: int, n_classes: int, adapts: bool, settings: ClosedSetRival) -> None:
        super().__init__(width, n_classes, adapts, settings)
        self.discriminator = Discriminator(self.width_out)

    def target_losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the weighted domain loss; both domains count one half."""
        strength = reversal_strength(batch.progress)
        losses = []
        for rows, is_target in ((batch.source, 0.0), (batch.target, 1.0)):
            logits = self.discriminator(self.features(rows), strength)
            truth = torch.full_like(logits, is_target)
            losses.append(F.binary_cross_entropy_with_logits(logits, truth))
        return {"domain": self.weight * (losses[0] + losses[1]) / 2}


@dataclass(eq=False, repr=False, kw_only=True)
class DANN(ClosedSetRival):
    r"""Domain-adversarial training, and a rejector.

    Ganin et al., "Domain-adversarial training of neural networks" (JMLR 2016). A discriminator
    learns to tell the domains apart, and the features learn to prevent it:

    .. math::
        \min_{g, W} \max_D\; L_y(W, g) + \frac{\lambda_p w}{2} \Big(
            \mathbb{E}_s \log (1 - D(g(x^s))) + \mathbb{E}_t \log D(g(x^t)) \Big),
        \qquad \lambda_p = \frac{2}{1 + e^{-10 p}} - 1

    with p the share of the training that is done. One backward pass trains both sides, by the
    reversed gradient. Weight and iterations were chosen with target labels (Office-31), in favour
    of this rival.

    Parameters are those of `ClosedSetRival`; the default of `weight`, w above, is 0.3.
    """

    weight: float = 0.3

    network = DANNNetwork
