from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from rich.console import Console

from opensetda import ProgressiveClassMeans, __version__
from opensetda.cli import console
from opensetda.cli.main import main
from opensetda.progress import ProgressEvent
from opensetda.runs.folder import FILES

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


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with source.npz, target.npz (both as CSV too) and truth.csv, made current."""
    monkeypatch.chdir(tmp_path)
    X, y = blobs(0)
    known = y != "horse"
    np.savez("source.npz", X=X[known], y=y[known])
    write_csv(tmp_path / "source.csv", X[known], y=y[known])
    X, y = blobs(1)
    ids = np.array([f"image_{row}.jpg" for row in range(len(X))])
    np.savez("target.npz", X=X, file_name=ids)
    write_csv(tmp_path / "target.csv", X, file_name=ids)
    order = np.random.default_rng(2).permutation(len(X))
    (tmp_path / "truth.csv").write_text(
        "file_name,y\n" + "".join(f"{ids[row]},{y[row]}\n" for row in order)
    )
    np.savez("truth.npz", y=y)
    return tmp_path


def names_in(folder):
    return sorted(entry.name for entry in folder.iterdir())


FIT = ["fit", "source.npz", "target.npz", "--out", "run", "--method", "class-means"]
FIT_CSV = ["fit", "source.csv", "target.csv", "--out", "run", "--method", "class-means"]
OPENNESS = ["--openness", "0.333"]


def run_fit(*more):
    assert main([*FIT, *OPENNESS, *more]) == 0


# a whole day's work ----------------------------------------------------------------------


def test_fit_evaluate_predict_on_tables_with_ids(workplace, capsys):
    arguments = [*FIT_CSV, *OPENNESS, "--id-column", "file_name", "--set", "steps=4", "--seed", "7"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert "source: 40 rows of 2 classes, target: 60 rows, 4 features" in err
    assert "run/predictions.csv" in out
    settings = json.loads((workplace / "run" / "settings.json").read_text())
    assert settings["command"] == ["osda", *arguments]
    assert settings["settings"] == {"steps": 4}
    assert settings["seed"] == 7
    assert settings["inputs"]["source"]["classes"] == {"cat": 20, "dog": 20}
    assert len(settings["inputs"]["target"]["sha256"]) == 64

    assert main(["evaluate", "run", "--labels", "truth.csv"]) == 0
    out, _ = capsys.readouterr()
    assert "100.0  harmonic mean of OS* and UNK" in out
    metrics = json.loads((workplace / "run" / "metrics.json").read_text())
    assert metrics["final"]["hos"] == 1
    assert f"{100 * metrics['final']['ece']:.1f}  calibration error of the labels" in out
    assert f"{100 * metrics['final']['unknown_ece']:.1f}  calibration error of the prob" in out
    assert metrics["truth"]["rows"] == 60

    # Later samples: other columns, another order, fewer rows.
    X, y = blobs(5)
    write_csv(workplace / "later.csv", X[:9, ::-1], note=list("abcdefghi"), file_name=range(9))
    later = (workplace / "later.csv").read_text().replace("f0,f1,f2,f3", "f3,f2,f1,f0")
    (workplace / "later.csv").write_text(later)
    assert main(["predict", "run", "later.csv", "--out", "labels.csv"]) == 0
    table = pyarrow.csv.read_csv("labels.csv")
    expected = np.where(y[:9] == "horse", "unknown", y[:9])
    assert table["label"].to_pylist() == expected.tolist()
    assert table["id"].to_pylist() == list(range(9))


@pytest.mark.parametrize("method", ["class-means", "source-only"])
def test_fit_evaluate_predict_on_arrays_without_ids(workplace, capsys, method):
    assert main([*FIT[:-1], method, *OPENNESS]) == 0
    assert main(["evaluate", "run", "--labels", "truth.npz"]) == 0
    assert main(["predict", "run", "target.npz", "--out", "labels.parquet"]) == 0
    again = pyarrow.parquet.read_table("labels.parquet")
    first = pyarrow.parquet.read_table("run/predictions.parquet")
    assert again["label"] == first["label"]
    assert first["id"][0].as_py() == "1"
    assert json.loads((workplace / "run" / "metrics.json").read_text())["final"]["hos"] > 0.7


def test_target_labels_change_nothing(workplace):
    X, y = blobs(1)
    outcomes = []
    for labels in (y, np.roll(y, 1), np.full(len(y), "horse")):
        np.savez("target.npz", X=X, y=labels)
        run_fit("--overwrite")
        outcomes.append((workplace / "run" / "predictions.parquet").read_bytes())
        assert main(["predict", "run", "target.npz", "--out", "p.csv", "--overwrite"]) == 0
        outcomes[-1] += (workplace / "p.csv").read_bytes()
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_the_same_command_gives_the_same_files(workplace):
    names = ["predictions.parquet", "steps.parquet", "model.safetensors", "model.json"]
    names += ["history.jsonl", "curves.png", "predictions.csv", "estimates.json"]
    run_fit()
    first = {name: (workplace / "run" / name).read_bytes() for name in names}
    run_fit("--overwrite")
    assert {name: (workplace / "run" / name).read_bytes() for name in names} == first


def test_unknowns_can_have_another_name(workplace, capsys):
    run_fit("--unknown-label", "none of them")
    labels = pyarrow.csv.read_csv("run/predictions.csv")["label"].to_pylist()
    assert set(labels) == {"cat", "dog", "none of them"}
    assert main(["evaluate", "run", "--labels", "truth.npz"]) == 0


def test_a_class_with_one_sample_works(workplace):
    with np.load("source.npz") as arrays:
        X, y = arrays["X"], arrays["y"]
    keep = (y == "cat") | (np.arange(len(y)) == np.flatnonzero(y == "dog")[0])
    np.savez("source.npz", X=X[keep], y=y[keep])
    run_fit()


def test_labels_left_over_are_mentioned(workplace, capsys):
    assert main([*FIT, *OPENNESS, "--id-column", "file_name"]) == 0
    with (workplace / "truth.csv").open("a") as stream:
        stream.write("other.jpg,cow\n")
    assert main(["evaluate", "run", "--labels", "truth.csv"]) == 0
    assert "1 labels of samples that are not in the run: ignored" in capsys.readouterr().out


def test_many_classes_are_summed_up(workplace, capsys):
    table = console.label_counts([str(number) for number in range(20)] * 2, "unknown", most=3)
    console.show(table)
    assert "17 more classes" in capsys.readouterr().out


# the demo ---------------------------------------------------------------------------------


class StandIn(ProgressiveClassMeans):
    """Takes what PGLClassifier takes and tells what it tells, in no time."""

    def __init__(
        self,
        openness=0.5,
        preset="default",
        settings=None,
        random_state=0,
        unknown_label="unknown",
        progress=None,
    ):
        super().__init__(openness, 3, unknown_label)
        self.preset = preset
        self.settings = settings
        self.random_state = random_state
        self.progress = progress

    def fit(self, X, y, sample_domain=None):
        super().fit(X, y, sample_domain)
        for step, entry in enumerate(self.history_, start=1):
            self.progress(ProgressEvent(step, len(self.history_), loss=0.5))
            entry.update(loss={"node": 0.5}, changed=0.1, n_known=900, n_unknown=897, seconds=0.1)
        unknown = self.transduction_ == self.unknown_label
        nearest = np.searchsorted(self.classes_, self.transduction_nearest_)
        self.step_labels_ = np.tile(np.where(unknown, len(self.classes_), nearest), (3, 1))
        return self


@pytest.fixture
def stand_in(monkeypatch):
    from opensetda.runs import methods

    monkeypatch.setitem(methods.METHODS, "pgl", f"{__name__}:StandIn")


def test_the_demo_compares_three_methods_and_leaves_a_run(workplace, capsys, stand_in):
    assert main(["demo", "--out", "d", "--seed", "3"]) == 0
    out, err = capsys.readouterr()
    assert "2,500 MNIST digits 0-4" in err
    assert "pgl: step 3/3" in err
    for words in ("source only, least sure rejected", "progressive class means", "PGL", "AUROC"):
        assert words in out
    assert str(workplace / "d") in out
    assert names_in(workplace / "d") == sorted(FILES)
    comparison = json.loads((workplace / "d" / "comparison.json").read_text())
    assert list(comparison) == ["source-only", "class-means", "pgl"]
    metrics = json.loads((workplace / "d" / "metrics.json").read_text())
    assert metrics["final"]["hos"] == comparison["pgl"]["hos"]
    assert [step["step"] for step in metrics["steps"]] == [1, 2, 3]
    settings = json.loads((workplace / "d" / "settings.json").read_text())
    assert settings["openness"] == "auto"
    assert "share of unknowns estimated by each method, true 49.9" in out
    for row in comparison.values():
        assert not row["openness"]["told"]
        assert f" {100 * row['openness']['share']:.1f} " in out
    share = comparison["pgl"]["openness"]["share"]
    assert f"share of unknowns: {share:.2f} (" in out
    estimates = json.loads((workplace / "d" / "estimates.json").read_text())
    assert estimates["openness"] == comparison["pgl"]["openness"]
    assert settings["seed"] == 3
    assert settings["command"] == ["osda", "demo", "--out", "d", "--seed", "3"]
    assert not [name for name in names_in(workplace) if "partial" in name]


def test_the_demo_refuses_a_folder_that_exists_before_it_trains(workplace, capsys):
    (workplace / "osda-demo").mkdir()
    assert main(["demo"]) == 2
    assert "osda-demo: exists already" in capsys.readouterr().err


def test_settings_of_pgl_are_checked_before_files_are_read(workplace, capsys, stand_in):
    arguments = ["fit", "no.npz", "no.npz", "--out", "run", *OPENNESS]
    for change, words in [
        (["--set", "losses.egde=1"], "did you mean 'losses.edge'?"),
        (["--set", "steps=0"], "steps='0'"),
        (["--preset", "papers"], "choose one of default"),
    ]:
        assert main([*arguments, *change]) == 2
        assert words in capsys.readouterr().err


# the method itself --------------------------------------------------------------------------

FIT_PGL = [*FIT[:-2], *OPENNESS, "--set", "steps=2", "--set", "optimiser.iterations_per_epoch=2"]


def test_fit_evaluate_predict_with_pgl(workplace, capsys):
    assert main(FIT_PGL) == 0
    err = capsys.readouterr().err
    assert "pgl: step 2/2" in err
    settings = json.loads((workplace / "run" / "settings.json").read_text())
    assert settings["settings"]["steps"] == 2
    assert settings["settings"]["optimiser"]["iterations_per_epoch"] == 2
    assert main(["evaluate", "run", "--labels", "truth.npz"]) == 0
    metrics = json.loads((workplace / "run" / "metrics.json").read_text())
    assert [step["step"] for step in metrics["steps"]] == [1, 2]
    assert metrics["final"]["hos"] > 0.8
    # One sample gets the same label alone as in company.
    assert main(["predict", "run", "target.npz", "--out", "all.parquet"]) == 0
    with np.load("target.npz") as arrays:
        np.savez("one.npz", X=arrays["X"][4:5])
    assert main(["predict", "run", "one.npz", "--out", "one.parquet"]) == 0
    company = pyarrow.parquet.read_table("all.parquet").slice(4, 1).to_pydict()
    alone = pyarrow.parquet.read_table("one.parquet").to_pydict()
    assert alone["label"] == company["label"]
    assert alone["known_score"] == pytest.approx(company["known_score"], abs=1e-5)


def test_pgl_gives_the_same_bits_again_and_after_loading(workplace):
    outcomes = []
    for _ in range(2):
        assert main([*FIT_PGL, "--overwrite", "--seed", "5"]) == 0
        assert main(["predict", "run", "target.npz", "--out", "p.csv", "--overwrite"]) == 0
        outcomes.append(
            [
                (workplace / name).read_bytes()
                for name in ("run/predictions.parquet", "run/model.safetensors", "p.csv")
            ]
        )
    assert outcomes[0] == outcomes[1]


def test_the_quick_demo_runs(workplace, capsys):
    assert main(["demo", "--quick"]) == 0
    metrics = json.loads((workplace / "osda-demo" / "metrics.json").read_text())
    assert len(metrics["steps"]) == 3
    assert metrics["final"]["hos"] > 0.7


# wrong use: one line, exit code 2, nothing left behind --------------------------------------


def nan_target():
    X, _ = blobs(1)
    X[6, 2] = np.nan
    np.savez("target.npz", X=X)


def infinite_source():
    X, y = blobs(0)
    X[0, 0] = np.inf
    np.savez("source.npz", X=X, y=y)


def wide_target():
    np.savez("target.npz", X=np.ones((3, 9)))


def one_class():
    np.savez("source.npz", X=np.ones((3, 4)), y=["cat"] * 3)


def no_target_rows():
    np.savez("target.npz", X=np.ones((0, 4)))


def truncated():
    whole = open("source.npz", "rb").read()  # noqa: PTH123, SIM115
    with open("source.npz", "wb") as stream:  # noqa: PTH123
        stream.write(whole[: len(whole) // 2])


def out_exists():
    os.mkdir("run")  # noqa: PTH102


def nothing():
    pass


WRONG_FITS = {
    "nan": (nan_target, OPENNESS, "target.npz: row 7, column 2: NaN or empty"),
    "infinite": (infinite_source, OPENNESS, "source.npz: row 1, column 0: infinite"),
    "widths": (wide_target, OPENNESS, "9 features, but source.npz has 4"),
    "one-class": (one_class, OPENNESS, "one class only ('cat'"),
    "no-rows": (no_target_rows, OPENNESS, "target.npz: the table is empty"),
    "truncated": (truncated, OPENNESS, "source.npz: cannot read an .npz file"),
    "out-exists": (out_exists, OPENNESS, "run: exists already"),
    "openness-1": (nothing, ["--openness", "1"], "a number in [0, 1)"),
    "openness-negative": (nothing, ["--openness=-0.1"], "a number in [0, 1)"),
    "openness-nan": (nothing, ["--openness", "nan"], "a number in [0, 1)"),
    "openness-text": (nothing, ["--openness", "some"], "--openness some: give the share"),
    "openness-case": (nothing, ["--openness", "Auto"], "or 'auto' to have it estimated"),
    "openness-empty": (nothing, ["--openness", ""], "or 'auto' to have it estimated"),
    "label-column": (nothing, [*OPENNESS, "--label-column", "z"], "no array 'z'"),
    "id-column": (nothing, [*OPENNESS, "--id-column", "z"], "no array 'z'"),
    "features-key": (nothing, [*OPENNESS, "--features-key", "Z"], "no array 'Z'"),
    "drop": (nothing, [*OPENNESS, "--drop", "z"], "no array 'z'"),
    "seed": (nothing, [*OPENNESS, "--seed", "x"], "Invalid value for '--seed'"),
    "seed-negative": (nothing, [*OPENNESS, "--seed=-1"], "Invalid value for '--seed'"),
    "set": (nothing, [*OPENNESS, "--set", "steps"], "write NAME=VALUE"),
    "set-name": (nothing, [*OPENNESS, "--set", "stepz=1"], "'stepz' does not exist"),
    "set-value": (nothing, [*OPENNESS, "--set", "steps=x"], "give a whole number"),
    "preset": (nothing, [*OPENNESS, "--preset", "x"], "only the method pgl"),
    "method": (nothing, [*OPENNESS, "--method", "x"], "'x' is not one of"),
    "option": (nothing, [*OPENNESS, "--magic"], "No such option"),
    "unknown-label": (nothing, [*OPENNESS, "--unknown-label", "cat"], "is a class of the source"),
}


@pytest.mark.parametrize("case", WRONG_FITS)
def test_wrong_use_of_fit(workplace, capsys, case):
    prepare, arguments, words = WRONG_FITS[case]
    prepare()
    before = names_in(workplace)
    assert main([*FIT, *arguments]) == 2
    out, err = capsys.readouterr()
    last = err.splitlines()[-1]
    assert last.startswith("error: ")
    assert words in last
    assert "Traceback" not in err
    assert out == ""
    assert names_in(workplace) == before


def test_a_missing_file_is_wrong_use(workplace, capsys):
    assert main(["fit", "sorce.npz", *FIT[2:], *OPENNESS]) == 2
    assert "did you mean source.npz?" in capsys.readouterr().err


def test_a_command_that_does_not_exist_is_wrong_use(capsys):
    assert main(["fitt"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: No such command 'fitt'")
    assert len(err.splitlines()) == 1


def test_a_missing_argument_is_wrong_use(capsys):
    assert main(["fit", "a.npz"]) == 2
    assert "see 'osda fit --help'" in capsys.readouterr().err


def test_no_command_shows_the_help(capsys):
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert "osda demo" in out + err
    assert "error:" not in err


def test_a_folder_that_is_no_run_is_not_overwritten(workplace, capsys):
    (workplace / "run").mkdir()
    (workplace / "run" / "thesis.docx").write_text("years of work")
    assert main([*FIT, *OPENNESS, "--overwrite"]) == 2
    assert "'thesis.docx'" in capsys.readouterr().err
    assert (workplace / "run" / "thesis.docx").read_text() == "years of work"


def test_a_failed_overwrite_keeps_the_old_run(workplace, capsys):
    run_fit()
    before = (workplace / "run" / "predictions.csv").read_bytes()
    nan_target()
    assert main([*FIT, *OPENNESS, "--overwrite"]) == 2
    assert (workplace / "run" / "predictions.csv").read_bytes() == before


WRONG_PREDICTS = {
    "suffix": (["run", "target.npz", "--out", "labels.txt"], "must end in .csv or .parquet"),
    "exists": (["run", "target.npz", "--out", "target.csv"], "exists already"),
    "folder-in-the-way": (["run", "target.npz", "--out", "d.csv"], "a folder is in the way"),
    "no-folder": (["run", "target.npz", "--out", "no/labels.csv"], "there is no folder no"),
    "no-run": (["runn", "target.npz", "--out", "labels.csv"], "no such run folder"),
    "no-file": (["run", "x.npz", "--out", "labels.csv"], "no such file"),
    "width": (["run", "wide.npz", "--out", "labels.csv"], "9 features, but the model has 4"),
    "id": (["run", "target.npz", "--out", "labels.csv", "--id-column", "z"], "no array 'z'"),
    "key": (["run", "target.npz", "--out", "labels.csv", "--features-key", "z"], "no array 'z'"),
}


def test_wrong_use_of_predict(workplace, capsys):
    run_fit()
    np.savez("wide.npz", X=np.ones((3, 9)))
    (workplace / "d.csv").mkdir()
    before = names_in(workplace)
    capsys.readouterr()
    for case, (arguments, words) in WRONG_PREDICTS.items():
        assert main(["predict", *arguments]) == 2, case
        err = capsys.readouterr().err
        assert err.startswith("error: "), case
        assert words in err, case
        assert len(err.splitlines()) == 1, case
        assert names_in(workplace) == before, case


def test_wrong_use_of_evaluate(workplace, capsys):
    run_fit()
    for arguments, words in [
        (["--labels", "truth.npz", "--id-column", "file_name"], "has no ids"),
        (["--labels", "truth.npz", "--label-column", "z"], "no array 'z'"),
        (["--labels", "x.csv"], "no such file"),
        ([], "Missing option '--labels'"),
    ]:
        capsys.readouterr()
        assert main(["evaluate", "run", *arguments]) == 2
        assert words in capsys.readouterr().err
    assert "metrics.json" not in names_in(workplace / "run")


# failures and interruptions -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (RuntimeError("boom\nsecond line"), 1, "RuntimeError: boom second line (run again with"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
        (MemoryError(), 1, "out of memory"),
        (KeyboardInterrupt(), 130, "interrupted; nothing was written"),
    ],
)
def test_failures_leave_one_line_and_nothing_else(
    workplace, capsys, monkeypatch, error, code, words
):
    from opensetda.runs import folder

    def fail(*_):
        raise error

    monkeypatch.setattr(folder, "environment", fail)
    before = names_in(workplace)
    assert main([*FIT, *OPENNESS]) == code
    err = capsys.readouterr().err
    assert words in err.splitlines()[-1]
    assert "Traceback" not in err
    assert names_in(workplace) == before


def test_debug_shows_the_traceback(workplace, capsys):
    assert main([*FIT, "--openness", "2", "--debug"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("error: ")


def test_aborts_of_older_typer_releases_count_as_interruptions(capsys, monkeypatch):
    import typer

    def abort(**_):
        raise typer.Abort

    monkeypatch.setattr("opensetda.cli.main.app", abort)
    assert main([]) == 130
    assert "interrupted" in capsys.readouterr().err


SLOW = """
import sys, time
from opensetda.baselines.class_means import ProgressiveClassMeans
from opensetda.cli.main import run
from opensetda.runs import folder
def slow(record):
    sys.stderr.write("writing\\n"); sys.stderr.flush(); time.sleep(60)
