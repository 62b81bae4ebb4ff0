"""What the tests of tar shards share: archives of any kind."""

from __future__ import annotations

import io
import tarfile


def info(name, kind=tarfile.REGTYPE, size=0, **more):
    made = tarfile.TarInfo(name)
    made.type, made.size = kind, size
    for key, value in more.items():
        setattr(made, key, value)
    return made


def write_tar(path, *members, form=tarfile.GNU_FORMAT, mode="w"):
    """Write (name or TarInfo, content) pairs; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode, format=form, encoding="utf-8", errors="surrogateescape") as tar:
        for name, content in members:
            content = content if isinstance(content, bytes) else str(content).encode()
            member = name if isinstance(name, tarfile.TarInfo) else info(name)
            member.size = len(content) or member.size
            tar.addfile(member, io.BytesIO(content))
    return path


def shop(path, *classes):
    """A labelled shard: a.jpg and a.cls, b.jpg and b.cls, ..."""
    members = []
    for key, name in zip("abcdefgh", classes, strict=False):
        members += [(f"{key}.jpg", f"picture {key}"), (f"{key}.cls", f"{name}\n")]
    return write_tar(path, *members)
