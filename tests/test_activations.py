"""Stored activations: views of images, computed once, kept in the cache."""

from __future__ import annotations

import fcntl
import os

import numpy as np
import pytest
import torch
from PIL import Image

from opensetda.backbones import activations
from opensetda.backbones.activations import store_activations
from opensetda.backbones.finetuning import WHOLE, FineTunedImages, draw_view, prepare
from opensetda.backbones.stages import cut
from opensetda.errors import InputError
from opensetda.nn.settings import FineTuneSettings
from opensetda.system.files import new_array_file
from opensetda.system.team import Team
from test_stages import tiny_backbone

SIZE, N = 32, 5
ROWS = np.arange(N)


@pytest.fixture(scope="module")
def backbone():
    return tiny_backbone("test_efficientnet", SIZE)


@pytest.fixture
def paths(tmp_path):
    rng = np.random.default_rng(0)
    names = [str(tmp_path / f"{number}.png") for number in range(N)]
    for name in names:
        small = rng.integers(0, 256, (4, 6, 3)).astype(np.uint8)
        Image.fromarray(small).resize((60, 40)).save(name)
    return names


@pytest.fixture
def store(backbone, paths, tmp_path):
    """Store the activations of the images in a cache; the notes are in `store.notes`."""

    def run(settings=None, cache=True, paths=paths):
        (tmp_path / "scratch").mkdir(exist_ok=True)
        return store_activations(
            backbone,
            paths,
            settings or FineTuneSettings(),
            tmp_path / "scratch",
            tmp_path / "cache" if cache else None,
            note=run.notes.append,
        )

    run.notes = []
    run.folder = tmp_path / "cache" / "activations"
    return run


def files(store):
    return sorted(path.name for path in store.folder.iterdir())


def test_the_plain_view_has_the_features_of_prediction(store, backbone, paths):
    stored, images = store(), FineTunedImages(backbone, paths)
    with torch.no_grad():
        features = backbone(images.view(ROWS))
        found = stored.backbone(stored.view(ROWS))
    assert (found - features).norm() < 1e-2 * features.norm()
    assert not torch.equal(found, features)  # rounded to 16 bits


def test_views_are_drawn_by_image_and_number_alone(store, paths):
    stored = store()
    assert (stored.views, stored.averaged) == (6, 4)
    views = [stored.view(ROWS, number) for number in range(stored.views)]
    assert not any(torch.equal(views[0], view) for view in views[1:])
    settings = FineTuneSettings()
    one, other = (stored.augmented(ROWS, np.random.default_rng(7), settings) for _ in range(2))
    assert torch.equal(one, other)
    numbers = np.random.default_rng(7).integers(6, size=N)
    assert torch.equal(one, torch.stack([views[n][row] for row, n in enumerate(numbers)]))
    # The same in another folder, and for fewer images.
    alone = store(cache=False, paths=paths[:2])
    assert torch.equal(alone.view(ROWS[:2], 5), views[5][:2])
    # The order of the images has no effect.
    backwards = store(cache=False, paths=paths[::-1])
    assert torch.equal(backwards.view(ROWS[::-1].copy(), 5), views[5])


def test_a_second_run_reads_them(store, monkeypatch):
    first = store().view(ROWS)
    (name,) = files(store)
    size = (store.folder / name).stat().st_size
    assert size < 2 * first.numel() * 6 + 200
    monkeypatch.setattr(activations, "decode_again", lambda path: pytest.fail("read again"))
    assert torch.equal(store().view(ROWS), first)
    assert store.notes == [
        f"1 MB of activations: 5 images, 6 views, stored in {store.folder}",
        "1 MB of activations: 5 images, 6 views, from the cache",
    ]


def test_other_images_or_settings_are_others(store, paths):
    store()
    store(FineTuneSettings(flip=False))
    store(FineTuneSettings(averaged=1, views=1))
    store(paths=paths[::-1])
    Image.new("RGB", (60, 40)).save(paths[0])
    store()
    assert len(files(store)) == 5
    # Not what happens in the training.
    store(FineTuneSettings(batch_norm="train", accumulate=3))
    assert len(files(store)) == 5


