"""Label images that come after `osda fit`, part by part: any number of them in constant memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice

import numpy as np

from opensetda.backbones.cache import default_cache_folder
from opensetda.backbones.extraction import Broken, Extractor
from opensetda.data.images.lists import printable
from opensetda.errors import InputError
from opensetda.runs.folder import RunFolder
from opensetda.runs.predictions import IMAGE_ID, PredictionTable, PredictionWriter

# Images whose features are in memory at a time.
PART = 512


def label_images(
    run: RunFolder,
    paths: Iterable[str],
    writer: PredictionWriter,
    strict: bool,
    progress: Callable[[int], None],
) -> tuple[Counter[str], list[Broken], list[str]]:
    """Write the labels of images; those that cannot be read are left out.

    Parameters
    ----------
    run : RunFolder
        A run that was fitted to images.
    paths : iterable of str
        Image files; never listed as a whole.
    writer : PredictionWriter
        Gets the labels.
    strict : bool
        Raise an `InputError` at the first image that cannot be read.
    progress : callable
        Told how many images are done.

    Returns
    -------
    counts : Counter
        How often each label was given.
    broken : list of Broken
        Images that were left out.
    warnings : list of str
        What a person should know, one line each.
    """
    model = run.model()
    counts: Counter[str] = Counter()
    broken: list[Broken] = []
    names, done = iter(paths), 0
    # The features are not kept, but the exported network is, unless it was fine-tuned.
    memory = default_cache_folder()
    with Extractor(run.recipe(), state=run.backbone_state(), memory=memory) as extractor:
        while part := list(islice(names, PART)):
            features, reasons = extractor.features(part)
            failed = [
                Broken(path, path, reason)
                for path, reason in zip(part, reasons, strict=True)
                if reason is not None
            ]
            if failed and strict:
                first = failed[0]
                raise InputError(
                    f"{first.id}: {first.reason}; repair or remove it, or leave out --strict"
                )
            broken += failed
            if len(features):
                read = zip(part, reasons, strict=True)
                ids = np.array([printable(path) for path, reason in read if reason is None])
                table = PredictionTable.of_samples(model, features, ids, IMAGE_ID)
                counts.update(table.labels.tolist())
                writer.write(table)
            done += len(part)
            progress(done)
    return counts, broken, extractor.warnings
