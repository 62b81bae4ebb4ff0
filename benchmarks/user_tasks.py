"""The five tasks of a new user, through the command `osda` on generated data.

    python benchmarks/user_tasks.py --save before.json        # one to two minutes
    python benchmarks/user_tasks.py --against before.json     # the same labels after a change?

images     two folders of images -> labels and a report
later      later images with `osda predict`; those of the fit get the rows of the fit
review     an audit posted to the review's server as its page does, then the refit that is printed
table      tables with slips, repaired by the command that each error message suggests; `predict` on
           all rows of the fit, and on half of them, gives the labels of the fit, by four methods
compare    methods on own tables with labels, `osda benchmark`

Prints pass or FAIL and a hash of the labels for each. The exit code is 1 if a task fails.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

OSDA = str(Path(sys.executable).with_name("osda"))
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven")
STATES = ("idle", "busy", "worn", "broken")
KNOWN = {*DIGITS[:5], *STATES[:3]}


def osda(*arguments: str, code: int = 0) -> str:
    """Run a command; return what it prints. Another exit code than expected is a failure."""
    done = subprocess.run([OSDA, *arguments], capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == code, f"osda {shlex.join(arguments)}: {done.returncode}: {said}"
    return said


def printed_command(said: str, before: str) -> list[str]:
    """Return the arguments of the `osda` command in the line that starts with a text."""
    lines = [line.strip() for line in said.splitlines()]
    commands = [line.partition("osda ")[2] for line in lines if line.startswith(before)]
    assert commands, f"no command after '{before}' in: {said}"
    return shlex.split(commands[-1])


def read(path: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def labels(path: str, at_least: float = 0.6) -> dict[str, str]:
    """Return labels by name of the sample, which begins with its class; most must be right."""
    found = {Path(row.get("path") or row["id"]).name: row["label"] for row in read(path)}
    kinds = {name: name.partition("-")[0] for name in found}
    right = np.mean([found[n] == (k if k in KNOWN else "unknown") for n, k in kinds.items()])
    assert right > at_least, f"{right:.0%} of the labels in {path} are right"
    return found


def images() -> Any:
    """Label digits, light on dark, by a folder of others, dark on light; some come later."""
    pixels, digits = load_digits(return_X_y=True)
    for digit, name in enumerate(DIGITS):
        drawn = (pixels[digits == digit].reshape(-1, 8, 8) * 15.9).astype(np.uint8)
        for number, image in enumerate(drawn[:72]):
            folder = Path((f"shop/{name}", "street", "later")[number % 3])
            if number % 3 or name in KNOWN:
                folder.mkdir(parents=True, exist_ok=True)
                picture = Image.fromarray(image if number % 3 else 255 - image)
                picture.resize((64, 64)).save(folder / f"{name}-{number}.png")
    osda("fit", "shop", "street", "--out", "run", "--image-size", "64")
    assert "<svg" in Path("run/report.html").read_text(encoding="utf-8"), "no chart in the report"
    return labels("run/predictions.csv")


def check_again(run: str, samples: str) -> None:
    """Label samples of a fit with `predict`, and compare the rows with those of the fit."""
    osda("predict", run, samples, "--out", "again.csv", "--overwrite")
    fitted = {(row.get("path") or row["id"]): row for row in read(f"{run}/predictions.csv")}
    again = {(row.get("path") or row["id"]): row for row in read("again.csv")}
    same = np.mean([row == fitted[name] for name, row in again.items()])
    kept = np.mean([row["label"] == fitted[name]["label"] for name, row in again.items()])
    print(f"     {run}, {samples}: {kept:.1%} of the labels, {same:.1%} of the rows as in the fit")
    assert kept == 1, f"'predict' contradicts 'fit' on {samples}"


def later() -> Any:
    """Label images that come later, and those of the fit again."""
    osda("predict", "run", "later", "--out", "later.csv")
    check_again("run", "street")
    return labels("later.csv"), labels("again.csv")


def marked_audit(address: str) -> dict[str, Any]:
    """Say known or unknown to every sixth target, as the page does; return the result."""
    site, token = address.split("/?token=")
    headers = {"X-Review-Token": token, "Origin": site, "Content-Type": "application/json"}

    def ask(path: str, body: object = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(site + path, data, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    names = [Path(row["path"]).name for row in read("run/predictions.csv")]
    for row in range(0, len(names), 6):
        mark = "known" if names[row].partition("-")[0] in KNOWN else "unknown"
        ask("/api/mark", {"row": row, "mark": mark})
    return ask("/api/summary")["audit"]


def review() -> Any:
    """Audit the share of unknowns, and run the refit that `osda review` prints."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Background jobs ignore Ctrl-C.
    # All targets are in the audit: a smaller sample is drawn by the run's name, which is random.
    command = [OSDA, "review", "run", "--no-browser", "--audit", "1000", "--quiet"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            audit = marked_audit(server.stdout.readline().strip())
            server.send_signal(signal.SIGINT)
            said = server.communicate(timeout=60)[0]
        finally:
            server.kill()
    assert audit["marked"] == 32, audit
    osda(*printed_command(said, "learn"))
    used = json.loads(Path("run-2/estimates.json").read_text())["openness"]["share"]
    assert abs(used - audit["share"]) < 0.01, f"audited {audit['share']}, used {used}"
    return labels("run-2/predictions.csv")


def table() -> Any:
    """Fit tables with slips (units, text, empty cells, spelling), as each error says how."""
    rng = np.random.default_rng(0)
    units = np.array([4000, 5, 90, 90, *[1] * 12])
    for line, states, speed in [(1, STATES[:3], "rpm_1"), (2, STATES, "RPM_1")]:
        names = ["millivolt", "kelvin", "rpm_0", speed, *(f"flow_{i}" for i in range(12))]
        rows = [["part", "operator", *names, "state"]]
        for number in range(240):
            state = states[number % len(states)]
            centre = np.roll([4.0] * 4 + [0.0] * 12, 4 * STATES.index(state)) + line / 2
            cells = [f"{value:.4f}" for value in rng.normal(centre) * units]
            cells[9] = "" if number % 40 == 7 else cells[9]
            rows.append([f"{state}-{number}", ("007", "Bob")[number % 2], *cells, state])
        with Path(f"line-{line}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
    fit = ["fit", "line-1.csv", "line-2.csv", "--out", "lines", "--label-column"]
    said = osda(*fit, "sate", code=2)
    assert said.count("\n") == 1, said
    said = osda(*fit, said.split("did you mean '")[1].split("'")[0], code=2)
    repaired = printed_command(said, "Run instead:")
    osda(*repaired)
    check_again("lines", "line-2.csv")
    lines = Path("line-2.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    Path("half.csv").write_text("".join(lines[:1] + lines[1::2]), encoding="utf-8")
    for number, method in enumerate(["moving-means", "daod", "osbp", "pgl"]):
        words = ["hot" if word == "lines" else word.replace("operator,", "") for word in repaired]
        small = ["--set", "steps=2"] if method == "pgl" else []
        more = ["--one-hot", "operator", "--method", method, *small, "--no-report"]
        osda(*words, *more, *(["--overwrite"] if number else []))
        check_again("hot", "line-2.csv")
        check_again("hot", "half.csv")
    return labels("lines/predictions.csv", 0.8)


def compare() -> Any:
    """Compare methods on the same tables, here with their labels."""
    methods = ["--method", "moving-means", "--method", "class-means", "--method", "source-only"]
    tables = ["line-1.csv", "line-2.csv", "--label-column", "state", "--seeds", "1"]
    said = osda("benchmark", *tables, *methods, "--out", "compared", code=2)
    osda(*printed_command(said, "Run instead:"))
    rows = read("compared/results.csv")
    assert {row["method"] for row in rows} == {*methods[1::2]}, rows
    assert {row["status"] for row in rows} == {"ok"}, rows
    figures = ("method", "openness", "all", "os_star", "unk", "hos", "share", "differs")
    return sorted([row[name] for name in figures] for row in rows)


def main() -> int:
    """Run the tasks in a temporary folder."""
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument("--save", metavar="FILE", type=Path, help="write the hashes to FILE")
    parser.add_argument("--against", metavar="FILE", type=Path, help="compare with those in FILE")
    options = parser.parse_args()
    expected = json.loads(options.against.read_text()) if options.against else {}
    save, hashes, failed = options.save and options.save.absolute(), {}, False
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ |= {"OSDA_CACHE": str(Path(folder, "cache")), "PYTHONUNBUFFERED": "1"}
        for task in (images, later, review, table, compare):
            name, problem = task.__name__, ""
            try:
                made = json.dumps(task(), sort_keys=True)
                hashes[name] = hashlib.sha256(made.encode()).hexdigest()
                if expected and hashes[name] != expected.get(name):
                    problem = f"other labels than in {options.against}: "
            except Exception as error:  # The other tasks still run.
                problem = f"{type(error).__name__}: {error}"
            failed |= bool(problem)
            print("FAIL" if problem else "pass", f"{name:8}", problem + hashes.get(name, ""))
    if save:
        save.write_text(json.dumps(hashes, indent=2) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