def test_nothing_is_left_of_a_failure(store, paths, monkeypatch):
    def fail(path):
        raise InputError(f"{path}: readable when the run began")

    monkeypatch.setattr(activations, "decode_again", fail)
    with pytest.raises(InputError, match="readable when the run began"):
        store()
    assert files(store) == []


def test_what_a_killed_process_left_is_removed_and_a_living_one_is_not_disturbed(store):
    store.folder.mkdir(parents=True)
    dead, alive = (store.folder / f".{name}.partial.npy" for name in ("a.01234567", "b.01234567"))
    dead.write_bytes(b"x")
    alive.write_bytes(b"x")
    with alive.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_SH)
        store()
    assert not dead.exists()
    assert alive.exists()


def test_the_cache_keeps_those_used_last(store, monkeypatch):
    for number, crop in enumerate((0.5, 0.6)):
        store(FineTuneSettings(crop=crop))
        for name in files(store):
            os.utime(store.folder / name, (number, number))
    size = (store.folder / files(store)[0]).stat().st_size
    oldest = files(store)
    store(FineTuneSettings(crop=0.5))  # used again
    monkeypatch.setattr(activations, "KEPT_BYTES", 2 * size)
    store(FineTuneSettings(crop=0.7))
    assert len(files(store)) == 2
    store.notes.clear()
    store(FineTuneSettings(crop=0.5))
    assert store.notes[-1].endswith("from the cache")
    assert len(oldest) == 2


def test_a_damaged_file_is_made_again(store):
    first = store().view(ROWS)
    (name,) = files(store)
    (store.folder / name).write_bytes(b"\x93NUMPY")
    assert torch.equal(store().view(ROWS), first)


def test_a_full_disk_is_said_before(store, monkeypatch):
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr(activations.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(InputError, match=r"^--finetune last: the activations need 1 MB, but"):
        store()
    assert files(store) == []


def test_activations_that_16_bits_cannot_hold(store, monkeypatch):
    run = activations.TorchEngine.run
    monkeypatch.setattr(
        activations.TorchEngine, "run", lambda self, images: 1e6 + run(self, images)
    )
    with pytest.raises(InputError, match="exceed float16; take --finetune all"):
        store()


def test_without_a_usable_cache_they_are_in_the_scratch_folder(store, tmp_path):
    expected = store(cache=False).view(ROWS)
    assert (tmp_path / "scratch" / "activations.npy").exists()
    (tmp_path / "cache").write_text("a file")
    assert torch.equal(store().view(ROWS), expected)


def test_processes_share_the_images(store, backbone, paths, tmp_path):
    store()
    whole = np.load(store.folder / files(store)[0])
    early, _, _ = cut(backbone)
    new_array_file(tmp_path / "shared.npy", np.float16, whole.shape)
    for rank in range(2):
        team = Team()
        team.rank, team.size = rank, 2
        seen = []
        activations._fill(
            tmp_path / "shared.npy",
            early,
            paths,
            FineTuneSettings(),
            team,
            lambda *counts, seen=seen: seen.append(counts),
        )
        assert seen[-1] == (3 - rank, 3 - rank)
    assert np.array_equal(np.load(tmp_path / "shared.npy"), whole)


def test_kinds_of_views():
    image = np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype(np.uint8)
    settings, how = FineTuneSettings(), tiny_backbone("odd", SIZE, torch.nn.Identity()).recipe
    rng = np.random.default_rng(0)
    assert draw_view(0, rng, settings) == WHOLE
    seen = [prepare(image, draw_view(n, rng, settings), how.preprocessing) for n in range(8)]
    assert torch.equal(seen[0].flip(2), seen[1])
    assert all(view.shape == (3, SIZE, SIZE) and view.dtype == torch.uint8 for view in seen)
    grey = [bool((view.float().std(dim=0) <= 1).all()) for view in seen]
    assert grey == [False, False, True, True, False, True, False, False]
    still = FineTuneSettings(colour=0.0)
    views = [draw_view(number, rng, still) for number in range(1, 4)]
    assert {view[5:] for view in views} == {(1.0, 1.0, 1.0)}