folder.environment = slow
run()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_leave_nothing_behind(workplace, number, code):
    before = names_in(workplace)
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, *FIT, *OPENNESS], stderr=subprocess.PIPE, text=True
    )
    for line in process.stderr:
        if line == "writing\n":
            break
    assert names_in(workplace) != before
    process.send_signal(number)
    rest = process.stderr.read()
    assert process.wait(timeout=30) == code
    assert "Traceback" not in rest
    assert names_in(workplace) == before


def test_the_entry_point_returns_the_exit_code():
    code = "from opensetda.cli.main import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"osda {__version__}\n"


# progress -------------------------------------------------------------------------------------


def test_events_know_how_far_they_are():
    assert ProgressEvent(1, 10).fraction == 0.1
    assert ProgressEvent(1, 10, 0, 5).fraction == 0
    assert ProgressEvent(10, 10, 5, 5).fraction == 1


def test_progress_is_one_line_a_step_where_there_is_no_terminal(capsys):
    with console.progress_listener("pgl") as listen:
        for step in (1, 2):
            for iteration in (1, 2, 3, 3):
                listen(ProgressEvent(step, 2, iteration, 3, loss=0.5))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("pgl: step 1/2  loss 0.500  0 s, about 0 s left")


def test_progress_is_a_bar_on_a_terminal(monkeypatch):
    screen = Console(file=io.StringIO(), force_terminal=True, width=120)
    with console._bar(screen, "pgl") as listen:
        listen(ProgressEvent(3, 10, 2, 5, loss=0.25, message="ranking"))
        time.sleep(0.15)
    shown = screen.file.getvalue()
    assert "step 3/10, iteration 2/5, loss 0.250, ranking" in shown


