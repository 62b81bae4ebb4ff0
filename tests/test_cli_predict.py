"""`osda predict` on feature tables."""

from __future__ import annotations

import numpy as np

from cli_helpers import names_in, run_fit
from opensetda.cli.main import main

WRONG_PREDICTS = {
    "suffix": (["run", "target.npz", "--out", "labels.txt"], "must end in .csv, .json or .parquet"),
    "exists": (["run", "target.npz", "--out", "target.csv"], "exists already"),
    "folder-in-the-way": (["run", "target.npz", "--out", "d.csv"], "a folder is in the way"),
    "no-folder": (["run", "target.npz", "--out", "no/labels.csv"], "there is no folder no"),
    "no-run": (["runn", "target.npz", "--out", "labels.csv"], "no such run folder"),
    "no-file": (["run", "x.npz", "--out", "labels.csv"], "no such file"),
    "width": (["run", "wide.npz", "--out", "labels.csv"], "9 features, but the model has 4"),
    "id": (["run", "target.npz", "--out", "labels.csv", "--id-column", "z"], "no array 'z'"),
    "key": (["run", "target.npz", "--out", "labels.csv", "--features-key", "z"], "no array 'z'"),
    "strict": (["run", "target.npz", "--out", "labels.csv", "--strict"], "is for images"),
}


def test_wrong_use_of_predict(workplace, capsys):
    run_fit()
    np.savez("wide.npz", X=np.ones((3, 9)))
    (workplace / "d.csv").mkdir()
    before = names_in(workplace)
    capsys.readouterr()
    for case, (arguments, words) in WRONG_PREDICTS.items():
        assert main(["predict", *arguments]) == 2, case
        err = capsys.readouterr().err
        assert err.startswith("error: "), case
        assert words in err, case
        assert len(err.splitlines()) == 1, case
        assert names_in(workplace) == before, case
