"""STA: first separate known from unknown targets, then adapt to the known ones."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

import torch
import torch.nn.functional as F
from sklearn.utils._param_validation import Interval
from torch import Tensor, nn

from opensetda.methods.network import Batch, NetworkRival
from opensetda.methods.network_parts import Discriminator, reversal_strength
from opensetda.methods.parameters import NON_NEGATIVE, checked
from opensetda.methods.rival_bases import ExtraClassNetwork

# Shares of the training after which targets are ranked, and after which they are aligned.
RANKED_FROM = 0.4
ALIGNED_FROM = 0.6

SEPARATOR_WIDTH = 256


class STANetwork(ExtraClassNetwork):
    """Features, and the paper's heads G_c, G_b, G_y and G_d, in this order."""

    def __init__(self, width: int, n_classes: int, adapts: bool, settings: STA) -> None:
        super().__init__(width, n_classes, adapts, module=settings.module)
        self.extremes, self.adversary = settings.extremes, settings.adversary
        self.entropy = settings.entropy
        self.one_against_rest = nn.Linear(self.width_out, n_classes)
        hidden = nn.Linear(self.width_out, SEPARATOR_WIDTH)
        self.separator = nn.Sequential(hidden, nn.LeakyReLU(), nn.Linear(SEPARATOR_WIDTH, 1))
        self.classifier = nn.Linear(self.width_out, n_classes + 1)
        self.discriminator = Discriminator(self.width_out)

    def source_losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the losses of G_y and of G_c on the source."""
        features = self.features(batch.source)
        own, of_class = self.classifier(features), self.one_against_rest(features)
        return {
            "class": F.cross_entropy(own, batch.labels),
            "one_against_rest": one_against_rest_loss(of_class, batch.labels),
        }

    def target_losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the losses of the stage: none, those of step 1, those of both steps."""
        if batch.progress < RANKED_FROM:
            return {}
        features = self.features(batch.target)
        similarity = self.one_against_rest(features).detach().max(dim=1).values
        separation = self.separator(features).squeeze(1)
        losses = {"separation": separation_loss(separation, similarity, self.extremes)}
        if batch.progress >= ALIGNED_FROM:
            weights = torch.sigmoid(separation).detach()
            logits = self.classifier(features)
            strength = reversal_strength((batch.progress - ALIGNED_FROM) / (1 - ALIGNED_FROM))
            of_source = self.discriminator(self.features(batch.source), strength)
            of_target = self.discriminator(features, strength)
            domain = weighted_domain_loss(of_source, of_target, weights)
            losses["domain"] = self.adversary * domain
            losses["unknown"] = unknown_loss(logits, weights)
            losses["entropy"] = self.entropy * weighted_entropy(logits, weights)
        return losses


