"""Raw tables and cached files of the datasets, damaged or made by somebody else.

``PYG_KPNN_SWEEP`` sets how many files the long sweeps damage.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import random
import shutil
import zipfile
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from pyg_kpnn import PriorGraphError
from pyg_kpnn.datasets import CuratedGRN, curated_graph, tables
from pyg_kpnn.datasets.tables import read_tables, table_path

SWEEP = int(os.environ.get("PYG_KPNN_SWEEP", "200000"))
CELLS = {"name": "mcad", "num_cells": 20}


def second_parser():
    path = Path(__file__).parents[1] / "fuzz" / "edgelists.py"
    spec = importlib.util.spec_from_file_location("fuzz_edgelists_of_datasets", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------- cached files


class Bomb:
    """Unpickling it leaves a mark."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def cached(root):
    CuratedGRN(root, **CELLS)
    return {path.name: path for path in root.rglob("*.pt")}


@pytest.mark.parametrize("form", ["torch.save", "pickle"])
@pytest.mark.parametrize("name", ["data.pt", "table.pt", "pre_transform.pt", "pre_filter.pt"])
def test_no_pickle_below_root_is_run(tmp_path, name, form):
    path, mark = cached(tmp_path / "root")[name], tmp_path / "mark"
    if form == "torch.save":
        torch.save(Bomb(mark), path)
    else:
        path.write_bytes(pickle.dumps(Bomb(mark)))
    with pytest.raises(PriorGraphError, match=rf"plain data.*{name}.*force_reload=True"):
        CuratedGRN(tmp_path / "root", **CELLS)
    assert not mark.exists()
    CuratedGRN(tmp_path / "root", **CELLS, force_reload=True)
    assert len(CuratedGRN(tmp_path / "root", **CELLS)) == 20
    assert not mark.exists()


def test_the_bomb_of_these_tests_goes_off(tmp_path):
    torch.save(Bomb(tmp_path / "mark"), tmp_path / "file")
    torch.load(tmp_path / "file", weights_only=False)
    assert (tmp_path / "mark").exists()


class MyData(Data):
    pass


def test_a_class_of_ones_own_in_the_cache_has_to_be_let_in(tmp_path):
    def mine(data):
        return MyData(**data.to_dict())

    with pytest.raises(PriorGraphError, match=r"MyData in .*add_safe_globals"):
        CuratedGRN(tmp_path, **CELLS, pre_transform=mine)
    if not hasattr(torch.serialization, "safe_globals"):
        pytest.skip("this torch lets classes in for good only")
    with torch.serialization.safe_globals([MyData]):
        assert isinstance(CuratedGRN(tmp_path, **CELLS, pre_transform=mine)[0], MyData)


def test_another_transform_than_the_cached_one_is_told(tmp_path):
    class Scale:
        def __init__(self, factor):
            self.factor = factor

        def __repr__(self):
            return f"Scale({self.factor})"

        def __call__(self, data):
            data.x = data.x * self.factor
            return data

    two = CuratedGRN(tmp_path, **CELLS, pre_transform=Scale(2))
    assert torch.equal(CuratedGRN(tmp_path, **CELLS, pre_transform=Scale(2))[0].x, two[0].x)
    with pytest.warns(UserWarning, match="another pre_transform"):
        CuratedGRN(tmp_path, **CELLS, pre_transform=Scale(3))


