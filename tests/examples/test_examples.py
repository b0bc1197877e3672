"""Every example runs, small, through its ``main``, and prints what the documentation says it prints."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
import torch

from pyg_kpnn.datasets import CuratedGRN, curated_graph

EXAMPLES = Path(__file__).parents[2] / "examples"
Printed = Callable[..., str]


@pytest.fixture(autouse=True)
def _torch_as_before():
    """Examples seed torch and choose its threads, as scripts may; tests after them must not notice."""
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    """Run an example with the given arguments; what it printed."""

    def run(name: str, *argv: object) -> str:
        load(name).main([str(word) for word in argv])
        return capsys.readouterr().out

    return run


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def listed_edges(output: str) -> list[list[tuple[str, str]]]:
    """(source, target) of every table of strongest edges."""
    tables = output.split("Strongest edges in ")[1:]
    return [re.findall(r"^ *(\S+) → +(\S+) ", table, flags=re.MULTILINE) for table in tables]


def test_every_example_is_tested() -> None:
    here, derivatives = {"quickstart", "stack_in_pyg", "from_networkx"}, {"interactions", "poisson"}
    distributed = {"train_ddp"}  # tests/train
    assert {path.stem for path in EXAMPLES.glob("*.py")} - distributed == here | derivatives


def test_quickstart_prints_accuracy_edges_and_refusal(printed: Printed) -> None:
    output = printed("quickstart", "--cells", 200, "--epochs", 2)
    assert re.search(r"accuracy 0\.\d{3}\n", output)
    assert re.search(r"0\.\d{3} logistic regression, without a prior; 0\.\d{3} commonest class", output)
    assert "SIMULATED" in output
    assert "no evidence that a regulator causes anything" in output
    tables = listed_edges(output)
    assert [len(table) for table in tables] == [10, 10]
    assert {edge for table in tables for edge in table} <= set(curated_graph("hsc").edges)
    assert "equal predictions" in output
    assert "cJun renamed to cJun_renamed refuses it" in output
    assert "The checkpoint must come from the same graph" in output
    assert curated_graph("hsc").fingerprint[:12] in output


def test_quickstart_prints_the_same_twice(printed: Printed) -> None:
    once, again = (printed("quickstart", "--cells", 100, "--epochs", 1, "--seed", 3) for _ in range(2))
    clock = re.compile(r"in \d+ s$", flags=re.MULTILINE)
    assert clock.sub("", once) == clock.sub("", again)


def test_quickstart_learns(printed: Printed) -> None:
    output = printed("quickstart", "--cells", 600, "--epochs", 8)
    accuracy, linear, majority = map(float, re.findall(r"0\.\d{3}", output.split("Held out")[1])[:3])
    assert accuracy > majority + 0.1
    assert linear > majority + 0.1


def test_quickstart_takes_files_of_ones_own(printed: Printed, tmp_path: Path) -> None:
    """Other column names, signs as words, missing values and labels, columns that are no nodes."""
    cells = CuratedGRN(name="mcad", num_cells=120)
    table = cells.to_frame(label="region")
    table.iloc[::5, 2] = float("nan")
    table.iloc[0, -1] = None
    table.assign(batch="a").to_csv(tmp_path / "cells.csv")
    edges = cells.graph.to_edgelist()
    edges["sign"] = edges["sign"].map({1: "activation", -1: "repression"})
    edges.columns = ["tf", "gene", "mode"]
    edges.to_csv(tmp_path / "net.tsv", sep="\t", index=False)

    output = printed(
        "quickstart", "--prior", tmp_path / "net.tsv", "--source", "tf", "--target", "gene", "--sign", "mode",
        "--measurements", tmp_path / "cells.csv", "--label", "region",
        "--epochs", 1, "--out", tmp_path / "out",
    )  # fmt: skip
    assert "SIMULATED" not in output
    assert {edge for table in listed_edges(output) for edge in table} <= set(cells.graph.edges)
    saved = torch.load(tmp_path / "out" / "model.pt", weights_only=True)
    assert saved["graph"] == cells.graph.to_dict()


@pytest.fixture
def own_files(tmp_path: Path) -> tuple[Path, Path]:
    """A prior with a sign column, and cells with a column ``fate``."""
    cells = CuratedGRN(name="mcad", num_cells=80)
    cells.to_frame(label="fate").to_csv(tmp_path / "cells.csv")
    cells.graph.to_edgelist().to_csv(tmp_path / "net.csv", index=False)
    return tmp_path / "net.csv", tmp_path / "cells.csv"


@pytest.mark.parametrize("column_there", [True, False])
def test_quickstart_runs_on_a_prior_without_signs(
    printed: Printed, own_files: tuple[Path, Path], column_there: bool
) -> None:
    net, cells = own_files
    chosen: list[str] = ["--sign", ""]
    if not column_there:
        pd.read_csv(net)[["source", "target"]].to_csv(net, index=False)
        chosen = []
    output = printed("quickstart", "--prior", net, *chosen, "--measurements", cells, "--epochs", 1)
    assert "sign" not in output.split("Strongest edges")[1]
    assert "refuses it" in output


def test_quickstart_reads_a_column_called_sign(printed: Printed, own_files: tuple[Path, Path]) -> None:
    net, cells = own_files
    output = printed("quickstart", "--prior", net, "--measurements", cells, "--epochs", 1)
    assert "sign" in output.split("Strongest edges")[1]


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        (None, ["--label", "type"], "cells.csv must have the column 'type'.*no node of the prior: .*fate"),
        (None, ["--sign", "mode"], "--prior: .*'mode'"),
        ({"fate": "a"}, [], "'fate' must have two classes or more.*Got 1 class"),
        ({"fate": range(80)}, [], "'fate' must have two classes or more.*Got 80 class"),
        ({"Pax6": ["0.5", "high"] * 40}, [], "column 'Pax6' must hold numbers or empty cells. Got 'high'"),
        ({"Pax6": None}, [], "--measurements: Every node must have a column of its name.*'Pax6'"),
    ],
)
def test_quickstart_says_what_is_wrong_with_files(
    printed: Printed, own_files: tuple[Path, Path], change: dict | None, arguments: list[str], message: str
) -> None:
    net, cells = own_files
    table = pd.read_csv(cells)
    if change == {"Pax6": None}:
        table = table.drop(columns="Pax6")
    elif change:
        table = table.assign(**change)
    table.to_csv(cells, index=False)
    with pytest.raises(SystemExit, match=message):
        printed("quickstart", "--prior", net, "--measurements", cells, "--epochs", 1, *arguments)


def test_quickstart_wants_prior_and_measurements_together(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load("quickstart").main(["--prior", "net.csv"])
    assert "--prior and --measurements go together" in capsys.readouterr().err


def test_quickstart_runs_without_tqdm(printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)  # importing it now raises ImportError
    assert "refuses it" in printed("quickstart", "--cells", 60, "--epochs", 1)


def test_quickstart_splits_every_class_alike() -> None:
    labels = torch.tensor([0] * 40 + [1] * 8 + [2] * 4)
    train, held_out = load("quickstart").stratified_split(labels, seed=0)
    assert labels[held_out].bincount().tolist() == [10, 2, 1]
    assert sorted(torch.cat([train, held_out]).tolist()) == list(range(52))


def test_stack_in_pyg_beats_the_untrained_model(printed: Printed) -> None:
    output = printed("stack_in_pyg", "--epochs", 40)
    assert "PriorAttentionConv(32, 8, heads=4)" in output
    before, after = map(float, re.findall(r"(0\.\d{3}) (?:untrained|after)", output))
    assert after > before
    assert "Node 0 attends most to node" in output


def test_stack_in_pyg_reads_planetoid(printed: Printed, data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "Cora").mkdir()
    shutil.copytree(
        data_dir / "pyg" / "Planetoid" / "Cora" / "raw",
        tmp_path / "Cora" / "raw",
        copy_function=shutil.copyfile,  # the folder may be read-only, its copy must not be
    )
    output = printed("stack_in_pyg", "--root", tmp_path, "--epochs", 2)
    assert "Data(x=[2708, 1433]" in output
    assert "Accuracy on 1000 nodes" in output


def test_from_networkx_prints_weights_by_name(printed: Printed) -> None:
    output = printed("from_networkx", "--steps", 60)
    rows = re.findall(r"^ +(\S+) ([+-]) (\S+) +(0\.\d{3}|1\.000)$", output, flags=re.MULTILINE)
    example = load("from_networkx")
    assert {(source, target) for source, sign, target, _ in rows if sign == "+"} == set(example.ACTIVATES)
    assert {(source, target) for source, sign, target, _ in rows if sign == "-"} == set(example.REPRESSES)
    weights = pd.Series([float(row[3]) for row in rows])
    assert weights.is_monotonic_decreasing
    assert float(re.search(r"samples: (\d\.\d{3})", output)[1]) > 0.7  # type: ignore[index]


PICTURES = {
    "quickstart": (
        ["--cells", 60, "--epochs", 1],
        {"network.png", "classes.png", "training.png", "network.html"},
    ),
    "stack_in_pyg": (["--epochs", 2], {"attention.png", "training.png"}),
    "from_networkx": (["--steps", 2], {"attention.png"}),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_saved_where_asked(printed: Printed, name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("plotly")
    arguments, expected = PICTURES[name]
    output = printed(name, *arguments, "--figures", tmp_path / "new" / "folder")
    assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} == expected
    assert all(file in output for file in expected)


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_left_out_without_matplotlib(
    printed: Printed, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    output = printed(name, *PICTURES[name][0], "--figures", tmp_path / "new")
    assert "No picture" in output
    assert not (tmp_path / "new").exists()


def test_pictures_do_not_change_what_is_learnt(printed: Printed, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("plotly")
    arguments = ["--cells", 100, "--epochs", 2]
    plain, drawn = printed("quickstart", *arguments), printed("quickstart", *arguments, "--figures", tmp_path)
    assert re.findall(r"0\.\d{3}", plain) == re.findall(r"0\.\d{3}", drawn)
