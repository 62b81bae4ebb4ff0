"""What the tests of the command line share: small tables, and the commands for them."""

from __future__ import annotations

import numpy as np

from opensetda.cli.main import main

NAMES = np.array(["cat", "dog", "horse"])


def blobs(seed, n=20):
    rng = np.random.default_rng(seed)
    which = np.arange(3 * n) % 3
    X = np.eye(3, 4)[which] * 4 + 1 + rng.normal(0, 0.4, (3 * n, 4))
    return X.astype(np.float32), NAMES[which]


def write_csv(path, X, **columns):
    names = [f"f{column}" for column in range(np.shape(X)[1])]
    lines = [",".join([*columns, *names])]
    for row in range(len(X)):
        cells = [str(values[row]) for values in columns.values()]
        lines.append(",".join([*cells, *(repr(float(value)) for value in X[row])]))
    path.write_text("\n".join(lines) + "\n")
    return path


def names_in(folder):
    return sorted(entry.name for entry in folder.iterdir())


# The report has tests of its own; making one every time would take longer than all the rest.
FIT = ["fit", "source.npz", "target.npz", "--out", "run", "--no-report", "--method", "class-means"]
OPENNESS = ["--openness", "0.333"]
FEW_STEPS = ["--set", "steps=3"]


def run_fit(*more):
    assert main([*FIT, *FEW_STEPS, *OPENNESS, *more]) == 0


SMALL_PGL = ("--set", "edge_width=8", "--set", "node_width=8", "--set", "epochs=1")
FIT_PGL = [*FIT[:-1], "pgl", *OPENNESS, "--set", "steps=2", *SMALL_PGL]
# Of the fixture `stepper`.
FIT_STEPS = [*FIT[:-1], "stepper", *OPENNESS, "--set", "steps=3"]
# images ------------------------------------------------------------------------------------

PICTURES = {
    "red": ((220, 40, 30), "ellipse"),
    "green": ((30, 180, 50), "rectangle"),
    "blue": ((40, 60, 220), "triangle"),
    "yellow": ((235, 220, 40), "cross"),
    "black": ((15, 15, 15), "frame"),
    "pink": ((250, 130, 200), "stripes"),
}
KNOWN_COLOURS = ("blue", "green", "red", "yellow")
UNKNOWN_COLOURS = ("black", "pink")


def draw_image(name, rng, side=40):
    """A coloured shape on a noisy ground; every call gives another picture."""
    from PIL import Image, ImageDraw

    ground = rng.integers(100, 160, (side, side, 3), dtype=np.uint8)
    image = Image.fromarray(ground)
    pen, (colour, shape) = ImageDraw.Draw(image), PICTURES[name]
    left, top = rng.integers(2, 9, 2).tolist()
    right, bottom = (side - rng.integers(2, 9, 2)).tolist()
    middle_x, middle_y = (left + right) // 2, (top + bottom) // 2
    match shape:
        case "ellipse":
            pen.ellipse([left, top, right, bottom], fill=colour)
        case "rectangle":
            pen.rectangle([left, top, right, bottom], fill=colour)
        case "triangle":
            pen.polygon([(left, bottom), (right, bottom), (middle_x, top)], fill=colour)
        case "cross":
            pen.line([left, middle_y, right, middle_y], fill=colour, width=9)
            pen.line([middle_x, top, middle_x, bottom], fill=colour, width=9)
        case "frame":
            pen.rectangle([left, top, right, bottom], outline=colour, width=5)
        case "stripes":
            for row in range(top, bottom, 8):
                pen.line([left, row, right, row], fill=colour, width=4)
    return image


def make_images(folder, names, per_class, seed, flat=False):
    """Write images into class folders, or all into one; return (path, class) pairs."""
    rng = np.random.default_rng(seed)
    made = []
    for name in names:
        for number in range(per_class):
            place = f"{number}-{names.index(name)}.png" if flat else f"{name}/{number}.png"
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            draw_image(name, rng).save(folder / place)
            made.append((place, name))
    return sorted(made)


QUICK_IMAGES = ("--method", "moving-means", "--set", "steps=2")


def image_fit(pictures, out, *more, source="shop", target="street"):
    """The command that fits to the images of the fixture `pictures`."""
    return [
        *("fit", str(pictures / source), str(pictures / target), "--out", str(out), "--no-report"),
        *("--image-size", "32", "--cache", str(pictures / "cache"), *OPENNESS, *more),
    ]
