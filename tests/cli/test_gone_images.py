"""Images that are deleted while a command reads them: one line, nothing written."""

from __future__ import annotations

import shutil

import pytest

from cli_helpers import OPENNESS, names_in
from opensetda.backbones.extraction import Extractor
from opensetda.cli.main import main

SMALL = ("--image-size", "32")
FIT = ("fit", "shop", "street", "--out", "run", "--no-report", *OPENNESS, *SMALL)


@pytest.fixture
def place(pictures, tmp_path, monkeypatch):
    """Copies of shop and street, and a run, in a folder that is made current."""
    for name in ("shop", "street"):
        shutil.copytree(pictures / name, tmp_path / name)
    monkeypatch.setenv("OSDA_CACHE", str(tmp_path.parent / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "deleted", "named"),
    [
        (("features", "street", "--out", "out.npz", *SMALL), "street", "street"),
        (("features", "shop", "--out", "out.npz", *SMALL), "shop/{0}", "shop/{0}"),
        (FIT, "street", "street"),
        (FIT, "street/{1}", "street/{1}"),
        (("predict", "RUN", "street", "--out", "out.csv"), "street/{1}", "street: 1 of "),
    ],
    ids=["features", "features-class", "fit", "fit-one", "predict-one"],
)
def test_deleted_images_are_an_error(place, pictures, monkeypatch, capsys, command, deleted, named):
    names = names_in(place / "shop")[0], names_in(place / "street")[-1]
    before = [name for name in names_in(place) if name != deleted]

    make = Extractor.__init__

    def deleting(extractor, *given, **named):
        # All images are listed, none is read.
        path = place / deleted.format(*names)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        make(extractor, *given, **named)

    monkeypatch.setattr(Extractor, "__init__", deleting)
    run = str(pictures / "run")
    assert main([run if word == "RUN" else word for word in command]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: {named.format(*names)}")
    assert " gone" in error
    assert error.endswith("and give the command again")
    assert names_in(place) == before


def test_an_image_deleted_after_it_was_listed_again(place, pictures, monkeypatch, capsys):
    features = Extractor.features

    def deleting(extractor, paths, progress):
        shutil.rmtree(place / "street")
        return features(extractor, paths, progress)

    monkeypatch.setattr(Extractor, "features", deleting)
    assert main(["predict", str(pictures / "run"), "street", "--out", "out.csv"]) == 2
    assert "error: street: was there when the command began" in capsys.readouterr().err
    assert names_in(place) == ["shop"]
