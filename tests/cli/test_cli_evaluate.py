"""`osda evaluate` on feature tables."""

from __future__ import annotations

import re

from cli_helpers import FEW_STEPS, FIT, OPENNESS, run_fit
from opensetda.cli.main import main


def test_labels_left_over_are_mentioned(workplace, capsys):
    assert main([*FIT, *FEW_STEPS, *OPENNESS, "--id-column", "file_name"]) == 0
    with (workplace / "truth.csv").open("a") as stream:
        stream.write("other.jpg,cow\n")
    assert main(["evaluate", "run", "--labels", "truth.csv"]) == 0
    assert "1 true label of samples that are not in run, for example 'other.jpg': ignored" in (
        capsys.readouterr().out
    )


def test_quiet_leaves_one_line_of_metrics(workplace, capsys):
    run_fit()
    capsys.readouterr()
    assert main(["evaluate", "run", "--labels", "truth.npz", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert re.match(r"HOS [\d.]+, OS\* [\d.]+, UNK [\d.]+ \(%\)\n", out)
    assert "Metrics" not in out
    assert err == ""
