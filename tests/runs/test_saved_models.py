"""`opensetda.save` and `opensetda.load`: a fitted estimator in a folder, without pickle."""

from __future__ import annotations

import json

import numpy as np
import pytest

import opensetda
from export_helpers import DOMAIN, LATER, QUICK, Stranger, X, Y
from opensetda.runs.integrity import Manifest
from opensetda.runs.registry import METHODS, build_method


def fitted(method="class-means"):
    classifier = build_method(method, openness=0.25, changes=QUICK.get(method, {}))
    return classifier.fit(X, Y, sample_domain=DOMAIN)


@pytest.mark.parametrize("method", METHODS)
def test_a_loaded_model_predicts_the_same_bits(method, tmp_path):
    classifier = fitted(method)
    opensetda.save(classifier, tmp_path / "model")
    loaded = opensetda.load(tmp_path / "model")
    assert type(loaded) is type(classifier)
    np.testing.assert_array_equal(loaded.predict_proba(LATER), classifier.predict_proba(LATER))
    np.testing.assert_array_equal(loaded.predict(LATER), classifier.predict(LATER))
    assert {path.suffix for path in (tmp_path / "model").iterdir()} == {".json", ".safetensors"}


def test_nothing_is_overwritten_by_accident(tmp_path):
    classifier = fitted()
    opensetda.save(classifier, tmp_path / "model")
    with pytest.raises(opensetda.InputError, match="overwrite=True"):
        opensetda.save(classifier, tmp_path / "model")
    opensetda.save(classifier, tmp_path / "model", overwrite=True)
    with pytest.raises(opensetda.InputError, match="not a method of this package"):
        opensetda.save(Stranger().fit(X, Y, sample_domain=DOMAIN), tmp_path / "third")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_what_is_no_saved_model_is_refused(tmp_path):
    place = tmp_path / "model"
    opensetda.save(fitted(), place)
    saved = json.loads((place / "model.json").read_text())
    (place / "model.json").write_text(json.dumps({**saved, "method": "no-such"}))
    Manifest.of(place).write()
    with pytest.raises(opensetda.InputError, match="'no-such' does not exist"):
        opensetda.load(place)
    with pytest.raises(opensetda.InputError, match="not a saved model"):
        opensetda.load(tmp_path)
