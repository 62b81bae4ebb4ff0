"""`osda benchmark --finetune` on small image folders with the names of each protocol."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

from backbone_helpers import TINY, tiny_state
from opensetda.cli.main import main
from opensetda.data.benchmarks.protocols import BENCHMARKS

PROTOCOLS = {
    "office31": ("amazon", "dslr"),
    "office-home": ("Art", "Real World"),
    "visda-17": ("train", "validation"),
    "syn2real-o": ("train", "validation"),
}
QUICK = [
    *("--finetune", "last", "--image-size", "32", "--seeds", "1", "--jobs", "1"),
    *("--set", "steps=2", "--set", "stop_step=1", "--set", "epochs=1"),
    *("--set", "edge_width=8", "--set", "node_width=8"),
    *("--set", "finetune.stored=2", "--views", "1"),
]


def write_images(folder, classes, seed):
    rng = np.random.default_rng(seed)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(2):
            pixels = rng.integers(0, 256, (24, 24, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_file(tiny_state(), path)
    return str(path)


@pytest.mark.parametrize(("protocol", "domains"), PROTOCOLS.items(), ids=str)
def test_a_protocol_is_trained_and_shown_beside_the_paper(
    protocol, domains, weights, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    spec = BENCHMARKS[protocol]
    write_images(tmp_path / "data" / domains[0], spec.known, seed=0)
    unknown = spec.unknown[:3] or ("background",)
    write_images(tmp_path / "data" / domains[1], (*spec.known[:2], *unknown), seed=1)
    task = "-".join(domain.lower().replace(" ", "-") for domain in domains)
    # The number of episodes stays that of the protocol's preset.
    command = ["benchmark", protocol, "--data", "data", "--task", task, "--method", "pgl", *QUICK]
    command += ["--openness", "true", "--backbone", TINY, "--weights", weights, "--out", "out"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    # OS, OS* and UNK by the paper's rule beside its rows, and why they are not those of HOS.
    assert "pgl here, true share of unknowns given" in printed
    assert ("STA" in printed) == bool(spec.published)
    assert "The paper stops at step m of M" in printed
    with (tmp_path / "out" / "results.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["status"], row["differs"]) == ("ok", "0.0")
    assert float(row["paper_unk"]) <= float(row["unk"])
    assert float(row["paper_os_star"]) >= float(row["os_star"])
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("benchmark.json", "cells", "results.csv", "summary.json", "table.md"),
    }
    # Finished cells are kept, and another training is another cell.
    assert main(command) == 0
    assert "of which 1 are finished already" in capsys.readouterr().err
    if protocol == "office31":
        assert main([*command, "--method", "class-means", "--set", "finetune.rounds=1"]) == 2
        assert "pgl trains the backbone by its own settings" in capsys.readouterr().err
