"""Command lines, their exit codes, and what they say: an error is one line that says what to do."""

from __future__ import annotations

import shlex
import shutil
import signal

import pytest

from benchmark_helpers import write_domains
from cli_helpers import FEW_STEPS, FIT, OPENNESS, blobs, make_images, names_in, write_csv
from cli_processes import WRITING, Osda
from opensetda.cli.main import main

# A command line, and what the one line must say: what is wrong, and what to do.
SLIPS = [
    # names of commands, options and their values
    ("fti shop street --out new", "'fti'", "Did you mean 'fit'? See 'osda --help'"),
    ("fit shop street --out new --methd pgl", "--methd", "--method"),
    ("fit shop street --out new --method plg", "method 'plg'", "did you mean 'pgl'?"),
    ("fit shop street --out new --method pgl --preset visda", "preset 'visda'", "mean 'visda-17'?"),
    ("fit shop street --out new --set finetune.crop=1", "finetune.crop", "add --finetune"),
    ("fit shop street --out new --method pgl --set stepss=3", "stepss", "did you mean 'steps'?"),
    ("fit shop street --out new --set steps=3", "'steps'", "committee has no settings"),
    ("fit shop street --out new --set steps", "--set steps", "write NAME=VALUE"),
    ("fit shop street --out new --backbone resnet", "'resnet'", "did you mean 'resnet50'?"),
    ("benchmark offfice31", "offfice31", "did you mean 'office31'?"),
    ("analyse stpes demo --out new", "'stpes'", "did you mean 'steps'?"),
    ("analyse edges demo --out new --method osbp", "only pgl learns edges", "leave --method out"),
    ("analyse steps demo --out new --method pgl --method osbp", "of one method", "name one"),
    # what is missing, and what is too much
    ("fit shop street", "'--out'", "(Run folder to make)"),
    ("benchmark office31", "--data", "no such folder; give that of feature files"),
    # numbers
    ("fit shop street --out new --openness 40", "--openness 40", "did you mean 0.4?"),
    ("fit shop street --out new --seed -1", "'--seed'", "greater than or equal to 0"),
    ("fit shop street --out new --image-size 5", "--image-size 5", "needs 32 to 4096 pixels"),
    # folders of images
    (
        "fit street shop --out new",
        "street: images without a class: 6",
        "the labelled one comes first",
    ),
    ("fit empty street --out new", "empty: no image in it", "images end in"),
    ("fit one street --out new", "one: one class only ('red')", "at least two classes"),
    ("fit shop phone --out new", "phone: no image", ".heic; images end in .avif"),
    ("fit shop papers/scan.pdf --out new", "papers/scan.pdf does not", "images or tables"),
    ("fit shop shop --out new", "source and target are the same", "give what is to be labelled"),
    # paths
    ("fit shp street --out new", "shp: no such folder", "did you mean shop?"),
    ("fit https://example.org/shop street --out new", "URLs are not read", "download it"),
    ("fit shop street --out run", "run: exists already", "choose another --out"),
    ("fit shop street --out street/run", "street/run: lies in street", "choose another --out"),
    (
        "fit shop street --out new --weights resnet.pth",
        "resnet.pth: no such file",
        "one in .safetensors",
    ),
    ("fit shop street --out new --corrections c.csv", "c.csv: no such file", "'osda review'"),
    # tables
    ("fit unlabelled.csv plain.csv --out new", "no column 'y'", "--label-column"),
    ("fit source.csv plain.csv --out new --label-column lable", "'lable'", "'y'"),
    ("fit source.csv wide.csv --out new --id-column id", "4 columns not in", "--drop"),
    ("fit shop later.csv --out new", "later.csv does not", "'osda features'"),
    ("fit source.csv later.csv --out new --id-column id --corrections others.csv", "'x1'", "give"),
    # runs
    ("fit run street --out new", "run: a run folder", "give images or a feature table"),
    ("predict new later.csv --out labels.csv", "new: no such run", "make one with 'osda fit'"),
    ("predict run later.csv --out new.txt", "--out new.txt", "must end in .csv or"),
    ("predict run later.csv --out source.csv", "source.csv: exists", "add --overwrite"),
    ("evaluate run --labels others.csv --label-column label", "others.csv: no", "'s0'"),
    ("data digits shop", "shop: exists already", "choose another name"),
    # options that do not go together, or with what is given
    ("fit source.csv plain.csv --out new --strict", "--strict: source.csv is a", "for images"),
    ("fit shop street --out new --unknown-label ' '", "unknown label ' '", "can be seen"),
    ("report run --images empty", "--images empty", "none of the ids is an image in it"),
    # benchmarks and analyses
    ("benchmark digits --data data --method pgl+osvm", "'pgl+osvm'", "leave out '+osvm'"),
    ("benchmark digits --data data --task a-b", "--task a-b: ", "usps-mnist"),
    ("benchmark digits --data data --method pgl --reference x", "--reference x", "are pgl"),
    ("benchmark digits --data data --sweep steps", "--sweep steps", "write SETTING=V1,V2,..."),
    ("benchmark digits --data data --sweep openness=0", "openness=0", "between 0 and 1"),
    ("benchmark digits --data data --method osbp --ablations", "osbp has none", "--method pgl"),
    ("benchmark digits --data data --id-column id", "--id-column", "leave them out"),
    ("benchmark shop street --data data", "--data and --task", "leave them out with a TARGET"),
    ("benchmark digits --data nowhere", "nowhere: no such folder", "no such folder; give that of"),
    ("analyse steps demo --out notes.txt", "Not a directory", "another place"),
]
# Command lines that do what they say.
DONE = [
    ("--version", "osda "),
    ("fit --help", "--unknown-share"),
    ("benchmark --help", "dann+osvm"),
    ("analyse --help", "t-SNE of features by method"),
    ("data list", "office-home"),
    ("resume run", "run is complete: nothing to resume."),
    ("report run --out {new}.html --quiet", "  report   "),
    ("data digits {new} --every 500", "  source   "),
    ("fit source.csv plain.csv --out {new} --unknown-share=0.3 --no-report", "Labels given"),
    ("predict run later.csv --out {new}.csv --json --quiet", '"samples": 60'),
]


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """Two folders of images, tables, a run, and what people give in their place."""
    place = tmp_path_factory.mktemp("slips")
    (X, y), (Z, _) = blobs(0), blobs(1)
    names = [f"s{row}" for row in range(len(Z))]
    write_csv(place / "source.csv", X, y=y)
    write_csv(place / "unlabelled.csv", X)
    write_csv(place / "plain.csv", Z)
    write_csv(place / "later.csv", Z, id=names)
    write_csv(place / "wide.csv", [[*row, *row] for row in Z], id=names)
    (place / "others.csv").write_text("id,label\nx1,cat\nx2,dog\n")
    (place / "notes.txt").write_text("hello\n")
    for folder in ("street", "one", "empty", "phone", "papers"):
        (place / folder).mkdir()
    make_images(place / "shop", ("red", "green"), 4, seed=0)
    shutil.copytree(place / "shop" / "red", place / "one" / "red")
    make_images(place / "street", ("red", "pink"), 3, seed=1, flat=True)
    for number in range(3):
        (place / "phone" / f"IMG_{number}.HEIC").write_bytes(b"ftypheic")
    (place / "papers" / "scan.pdf").write_bytes(b"%PDF-1.4")
    write_domains(place / "data")
    run = ("--method", "class-means", "--id-column", "id", "--openness", "0.3", "--no-report")
    tables = (str(place / "source.csv"), str(place / "later.csv"))
    assert main(["fit", *tables, "--out", str(place / "run"), *run, "--quiet"]) == 0
    return place


