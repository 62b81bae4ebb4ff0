"""`osda evaluate` on feature tables."""

from __future__ import annotations

import re

from cli_helpers import run_fit
from opensetda.cli.main import main


def test_quiet_leaves_one_line_of_metrics(workplace, capsys):
    run_fit()
    capsys.readouterr()
    assert main(["evaluate", "run", "--labels", "truth.npz", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert re.match(r"HOS [\d.]+, OS\* [\d.]+, UNK [\d.]+ \(%\)\n", out)
    assert "Metrics" not in out
    assert err == ""
