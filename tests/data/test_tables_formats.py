"""The same table in every format, and as a DataFrame."""

from __future__ import annotations

import sys
import zipfile

import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pytest

from cli_helpers import blobs
from data_helpers import error_of, text
from opensetda.data.tables.loading import TableColumns, read_domains, read_samples
from opensetda.errors import InputError
from opensetda.usecases import TableOptions, fit, predict, resume


def frame(seed=0, labelled=True):
    X, y = blobs(seed)
    made = pd.DataFrame(X.astype(np.float64), columns=["p", "q", "r 1", "s"])
    return made.assign(y=y) if labelled else made


WRITERS = {
    "csv": lambda path, made: made.to_csv(path, index=False),
    "tsv": lambda path, made: made.to_csv(path, index=False, sep="\t"),
    "xlsx": lambda path, made: made.to_excel(path, index=False),
    "feather": lambda path, made: made.to_feather(path),
    "jsonl": lambda path, made: made.to_json(path, orient="records", lines=True),
    "parquet": lambda path, made: made.to_parquet(path, index=False),
}  # fmt: skip


@pytest.mark.parametrize("suffix", WRITERS)
def test_every_format_holds_the_same_table(tmp_path, suffix):
    made = frame()
    a, b = tmp_path / f"a.{suffix}", tmp_path / "b.csv"
    WRITERS[suffix](a, made)
    WRITERS["csv"](b, frame(1, labelled=False))
    source, target = read_domains(a, b)
    np.testing.assert_allclose(source.X, made.drop(columns="y").to_numpy(), rtol=1e-5)
    assert source.labels.tolist() == made.y.tolist()
    assert target.feature_names == ("p", "q", "r 1", "s")


@pytest.mark.parametrize(("separator", "decimal"), [(";", ","), ("\t", ","), ("|", ".")])
def test_separator_and_decimal_sign_of_csv_are_detected(tmp_path, separator, decimal):
    made = frame()
    a = tmp_path / "a.csv"
    made.to_csv(a, sep=separator, decimal=decimal, index=False)
    WRITERS["csv"](tmp_path / "b.csv", frame(1, labelled=False))
    source, _ = read_domains(a, tmp_path / "b.csv")
    np.testing.assert_allclose(source.X, made.drop(columns="y").to_numpy(), rtol=1e-6)


def test_commas_in_names_and_numbers_do_not_divide(tmp_path):
    a = text(tmp_path / "a.csv", 'p;"q, in %";y\n1,5;2;a\n-2,5e1;3,25;b\n')
    b = text(tmp_path / "b.csv", 'p,"q, in %"\n1,2\n')
    source, _ = read_domains(a, b)
    np.testing.assert_array_equal(source.X, [[1.5, 2], [-25, 3.25]])


def test_jsonl_says_what_is_no_object_and_what_is_nested(tmp_path):
    b = text(tmp_path / "b.csv", "p\n1\n")
    a = text(tmp_path / "a.jsonl", '{"p": 1, "y": "a"}\n{"p": \n')
    assert "cannot read the file: " in error_of(read_domains, a, b)
    a = text(tmp_path / "a.jsonl", '{"p": [1, 2], "y": "a"}\n{"p": [1, 2], "y": "b"}\n')
    assert "column 'p' is not numeric (it holds list<" in error_of(read_domains, a, b)


# Excel -------------------------------------------------------------------------------------------


def sheet(path, *rows):
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.save(path)
    return path


def test_sheets_may_have_gaps_flags_and_mixed_columns(tmp_path):
    a = sheet(tmp_path / "a.xlsx", ["p", "on", "y"], [1, True, "a"], [], [None, False, "b"],
              [2.5, True, 7])  # fmt: skip
    b = sheet(tmp_path / "b.xlsx", ["p", "on"], [1, 0], [3, 1])
    message = error_of(read_domains, a, b)
    assert "'p' (1) of 3 rows; add --impute median" in message
    source, _ = read_domains(a, b, TableColumns(impute="median"))
    np.testing.assert_array_equal(source.X, [[1, 1], [1.75, 0], [2.5, 1]])
    assert source.labels.tolist() == ["a", "b", "7"]
    b = sheet(tmp_path / "b.xlsx", ["p", "on"], [1, 0], ["x", 1])
    with pytest.raises(InputError, match=r"column 'p' is not numeric \(row 2 holds 'x'\)"):
        read_domains(a, b, TableColumns(impute="median"))


