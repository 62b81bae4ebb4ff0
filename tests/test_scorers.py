"""The contract of every scorer: saved as it is, exported as it is, each row on its own."""

from __future__ import annotations

import io
import json
import warnings

import numpy as np
import pytest
import torch

from conftest import make_task
from opensetda import (
    ATI,
    DANN,
    DAOD,
    MMD,
    OSBP,
    OSLPP,
    STA,
    ClassMeans,
    InputError,
    MovingMeans,
    OVANet,
    SmoothedMeans,
    SourceOnly,
    UniOT,
)
from opensetda.rejection import REJECTORS

NETWORK = {"iterations": 20, "batch_size": 16, "random_state": 0}
METHODS = {
    "moving-means": MovingMeans(),
    "smoothed-means": SmoothedMeans(),
    "class-means": ClassMeans(),
    **{f"source-only+{rejector}": SourceOnly(rejector=rejector) for rejector in REJECTORS},
    "ati+quantile": ATI(rejector="quantile"),
    "ati+osvm": ATI(),
    "daod": DAOD(),
    "oslpp": OSLPP(),
    "osbp": OSBP(**NETWORK),
    "sta": STA(**NETWORK),
    "mmd+quantile": MMD(rejector="quantile", **NETWORK),
    "dann+osnn": DANN(rejector="osnn", **NETWORK),
    "ovanet": OVANet(**NETWORK),
    "uniot": UniOT(**NETWORK),
}


@pytest.fixture(scope="module")
def fitted(request, task):
    return METHODS[request.param].fit(task.X, task.y, sample_domain=task.domain)


every_method = pytest.mark.parametrize("fitted", METHODS, indirect=True)


@pytest.fixture(scope="module")
def later():
    """Two hundred rows that were not in `fit`."""
    return make_task(per_class=20, seed=7).X[:200].astype(np.float64)


@every_method
def test_a_saved_scorer_gives_the_same_bits(fitted, later):
    saved, arrays = fitted.get_state()
    saved = json.loads(json.dumps(saved, allow_nan=False))
    restored = type(fitted).from_state(saved, {name: a.copy() for name, a in arrays.items()})
    for mine, theirs in zip(
        restored.open_set_scores(later), fitted.open_set_scores(later), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(restored.predict(later), fitted.predict(later))


@pytest.mark.parametrize("fitted", METHODS, indirect=True)
def test_a_state_that_lacks_something_is_refused(fitted):
    saved, arrays = fitted.get_state()
    for name in (name for name in arrays if name.startswith("scorer.")):
        rest = {key: array for key, array in arrays.items() if key != name}
        with pytest.raises(InputError, match=r"saved model: .*; fit again"):
            type(fitted).from_state(saved, rest)


@every_method
def test_an_exported_scorer_agrees(fitted, later):
    onnxruntime = pytest.importorskip("onnxruntime")
    rows, file = torch.from_numpy(later), io.BytesIO()
    names = {"input_names": ["rows"], "output_names": ["classes", "known"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            fitted.scorer_,
            (rows[:3],),
            file,
            dynamo=False,
            opset_version=17,
            dynamic_axes={name: {0: "n"} for name in ("rows", "classes", "known")},
            **names,
        )
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    with torch.no_grad():
        expected = fitted.scorer_(rows)
    for found, values in zip(session.run(None, {"rows": later}), expected, strict=True):
        np.testing.assert_allclose(found, values.numpy(), rtol=0, atol=1e-9)
        assert found.dtype == np.float64


@pytest.mark.parametrize("method", ["moving-means", "daod", "osbp", "source-only+osvm"])
def test_an_odd_number_of_columns_and_classes_changes_no_bits(method):
    """Rows then begin at other places in memory, which BLAS rounds differently."""
    task = make_task(width=13)
    chosen = task.y != "dog"
    given = task.X[chosen], task.y[chosen], task.domain[chosen]
    fitted = METHODS[method].fit(*given[:2], sample_domain=given[2])
    check_rows_on_their_own(fitted, make_task(per_class=20, width=13, seed=7).X[:100])


@every_method
def test_a_row_is_scored_on_its_own(fitted, later):
    check_rows_on_their_own(fitted, later)


def check_rows_on_their_own(fitted, later):
    together = fitted.open_set_scores(later)
    order = np.random.default_rng(0).permutation(len(later))
    shuffled = fitted.open_set_scores(later[order])
    alone = [fitted.open_set_scores(row[None]) for row in later[:20]]
    for place, values in enumerate(together):
        np.testing.assert_array_equal(shuffled[place], values[order])
        np.testing.assert_array_equal(np.concatenate([one[place] for one in alone]), values[:20])


@every_method
def test_targets_are_scored_as_later_samples_are(fitted, task):
    scores = fitted.open_set_scores(task.target)
    np.testing.assert_array_equal(scores.known, fitted.transduction_scores_)
    np.testing.assert_array_equal(fitted.predict(task.target), fitted.transduction_)
    assert scores.classes.shape == (len(task.target), len(fitted.classes_))
    assert all(np.isfinite(values).all() for values in scores)


@every_method
def test_the_order_of_rows_changes_nothing(fitted, task, later):
    order = np.random.default_rng(3).permutation(len(task.X))
    method = type(fitted)(**fitted.get_params())
    shuffled = method.fit(task.X[order], task.y[order], sample_domain=task.domain[order])
    # The targets come last in the task.
    mine = (order - len(task.source))[order >= len(task.source)]
    np.testing.assert_array_equal(shuffled.transduction_proba_, fitted.transduction_proba_[mine])
    np.testing.assert_array_equal(shuffled.predict_proba(later), fitted.predict_proba(later))


@every_method
def test_without_targets_it_is_a_classifier(fitted, task):
    closed = type(fitted)(**fitted.get_params()).fit(task.source, task.labels)
    assert closed.predict_proba(task.source).shape == (len(task.source), len(closed.classes_))
    assert (closed.predict(task.source) == task.labels).mean() > 0.6


@pytest.mark.parametrize(
    "fitted", [name for name, method in METHODS.items() if method.transforms_domains], indirect=True
)
def test_the_representation_of_both_domains(fitted, task):
    of_target = fitted.transform(task.X)
    both = fitted.transform(task.X, sample_domain=task.domain)
    np.testing.assert_array_equal(both[task.domain < 0], of_target[task.domain < 0])
    assert np.isfinite(both).all()
