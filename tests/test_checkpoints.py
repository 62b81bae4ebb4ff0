"""A training that is broken off anywhere goes on to the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from opensetda import PGLClassifier
from opensetda.context import FitContext, Record
from opensetda.errors import InputError
from opensetda.pgl.checkpoints import LATEST
from opensetda.runs.unfinished import FolderCheckpoints
from test_inputs import TinyImages, run


class CrashError(Exception):
    """Stands for the end of the process."""


class Dying(FolderCheckpoints):
    """Writes a record at every update, and dies before or after one of the writes."""

    def __init__(self, folder, lives, before):
        super().__init__(folder, every=0)
        self.lives, self.before = lives, before

    def write(self, name, record):
        self.lives -= 1
        if self.lives < 0 and self.before:
            raise CrashError
        super().write(name, record)
        if self.lives < 0:
            raise CrashError


def same(one, other):
    for name in ("known", "classes", "held_out"):
        np.testing.assert_array_equal(getattr(one.scores, name), getattr(other.scores, name))
    np.testing.assert_array_equal(one.step_labels, other.step_labels)
    assert one.kept == other.kept
    for mine, theirs in zip(one.history, other.history, strict=True):
        assert {**mine, "seconds": 0} == {**theirs, "seconds": 0}


N_WRITES = 15  # three updates a step, each step's own record, and the latest after it


@pytest.fixture(scope="module")
def undisturbed():
    return run(TinyImages(norm=True), **{"finetune.batch_norm": "train"})[1]


@pytest.mark.parametrize("before", [True, False], ids=["before the write", "after the write"])
@pytest.mark.parametrize("lives", [0, 3, 4, 5, 14])
def test_images_go_on_to_the_same_bits(tmp_path, undisturbed, lives, before):
    with pytest.raises(CrashError):
        run(
            TinyImages(norm=True),
            Dying(tmp_path, lives, before),
            **{"finetune.batch_norm": "train"},
        )
    store = FolderCheckpoints(tmp_path, every=0)
    _, resumed = run(TinyImages(norm=True), store, **{"finetune.batch_norm": "train"})
    same(resumed, undisturbed)


@pytest.mark.parametrize("lives", [0, 1, 3, 5, 9, 11])
def test_passes_and_class_means_go_on_to_the_same_bits(tmp_path, lives):
    recipe = {
        **{"losses.means": 1.0, "losses.node": 0, "losses.edge": 0, "stopping.band": 1},
        **{"optimiser.first_step_epochs": 0, "ranking.passes": 3, "ranking.labelled": 0.6},
    }
    expected = run(TinyImages(averaged=2), **recipe)[1]
    with pytest.raises(CrashError):
        run(TinyImages(averaged=2), Dying(tmp_path, lives, before=False), **recipe)
    resumed = run(TinyImages(averaged=2), FolderCheckpoints(tmp_path, every=0), **recipe)[1]
    same(resumed, expected)
    assert torch.equal(resumed.samples.pseudo_labels, expected.samples.pseudo_labels)


def test_so_many_writes_there_are(tmp_path):
    store = Dying(tmp_path, 1000, before=True)
    run(TinyImages(norm=True), store, **{"finetune.batch_norm": "train"})
    assert 1000 - store.lives == N_WRITES


def test_going_back_to_an_earlier_step_from_the_disk(tmp_path, monkeypatch):
    from opensetda.openness.tracker import KeptStep, StableStepRule

    monkeypatch.setattr(StableStepRule, "kept", lambda self: KeptStep(2, 3, "for the test"))
    one = run(TinyImages())[1]
    other = run(TinyImages(), FolderCheckpoints(tmp_path, every=0))[1]
    same(one, other)
    # And once more, from what is on the disk alone.
    same(one, run(TinyImages(), FolderCheckpoints(tmp_path))[1])


@pytest.mark.parametrize("changes", [{}, {"optimiser.warm_start": False}], ids=["warm", "fresh"])
@pytest.mark.parametrize("lives", [4, 6])
def test_rows_go_on_to_the_same_bits(tmp_path, task, quick, lives, changes):
    settings = {**quick, **changes}

    def fit(store):
        classifier = PGLClassifier(random_state=0, settings=settings)
        context = FitContext(checkpoints=store)
        return classifier.fit(task.X, task.y, task.domain, context=context)

    with pytest.raises(CrashError):
        fit(Dying(tmp_path, lives, before=False))
    resumed, undisturbed = fit(FolderCheckpoints(tmp_path)), fit(None)
    np.testing.assert_array_equal(resumed.transduction_proba_, undisturbed.transduction_proba_)
    np.testing.assert_array_equal(
        resumed.predict_proba(task.X[:9]), undisturbed.predict_proba(task.X[:9])
    )


def test_records_come_back_whole(tmp_path):
    store = FolderCheckpoints(tmp_path / "new" / "folder")
    assert store.read(LATEST) is None
    arrays = {"a": np.arange(3.0), "step": np.array(2.0), "empty": np.zeros((0, 4))}
    store.write(LATEST, Record({"rng": {"state": 2**127 + 1}, "loss": 0.1}, arrays))
    record = store.read(LATEST)
    assert record.values == {"rng": {"state": 2**127 + 1}, "loss": 0.1}
    for name, values in arrays.items():
        np.testing.assert_array_equal(record.arrays[name], values)
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["latest.safetensors"]


def test_a_damaged_record_is_named(tmp_path):
    (tmp_path / "latest.safetensors").write_bytes(b"not this")
    with pytest.raises(InputError, match=r"latest\.safetensors: damaged"):
        FolderCheckpoints(tmp_path).read(LATEST)


def test_the_latest_record_is_due_after_a_while(tmp_path):
    assert not FolderCheckpoints(tmp_path, every=1000).due()
    assert FolderCheckpoints(tmp_path, every=0).due()


def test_a_step_without_training_goes_on_to_the_same_bits(tmp_path):
    """Nobody looks at the images anew before the backbone has learned."""
    changes = {"optimiser.first_step_epochs": 0}
    undisturbed = run(TinyImages(), **changes)[1]
    with pytest.raises(CrashError):
        run(TinyImages(), Dying(tmp_path, 1, before=False), **changes)
    images, looked = TinyImages(), []
    view = images.view
    images.view = lambda rows, number: (looked.append(1), view(rows, number))[1]
    store = FolderCheckpoints(tmp_path)
    assert store.read(LATEST).values["step"] == 1
    same(run(images, store, **changes)[1], undisturbed)
    # At the end of the two steps that train, in two parts; and twice to know what it will cost.
    assert len(looked) == 2 * 2 + 2


def test_early_stopping_is_not_forgotten(tmp_path, monkeypatch):
    from opensetda.openness.tracker import OpennessTracker

    update = OpennessTracker.update

    def runs_away(self, *scores):
        share = update(self, *scores)
        step = len(self.estimates)
        self.estimates[-1] = 0.3 if step < 4 else 0.9
        return share

    monkeypatch.setattr(OpennessTracker, "update", runs_away)
    changes = {"steps": 8, "stopping.early": True, "optimiser.iterations_per_epoch": 1}
    undisturbed = run(TinyImages(), **changes)[1]
    assert len(undisturbed.history) == 5
    run(TinyImages(), FolderCheckpoints(tmp_path), **changes)
    same(run(TinyImages(), FolderCheckpoints(tmp_path), **changes)[1], undisturbed)


def test_checkpoints_of_another_training_are_refused(tmp_path):
    run(TinyImages(), FolderCheckpoints(tmp_path))
    with pytest.raises(InputError, match="other data or settings"):
        run(TinyImages(), FolderCheckpoints(tmp_path), **{"losses.edge": 0.5})