def test_an_interrupted_write_leaves_no_half_a_file(tmp_path, monkeypatch):
    def half(value, file):
        file.write(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", half)
        with pytest.raises(KeyboardInterrupt):
            CuratedGRN(tmp_path, **CELLS)
    assert not list(tmp_path.rglob("*.p*t"))
    assert len(CuratedGRN(tmp_path, **CELLS)) == 20


@pytest.mark.parametrize("key", ["expression", "labels", "class_names", "names"])
@pytest.mark.parametrize(
    "value", [None, torch.zeros(3), torch.full((20,), 7), [1, 2], torch.zeros(20, 4), "ab"]
)
def test_a_table_that_is_none_of_these_cells_is_refused(tmp_path, key, value):
    path = cached(tmp_path)["table.pt"]
    torch.save({**torch.load(path, weights_only=True), key: value}, path)
    with pytest.raises(PriorGraphError, match=r"table.*5 genes.*force_reload=True"):
        CuratedGRN(tmp_path, **CELLS)


@pytest.mark.parametrize(
    "value", [(), 3, ({}, None, dict), ({}, {}, Data), ({"x": torch.ones(3)}, None, Data)]
)
def test_graphs_that_are_none_of_these_cells_are_refused(tmp_path, value):
    path = cached(tmp_path)["data.pt"]
    torch.save(value, path)
    with pytest.raises(PriorGraphError, match=r"one graph for each of the 20 cells"):
        CuratedGRN(tmp_path, **CELLS)


def test_a_compressed_file_is_refused_before_it_grows(tmp_path):
    path = cached(tmp_path)["data.pt"]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data/data.pkl", bytes(10**8))
    assert path.stat().st_size < 10**6
    with pytest.raises(PriorGraphError, match="BadZipFile"):
        CuratedGRN(tmp_path, **CELLS)


def same_cells(one, other):
    return (
        one.class_names == other.class_names
        and torch.equal(one.expression, other.expression)
        and torch.equal(one.labels, other.labels)
        and all(
            a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a.keys())  # noqa: SIM118
            for a, b in zip(one, other, strict=True)
        )
    )


def damaged(rng, data):
    at = rng.randrange(len(data))
    how = rng.choice(["cut", "bit", "zeros", "insert", "drop"])
    if how == "cut":
        return data[:at]
    if how == "bit":
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    if how == "zeros":
        return data[:at] + bytes(min(64, len(data) - at)) + data[at + 64 :]
    return (
        data[:at]
        + (rng.randbytes(rng.randint(1, 9)) if how == "insert" else b"")
        + data[at + (how == "drop") :]
    )


def sweep_cache(seeds, root, capsys):
    cells, files = CuratedGRN(root, **CELLS), sorted(cached(root).values())
    became = Counter()
    for seed in seeds:
        rng = random.Random(seed)
        path = rng.choice(files)
        data = path.read_bytes()
        path.write_bytes(damaged(rng, data))
        try:
            assert same_cells(cells, CuratedGRN(root, **CELLS)), f"seed {seed} changed {path.name}"
            became["equal"] += 1
        except PriorGraphError:
            became["refused"] += 1
        path.write_bytes(data)
    with capsys.disabled():
        print(f"\n{became.total():,} damaged files of a dataset, {became['refused']:,} refused", end=" ")
    assert became["refused"] > became["equal"]


