"""Published benchmarks: their numbers, their protocols, and the check of a download."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from opensetda.cli.main import main
from opensetda.data.benchmarks.catalogue import (
    BENCHMARKS,
    benchmark,
    benchmark_task_with_truth,
    find_domains,
)
from opensetda.data.benchmarks.completeness import check_benchmark
from opensetda.errors import InputError

OFFICE31 = Path(__file__).resolve().parents[2] / "shared" / "data" / "office31"
needs_office31 = pytest.mark.skipif(
    not OFFICE31.is_dir(), reason="Office-31 is not beside the project (../shared/data/office31)"
)


def make(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 3), "red").save(root / name)
    return root


def small_visda(root: Path, per_class: int = 1) -> Path:
    """Syn2Real-O has no published counts: a small tree of it is complete."""
    spec = BENCHMARKS["syn2real-o"]
    for domain in ("train", "validation"):
        for name in spec.known:
            make(root, *(f"{domain}/{name}/{number}.jpg" for number in range(per_class)))
    return make(root, "validation/other/0.jpg", "validation/zebra/1.jpg")


@pytest.mark.parametrize("spec", BENCHMARKS.values(), ids=lambda spec: spec.name)
def test_the_facts_agree_with_each_other(spec):
    assert len(set(spec.classes)) == len(spec.classes)
    assert len({spec.class_of(name) for name in spec.classes}) == len(spec.classes)
    assert spec.urls
    for domain in spec.domains:
        if domain.per_class is not None:
            assert set(domain.per_class) == set(spec.classes)


@pytest.mark.parametrize(
    ("name", "known", "unused", "unknown", "images"),
    [
        ("office31", 10, 10, 11, [2817, 498, 795]),
        ("office-home", 25, 0, 40, [2427, 4365, 4439, 4357]),
        ("visda-17", 6, 0, 6, [152397, 55388]),
        ("syn2real-o", 12, 0, 0, [None, None]),
        ("digits", 5, 0, 5, [60000, 7291, 73257]),
    ],
)
def test_the_protocols(name, known, unused, unknown, images):
    spec = benchmark(name)
    assert (len(spec.known), len(spec.unused), len(spec.unknown)) == (known, unused, unknown)
    assert [domain.images for domain in spec.domains] == images


def test_where_the_protocols_cut():
    spec = benchmark("Office Home")
    assert spec.known == tuple(sorted(spec.classes)[:25])
    assert spec.known[-1] == "Fork"
    # Upper and lower case change the order only among the unknown ones.
    assert set(spec.known) == set(sorted(spec.classes, key=str.lower)[:25])
    assert benchmark("visda-17").unknown == (
        *("aeroplane", "horse", "knife"),
        *("person", "plant", "skateboard"),
    )
    office = benchmark("office31")
    assert office.classes == tuple(sorted(office.classes))
    assert office.kind("headphones") == "not used"


def test_an_unknown_name():
    with pytest.raises(InputError, match=r"did you mean 'office-home'\?"):
        benchmark("office-hom")
    with pytest.raises(InputError, match="there are office31, office-home"):
        benchmark("imagenet")


@pytest.mark.parametrize("spelling", ["Real World", "RealWorld", "Real_World", "real-world"])
def test_domains_are_found_however_they_are_spelt(tmp_path, spelling):
    make(tmp_path, f"OfficeHomeDataset_10072016/{spelling}/Alarm Clock/1.jpg")
    found = find_domains("office-home", tmp_path)
    assert found["Real World"] == tmp_path / "OfficeHomeDataset_10072016" / spelling
    assert found["Art"] is None


def test_a_task_of_known_and_other_classes(tmp_path):
    root = small_visda(tmp_path)
    source, target, truth = benchmark_task_with_truth("syn2real-o", root, "train", "validation")
    known = BENCHMARKS["syn2real-o"].known
    assert tuple(source.class_counts()) == known
    assert target.labels is None
    assert len(target) == len(known) + 2
    assert {*truth.labels.tolist()} == {*known, "other", "zebra"}
    assert truth.ids is not None
    assert truth.ids.tolist() == target.ids.tolist()


def test_a_task_leaves_classes_out_and_names_them_as_published(tmp_path):
    spec = benchmark("office31")
    for domain in ("amazon", "webcam"):
        for name in spec.classes:
            make(tmp_path, f"{domain}/images/{name.replace('_', ' ').title()}/frame.jpg")
    source, target, truth = benchmark_task_with_truth("office31", tmp_path, "Amazon", "webcam")
    assert tuple(source.class_counts()) == spec.known
    assert len(target) == 21
    assert set(truth.labels.tolist()) == {*spec.known, *spec.unknown}
    with pytest.raises(InputError, match=r"no folder 'dslr'"):
        benchmark_task_with_truth("office31", tmp_path, "dslr", "webcam")
    with pytest.raises(InputError, match="has no such domain, but amazon, dslr and webcam"):
        benchmark_task_with_truth("office31", tmp_path, "amazon", "clipart")


def test_a_known_class_without_images(tmp_path):
    root = small_visda(tmp_path)
    (root / "train" / "bus" / "0.jpg").unlink()
    with pytest.raises(InputError, match=r"no image of 'bus'; .*osda data check syn2real-o"):
        benchmark_task_with_truth("syn2real-o", root, "train", "validation")


@needs_office31
def test_office31_is_as_published(capsys):
    assert main(["data", "check", "office31", str(OFFICE31), "--no-decode"]) == 0
    assert "Office-31: as published: 4,110 images, not read" in capsys.readouterr().out


@needs_office31
@pytest.mark.parametrize(
    ("domain", "known", "unknown"),
    [("amazon", 824, 1012), ("dslr", 154, 188), ("webcam", 235, 267)],
)
def test_the_open_set_counts_of_office31(domain, known, unknown):
    _, _, truth = benchmark_task_with_truth("office31", OFFICE31, "amazon", domain)
    names = BENCHMARKS["office31"].known
    assert sum(label in names for label in truth.labels.tolist()) == known
    assert len(truth.labels) == known + unknown


def test_a_complete_download(tmp_path, capsys):
    assert main(["data", "check", "syn2real-o", str(small_visda(tmp_path)), "--classes"]) == 0
    told = capsys.readouterr()
    assert "Syn2Real-O: as published: 26 images, all can be read" in told.out
    assert "zebra" in told.out
    assert "train: 12 images read" in told.err


def test_a_bar_on_a_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # what makes rich take any stream for a terminal
    assert main(["data", "check", "syn2real-o", str(small_visda(tmp_path))]) == 0
    told = capsys.readouterr().err
    assert "reading train" in told
    assert "images read" not in told


def test_a_broken_download(tmp_path, capsys):
    root = small_visda(tmp_path / "data", per_class=2)
    (root / "train" / "bus").rename(root / "train" / "buss")
    (root / "train" / "car" / "0.jpg").write_bytes(b"")
    (root / "train" / "car" / "1.jpg").write_text("text")
    make(root, "papers/figure.jpg")
    broken = tmp_path / "broken.csv"
    command = ["data", "check", "syn2real-o", str(root), "--list", str(broken)]
    assert main(command) == 1
    told = capsys.readouterr()
    assert "no such folder; is it 'buss'?" in told.out
    assert f"cannot be read: {root}/train/car/0.jpg: empty file" in told.out
    assert "not as published: 2 problems, first train: class 'bus'" in told.out
    assert "originals: https://ai.bu.edu/syn2real/" in told.out
    assert "not looked at: papers" in told.err
    with broken.open(newline="") as stream:
        rows = list(csv.reader(stream))
    assert rows[0] == ["path", "reason"]
    assert [row[1] for row in rows[1:]] == ["empty file", "not an image"]


def test_a_list_that_is_there_is_not_overwritten(tmp_path, capsys):
    root, mine = small_visda(tmp_path / "data"), tmp_path / "mine.csv"
    mine.write_text("mine")
    command = ["data", "check", "syn2real-o", str(root), "--no-decode", "--list", str(mine)]
    assert main(command) == 2
    expected = f"--list {mine}: exists already; choose another name or add --overwrite"
    assert expected in capsys.readouterr().err
    assert mine.read_text() == "mine"
    assert main([*command, "--overwrite"]) == 0
    assert mine.read_text() == "path,reason\n"
    assert main([*command[:-1], str(tmp_path / "list.txt")]) == 2
    assert "the name must end in .csv" in capsys.readouterr().err


def test_counts_that_differ_and_a_domain_that_is_missing(tmp_path, capsys):
    for name in BENCHMARKS["office31"].classes:
        make(tmp_path, f"amazon/images/{name}/frame_0001.jpg")
    make(tmp_path, "amazon/images/sofa/frame_0001.jpg")
    assert main(["data", "check", "office31", str(tmp_path), "--no-decode"]) == 1
    told = capsys.readouterr().out
    assert "missing" in told
    assert "32 images, but 2,817 were published" in told
    assert "1 image, but 92 were published" in told
    assert "not a class of this benchmark" in told
    found = check_benchmark("office31", tmp_path, decode=False)
    problems = [problem for problem in found.problems if problem.startswith(("dslr", "webcam"))]
    assert problems == ["dslr: the folder is missing", "webcam: the folder is missing"]


def test_images_beside_the_class_folders_and_an_empty_one(tmp_path):
    root = make(small_visda(tmp_path), "train/stray.jpg")
    (root / "train" / "car" / "0.jpg").unlink()
    problems = check_benchmark("syn2real-o", root).problems
    assert problems == [
        "train: class 'car': the folder is empty",
        "train: 1 image outside class folders",
    ]


def test_many_unreadable_files_are_cut_off(tmp_path, capsys):
    root = small_visda(tmp_path)
    for number in range(15):
        (root / "train" / "car" / f"x{number}.jpg").write_text("text")
    assert main(["data", "check", "syn2real-o", str(root)]) == 1
    told = capsys.readouterr().out
    assert told.count("cannot be read:") == 10
    assert "... 15 in all; --list FILE" in told


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["check", "office-hom", "."], "did you mean 'office-home'?"),
        (["check", "office31", "nowhere"], "nowhere: no such folder"),
        (["check", "office31", "."], "no domain of Office-31 in this folder"),
        (["check", "office31"], "Missing argument"),
        (["chekc"], "chekc"),
    ],
)
def test_wrong_use(tmp_path, monkeypatch, capsys, arguments, expected):
    monkeypatch.chdir(tmp_path)
    assert main(["data", *arguments]) == 2
    told = capsys.readouterr().err
    assert expected in told
    assert told.count("error:") == 1


def test_the_list_names_every_benchmark(capsys):
    assert main(["data", "list"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in BENCHMARKS)
    assert all(url in told for spec in BENCHMARKS.values() for url in spec.urls)


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom opensetda.cli.main import main\n"
        "assert main(['data', 'check', '--help']) == 0\n"
        "sys.exit(bool({'numpy', 'PIL', 'pyarrow', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
