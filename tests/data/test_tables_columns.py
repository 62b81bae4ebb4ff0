"""Columns of real tables: suspicious ones are left out, all problems are told at once."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pandas as pd
import pytest

from cli_helpers import blobs
from opensetda.cli.main import main
from opensetda.data.tables import mapped
from opensetda.data.tables.loading import TableColumns, read_domains, read_samples
from opensetda.data.tables.preparation import suspicious_columns
from opensetda.errors import InputError

N = 60


def frames():
    """Two tables of four features: the classes are easy."""
    (X, y), (Z, _) = blobs(0), blobs(1)
    source, target = (pd.DataFrame(rows, columns=list("pqrs")) for rows in (X, Z))
    return source.assign(y=y), target


def written(folder, source, target, **how):
    source.to_csv(folder / "a.csv", index=False, **how)
    target.to_csv(folder / "b.csv", index=False, **how)
    return folder / "a.csv", folder / "b.csv"


def left_out(name, of_source, of_target):
    """Return why a column beside four features is left out; None if it is used."""
    source, target = frames()
    both = source.drop(columns="y").assign(**{name: of_source}), target.assign(**{name: of_target})
    values = [frame.to_numpy(dtype=np.float32) for frame in both]
    return suspicious_columns(list(both[0]), *values).get(name)


rng = np.random.default_rng(0)
rows = np.arange(N)
SUSPICIOUS = {
    "pandas index": ("Unnamed: 0", rows, rows, "an index"),
    "counter": ("part", rows, N + rows, "a counter: evenly"),
    "shuffled counter": ("part", rng.permutation(rows), N + rng.permutation(rows), "a counter"),
    "numbers of a shuffled split": ("part", *rng.permutation(2 * N).reshape(2, N), "a counter"),
    "id": ("customer_id", rng.choice(10**6, N, False), rng.choice(10**6, N, False), "row numbers"),
    "rising": ("odometer", np.cumsum(rng.integers(1, 50, N)), np.cumsum(rng.integers(1, 50, N)),
               "rises or falls"),
    "clock": ("t", rows * 0.1, 7 + rows * 0.1, "evenly spaced"),
    "epoch": ("at", 1.7e9 + rng.random(N) * 1e6, 1.71e9 + rng.random(N) * 1e6, "seconds since"),
    "dates": ("day", 20240101 + rows % 28, 20240201 + rows % 28, "dates as numbers"),
    "timestamp": ("timestamp", rng.random(N), rng.random(N), "by its name"),
    "constant": ("firmware", np.full(N, 7), np.full(N, 7), "always 7"),
    "empty": ("note", np.full(N, np.nan), np.full(N, np.nan), "empty"),
    "mark of a domain": ("site", np.full(N, 1), np.full(N, 2), "separates the domains"),
    "far apart": ("altitude", 100 + rng.random(N), 900 + rng.random(N),
                  "separates the domains: source 10"),
    "with gaps": ("part", np.where(rows % 7, rows, np.nan), rows, "a counter"),
}  # fmt: skip


@pytest.mark.parametrize("case", SUSPICIOUS)
def test_columns_that_say_where_and_when_are_found(case):
    name, of_source, of_target, why = SUSPICIOUS[case]
    found = left_out(name, of_source, of_target)
    assert found is not None
    assert why in found
    # The order of targets has no effect.
    shuffled = np.random.default_rng(1).permutation(of_target)
    assert left_out(name, of_source, shuffled) == found


ORDINARY = {
    "shifted": (rng.normal(0, 1, N), rng.normal(3, 1, N)),
    "never active": (np.zeros(N), np.zeros(N)),
    "active in one domain": (np.zeros(N), rng.normal(0, 1, N)),
    "counts": (rng.poisson(5, N), rng.poisson(9, N)),
    "whole numbers in a wide range": (rng.integers(0, 5000, N), rng.integers(0, 5000, N)),
    "flag": (rng.integers(0, 2, N), rng.integers(0, 2, N)),
    "sorted, with equal values": (np.sort(rng.normal(0, 1, N).round(1)),) * 2,
    "both sorted by a feature": (np.sort(rng.normal(0, 1, N)), np.sort(rng.normal(0, 1, N))),
    "large": (rng.normal(5e9, 2e9, N), rng.normal(5e9, 2e9, N)),
    "a frequency of few values": (rng.choice([1.8e9, 1.9e9], N), rng.choice([1.8e9, 1.9e9], N)),
}


@pytest.mark.parametrize("case", ORDINARY)
def test_ordinary_features_are_used(case):
    assert left_out("feature", *ORDINARY[case]) is None


def test_few_rows_tell_nothing():
    few = np.arange(10.0)[:, None]
    assert not suspicious_columns(["part"], few, few)
    assert suspicious_columns(["Unnamed: 0"], few, few)


def test_a_shift_of_many_columns_is_no_mark_of_a_domain():
    X, Z = rng.normal(0, 1, (N, 6)), rng.normal(50, 1, (N, 6))
    assert not suspicious_columns(list("abcdef"), X, Z)
    Z[:, 1:] -= 50
    assert list(suspicious_columns(list("abcdef"), X, Z)) == ["a"]


def test_suspicious_columns_are_left_out_unless_kept(tmp_path):
    source, target = frames()
    a, b = written(tmp_path, source.assign(part=rows, site=1), target.assign(part=rows, site=2))
    read = read_domains(a, b)
    assert read[0].feature_names == tuple("pqrs")
    assert [*read[0].plan.left_out] == ["part", "site"]
    (note,) = read[0].notes
    assert note.startswith("left out 2 columns: 'part' (a counter: evenly spaced numbers), 'site'")
    read = read_domains(a, b, TableColumns(keep=("site, part",)))
    assert read[0].feature_names == (*"pqrs", "part", "site")
    assert not read[0].notes


def test_the_order_of_labels_and_their_values_change_nothing(tmp_path):
    source, target = frames()
    a, b = written(tmp_path, source.assign(part=rows), target.assign(part=rows, y="p"))
    before = read_domains(a, b)
    written(tmp_path, source.assign(part=rows, y=source.y.iloc[::-1].to_numpy()), target.assign(
        part=rows, y=source.y))  # fmt: skip
    after = read_domains(a, b)
    assert before[0].plan == after[0].plan
    np.testing.assert_array_equal(before[1].X, after[1].X)


def test_a_table_of_suspicious_columns_alone_is_refused(tmp_path):
    a, b = written(tmp_path, frames()[0][["y"]].assign(part=rows), pd.DataFrame({"part": rows}))
    with pytest.raises(InputError, match=r"no feature left: 'part' \(a counter.*--keep NAME"):
        read_domains(a, b)


def messy(folder):
    """Write two tables with something of everything that goes wrong."""
    source, target = frames()
    source = source.assign(
        when=pd.date_range("2024-01-01", periods=N).astype(str), note="x", kind=["u", "v"] * 30
    ).rename(columns={"y": "state"})
    target = target.rename(columns={"s": "S "}).assign(
        when="01.02.2024", note="y", kind=["v", "w"] * 30, more=1.5
    )
    source.loc[3, "p"] = target.loc[[0, 7], "q"] = np.nan
    return written(folder, source, target)


def test_all_problems_are_told_at_once(tmp_path):
    a, b = messy(tmp_path)
    with pytest.raises(InputError) as caught:
        read_domains(a, b)
    head, *lines, advice = str(caught.value).splitlines()
    assert head == "8 problems with the columns of the tables:"
    expected = [
        f"{a}: no column 'y'; did you mean 'state'?",
        f"{a}: 1 column not in {b}: 's'; did you mean 'S '?",
        f"{b}: 2 columns not in {a}: 'S ', 'more'",
        f"{a} and {b}: column 'when' is not numeric (it holds date32[day])",
        f"{a} and {b}: column 'note' is not numeric (row 1 holds 'x'); --one-hot note makes a "
        "feature of each value",
        f"{a} and {b}: column 'kind' is not numeric (row 1 holds 'u'); --one-hot kind makes a "
        "feature of each value",
        f"{a}: NaN or empty cells in 1 column: 'p' (1) of 60 rows",
        f"{b}: NaN or empty cells in 1 column: 'q' (2) of 60 rows",
    ]
    assert [line.strip() for line in lines] == expected
    assert advice == "Add --label-column state --impute median --drop 's,S ,more,when,note,kind'"


def test_the_corrected_command_works_as_it_is_printed(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    messy(tmp_path)
    command = ["fit", "a.csv", "b.csv", "--out", "run", "--method", "class-means", "--no-report"]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: 8 problems")
    command = shlex.split(error.splitlines()[-1].removeprefix("Run instead: "))
    assert command[:4] == ["osda", "fit", "a.csv", "b.csv"]
    assert not (tmp_path / "run").exists()
    assert main(command[1:]) == 0


def test_a_wrong_name_of_the_labels_is_replaced_in_the_corrected_command(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, *frames())
    command = ["fit", "a.csv", "b.csv", "--label-column", "kind", "--out", "run"]
    assert main(command) == 2
    corrected = capsys.readouterr().err.lower().rpartition("run instead: ")[2]
    assert shlex.split(corrected) == [
        "osda",
        "fit",
        "a.csv",
        "b.csv",
        *command[5:],
        "--label-column",
        "y",
    ]


def test_a_column_that_is_mostly_empty_is_dropped(tmp_path):
    source, target = frames()
    source.loc[:40, "p"] = np.nan
    with pytest.raises(InputError, match=r"'p' .41. of 60 rows; add --drop p$"):
        read_domains(*written(tmp_path, source, target))
    target["q"] = np.nan
    a, b = written(tmp_path, source, target)
    with pytest.raises(InputError, match=r"'q' .60. of 60 rows; add --drop q$"):
        read_domains(a, b, TableColumns(impute="median"))


@pytest.mark.parametrize("in_source", [True, False])
def test_text_that_names_every_row_is_suggested_as_id(tmp_path, in_source):
    source, target = frames()
    target["id"] = [f"t-{row}" for row in range(len(target))]
    if in_source:
        source["id"] = [f"s-{row}" for row in range(len(source))]
    with pytest.raises(InputError, match=r"; add --id-column id$"):
        read_domains(*written(tmp_path, source, target))
    assert len(read_domains(*written(tmp_path, source, target), TableColumns(id="id"))[1].ids)
    target.loc[1, "id"] = "t-0"
    with pytest.raises(InputError, match=r"; add --drop id$"):
        read_domains(*written(tmp_path, source, target))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_medians_are_those_of_each_domain_and_kept(tmp_path, suffix):
    source, target = frames()
    source.loc[[3, 5], "p"] = np.nan
    target.loc[2, "p"] = np.nan
    target["p"] += 2
    a, b = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
    for frame, path in ((source, a), (target, b)):
        frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path, index=False)
    read = read_domains(a, b, TableColumns(impute="median"))
    of_source, of_target = source.p.median(), target.p.median()
    np.testing.assert_allclose(read[0].X[[3, 5], 0], of_source, rtol=1e-6)
    np.testing.assert_allclose(read[1].X[2, 0], of_target, rtol=1e-6)
    assert {*read[0].plan.medians} == {*"pqrs"}
    later = pd.DataFrame({**{name: [np.nan, 1.0] for name in "pqrs"}, "part": 5})
    later.to_csv(tmp_path / "c.csv", index=False)
    found = read_samples(tmp_path / "c.csv", 4, tuple("pqrs"), plan=read[0].plan)
    np.testing.assert_allclose(found.X[0, 0], of_target, rtol=1e-6)
    with pytest.raises(InputError, match="row 1, column 'p': NaN or empty"):
        read_samples(tmp_path / "c.csv", 4, tuple("pqrs"))


def test_large_tables_are_screened_and_filled_in(tmp_path, monkeypatch):
    monkeypatch.setattr(mapped, "LARGE_BYTES", 100)
    source, target = (frame.assign(part=rows) for frame in frames())
    target.loc[2, "q"] = np.nan
    source.to_parquet(tmp_path / "a.parquet", index=False)
    target.to_parquet(tmp_path / "b.parquet", index=False)
    paths = tmp_path / "a.parquet", tmp_path / "b.parquet"
    with pytest.raises(InputError, match=r"'q' .1. of 60 rows; add --impute median"):
        read_domains(*paths)
    read = read_domains(*paths, TableColumns(impute="median"))
    assert isinstance(read[1].X, np.memmap)
    assert read[1].feature_names == tuple("pqrs")
    np.testing.assert_allclose(read[1].X[2, 1], target.q.median(), rtol=1e-6)
    target.assign(kind="u").to_parquet(paths[1], index=False)
    with pytest.raises(InputError, match=r"1 column not in .*'kind'; add --drop kind$"):
        read_domains(*paths)
    source.assign(kind="u").to_parquet(paths[0], index=False)
    with pytest.raises(InputError, match="too large for --one-hot"):
        read_domains(*paths, TableColumns(one_hot=("kind",), impute="median"))


def test_categories_become_features_and_later_values_are_none(tmp_path):
    source, target = frames()
    a, b = written(
        tmp_path, source.assign(kind=["u", "v"] * 30), target.assign(kind=["w", None] * 30)
    )
    read = read_domains(a, b, TableColumns(one_hot=("kind",)))
    assert read[1].feature_names == (*"pqrs", "kind=u", "kind=v", "kind=w")
    np.testing.assert_array_equal(read[0].X[:2, 4:], [[1, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(read[1].X[:2, 4:], [[0, 0, 1], [0, 0, 0]])
    target.assign(kind=["v", "new"] * 30).to_csv(tmp_path / "c.csv", index=False)
    found = read_samples(tmp_path / "c.csv", 7, read[1].feature_names, plan=read[0].plan)
    np.testing.assert_array_equal(found.X[:2, 4:], [[0, 1, 0], [0, 0, 0]])
    target.to_csv(tmp_path / "c.csv", index=False)
    with pytest.raises(InputError, match="1 feature column of the model not found: 'kind'"):
        read_samples(tmp_path / "c.csv", 7, read[1].feature_names, plan=read[0].plan)


def test_names_may_hold_commas(tmp_path):
    source, target = (frame.assign(**{"x,y": "t", "z": "t"}) for frame in frames())
    with pytest.raises(InputError, match=r"Add --drop z --drop x,y$"):
        read_domains(*written(tmp_path, source, target))
    read = read_domains(*written(tmp_path, source, target), TableColumns(drop=("z", "x,y")))
    assert read[0].feature_names == tuple("pqrs")


@pytest.mark.parametrize("method", ["moving-means", "daod"])
def test_a_run_treats_later_tables_as_its_own(tmp_path, capsys, monkeypatch, method):
    monkeypatch.chdir(tmp_path)
    source, target = frames()
    extra = {"part": rows, "kind": ["007", "x"] * 30, "name": [f"row {row}" for row in rows]}
    source.loc[3, "p"] = target.loc[4, "q"] = np.nan
    target = target.assign(**extra)
    written(tmp_path, source.assign(**extra), target)
    command = ["fit", "a.csv", "b.csv", "--out", "run", "--method", method, "--no-report"]
    options = ["--one-hot", "kind", "--impute", "median", "--id-column", "name", "--json"]
    assert main([*command, *options]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["left_out"] == {"part": "a counter: evenly spaced numbers"}
    assert "'part'" in result["warnings"][0]
    columns = json.loads((tmp_path / "run/settings.json").read_text())["columns"]
    assert columns["left_out"] == result["left_out"]
    assert columns["categories"] == {"kind": ["007", "x"]}
    # Without the column that was left out and in another order; of one category, a number alone.
    target.drop(columns="part").iloc[:, ::-1].to_csv("c.csv", index=False)
    target.iloc[::2].to_csv("d.csv", index=False)
    fitted = (tmp_path / "run/predictions.csv").read_text().splitlines()
    for name, lines in (("b", fitted), ("c", fitted), ("d", [fitted[0], *fitted[1::2]])):
        assert main(["predict", "run", f"{name}.csv", "--out", f"{name}-labels.csv"]) == 0
        assert (tmp_path / f"{name}-labels.csv").read_text().splitlines() == lines