def test_damaged_files_give_the_same_cells_or_an_error(tmp_path, capsys):
    sweep_cache(range(SWEEP // 2_000), tmp_path, capsys)


@pytest.mark.slow
def test_many_damaged_files_give_the_same_cells_or_an_error(tmp_path, capsys):
    sweep_cache(range(10_000, 10_000 + SWEEP // 20), tmp_path, capsys)


# ---------------------------------------------------------------- raw tables


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A folder with the tables of one network, in the place of those that come with the package."""
    monkeypatch.setattr(tables, "_PLACES", (tmp_path, tmp_path / "none"))
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "edges.csv").write_text("source,target,sign\nA,B,-1\nB,A,-1\n")
    (folder / "rules.csv").write_text("gene,rule\nA,not B\nB,not A\n")
    (folder / "states.csv").write_text("role,name,on\nstart,both,A B\nattractor,a,A\n")
    return folder


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("rules.csv", "gene,rule\nA,not B\nB\n", "2 cells; line 3 has 1"),
        ("rules.csv", "gene,rule\nA,not B,B\nB,not A\n", "2 cells; line 2 has 3"),
        ("rules.csv", "gene\nA\n", "columns gene, rule; got gene"),
        ("rules.csv", "", "columns gene, rule; got none"),
        ("rules.csv", "gene,rule\n", "at least one gene"),
        ("rules.csv", "gene,rule\nA,not B # or A\nB,not A\n", "without '#'"),
        ("rules.csv", "gene,rule\nA,not B\0\nB,not A\n", "NUL"),
        ("rules.csv", "gene,rule\nA,not A\nB,not A\n", "fixed point"),
        ("rules.csv", "gene,rule\nA,not B or A\nB,not A\n", "those its rules imply"),
        ("states.csv", "role,name,on\nstart,x,A\nstart,y,B\n", "one start at most"),
        ("states.csv", "role,name,on\nattractor,x,A\nattractor,x,B\n", "different names; 'x'"),
        ("states.csv", "role,name,on\nattracter,x,A\n", "has 'attracter'"),
        ("states.csv", "role,on,name\nattractor,A,a\n", "columns role, name, on"),
        ("edges.csv", "source,target,sign\nA,B,-1\n", "they differ in"),
        ("edges.csv", "source,target,sign\nA,B,-1\nB,A,1\n", "they differ in"),
        ("edges.csv", "source,target,sign\nA,B,-1\nB,A,-1\nB,A,-1\n", "they differ in"),
    ],
)
def test_tables_that_lack_or_hold_too_much_are_refused(toy, file, text, words):
    assert read_tables("toy").attractors == {"a": ("A",)}
    (toy / file).write_text(text)
    with pytest.raises(PriorGraphError, match=words):
        read_tables("toy")


def sweep_tables(seeds, toy, capsys):
    parser = second_parser()
    whole = {name: (toy / name).read_bytes() for name in ("edges.csv", "rules.csv", "states.csv")}
    became = Counter()
    for seed in seeds:
        rng = random.Random(seed)
        name = rng.choice(sorted(whole))
        (toy / name).write_bytes(damaged(rng, whole[name]))
        try:
            got = read_tables("toy")
        except PriorGraphError:
            became["refused"] += 1
        else:
            became["read"] += 1
            rows = {
                each: parser._records((toy / each).read_bytes().decode("utf-8-sig"), ",", None)[1:]
                for each in whole
            }
            rows = {each: [row for row in found if row != [""]] for each, found in rows.items()}
            assert got.network.rules == dict(rows["rules.csv"]), seed
            states = {title: tuple(on.split()) for role, title, on in rows["states.csv"] if role != "start"}
            assert got.attractors == states, seed
            assert sorted((s, t, int(sign)) for s, t, sign in rows["edges.csv"]) == list(
                got.network.edges()
            ), seed
        (toy / name).write_bytes(whole[name])
    with capsys.disabled():
        print(f"\n{became.total():,} damaged tables, {became['refused']:,} refused", end=" ")
    assert became["read"]
    assert became["refused"] > became["read"]


def test_damaged_tables_are_read_right_or_refused(toy, capsys):
    sweep_tables(range(SWEEP // 400), toy, capsys)


@pytest.mark.slow
def test_many_damaged_tables_are_read_right_or_refused(toy, capsys):
    sweep_tables(range(10_000, 10_000 + SWEEP // 4), toy, capsys)


def test_no_path_leads_out_of_the_folder_of_tables(toy):
    outside = toy.parent / "secret.csv"
    outside.write_text("source,target,sign\na,b,1\n")
    for name in ("../toy", "..", "toy/../toy", "/etc", "toy\0", ""):
        with pytest.raises(PriorGraphError, match="one of the curated networks"):
            curated_graph(name)
    with pytest.raises(PriorGraphError, match="must have a table"):
        table_path("toy", "../secret.csv")
    shutil.copy(outside, toy / "secret.csv")
    assert table_path("toy", "../secret.csv") == toy / "secret.csv"
