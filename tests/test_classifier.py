"""The classifiers on top of the graph, and the class means they rest on."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from opensetda.pgl.inference import ClassMeans
from opensetda.pgl.network import (
    COSINE_SCALE,
    ClassMeanClassifier,
    LinearClassifier,
    class_sums,
)

C = 2
LABELS = torch.tensor([0, 0, 1, -1, C, 0])


def nodes(seed=0):
    return F.normalize(torch.randn(6, 4, generator=torch.Generator().manual_seed(seed)), dim=1)


def test_unlabelled_and_unknown_nodes_do_not_count():
    v = nodes()
    sums, counts = class_sums(v, LABELS, C)
    torch.testing.assert_close(sums, torch.stack([v[0] + v[1] + v[5], v[2]]))
    assert counts.tolist() == [3, 1]


def test_a_class_without_a_node():
    sums, counts = class_sums(nodes(), torch.full((6,), 1), 3)
    assert counts.tolist() == [0, 6, 0]
    assert (sums[0] == 0).all()


def test_a_labelled_node_is_left_out_of_its_own_mean():
    v = nodes()
    logits = ClassMeanClassifier(C)(v, LABELS)
    rest = F.normalize(v[1] + v[5], dim=0)
    torch.testing.assert_close(logits[0, 0], COSINE_SCALE * v[0] @ rest)
    # ... but not of another class's mean, and others see the whole mean.
    torch.testing.assert_close(logits[0, 1], COSINE_SCALE * v[0] @ v[2])
    whole = F.normalize(v[0] + v[1] + v[5], dim=0)
    for row in (2, 3, 4):
        torch.testing.assert_close(logits[row, 0], COSINE_SCALE * v[row] @ whole)


def test_the_only_node_of_a_class_keeps_its_mean():
    v = nodes()
    logits = ClassMeanClassifier(C)(v, LABELS)
    torch.testing.assert_close(logits[2, 1], torch.tensor(COSINE_SCALE))


def test_the_class_mean_classifier_has_a_gradient():
    v = nodes().requires_grad_()
    F.cross_entropy(ClassMeanClassifier(C)(v, LABELS)[:3], LABELS[:3]).backward()
    assert v.grad is not None
    assert v.grad.isfinite().all()
    assert v.grad.abs().sum() > 0


def test_the_linear_classifier_ignores_labels():
    torch.manual_seed(0)
    classifier = LinearClassifier(4, C)
    v = nodes()
    torch.testing.assert_close(
        classifier(v, LABELS), v @ classifier.linear.weight.t() + classifier.linear.bias
    )
    assert torch.equal(classifier(v, LABELS), classifier(v, torch.full_like(LABELS, -1)))


@pytest.mark.parametrize("mix", [0.0, 0.3, 1.0])
def test_mixed_means_lie_between_the_domains(mix):
    v = nodes()
    labels, is_target = torch.tensor([0, 0, 1, 0, 1, -1]), torch.arange(6) >= 3
    source = F.normalize(torch.stack([v[0] + v[1], v[2]]), dim=1)
    target = F.normalize(torch.stack([v[3], v[4]]), dim=1)
    expected = F.normalize((1 - mix) * source + mix * target, dim=1)
    torch.testing.assert_close(ClassMeans.of(v, labels, is_target, C, mix).mixed(), expected)


def test_a_class_that_one_domain_lacks_is_taken_from_the_other():
    v = nodes()
    labels, is_target = torch.tensor([0, 0, 0, 1, 1, C]), torch.arange(6) >= 3
    means = ClassMeans.of(v, labels, is_target, C, 0.5).mixed()
    torch.testing.assert_close(means[0], F.normalize(v[0] + v[1] + v[2], dim=0))
    torch.testing.assert_close(means[1], F.normalize(v[3] + v[4], dim=0))