def test_a_terminal_gets_the_bar(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with console.progress_listener("pgl") as listen:
        listen(ProgressEvent(1, 1))
    assert "\x1b[" in capsys.readouterr().err


def test_steps_show_what_a_method_has(capsys):
    history = [
        {"n_known": 5, "n_unknown": 4, "changed": None, "loss": {"a": 1.0, "b": 2.0}, "seconds": 1},
        {"n_known": 9, "n_unknown": 8, "changed": 0.25, "loss": None, "seconds": 1.5},
    ]
    console.show(console.step_table(history))
    out = capsys.readouterr().out
    for cell in ("changed %", "25.0", "3.000", "1.5", " - "):
        assert cell in out
    assert "mean score" not in out


def test_text_that_is_not_utf8_is_wrong_use(workplace, capsys):
    text = (workplace / "source.csv").read_text()
    (workplace / "source.csv").write_bytes(text.replace("f0", "größe", 1).encode("latin-1"))
    assert main([*FIT_CSV, *OPENNESS]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: source.csv")
    assert "UTF-8" in error


def test_labels_of_broken_bytes_are_wrong_use(workplace, capsys):
    with np.load("source.npz") as file:
        X = file["X"]
    np.savez("source.npz", X=X, y=np.array([b"\xff", b"a"])[np.arange(len(X)) % 2])
    assert main([*FIT, *OPENNESS]) == 2
    assert "UTF-8" in capsys.readouterr().err


def test_a_seed_beyond_32_bits_is_wrong_use(workplace):
    assert main([*FIT, *OPENNESS, "--seed", "99999999999"]) == 2
    assert not (workplace / "run").exists()
