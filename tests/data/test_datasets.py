"""Published benchmarks: their numbers and their protocols."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from opensetda.cli.main import main
from opensetda.data.benchmarks.protocols import (
    BENCHMARKS,
    benchmark,
    benchmark_task_with_truth,
    find_domains,
)
from opensetda.errors import InputError


def make(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 3), "red").save(root / name)
    return root


def small_visda(root: Path) -> Path:
    spec = BENCHMARKS["syn2real-o"]
    for domain in ("train", "validation"):
        for name in spec.known:
            make(root, f"{domain}/{name}/0.jpg")
    return make(root, "validation/other/0.jpg", "validation/zebra/1.jpg")


@pytest.mark.parametrize(
    ("name", "known", "unused", "unknown", "images"),
    [
        ("office31", 10, 10, 11, [2817, 498, 795]),
        ("office-home", 25, 0, 40, [2427, 4365, 4439, 4357]),
        ("visda-17", 6, 0, 6, [152397, 55388]),
        ("syn2real-o", 12, 0, 0, [0, 0]),
        ("digits", 5, 0, 5, [60000, 7291, 73257]),
    ],
)
def test_the_protocols(name, known, unused, unknown, images):
    spec = benchmark(name)
    assert (len(spec.known), len(spec.unused), len(spec.unknown)) == (known, unused, unknown)
    assert [*spec.domains.values()] == images


@pytest.mark.parametrize("spelling", ["Real World", "Real_World", "real-world"])
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
    with pytest.raises(InputError, match="no folder 'clipart'; choose one of amazon, dslr, webcam"):
        benchmark_task_with_truth("office31", tmp_path, "amazon", "clipart")


def test_the_list_names_every_benchmark(capsys):
    assert main(["data", "list"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in BENCHMARKS)
    assert all(url in told for spec in BENCHMARKS.values() for url in spec.urls)
