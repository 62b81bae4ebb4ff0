"""In Python, errors and warnings name arguments, not options of the command."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pandas as pd
import pytest

from cli_helpers import blobs
from opensetda import ClassMeans, Committee
from opensetda.cli.main import main
from opensetda.errors import InputError
from opensetda.usecases import ImageOptions, TableOptions, fit, predict

QUICK = {"method": "class-means", "openness": 0.3}


@pytest.fixture
def tables(tmp_path):
    (X, y), (Z, _) = blobs(0), blobs(1)
    source, target = (pd.DataFrame(rows, columns=list("pqrs")) for rows in (X, Z))
    source.assign(gas=y).to_csv(tmp_path / "a.csv", index=False)
    target.to_csv(tmp_path / "b.csv", index=False)
    return source.assign(gas=y), target


def test_errors_name_what_python_calls_an_option(tables, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        fit("a.csv", "b.csv", "run", **QUICK)
    assert "TableOptions(label='gas')" in str(caught.value)
    assert "--" not in str(caught.value)
    assert main(["fit", "a.csv", "b.csv", "--out", "run"]) == 2
    assert "--label-column gas" in capsys.readouterr().err
    fit("a.csv", "b.csv", "run", tables=TableOptions(label="gas"), **QUICK)


@pytest.mark.parametrize("name", ["label", "label_column"])
def test_natural_names_are_suggested(tables, tmp_path, name):
    with pytest.raises(InputError, match=r"TableOptions\(label='gas'\)"):
        fit(*tables, tmp_path / "run", **{name: "gas"}, **QUICK)


def test_one_name_is_as_good_as_a_list_of_one(tables, tmp_path):
    assert TableOptions(drop="p").drop == ("p",)
    run = fit(*tables, tmp_path / "run", tables=TableOptions(label="gas", drop="p"), **QUICK)
    assert run.folder.feature_names() == ("q", "r", "s")


@pytest.mark.parametrize("group", [TableOptions, ImageOptions])
def test_every_option_has_a_docstring(group):
    for option in dataclasses.fields(group):
        _, there, text = group.__doc__.partition(f"{option.name} : ")
        assert there
        assert len(text.splitlines()[1].strip()) > 20


def test_warnings_of_a_classifier_name_its_parameters():
    X, y = blobs(0)
    rows, domain = np.concatenate([X, X + 1]), np.repeat([0, -1], len(X))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Committee().fit(rows, np.concatenate([y, y]), domain)
    text = " ".join(str(warning.message) for warning in caught)
    assert text
    assert "--" not in text


def test_columns_of_a_frame_are_matched_by_name(tables):
    source, target = tables
    X = pd.concat([source[list("pqrs")], target])
    y = [*source.gas, *[""] * len(target)]
    method = ClassMeans(openness=0.3).fit(X, y, np.repeat([0, -1], [len(source), len(target)]))
    other = target.assign(more=1.0)[["s", "more", "q", "p", "r"]]
    np.testing.assert_array_equal(method.predict_proba(other), method.predict_proba(target))
    with pytest.raises(ValueError, match="feature names"):
        method.predict(target.rename(columns={"p": "t"}))


def test_predictions_become_a_frame(tables, tmp_path):
    run = fit(*tables, tmp_path / "run", tables=TableOptions(label="gas"), **QUICK)
    labels = predict(run, tables[1])
    frame = labels.to_pandas()
    assert frame.label.tolist() == labels.labels.tolist()
    np.testing.assert_allclose(frame.confidence, labels.confidence)