@pytest.mark.parametrize(("line", "wrong", "advice"), SLIPS, ids=[line for line, *_ in SLIPS])
def test_a_slip_is_one_line_that_says_what_to_do(scene, monkeypatch, capsys, line, wrong, advice):
    monkeypatch.chdir(scene)
    monkeypatch.setenv("OSDA_CACHE", str(scene.with_name("cache")))
    before = {path: path.stat().st_mtime_ns for path in scene.rglob("*")}
    assert main(shlex.split(line)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (told,) = err.splitlines()
    assert told.startswith("error: ")
    assert wrong in told
    assert advice in told
    assert {path: path.stat().st_mtime_ns for path in scene.rglob("*")} == before


@pytest.mark.parametrize(("line", "said"), DONE, ids=[line for line, _ in DONE])
def test_what_is_asked_for_is_done(scene, tmp_path, monkeypatch, quick_maps, capsys, line, said):
    monkeypatch.chdir(scene)
    assert main(shlex.split(line.format(new=tmp_path / "new"))) == 0
    out, err = capsys.readouterr()
    assert said in " ".join(out.split("\n")), out
    assert "error:" not in err


def test_an_empty_command_line_shows_how_to_start(capsys):
    assert main([]) == 2
    assert "osda demo" in "".join(capsys.readouterr())


# failures and interruptions -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (RuntimeError("boom\nsecond line"), 1, "RuntimeError: boom second line (run again with"),
        (OSError(28, "No space left on device"), 1, "run: cannot be written, no space left"),
        (MemoryError(), 1, "out of memory"),
        (KeyboardInterrupt(), 130, "interrupted; nothing was written"),
    ],
)
def test_failures_leave_one_line_and_nothing_else(
    workplace, capsys, monkeypatch, error, code, words
):
    def fail(*_):
        raise error

    monkeypatch.setattr("opensetda.usecases.fit_rows.environment", fail)
    before = names_in(workplace)
    assert main([*FIT, *FEW_STEPS, *OPENNESS]) == code
    err = capsys.readouterr().err
    assert words in err.splitlines()[-1]
    assert "Traceback" not in err
    assert names_in(workplace) == before
    assert main([*FIT, *FEW_STEPS, *OPENNESS, "--debug"]) == code
    assert "Traceback" in capsys.readouterr().err


def test_a_signal_leaves_nothing_behind(workplace):
    before = names_in(workplace)
    process = Osda(workplace, *FIT, *FEW_STEPS, *OPENNESS, moment=WRITING)
    assert names_in(workplace) != before
    got, text = process.send(signal.SIGTERM)
    assert got == 143, text
    assert "Traceback" not in text
    assert names_in(workplace) == before
