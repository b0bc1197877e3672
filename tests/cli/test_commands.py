"""Every command once through, and what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from pyg_kpnn import PriorGraphError

NET = ("--source", "tf", "--target", "gene", "--sign", "mor")
FIT = ("fit", "--prior", "net.csv", *NET, "--data", "cells.csv", "--label", "state", "--quiet")
SMALL = ("--epochs", "3", "--embed-dim", "8", "--num-heads", "2", "--num-layers", "1", "--batch-size", "16")


@pytest.fixture
def fitted(folder, kpnn):
    pytest.importorskip("lightning")
    status, _, err = kpnn(*FIT, *SMALL, "--out", "run")
    assert status == 0, err
    return folder / "run"


def test_check_says_what_is_in_a_prior(folder, kpnn):
    status, out, _ = kpnn("check", "net.csv", *NET, "--features", "cells.csv")
    assert status == 0
    assert "5" in next(line for line in out.splitlines() if "rows read" in line)
    assert "every name" in out or "matched" in out


def test_check_as_json(folder, kpnn):
    status, out, err = kpnn("check", "net.csv", *NET, "--features", "cells.csv", "--json")
    found = json.loads(out)
    assert (status, err) == (0, "")
    assert (found["prior"]["nodes"], found["prior"]["edges"]) == (4, 5)
    assert found["features"]["missing"] == []


def test_check_ends_with_an_error_above_the_loss(folder, kpnn):
    (folder / "few.csv").write_text("A,B\n1,2\n")
    status, out, err = kpnn("check", "net.csv", *NET, "--features", "few.csv", "--max-loss", "0.1")
    assert status == 1
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_fit_writes_a_folder(fitted, kpnn):
    names = {path.name for path in fitted.iterdir()}
    assert names >= {"model.ckpt", "history.csv", "run.json", "split.csv"}
    run = json.loads((fitted / "run.json").read_text())
    assert run["samples"] == {"train": 42, "validation": 8, "test": 10} or sum(run["samples"].values()) == 60
    assert run["classes"] == {"down": 30, "up": 30}
    split = pd.read_csv(fitted / "split.csv")
    assert sorted(split["sample"]) == sorted(f"cell {i}" for i in range(60))
    assert split["part"].value_counts().to_dict() == run["samples"]
    assert not [path for path in fitted.parent.iterdir() if path.name.startswith(".")]


def test_the_test_score_is_that_of_the_model_on_the_held_out_samples(fitted):
    from pyg_kpnn import datasets
    from pyg_kpnn.train import load

    module = load(fitted / "model.ckpt")
    cells = datasets.from_frame(pd.read_csv("cells.csv", index_col=0), module.graph, "state")
    split = pd.read_csv(fitted / "split.csv")
    held_out = set(split["sample"][split["part"] == "test"])
    places = [i for i, name in enumerate(cells.sample_names) if name in held_out]
    x, y, _ = cells[places].tensors()
    right = (module.predict(x).argmax(1) == y).double().mean()
    run = json.loads((fitted / "run.json").read_text())
    assert run["test"]["accuracy"] == pytest.approx(float(right))
    assert module.class_names == ("down", "up")


def test_one_seed_one_result(fitted, folder, kpnn):
    kpnn(*FIT, *SMALL, "--out", "again")
    first, second = (json.loads((folder / name / "run.json").read_text()) for name in ("run", "again"))
    assert first == second
    kpnn(*FIT, *SMALL, "--out", "other", "--seed", "1")
    assert json.loads((folder / "other/run.json").read_text())["test"] != {}
    assert (folder / "other/split.csv").read_text() != (folder / "run/split.csv").read_text()


def test_without_a_label_hidden_values_are_restored(folder, kpnn):
    pytest.importorskip("lightning")
    table = pd.read_csv("cells.csv", index_col=0).drop(columns="state")
    table.to_csv("plain.csv")
    command = ("fit", "--prior", "net.csv", *NET, "--data", "plain.csv", *SMALL, "--out", "run", "--json")
    status, out, err = kpnn(*command)
    assert (status, err) == (0, "")
    assert set(json.loads(out)["test"]) == {"mae", "r2"}


def test_one_class_is_nothing_to_learn(folder, kpnn):
    pytest.importorskip("lightning")
    pd.read_csv("cells.csv", index_col=0).assign(state="up").to_csv("alike.csv")
    command = ("fit", "--prior", "net.csv", *NET, "--data", "alike.csv", "--label", "state", "--out", "run")
    status, out, err = kpnn(*command)
    assert (status, out) == (1, "")
    assert "--label must have at least two classes. Got 1" in err


def test_explain_writes_named_weights(fitted, kpnn):
    command = ("explain", fitted, "--data", "cells.csv", "--label", "state", "--out", "answers")
    status, out, err = kpnn(*command, "--compare", "up", "down", "--permutations", "19", "--json")
    assert status == 0, err
    strongest = json.loads(out)
    assert {"source", "target", "weight", "std"} == set(strongest[0])
    every = pd.read_csv("answers/edge_weights.csv")
    into = every.groupby(["layer", "head", "target"])["weight"].sum()
    assert into.to_numpy() == pytest.approx(1.0, abs=1e-5)  # loops that the model adds included
    mean = every[every["layer"] == every["layer"].max()].groupby(["source", "target"])["weight"].mean()
    for row in strongest:
        assert mean[row["source"], row["target"]] == pytest.approx(row["weight"], abs=1e-6)
    assert [row["weight"] for row in strongest] == sorted((row["weight"] for row in strongest), reverse=True)
    assert set(pd.read_csv("answers/edge_weights_by_group.csv")["group"]) == {"up", "down"}
    compared = pd.read_csv("answers/differential_edges.csv")
    assert compared.filter(like="p").notna().all().all()


def test_pictures_are_written_where_matplotlib_is(fitted, kpnn):
    pytest.importorskip("matplotlib")
    pytest.importorskip("plotly")
    status, _, err = kpnn(
        "explain", fitted / "model.ckpt", "--data", "cells.csv", "--label", "state", "--out", "a"
    )
    assert status == 0, err
    for name in ("a/subgraph.png", "a/groups.png", "run/training.png"):
        assert Path(name).read_bytes().startswith(b"\x89PNG"), name
    assert "plotly" in Path("a/network.html").read_text(encoding="utf-8")


def test_knockout_names_nodes_and_classes(fitted, kpnn):
    status, out, _ = kpnn("knockout", fitted, "--data", "cells.csv", "--nodes", "A,B + C", "--json")
    rows = json.loads(out)
    assert status == 0
    assert {(row["node"], row["output"]) for row in rows} == {
        (node, output) for node in ("A", "B + C") for output in ("up", "down")
    }
    kpnn("knockout", fitted, "--data", "cells.csv", "--out", "all.csv")
    assert len(pd.read_csv("all.csv")) == 4 * 2


def test_bench_and_info(kpnn):
    small = ("--nodes", "50", "--edges", "200", "--samples", "2", "--rounds", "1", "--json")
    status, out, _ = kpnn("bench", *small)
    rows = {row["backend"]: row for row in json.loads(out)}
    assert status == 0
    assert rows["torch"]["× torch"] == 1
    assert all(row["forward + backward"] > row["forward"] > 0 for row in rows.values())
    status, out, _ = kpnn("info", "--json")
    assert json.loads(out)["backends"]["torch"] == "yes"


BAD = [
    (("check", "none.csv"), "none.csv"),
    (("check", "cells.csv"), "source"),
    (("check", "net.docx"), "net.docx"),
    ((*FIT, "--out", "run", "--label", "stat"), "state"),
    ((*FIT[:-3], "--label", "A", "--out", "run"), "'A'"),
    (("fit", "--prior", "net.csv", *NET, "--data", "few.csv", "--out", "run"), "--missing|missing="),
    (("fit", "--prior", "net.csv", *NET, "--data", "twice.csv", "--out", "run"), "'A'"),
    ((*FIT, "--out", "."), "--force"),
    ((*FIT, "--out", ".", "--force"), "other files"),
    (("explain", "net.csv", "--data", "cells.csv", "--out", "a"), "net.csv"),
    (("explain", "run", "--data", "cells.csv", "--out", "a"), "run"),
    (("bench", "--edges", "0"), "--edges"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD, ids=range(len(BAD)))
def test_bad_input_is_one_line_and_a_status(folder, kpnn, arguments, said):
    pytest.importorskip("lightning")
    (folder / "net.docx").write_text("")
    (folder / "few.csv").write_text("A,B\n1,2\n3,4\n")
    (folder / "twice.csv").write_text("A,B,C,D,A\n1,2,3,4,5\n")
    before = sorted(path.name for path in folder.iterdir())
    status, out, err = kpnn(*arguments)
    assert status == 1
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert any(part in err for part in said.split("|")), err
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_results_folder_is_replaced_only_when_asked(fitted, folder, kpnn):
    before = (fitted / "run.json").read_bytes()
    assert kpnn(*FIT, *SMALL, "--out", "run", "--seed", "1")[0] == 1
    assert (fitted / "run.json").read_bytes() == before
    assert kpnn(*FIT, *SMALL, "--out", "run", "--seed", "1", "--force")[0] == 0
    assert (fitted / "run.json").read_bytes() != before
    assert sorted(path.name for path in folder.iterdir()) == ["cells.csv", "net.csv", "run"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(folder, how):
    pytest.importorskip("lightning")
    code = "from pyg_kpnn.cli import main; main()"
    command = [sys.executable, "-W", "ignore", "-c", code, *FIT, "--epochs", "100000", "--patience", "100000"]
    running = subprocess.Popen(
        [*command, "--out", "run"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # A shell that starts tests in the background lets them ignore Ctrl-C, which is handed on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 240
        while not any(path.name.endswith(".part") for path in folder.iterdir()):
            assert running.poll() is None, running.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(3)  # into the training
        while running.poll() is None:  # one that falls into a clean-up of Python's own may be lost
            assert time.monotonic() < deadline
            running.send_signal(how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(10)
        assert running.returncode != 0
    finally:
        running.kill()
        running.wait()
        running.stderr.close()
    assert sorted(path.name for path in folder.iterdir()) == ["cells.csv", "net.csv"]


def test_the_entry_point_is_installed():
    from importlib.metadata import entry_points

    found = [entry for entry in entry_points(group="console_scripts") if entry.name == "pyg-kpnn"]
    assert [entry.value for entry in found] == ["pyg_kpnn.cli:main"]
    assert issubclass(PriorGraphError, ValueError)


def test_audit_prints_and_writes_a_report(folder, kpnn):
    pytest.importorskip("matplotlib")
    how = ("--prior", "net.csv", *NET, "--data", "cells.csv", "--label", "state", "--n", "3", "--steps", "2")
    status, out, err = kpnn("audit", *how, "--null", "labels, density", "--out", "audited", "--quiet")
    assert status == 0, err
    assert "balanced accuracy" in out
    assert {path.name for path in (folder / "audited").iterdir()} == {"run.json", "nulls.csv", "audit.png"}
    run = json.loads((folder / "audited" / "run.json").read_text())
    assert [(null["null"], null["n"]) for null in run["nulls"]] == [("labels", 3), ("density", 3)]
    assert list(pd.read_csv(folder / "audited" / "nulls.csv")["null"]) == ["labels", "density"]
    status, out, _ = kpnn("audit", *how, "--null", "labels, density", "--json")
    assert json.loads(out) == run


def test_audit_trains_as_long_as_it_is_told(folder, kpnn):
    how = (
        "--prior",
        "net.csv",
        *NET,
        "--data",
        "cells.csv",
        "--label",
        "state",
        "--n",
        "1",
        "--quiet",
        "--json",
    )
    scores = {steps: json.loads(kpnn("audit", *how, "--steps", steps)[1])["score"] for steps in ("1", "60")}
    assert scores["60"] > 0.9 > scores["1"]  # the class is where A is high


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--null", "wheel"), "null"),
        (("--steps", "0"), "steps"),
        (("--n", "0"), "'n'"),
        (("--level", "2"), "level"),
    ],
)
def test_audit_of_bad_options_leaves_nothing(folder, kpnn, options, said):
    before = sorted(folder.iterdir())
    how = ("--prior", "net.csv", *NET, "--data", "cells.csv", "--label", "state", *options)
    status, out, err = kpnn("audit", *how, "--out", "audited", "--quiet")
    assert (status, out) == (1, "")
    assert said in err
    assert sorted(folder.iterdir()) == before


def test_what_a_fit_leaves_out_is_told(folder, kpnn):
    pytest.importorskip("lightning")
    frame = pd.read_csv("cells.csv", index_col=0).rename(columns={"C": "c"})
    frame["state"] = frame["state"].where(frame.index != "cell 7")
    frame.to_csv("odd.csv")
    how = ("fit", "--prior", "net.csv", *NET, "--data", "odd.csv", "--label", "state", "--quiet", *SMALL)
    status, _, err = kpnn(*how, "--out", "run")
    assert (status, err.count("\n")) == (1, 1)
    assert "'cell 7'. Fill them in, or pass --missing-labels drop." in err
    status, _, err = kpnn(*how, "--missing-labels", "drop", "--out", "run")
    assert (status, err.count("\n")) == (1, 1)
    assert "'C' (case: 'c'). Pass --missing mask to mask them" in err
    assert "rename first (--rename auto)" in err
    status, _, err = kpnn(*how, "--missing", "restrict", "--missing-labels", "drop", "--out", "run")
    assert status == 0
    assert "note: 1 of the 1 nodes that are not measured seem to be in the table under another name" in err
    assert "edges lost        2 of 5 (40.0%)" in err
    assert "samples dropped   1, without a label: cell 7" in err
    assert json.loads(Path("run/run.json").read_text())["graph"]["nodes"] == 3
    for rename in ("auto", "C=c"):
        status, _, err = kpnn(*how, "--rename", rename, "--missing-labels", "drop", "--out", f"run {rename}")
        assert status == 0, err
        assert "edges lost" not in err
        assert json.loads(Path(f"run {rename}/run.json").read_text())["graph"]["nodes"] == 4
    status, _, err = kpnn(*how, "--rename", "C", "--out", "run C")
    assert (status, err) == (1, "error: --rename must be OLD=NEW, with commas between. Got 'C'.\n")


def test_a_first_column_of_texts_names_the_samples(folder, kpnn):
    pytest.importorskip("lightning")
    frame = pd.read_csv("cells.csv", index_col=0)
    frame.rename_axis("patient").reset_index().to_csv("named.csv", index=False, sep=";")
    how = ("fit", "--prior", "net.csv", *NET, "--data", "named.csv", "--label", "state", "--quiet", *SMALL)
    status, _, err = kpnn(*how, "--out", "run")
    assert (status, err) == (
        1,
        "error: The columns of named.csv must have ',' between them. Got one column, "
        "'patient;D;state;B;A;C'. Pass --sep ;.\n",
    )
    assert kpnn(*how, "--sep", ";", "--out", "run")[0] == 0
    assert sorted(pd.read_csv("run/split.csv")["sample"]) == sorted(frame.index)
    status, _, err = kpnn("explain", "run", "--data", "named.csv", "--sep", ";", "--out", "answers")
    assert status == 0, err


def test_a_turned_table_is_known_by_its_names(folder, kpnn):
    frame = pd.read_csv("cells.csv", index_col=0)
    frame.T.rename_axis("gene").to_csv("turned.csv")
    status, _, err = kpnn("audit", "--prior", "net.csv", *NET, "--data", "turned.csv", "--label", "state")
    assert status == 1
    assert err.rstrip().endswith("Pass --genes-in-rows.")


def test_loops_of_the_model_are_in_no_picture_of_groups(folder, kpnn, fitted, monkeypatch):
    pytest.importorskip("matplotlib")
    from pyg_kpnn import explain

    drawn = []
    real = explain.plot_edge_heatmap
    monkeypatch.setattr(
        explain, "plot_edge_heatmap", lambda table, **how: drawn.append(table) or real(table, **how)
    )
    status, _, err = kpnn("explain", fitted, "--data", "cells.csv", "--label", "state", "--out", "answers")
    assert status == 0, err
    pairs = set(zip(drawn[0]["source"].astype(str), drawn[0]["target"].astype(str), strict=True))
    assert pairs == {("A", "B"), ("A", "C"), ("B", "D"), ("C", "D"), ("D", "A")}
    assert set(drawn[0]["group"]) == {"up", "down"}


def test_edges_both_ways_on_request(folder, kpnn):
    pytest.importorskip("lightning")
    from pyg_kpnn.train import load

    status, _, err = kpnn(*FIT, *SMALL, "--undirected", "--out", "both")
    assert status == 0, err
    edges = {("A", "B"), ("A", "C"), ("B", "D"), ("C", "D"), ("D", "A")}
    assert set(load(Path("both", "model.ckpt")).model.graph.edges) == edges | {(t, s) for s, t in edges}
    assert json.loads(Path("both", "run.json").read_text())["settings"]["undirected"] is True
    status, _, err = kpnn("explain", "both", "--data", "cells.csv", "--out", "answers")
    assert status == 0, err


def test_a_head_is_shared_on_request(folder, kpnn):
    pytest.importorskip("lightning")
    from pyg_kpnn.train import load

    for options, shared in (((), False), (("--shared-head",), True)):
        status, _, err = kpnn(*FIT, *SMALL, *options, "--out", str(shared))
        assert status == 0, err
        assert load(Path(str(shared), "model.ckpt")).model.shared_head is shared