def test_sheets_that_cannot_be_read_are_named(tmp_path, monkeypatch):
    b = text(tmp_path / "b.csv", "p\n1\n")
    a = text(tmp_path / "a.xlsx", "no zip")
    damaged = f"{a}: cannot read the file: "
    assert error_of(read_domains, a, b).startswith(damaged)
    with zipfile.ZipFile(sheet(a, ["p"], [1])) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(a, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content.replace(b"<sheetData>", b"<sheetData"))
    assert damaged in error_of(read_domains, a, b)
    assert "its first sheet is empty" in error_of(read_domains, sheet(a), b)
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    assert "pip install 'opensetda[excel]'" in error_of(read_domains, a, b)


# DataFrames --------------------------------------------------------------------------------------


class Frame:
    """A DataFrame of neither pandas nor pyarrow, with the interface they share, as polars has."""

    def __init__(self, made):
        self._table = pa.Table.from_pandas(made, preserve_index=False)
        self.columns = self._table.column_names

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize("kind", [lambda made: made, Frame])
def test_dataframes_are_tables(tmp_path, kind):
    source, target = frame().assign(part=range(60)), frame(1, labelled=False).assign(part=range(60))
    source.loc[3, "p"] = np.nan
    source.index = target.index = pd.date_range("2024-01-01", periods=60)
    asked = {"method": "class-means", "openness": 0.1}
    with pytest.raises(InputError, match=r"source: NaN or empty cells in 1 column: 'p'"):
        fit(kind(source), kind(target), tmp_path / "run", **asked)
    options = TableOptions(impute="median")
    run = fit(kind(source), kind(target), tmp_path / "run", tables=options, **asked)
    assert run.training.left_out == {"part": "a counter: evenly spaced numbers"}
    assert run.folder.feature_names() == ("p", "q", "r 1", "s")
    later = target.drop(columns="part").iloc[:, ::-1]
    labels = run.folder.predictions().labels
    assert (predict(run, kind(later)).labels == labels).mean() > 0.95
    # Labels apart from the features are the same.
    again = fit(
        (kind(source.drop(columns="y")), source.y), kind(target), tmp_path / "again",
        tables=options, **asked,
    )  # fmt: skip
    np.testing.assert_array_equal(again.folder.predictions().labels, labels)
    assert resume(tmp_path / "run", source=kind(source), target=kind(target)).training is None


def test_options_of_tables_are_refused_for_arrays(tmp_path):
    X, y = blobs(0)
    with pytest.raises(InputError, match="tables: for files and DataFrames"):
        fit((X, y), X, tmp_path / "run", tables=TableOptions(impute="median"))


def test_a_windows_1252_table_is_read_with_a_note(tmp_path):
    made = frame()
    made["y"] = np.where(made.y == made.y[0], "Käse", "Brot")
    a, b = tmp_path / "a.csv", tmp_path / "b.csv"
    made.to_csv(a, index=False, encoding="cp1252")
    WRITERS["csv"](b, frame(1, labelled=False))
    source, _ = read_domains(a, b)
    assert set(source.labels.tolist()) == {"Käse", "Brot"}
    assert str(a) in source.notes[0]


def test_columns_that_differ_in_case_are_matched(tmp_path):
    a, b = tmp_path / "a.csv", tmp_path / "b.csv"
    WRITERS["csv"](a, frame())
    WRITERS["csv"](b, frame(1, labelled=False).rename(columns={"p": "P", "r 1": "R 1"}))
    source, target = read_domains(a, b)
    assert target.feature_names == ("p", "q", "r 1", "s")
    np.testing.assert_allclose(target.X, frame(1, labelled=False).to_numpy(), rtol=1e-5)
    assert len(source.notes) == 1
    later = read_samples(b, 4, source.feature_names)
    np.testing.assert_array_equal(later.X, target.X)


def test_columns_of_both_cases_are_different_columns(tmp_path):
    made = frame().assign(P=1 + frame().q)
    a, b = tmp_path / "a.csv", tmp_path / "b.csv"
    WRITERS["csv"](a, made)
    WRITERS["csv"](b, made.drop(columns=["y"]))
    source, target = read_domains(a, b)
    assert target.feature_names == ("p", "q", "r 1", "s", "P")
    assert not source.notes


def test_swapped_tables_are_noticed(tmp_path):
    a, b = tmp_path / "a.csv", tmp_path / "b.csv"
    WRITERS["csv"](a, frame())
    WRITERS["csv"](b, frame(1, labelled=False))
    problem = error_of(read_domains, b, a)
    assert str(b) in problem
    assert "give it first" in problem
