"""What the tests of the review share: a run folder made by hand, and servers."""

from __future__ import annotations

import csv
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from cli_helpers import draw_image
from opensetda.runs.folder import (
    ESTIMATES,
    FORMAT,
    IMAGES,
    PREDICTIONS,
    SETTINGS,
    VERSION,
    VIEW,
    RunFolder,
)
from opensetda.runs.integrity import Manifest
from opensetda.runs.pictures import write_images
from opensetda.runs.predictions import PredictionTable
from opensetda.runs.sample_map import RunView
from opensetda.system.files import write_json

CLASSES = ("ant", "bee", "cat", "dog", "<script>alert(1)</script>")
KINDS = ("black", "pink", "yellow")


def sign(folder):
    """Make the checksums of a run with changed files right."""
    Manifest.of(folder).write()


def make_run(folder, n=60, unknown="unknown", images=True, identity="one", seed=0, classes=CLASSES):
    """A run whose unknowns, every other target, are of three kinds; return its folder."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    is_unknown = np.arange(n) % 2 == 1
    scores = np.where(is_unknown, -1, 1) * rng.uniform(0.01, 1, n)
    proba = rng.dirichlet(np.full(len(classes), 0.4), n)
    p_unknown = 1 / (1 + np.exp(4 * scores))
    nearest = np.array(classes)[proba.argmax(axis=1)]
    ids = np.array([f'street/it\'s "{row}" <b>.png' for row in range(n)])
    table = PredictionTable(
        ids=ids,
        labels=np.where(is_unknown, unknown, nearest),
        known_scores=scores,
        nearest=nearest,
        proba=np.column_stack([proba * (1 - p_unknown)[:, None], p_unknown]),
        classes=classes,
        unknown_label=unknown,
        id_name="path" if images else "id",
    )
    table.write(folder / PREDICTIONS)
    kinds = np.arange(n) // 2 % len(KINDS)
    places = 5 * np.eye(len(KINDS), 4)[kinds] + rng.normal(0, 0.3, (n, 4))
    RunView(np.arange(0), np.arange(n), np.arange(0), (), places.astype(np.float16)).write(
        folder / VIEW
    )
    openness = {"share": 0.5, "low": 0.4, "high": 0.6, "confidence": 0.9, "estimates": {}}
    openness |= {"source": "estimated", "origin": "", "warnings": []}
    rejection = {"threshold": 0, "slope": 1}
    write_json(folder / ESTIMATES, {"openness": openness, "rejection": rejection})
    if images:
        pictures = folder.parent / f"{folder.name}-pictures"
        pictures.mkdir()
        paths = []
        for row in range(n):
            name = KINDS[kinds[row]] if is_unknown[row] else ("red", "green", "blue")[row % 3]
            paths.append(str(pictures / f"{row}.png"))
            draw_image(name, rng, side=96).save(paths[-1])
        write_images(folder / IMAGES, {}, paths)
    settings = {
        **{
            "format": FORMAT,
            "version": VERSION,
            "method": "moving-means",
            "openness": "auto",
            "scaling": "none",
        },
        **{"unknown_label": unknown, "has_ids": True, "columns": {}, "identity": identity},
        **{"classes": list(classes), "settings": {}, "inputs": {"source": {}, "target": {}}},
        **dict.fromkeys(("preset", "seed", "backbone", "command", "sample")),
    }
    write_json(folder / SETTINGS, settings)
    sign(folder)
    return RunFolder.open(folder)


def corrections(folder):
    """The rows of corrections.csv."""
    with (Path(folder) / "corrections.csv").open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@contextmanager
def reviewing(folder, **options):
    """A review whose lists are all found."""
    from opensetda.review.session import ReviewSession

    session = ReviewSession(folder, **options)
    session._grouping.join()
    try:
        yield session
    finally:
        session.close()


@contextmanager
def serving(session):
    """A server at work in a thread."""
    from opensetda.review.server import ReviewServer

    with ReviewServer(session) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server, path, body=None, method=None, **headers):
    """Send a request as the page does, but for `headers`; return status, headers and content."""
    host = f"127.0.0.1:{server.server_port}"
    given = {"Host": host, "X_Review_Token": server.token}
    if body is not None:
        given |= {"Origin": f"http://{host}", "Content_Type": "application/json"}
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        given["Content_Length"] = str(len(body))
    given |= headers
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    try:
        method = method or ("GET" if body is None else "POST")
        connection.putrequest(method, path, skip_host=True)
        for name, value in given.items():
            if value is not None:
                connection.putheader(name.replace("_", "-"), value)
        connection.endheaders(body)
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    is_json = content and answer.headers.get_content_type() == "application/json"
    return answer.status, answer.headers, json.loads(content) if is_json else content


class OsdaReview:
    """`osda review` in a process of its own."""

    def __init__(self, run, *more):
        command = [sys.executable, "-m", "opensetda", "review", str(run), "--no-browser", *more]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            # A shell starts background jobs, such as these tests may be, with Ctrl-C ignored.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
        self.address = self.process.stdout.readline().strip()
        if not re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]+", self.address):
            raise AssertionError(self.address + self.process.communicate(timeout=20)[1])

    def end(self, number):
        """Send a signal; return the exit code and what was printed."""
        self.process.send_signal(number)
        out, errors = self.process.communicate(timeout=20)
        return self.process.returncode, out, errors

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.communicate(timeout=20)
