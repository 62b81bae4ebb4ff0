"""Cross-validation by scikit-learn keeps both domains in every fold."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn
from sklearn.model_selection import GridSearchCV

from opensetda import ClassMeans, DomainKFold, InputError

rng = np.random.default_rng(0)
KIND = np.repeat([0, 1, 2, 0, 1, 2, 3], 12)  # the target has one more class
X = 4 * np.eye(8)[KIND] + rng.normal(size=(len(KIND), 8))
DOMAIN = np.repeat([0, -1], [36, 48])


def test_every_fold_has_both_domains_and_every_class():
    seen = np.zeros(len(KIND), dtype=int)
    for train, test in DomainKFold(4).split(X, KIND, DOMAIN):
        seen[test] += 1
        for rows in (train, test):
            assert {*KIND[rows][DOMAIN[rows] >= 0]} == {0, 1, 2}
            assert (DOMAIN[rows] < 0).any()
    assert (seen == 1).all()


def test_labels_of_targets_do_not_change_the_folds():
    other = np.where(DOMAIN < 0, 7, KIND)
    folds, same = (list(DomainKFold(3).split(X, y, DOMAIN)) for y in (KIND, other))
    for one, two in zip(folds, same, strict=True):
        np.testing.assert_array_equal(one[1], two[1])


@pytest.mark.parametrize("routing", [False, True])
def test_a_grid_search_scores_every_fold(routing):
    with sklearn.config_context(enable_metadata_routing=routing):
        method = ClassMeans(openness=0.25, unknown_label=3)
        search = GridSearchCV(method, {"openness": [0.0, 0.25]}, cv=DomainKFold(3))
        how = {"sample_domain": DOMAIN} if routing else {"sample_domain": DOMAIN, "groups": DOMAIN}
        search.fit(X, KIND, **how)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_params_ == {"openness": 0.25}


@pytest.mark.parametrize("domain", [None, np.zeros(len(KIND), int), np.where(DOMAIN < 0, -1, -1)])
def test_a_domain_that_is_missing_is_named(domain):
    method = GridSearchCV(ClassMeans(unknown_label=3), {"openness": [0.2]}, cv=DomainKFold(3))
    with pytest.raises(InputError, match="sample_domain"):
        method.fit(X, KIND, groups=domain)