@dataclass(eq=False, repr=False, kw_only=True)
class STA(NetworkRival):
    r"""Separate to Adapt.

    Liu, Cao, Long, Wang and Yang, "Separate to adapt: Open set domain adaptation via progressive
    separation" (CVPR 2019). Step 1 separates, from coarse to fine. One classifier per class,
    :math:`G_c`, tells it from the rest of the source (:math:`L_s`). Targets are ranked by
    :math:`s_j = \max_c G_c(g(x_j))`. Those at both ends train one more classifier, :math:`G_b`,
    to tell known from unknown (:math:`L_b`), and it weights every target,

    .. math:: w_j = G_b(g(x_j)) \in (0, 1) .

    Step 2 adapts, each target as much as it seems known:

    .. math::
        \min_{g, G_y} \max_{G_d}\; L_y^s + L_y^t + \eta L_e - \lambda L_d

    with the loss :math:`L_y^s` of the classifier :math:`G_y` of C + 1 classes on the source,
    :math:`L_y^t` on targets that seem unknown (`unknown_loss`), the entropy :math:`L_e` of those
    that seem known (`weighted_entropy`), and the loss :math:`L_d` of a domain discriminator
    (`weighted_domain_loss`). The label is the largest output of :math:`G_y`.

    Our choices: one training has both steps, :math:`L_y^s + L_s` from the start, :math:`L_b` after
    40 %, step 2 after 60 % of the iterations, and the separator is trained on in step 2. Batch
    size, `adversary` and `entropy` are those of the authors' code. Iterations, stages, `extremes`
    (2 of 32 in their code) and the weight 1 / C of :math:`L_y^t` (0.3 in their code) were chosen
    with target labels (Office-31, two backbones), in favour of this rival.

    The other parameters are those of `NetworkRival`; the default of `batch_size` is 32.

    Parameters
    ----------
    extremes : float, default=0.3
        Share of a batch of targets at either end of the ranking that trains the separator,
        in (0, 0.5].
    adversary : float, default=0.3
        Weight of the domain loss (lambda).
    entropy : float, default=0.1
        Weight of the entropy (eta).
    """

    extremes: float = checked(0.3, Interval(Real, 0, 0.5, closed="right"))
    adversary: float = checked(0.3, NON_NEGATIVE)
    entropy: float = checked(0.1, NON_NEGATIVE)
    batch_size: int = 32

    def _make_network(self, width: int, n_classes: int, adapts: bool) -> STANetwork:
        return STANetwork(width, n_classes, adapts, self)


def one_against_rest_loss(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Return :math:`L_s = \frac1n \sum_i \sum_c \operatorname{BCE}(G_c(x_i), [y_i = c])`."""
    truth = F.one_hot(labels, logits.shape[1]).to(logits)
    return F.binary_cross_entropy_with_logits(logits, truth, reduction="sum") / len(logits)


def separation_loss(separation: Tensor, similarity: Tensor, extremes: float) -> Tensor:
    r"""Return :math:`L_b`, the loss of known against unknown on the ends of the ranking.

    The targets of largest :math:`s_j` are to be known (1), those of smallest unknown (0), as
    many of each; the others have no part. `separation` are logits of G_b.
    """
    count = max(round(extremes * len(similarity)), 1)
    ranked = similarity.argsort()
    chosen = torch.cat([separation[ranked[:count]], separation[ranked[-count:]]])
    truth = torch.arange(2 * count, device=chosen.device) >= count
    return F.binary_cross_entropy_with_logits(chosen, truth.to(chosen))


def weighted_domain_loss(source: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    r"""Return the loss of the discriminator, where a target counts as much as it seems known.

    .. math::
        L_d = -\frac1{n_s} \sum_i \log (1 - G_d(x_i^s))
              - \frac1{\sum_j w_j} \sum_j w_j \log G_d(x_j^t)
    """
    return F.softplus(source).mean() + _weighted_mean(F.softplus(-target), weights)


def unknown_loss(logits: Tensor, weights: Tensor) -> Tensor:
    r"""Return the loss of targets as unknowns, each counting as much as it seems unknown.

    .. math::
        L_y^t = -\frac1C \frac1{\sum_j (1 - w_j)} \sum_j (1 - w_j) \log G_y^{C+1}(x_j)

    Divided by C: unknown is one class among the others. Logits (n, C + 1), weights (n,).
    """
    n_classes = logits.shape[1] - 1
    return _weighted_mean(-F.log_softmax(logits, dim=1)[:, -1], 1 - weights) / n_classes


def weighted_entropy(logits: Tensor, weights: Tensor) -> Tensor:
    r"""Return the entropy over the C known classes, each target as much as it seems known.

    .. math::
        L_e = \frac1{\sum_j w_j} \sum_j w_j H\big(\operatorname{softmax}(G_y^{1:C}(x_j))\big)
    """
    log_probabilities = F.log_softmax(logits[:, :-1], dim=1)
    return _weighted_mean(-(log_probabilities.exp() * log_probabilities).sum(dim=1), weights)


def _weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    # Where nothing has a weight, nothing is learned.
    return (weights * values).sum() / weights.sum().clamp_min(1e-6)
