"""What the tests of folders and lists of images share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opensetda.data.images.loading import ImageList
from opensetda.errors import InputError


def tree(root: Path, *names: str) -> Path:
    """Make files, which need not be images: nothing here opens them."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return root


def listed(images: ImageList) -> list[tuple[str, str | None]]:
    labels = [None] * len(images) if images.labels is None else images.labels.tolist()
    return list(zip(images.ids.tolist(), labels, strict=True))


def error_of(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        call(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message
