"""`osda fit --finetune`: the backbone learns, the run holds it, and a crash costs nothing."""

from __future__ import annotations

import json
import signal

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from cli_helpers import image_fit, names_in
from cli_processes import STORING, Osda
from opensetda.cli.main import main
from opensetda.training import rounds

TINY = (
    *("--method", "moving-means", "--finetune", "--set", "steps=2", "--set", "finetune.rounds=2"),
    *("--set", "finetune.iterations=2", "--set", "finetune.stored=4"),
)


@pytest.fixture(scope="module", autouse=True)
def _training_is_kept():
    """So short a training gains nothing, and would be undone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "CLEAR", -1.0)
        yield


@pytest.fixture(scope="module")
def tuned(pictures, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuned")
    assert main(image_fit(pictures, folder / "run", *TINY)) == 0
    return folder


def test_the_run_holds_the_backbone_that_learned(tuned, pictures):
    from safetensors.torch import load_file

    from opensetda.backbones.model import load_backbone
    from opensetda.runs.folder import RunFolder

    assert names_in(tuned) == ["run"]
    settings = json.loads((tuned / "run" / "settings.json").read_text())
    assert settings["backbone"]["finetuned"] == "last"
    assert settings["scaling"] == "ranks"
    assert settings["settings"]["steps"] == 2
    assert settings["settings"]["finetune"]["rounds"] == 2
    learned = load_file(tuned / "run" / "backbone.safetensors")
    begun = load_backbone(RunFolder.open(tuned / "run").recipe()).state_dict()
    assert learned.keys() == begun.keys()
    changed = [name for name in learned if not learned[name].equal(begun[name])]
    assert len(changed) > 9
    last = ("blocks.6.", "conv_head.", "bn2.")
    assert all(name.removeprefix("network.").startswith(last) for name in changed)


def test_later_images_are_labelled_with_the_tuned_backbone(tuned, pictures, tmp_path, capsys):
    out = tmp_path / "labels.parquet"
    arguments = [str(pictures / "street"), "--out", str(out), "--overwrite"]
    assert main(["predict", str(tuned / "run"), *arguments]) == 0
    later = pyarrow.parquet.read_table(out)
    run = pyarrow.csv.read_csv(tuned / "run" / "predictions.csv")
    agree = [a == b for a, b in zip(later["label"], run["label"], strict=True)]
    assert sum(agree) >= 0.8 * len(agree)
    # And not with the one it began with.
    weights = tuned / "run" / "backbone.safetensors"
    whole = weights.read_bytes()
    try:
        weights.write_bytes(whole[:99])
        assert main(["predict", str(tuned / "run"), *arguments]) == 2
        assert "backbone.safetensors: damaged" in capsys.readouterr().err
        weights.unlink()
        assert main(["predict", str(tuned / "run"), *arguments]) == 2
        assert "backbone.safetensors: missing" in capsys.readouterr().err
    finally:
        weights.write_bytes(whole)


def test_killed_and_resumed_it_comes_to_the_same_bits(tuned, pictures, tmp_path):
    command = image_fit(pictures, tmp_path / "run", *TINY)
    for moment in (STORING, 1, 1):
        run = Osda(tmp_path, *command, moment=moment)
        assert run.send()[0] == -signal.SIGKILL
        command = ["resume", str(tmp_path / "run")]
    assert main(command) == 0
    assert names_in(tmp_path) == ["run"]
    for name in ("predictions.csv", "backbone.safetensors", "model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tuned / "run" / name).read_bytes(), name


def test_all_of_the_backbone_learns_if_wanted(pictures, tmp_path):
    from safetensors.torch import load_file

    from opensetda.backbones.model import load_backbone
    from opensetda.runs.folder import RunFolder

    short = ("--set", "finetune.rounds=1", "--set", "finetune.iterations=1")
    arguments = image_fit(pictures, tmp_path / "run", *TINY, *short)
    place = arguments.index("--finetune")
    assert main([*arguments[: place + 1], "all", *arguments[place + 1 :]]) == 0
    folder = RunFolder.open(tmp_path / "run")
    assert folder.settings["backbone"]["finetuned"] == "all"
    learned = load_file(tmp_path / "run" / "backbone.safetensors")
    begun = load_backbone(folder.recipe()).state_dict()
    assert not learned["network.conv_stem.weight"].equal(begun["network.conv_stem.weight"])


def test_features_of_another_backbone_are_refused(tuned, tmp_path, capsys):
    np.savez(tmp_path / "frozen.npz", X=np.ones((2, 1280), dtype=np.float32))
    arguments = [str(tmp_path / "frozen.npz"), "--out", str(tmp_path / "labels.csv")]
    assert main(["predict", str(tuned / "run"), *arguments]) == 2
    assert "was fine-tuned" in capsys.readouterr().err
    assert not (tmp_path / "labels.csv").exists()


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("pgl", ("steps=1", "epochs=1", "edge_width=8", "node_width=8", "finetune.crop=0.9")),
        ("osbp", ("iterations=2", "batch_size=8")),
        # Has a memory of features, by the numbers of their images.
        ("uniot", ("iterations=2", "batch_size=8")),
    ],
)
def test_methods_that_train_have_the_backbone_in_their_own_training(
    pictures, tmp_path, capsys, method, changes
):
    changed = [word for change in changes for word in ("--set", change)]
    command = image_fit(pictures, tmp_path / "run", "--method", method, "--finetune", *changed)
    assert main(command) == 0
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert settings["backbone"]["views"] in (1, 4)
    assert settings["preset"] == {"pgl": "end-to-end"}.get(method)
    assert (tmp_path / "run" / "backbone.safetensors").exists()
    assert main([*command, "--overwrite", "--set", "finetune.rounds=1"]) == 2
    assert f"finetune.rounds: {method} trains the backbone by" in capsys.readouterr().err


def test_a_tuned_run_is_adapted_with_its_own_backbone(tuned, pictures, tmp_path, monkeypatch):
    from opensetda.runs.folder import RunFolder
    from opensetda.usecases import adapt, predict

    monkeypatch.chdir(tmp_path)
    first = RunFolder.open(tuned / "run")
    second = adapt(first, pictures / "street", tmp_path / "run2", openness=0.5).folder
    assert second.settings["backbone"] == first.settings["backbone"]
    assert (
        second.manifest.files["backbone.safetensors"]
        == (first.manifest.files["backbone.safetensors"])
    )
    # What is kept are features of that backbone; their order is that of their content.
    kept = [np.unique(run.kept().rows, axis=0) for run in (first, second)]
    np.testing.assert_array_equal(*kept)
    np.testing.assert_array_equal(
        predict(second, pictures / "street").labels, second.predictions().labels
    )
